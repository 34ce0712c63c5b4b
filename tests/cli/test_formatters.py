"""Formatters of the console consumer."""

from __future__ import annotations

import pytest

from ottla.cli.kafka_scripts import formatters
from ottla.cli.kafka_scripts.options import ToolFailure
from ottla.cli.target import Target
from ottla.client.consuming.consumer_records import ConsumerRecord

NOWHERE = Target("127.0.0.1:1", {})


def record(key=b"k", value=b"v", headers=()):
    return ConsumerRecord("t", 1, 2, 3, key, value, headers)


def test_the_default_formatter_follows_its_properties():
    names = ("partition", "offset", "delivery", "epoch", "headers", "key")
    everything = formatters.default({f"print.{name}": "true" for name in names}, NOWHERE)
    assert everything(record(headers=[("a", b"1"), ("b", None)])) == (
        b"Partition:1\tOffset:2\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\ta:1,b:null\tk\tv\n"
    )
    assert formatters.default({"print.value": "false"}, NOWHERE)(record()) == b""
    odd = {"print.key": "true", "key.separator": "/", "line.separator": "|", "null.literal": "-"}
    assert formatters.default(odd, NOWHERE)(record(key=None)) == b"-/v|"


@pytest.mark.parametrize("name", [*formatters.OLD_NAMES, *formatters.FORMATTERS, formatters.DEFAULT])
def test_formatters_have_their_old_names_too(name):
    assert callable(formatters.formatter(name, {}, NOWHERE))


def test_formatters_of_share_groups_are_refused():
    with pytest.raises(ToolFailure, match="no share groups"):
        formatters.formatter(formatters.OF_SHARE_GROUPS[0], {}, NOWHERE)
