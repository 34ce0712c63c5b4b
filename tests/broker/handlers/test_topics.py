"""CreateTopics, CreatePartitions, DeleteTopics: requests that are refused."""

from __future__ import annotations

from pathlib import Path

from ottla.cluster.requests import PartitionsSpec, TopicSpec
from ottla.errors import ErrorCode
from ottla.wire.schema import delete_topics as delete
from tests.harness.in_process import Client, brokers, run


def test_delete_topics_takes_names_or_ids_each_once(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:

            async def refused(*topics: tuple[str | None, bytes]) -> list[tuple[int, str | None]]:
                states = [delete.DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics]
                request = delete.DeleteTopicsRequest(topics=states, timeout_ms=10_000)
                answer = await client.call(request, delete.DeleteTopicsResponse, 6)
                return [(each.error_code, each.error_message) for each in answer.responses]

            await one.cluster.create_topics([TopicSpec(name, 1, 1) for name in "abc"])
            topic_id, no_id = one.image.topics["a"].id, bytes(16)
            cases: list[tuple[list[tuple[str | None, bytes]], str]] = [
                ([("a", topic_id)], "You may not specify both topic name and topic id."),
                ([(None, no_id)], "Neither topic name nor id were specified."),
                ([("a", no_id), ("a", no_id)], "Duplicate topic name."),
                ([(None, topic_id), (None, topic_id)], "Duplicate topic id."),
            ]
            for topics, why in cases:
                assert await refused(*topics) == [(ErrorCode.invalid_request, why)]
            assert set(one.image.topics) == {"a", "b", "c"}
            mixed = await refused(("b", no_id), ("a", no_id), (None, topic_id))
            assert [code for code, _ in mixed] == [ErrorCode.none, ErrorCode.none, ErrorCode.invalid_request]
            assert set(one.image.topics) == {"c"}
            request = delete.DeleteTopicsRequest(topic_names=["c", "c"], timeout_ms=10_000)
            answer = await client.call(request, delete.DeleteTopicsResponse, 5)
            assert [each.error_code for each in answer.responses] == [ErrorCode.invalid_request]
            assert set(one.image.topics) == {"c"}

    run(test)


def test_the_partitions_that_one_request_creates_are_limited(tmp_path: Path):
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
