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
CALLBACKS = frozenset({"abandoned", "ended", "in_use", "notify"})
"""Attributes that are made to be set."""
REPLACED = {
    "tests/cli/test_output.py: drawn.isatty": "a stream",
    "tests/cli/test_serve.py: broker_main.run": "what the command starts; in a process of its own",
    "tests/client/consuming/test_fetcher.py: run.client.send": "the client of the test",
    "tests/cluster/test_controller_loop.py: cluster._view.store.commit": "the store, not on the hot path",
    "tests/conftest.py: scheduler._split_scope": "of pytest-xdist",
    "tests/coordinator/test_shard.py: machine.replay": "the machine of the test",
    "tests/log/test_manifest.py: disk.rename": "the disk of the runtime",
    "tests/log/test_partition_log.py: log.active.log.sync": "a file of the runtime",
    "tests/log/test_swap.py: disk.rename": "the disk of the runtime",
    "tests/log/test_sync.py: log.disk.write_atomic": "the disk of the runtime",
    "tests/replication/test_partition.py: disk.sync_dir": "the disk of the runtime",
    "tests/replication/test_replica_fetcher.py: runtime.now": "the clock of the runtime",
    "tests/testing/test_broker.py: thread.close": "of the fixtures for users, not on the hot path",
}
"""Methods of single objects."""
SUBCLASSED = {"RebalanceListener": "made to be subclassed by users of the client"}
ANNOTATIONS_READ = {"ottla/client/core/settings.py": "once for each kind of client, when the first is made"}


def sources(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


def hot(module: str | None) -> bool:
    return module is not None and module.startswith(tuple(f"ottla.{room}." for room in ROOMS))


def root(expression: ast.expr) -> str:
    """`a` of `a.b[c].d`."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


class Uses:
    """What one module does with modules, classes and functions of these rooms."""

    def __init__(self, path: Path) -> None:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        self.names = {
            each.asname or each.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for each in node.names
            if hot(node.module) or hot(f"{node.module}.{each.name}.")
        }
        self.patched: set[str] = set()
        self.replaced: set[str] = set()
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._inner = {
            inner.name
            for node in functions
            for inner in ast.walk(node)
            if inner is not node and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self.subclassed: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self.subclassed |= {root(base) for base in node.bases} & self.names
            elif isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called == "setattr":
                    self._patches(node.args[0])
                elif called == "__setattr__" and "config" not in ast.unparse(node):  # all else is part of a service
                    self.patched.add(ast.unparse(node))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        self._patches(target.value)
                        self._replaces(target, node.value)

    def _patches(self, target: ast.expr) -> None:
        if isinstance(target, ast.Constant) and hot(str(target.value)):
            self.patched.add(str(target.value))
        elif root(target) in self.names:
            self.patched.add(root(target))

    def _replaces(self, target: ast.Attribute, value: ast.expr) -> None:
        """Whether a method of an object is replaced by a function of the test, or its class by another."""
        is_function = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in self._inner)
        own = isinstance(target.value, ast.Name) and target.value.id == "self"
        if (is_function and not own and target.attr not in CALLBACKS) or target.attr == "__class__":
            self.replaced.add(ast.unparse(target))


@cache
def uses(folder: str) -> dict[str, Uses]:
    return {name_of(path): Uses(path) for path in sources(folder)}


def test_no_test_patches_a_module_or_class_of_the_hot_path():
    found = {f"{name}: {what}" for name, each in uses("tests").items() for what in each.patched}
    assert found == set(PATCHED)


def test_no_test_replaces_a_method_of_an_object_of_the_hot_path():
    found = {f"{name}: {what}" for name, each in uses("tests").items() for what in each.replaced}
    assert found == set(REPLACED)


def test_no_test_and_no_part_of_the_simulator_subclasses_a_class_of_the_hot_path():
    found = {what for folder in ("tests", "ottla/sim") for each in uses(folder).values() for what in each.subclassed}
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
        if "async def" in (text := path.read_text()) and "yield" in text
        for node in ast.walk(ast.parse(text))
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
