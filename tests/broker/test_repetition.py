"""One small request that asks for much: it gets little, and others are served meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.cluster.requests import PartitionsSpec, TopicSpec
from ottla.coordinator.coordinator_service import KEY_CHARS_KEPT, KEY_CHARS_MAX, InTurns, _kept_hash, java_hash
from ottla.errors import ErrorCode
from ottla.wire.schema import describe_configs as configs
from ottla.wire.schema import find_coordinator as find
from ottla.wire.schema import metadata
from tests.harness.in_process import Client, brokers, run

TOPIC, BROKER = 2, 4


def test_a_topic_that_is_named_often_is_answered_once(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            await one.cluster.create_topics([TopicSpec("t", 3, 1)])
            topics = [metadata.MetadataRequestTopic(name=name) for name in ["t", "t", "u", "t", "u"]]
            request = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            answer = await client.call(request, metadata.MetadataResponse, 12)
            assert [topic.name for topic in answer.topics] == ["t", "u"]

    run(test)


def test_a_resource_that_is_named_often_is_described_once_with_all_that_was_asked_for(tmp_path: Path):
    def resource(kind: int, name: str, *keys: str) -> configs.DescribeConfigsResource:
        return configs.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
        )

    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            await one.cluster.create_topics([TopicSpec("t", 1, 1)])
            resources = [
                resource(TOPIC, "t", "retention.ms"),
                resource(BROKER, "1", "log.retention.ms"),
                resource(TOPIC, "t", "cleanup.policy"),
                resource(BROKER, "1"),
                resource(BROKER, "1", "log.retention.ms"),
            ]
            request = configs.DescribeConfigsRequest(resources=resources)
            answer = await client.call(request, configs.DescribeConfigsResponse, 4)
            topic, broker = answer.results
            assert {each.name for each in topic.configs} == {"retention.ms", "cleanup.policy"}
            assert len(broker.configs) > 100

    run(test)


def test_what_one_request_creates_is_limited(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            results = await one.cluster.create_topics([TopicSpec(name, 6_000, 1) for name in "ab"], validate_only=True)
            assert [result.code for result in results] == [ErrorCode.policy_violation] * 2
            assert results[0].message == "Excessively large number of partitions per request."
            results = await one.cluster.create_topics([TopicSpec(name, 5, 1) for name in "ab"])
            assert [result.code for result in results] == [ErrorCode.none] * 2
            more = [PartitionsSpec(name, 6_000) for name in "ab"]
            results = await one.cluster.create_partitions(more, validate_only=True)
            assert [result.code for result in results] == [ErrorCode.policy_violation] * 2

    run(test)


def test_a_coordinator_that_is_asked_for_often_is_found_once(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, offsets_topic_replication_factor="1") as (one,), Client.to(one) as client:
            request = find.FindCoordinatorRequest(coordinator_keys=["g", "h", "g"])
            answer = await client.call(request, find.FindCoordinatorResponse, 4)
            assert [each.key for each in answer.coordinators] == ["g", "h"]

    run(test)


def test_long_keys_are_hashed_in_turns_and_not_kept():
    long = "x" * (KEY_CHARS_KEPT + 1)
    kept = _kept_hash.cache_info().currsize
    assert java_hash(long) == java_hash(long)
    assert java_hash("x" * KEY_CHARS_MAX + "y") == java_hash("x" * KEY_CHARS_MAX)
    assert _kept_hash.cache_info().currsize == kept

    async def turns() -> int:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for key in InTurns(f"{number}{'x' * KEY_CHARS_MAX}" for number in range(10)):
            java_hash(key)
        task.cancel()
        return others

    assert asyncio.run(turns()) >= 9


def test_keys_are_hashed_as_java_does():
    assert [java_hash(text) for text in ("", "g", "my-group", "ünïcödé", "😀")] == [0, 103, *map(reference, LONGER)]


LONGER = ("my-group", "ünïcödé", "😀")


def reference(text: str) -> int:
    data = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) % 2**32
    return abs(value - 2**32 if value >= 2**31 else value)
