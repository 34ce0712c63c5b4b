"""Rooms that may be compiled: tests replace nothing in them, and they use nothing that a compiler cannot take.

A compiled function calls its neighbours directly, a compiled class has no interpreted subclasses, and a constant is
part of the code. So fakes enter through the Runtime and through ports, and planted defects as changed source
(`tests/sim/defects.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_tidy import REPOSITORY, name_of

ROOMS = ("wire", "net", "log", "replication", "coordinator", "broker", "client")
PATCHED = {
    "tests/client/core/test_wait_reasons.py: driver": "when a client reports what it waits for: no setting",
    "tests/client/core/test_wait_reasons.py: wait_reasons": "when a client reports what it waits for: no setting",
    "tests/net/test_http.py: http": "the HTTP server of probes is not on the hot path",
}
SUBCLASSED = {"RebalanceListener": "made to be subclassed by users of the client"}
ANNOTATIONS_READ = {"ottla/client/core/settings.py": "once for each kind of client, when the first is made"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def sources(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


def hot(module: str | None) -> bool:
    return module is not None and module.startswith(tuple(f"ottla.{room}." for room in ROOMS))


@cache
def imported(tree: ast.Module) -> set[str]:
    """The names under which a module knows modules, classes and functions of these rooms."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found = [each for each in node.names if hot(node.module) or hot(f"{node.module}.{each.name}.")]
            names |= {each.asname or each.name for each in found}
    return names


def root(expression: ast.expr) -> str:
    """`a` of `a.b[c].d`."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def patched(tree: ast.Module) -> Iterator[str]:
    names = imported(tree)
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(("setattr", "__setattr__")):
            targets = node.args[:1]
        elif isinstance(node, ast.Assign):
            targets = [each.value for each in node.targets if isinstance(each, ast.Attribute)]
        for target in targets:
            if isinstance(target, ast.Constant) and hot(str(target.value)):
                yield str(target.value)
            elif root(target) in names:
                yield root(target)


def test_no_test_patches_a_module_or_class_of_the_hot_path():
    found = {f"{name_of(path)}: {what}" for path in sources("tests") for what in patched(parsed(path))}
    assert found == set(PATCHED)


def test_no_test_replaces_what_a_partition_stands_on():
    """Its log, or a method of that."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources("tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "object.__setattr__"
        and "config" not in ast.unparse(node)
    ]
    assert found == []


def test_no_test_and_no_part_of_the_simulator_subclasses_a_class_of_the_hot_path():
    found = {
        root(base)
        for folder in ("tests", "ottla/sim")
        for path in sources(folder)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if root(base) in imported(parsed(path))
    }
    assert found == set(SUBCLASSED)


def own_nodes(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Without those of functions inside it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def test_the_hot_path_has_no_async_generators():
    found = [
        f"{name_of(path)}:{node.lineno}"
        for room in ROOMS
        for path in sources(f"ottla/{room}")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.AsyncFunctionDef) and any(isinstance(each, ast.Yield) for each in own_nodes(node))
    ]
    assert found == []


def test_the_hot_path_reads_no_annotations_at_run_time():
    found = {
        name_of(path)
        for room in ROOMS
        for path in sources(f"ottla/{room}")
        if any(word in path.read_text() for word in ("get_type_hints", "__annotations__", "get_annotations"))
    }
    assert found == set(ANNOTATIONS_READ)
