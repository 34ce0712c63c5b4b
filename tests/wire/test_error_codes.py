"""Error codes in responses are found at all places of the schema."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.wire import error_codes, messages
from ottla.wire.apis import APIS
from ottla.wire.error_codes import counter_of
from ottla.wire.fields import structure
from ottla.wire.schema.heartbeat import HeartbeatResponse
from ottla.wire.schema.list_groups import ListedGroup, ListGroupsResponse
from ottla.wire.schema.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from ottla.wire.schema.sasl_handshake import SaslHandshakeResponse


def error_fields(cls):
    """Every field of an answer whose name says that it is an error code."""
    for line in cls.FIELDS:
        name, kind = line.split()[:2]
        element = kind.removeprefix("[]")
        if element == "int16" and "error" in name:
            yield name
        elif element[0].isupper():
            yield from error_fields(structure(cls, element))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_error_code_of_the_schema_is_found(api):
    shape = messages.message_class(api.key, "response")
    found = set(error_fields(shape))
    assert found <= set(error_codes._NAMES)
    assert (counter_of(shape) is not None) == bool(found)


def test_errors_are_counted_at_every_depth():
    counter = counter_of(MetadataResponse)
    assert counter is not None
    gone, leaderless = ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available
    partitions = [MetadataResponsePartition(error_code=code) for code in (leaderless, 0, leaderless)]
    topics = [MetadataResponseTopic(error_code=gone), MetadataResponseTopic(partitions=partitions)]
    counts: dict[int, int] = {leaderless: 1}
    counter(MetadataResponse(topics=topics), counts)
    assert counts == {gone: 1, leaderless: 3}


def test_an_error_of_the_whole_response_counts_once():
    counts: dict[int, int] = {}
    for response in (
        HeartbeatResponse(error_code=27),
        HeartbeatResponse(),
        ListGroupsResponse(error_code=15, groups=[ListedGroup()]),
        SaslHandshakeResponse(error_code=33),
    ):
        counter = counter_of(type(response))
        assert counter is not None
        counter(response, counts)
    assert counts == {27: 1, 15: 1, 33: 1}
