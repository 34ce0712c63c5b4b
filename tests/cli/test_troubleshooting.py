"""docs/troubleshooting.md quotes the messages of brokers, commands and test helpers."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import ottla

PACKAGE = Path(ottla.__file__).parent
PAGE = PACKAGE.parent / "docs" / "troubleshooting.md"

MESSAGES = [
    "listens on all interfaces, so clients must be told an address",
    "no ZooKeeper answers at ",
    "disconnected from ZooKeeper (",
    ": the cluster stays as it is until it is back",
    "connected to ZooKeeper",
    "did not answer: whether this was done is not known",
    "does not answer, so there is no controller, and nothing was done",
    "No replica is alive",
    " is not in sync, not there or about to stop",
    ", but no such broker is registered",
    ": there is no offset ",
    " is beyond its end",
    " has no partition ",
    " are free",
    "Cannot update ",
    " dynamically: set it where the broker is started, and restart it",
    " for all brokers at once: name a broker",
    " never fired: no client sent ",
    " is not served to clients: no request would meet this fault",
    " is damaged: ",
    "are missing",
    "it is not known whether records acknowledged with ",
    "the new log starts cannot be written",
    "The records cannot be read any more, but the leader's disk is full and cannot store the new log start offset",
    " to make room",
    "has no leader to copy from; start ",
    "waits for its new replica: ",
    ": earlier records are deleted",
    "fewer replicas in sync than min.insync.replicas, acks=all is refused",
    "unclean election, the new leader was not in sync",
]
"""The constant parts of messages."""


@cache
def texts_of_the_code() -> str:
    texts = []
    for path in sorted(PACKAGE.rglob("*.py")):
        constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        texts += [value for value in constants if isinstance(value, str)]
    return "\0".join(texts)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_page_quotes_the_messages_of_the_code(message):
    assert message in texts_of_the_code(), "the message has changed: change the page, too"
    page = " ".join(PAGE.read_text().split())
    assert message.strip() in page
