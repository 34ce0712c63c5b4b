"""Errors of the clients: their classes, and the page that has every message."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ottla.client import errors
from ottla.client.errors import SILENT, TopicExists, UnknownTopic, error_of, explained
from ottla.errors import ErrorCode

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
KINDS = {"TimedOut", "NoAnswer", "Unreachable", "ConnectionLost", "HungUp", "NotUnderstood", "BadFrame", "timed_out"}
"""Whatever the client makes one of these with is a message for its user."""
TEXT_MIN = 8
"""Letters of a text that is worth looking for. What is shorter only joins other texts together."""


def test_error_codes_become_classes():
    assert error_of(0, "topic t") is None
    assert isinstance(error_of(36, "topic t"), TopicExists)
    unknown = error_of(3, "topic t")
    assert isinstance(unknown, UnknownTopic)
    assert not unknown.retriable
    busy = error_of(41, "topic t")
    assert busy is not None
    assert busy.retriable
    assert "12345" in str(error_of(12345, "topic t"))


def test_reasons_name_the_remedy():
    said = explained(ErrorCode.not_enough_replicas, "orders", "1 in sync")
    assert said.startswith("not enough replicas: 1 in sync; `ottla topics describe orders`")
    assert explained(ErrorCode.request_timed_out, "orders") == "request timed out"


def texts(node: ast.expr, module: ast.Module) -> list[str]:
    """The fixed parts of a message; those of a name are what the module assigns to it."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return [text for part in parts for text in texts(part, module)]
        case ast.FormattedValue(value=value):
            return texts(value, module)
        case ast.Name(id=name):
            assigned = [each for each in ast.walk(module) if isinstance(each, ast.Assign)]
            values = [each.value for each in assigned if any(ast.unparse(it) == name for it in each.targets)]
            return [text for value in values if isinstance(value, ast.JoinedStr) for text in texts(value, module)]
    return []


def messages_of_the_client() -> list[str]:
    found: dict[str, None] = {}
    paths = [path for path in Path(errors.__file__).parent.rglob("*.py") if path.stem != "assignors"]
    for path in sorted(paths):
        module = ast.parse(path.read_text())
        for call in ast.walk(module):
            if isinstance(call, ast.Call) and call.args and ast.unparse(call.func).rpartition(".")[2] in KINDS:
                longest = max(texts(call.args[0], module), key=len, default="").strip(" :;(")
                found |= {longest: None} if len(longest) >= TEXT_MIN else {}
    return list(found)


MESSAGES = [
    "still trying:",
    "it speaks TLS",
    "it speaks HTTP",
    SILENT,
    UnknownTopic.words,
    errors.NO_LEADER_HINT.partition(";")[0],
    *messages_of_the_client(),
    *(code.name.replace("_", " ") for code in errors._MENDED_BY),
    *(code.name.upper() for code in errors._MENDED_BY),
    "its leader, broker",
    "it hangs, is paused or busy, or waits for others; look at its log",
    "the other members of the group have to join first, or it hangs",
    "cannot be created yet: it needs",
    "fewer than min.insync.replicas=2 (from transaction.state.log.min.isr)",
]


def test_the_messages_are_found_in_the_code():
    assert {"no answer from", "not delivered within", "for its metadata", "it speaks TLS"} <= set(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_troubleshooting_has_every_message_by_its_text(message):
    page = " ".join(PAGE.read_text().split())
    assert message in page
