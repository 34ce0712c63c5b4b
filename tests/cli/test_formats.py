"""Records as text: the tokens and the JSON of kcat."""

from __future__ import annotations

import json

import pytest

from ottla.cli.formats import BadFormat, compiled, envelope
from ottla.client.consuming.consumer_records import ConsumerRecord

RECORD: ConsumerRecord[bytes | None, bytes | None] = ConsumerRecord(
    "orders", 2, 41, 1_700_000_000_000, b"alice", b"two oranges", (("lang", b"en"), ("none", None))
)
EMPTY = RECORD._replace(key=None, value=None, headers=())


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("%s\\n", b"two oranges\n"),
        ("%t %p %o %k %s\\n", b"orders 2 41 alice two oranges\n"),
        ("%T|%S|%K|%h", b"1700000000000|11|5|lang=en,none="),
        ("100%% \\t\\x41\\\\", b"100% \tA\\"),
        ("%R", b"\0\0\0\x0b"),
        ("%", b"%"),
    ],
)
def test_kcats_tokens_are_understood(template, shown):
    assert compiled(template)(RECORD) == shown


def test_a_null_is_empty_and_has_the_length_minus_one():
    assert compiled("[%k][%s][%h]%K%S")(EMPTY) == b"[][][]-1-1"


def test_an_unknown_token_is_refused():
    with pytest.raises(BadFormat, match="unknown token %x"):
        compiled("%x")
    with pytest.raises(BadFormat, match=r"unknown escape \\q"):
        compiled("\\q")


def test_the_json_envelope_is_kcats():
    output = json.loads(envelope(RECORD))
    assert output["headers"] == ["lang", "en", "none", None]
    assert (output["key"], output["payload"], output["ts"]) == ("alice", "two oranges", 1_700_000_000_000)
    assert json.loads(envelope(EMPTY))["payload"] is None
