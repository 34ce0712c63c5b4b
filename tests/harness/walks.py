"""The walks of docs/ARCHITECTURE.md: the functions that they name, and whether a real request goes through them.

A walk is a section `### title` with numbered steps: a file, functions of it in the order of their calls, and a colon.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.harness.call_trace import Function, Trace

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "ARCHITECTURE.md"

_STEP = re.compile(r"^\d+\. `([\w/]+\.py)`((?: `[\w.]+`,?)+): ")


def walks(text: str) -> dict[str, list[Function]]:
    """The functions of each walk, by its title."""
    found: dict[str, list[Function]] = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        steps = [line for line in lines if re.match(r"\d+\. ", line)]
        named: list[Function] = []
        for step in steps:
            match = _STEP.match(step)
            assert match is not None, f"{title}: a step names a file, its functions and a colon: {step}"
            named += [Function(match[1], name) for name in re.findall(r"`([\w.]+)`", match[2])]
        if named:
            found[title] = named
    return found


@cache
def _functions_in(file: str) -> frozenset[str]:
    found = set()
    for node in ast.parse((REPOSITORY / "ottla" / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}.{each.name}" for each in inner)
    return frozenset(found)


def missing(named: list[Function]) -> list[str]:
    """Those that are not in the code."""
    return [
        f"ottla/{file} has no {name}"
        for file, name in named
        if not (REPOSITORY / "ottla" / file).is_file() or name not in _functions_in(file)
    ]


def problem(named: list[Function], trace: Trace) -> str | None:
    """What is not true of the walk: a function that is not called, or not in this order. The first calls of the
    functions come in the order in which these are first named; and all calls, those of one that is named again too,
    in the order of the walk."""
    first: dict[Function, int] = {}
    for at, call in enumerate(trace.calls):
        first.setdefault(call, at)
    before: Function | None = None
    for each in dict.fromkeys(named):
        if each not in first:
            return f"{each.name} ({each.file}) is not called"
        if before is not None and first[each] < first[before]:
            return f"{each.name} ({each.file}) is called before {before.name} ({before.file})"
        before = each
    calls = iter(trace.calls)
    for each in named:
        if each not in calls:
            return f"{each.name} ({each.file}) is not called again behind what is named before it"
    return None


def check(title: str, trace: Trace, page: Path = PAGE) -> None:
    named = walks(page.read_text())[title]
    assert not missing(named)
    assert (wrong := problem(named, trace)) is None, wrong
