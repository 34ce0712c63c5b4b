"""Injected faults: warnings for unused ones, suggestions for mistyped names, refusals of any request in any version."""

from __future__ import annotations

import warnings

import pytest

import ottla.broker.handlers  # noqa: F401 (registers what is served)
from ottla.broker.dispatch import served_apis
from ottla.errors import ErrorCode
from ottla.testing.faults import Faults, UnusedFault, refused
from ottla.wire.apis import METADATA
from ottla.wire.fields import fields_of, structure
from ottla.wire.frame import parse_response_header, request_header
from ottla.wire.messages import decode_response, encode_request, message_class
from ottla.wire.refusal import CODES
from ottla.wire.schema.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest
from ottla.wire.schema.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.tree import Struct

CODE = ErrorCode.policy_violation
APIS = [api for api in served_apis() if not api.between_brokers and api.key != METADATA]


def test_a_fault_that_never_fired_causes_a_warning():
    faults = Faults()
    faults.add("Produce", "NOT_LEADER_OR_FOLLOWER")
    with pytest.warns(UnusedFault, match=r"inject\('Produce', error='not_leader_or_follower'\) never fired"):
        faults.clear()
    with pytest.warns(UnusedFault, match="delay_ms=5"), faults.add("fetch", delay_ms=5, times=None):
        pass


def test_a_fault_that_fired_causes_no_warning():
    faults = Faults()
    faults.add("Fetch", delay_ms=5, times=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert faults.meet(memoryview(b"\0\1\0\4" + bytes(10))) is not None
        faults.clear()


@pytest.mark.parametrize(
    ("api", "error", "words"),
    [
        ("Prodcue", "not_leader_or_follower", "did you mean 'Produce'"),
        ("offset_comit", "not_leader_or_follower", "did you mean 'OffsetCommit'"),
        ("Fetch", "not_leader_or_folower", "did you mean 'not_leader_or_follower'"),
        ("WriteTxnMarkers", "not_leader_or_follower", "not served to clients"),
        ("DescribeQuorum", "not_leader_or_follower", "DescribeQuorum is an API of Kafka that Ottla does not serve"),
        ("Telepathy", "not_leader_or_follower", "there is no API 'Telepathy'"),
    ],
)
def test_an_unknown_api_or_error_cannot_be_injected(api, error, words):
    with pytest.raises(ValueError, match=words):
        Faults().add(api, error)


def answered(request, api_key, version):
    frame = request_header(api_key, version, 7, "test") + encode_request(api_key, version, request)
    answer = refused(memoryview(frame), CODE)
    assert answer is not None
    correlation_id, pos = parse_response_header(memoryview(answer)[4:], api_key, version)
    assert correlation_id == 7
    assert len(answer) == int.from_bytes(answer[:4], "big") + 4
    return decode_response(api_key, version, memoryview(answer)[4:], pos)


def filled(kind: type[Struct], version: int) -> Struct:
    """One item in every list."""
    made = kind()
    for field in fields_of(kind, version):
        if field.array and field.kind[0].isupper():
            setattr(made, field.name, [filled(structure(kind, field.kind), version)])
        elif field.array:
            setattr(made, field.name, ["x"] if field.kind == "string" else [3] if field.kind.startswith("int") else [])
        elif field.name == "acks":
            made.acks = -1  # type: ignore[attr-defined]
    return made


def codes_in(answer: Struct, version: int) -> set[int]:
    found = set()
    for field in fields_of(type(answer), version):
        value = getattr(answer, field.name)
        if field.name in CODES:
            found.add(value)
        elif field.array and field.kind[0].isupper():
            found |= {code for each in value or () for code in codes_in(each, version)}
    return found


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_api_can_be_refused_in_every_version(api):
    for version in range(api.min, api.max + 1):
        request = filled(message_class(api.key, "request"), version)
        assert CODE in codes_in(answered(request, api.key, version), version), version


def test_a_refused_produce_names_every_partition():
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=n) for n in (0, 4)])]
    answer = answered(ProduceRequest(acks=-1, topic_data=topics), 0, 9)
    assert [(t.name, p.index, p.error_code) for t in answer.responses for p in t.partition_responses] == [
        ("t", 0, CODE),
        ("t", 4, CODE),
    ]


def test_a_fetch_without_partitions_is_refused_as_a_whole():
    assert answered(FetchRequest(), 1, 12).error_code == CODE
    named = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=2)])])
    answer = answered(named, 1, 12)
    assert answer.error_code == 0
    assert answer.responses[0].partitions[0].partition_index == 2


def test_a_refused_find_coordinator_names_the_key():
    answer = answered(FindCoordinatorRequest(coordinator_keys=["kitchen"]), 10, 4)
    assert [(each.key, each.error_code) for each in answer.coordinators] == [("kitchen", CODE)]


def test_a_produce_with_acks_0_gets_no_response():
    frame = request_header(0, 9, 7, "test") + encode_request(0, 9, ProduceRequest(acks=0))
    assert refused(memoryview(frame), CODE) is None
