"""Administration that cannot be meant as it was said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.wire.schema import delete_topics as delete
from ottla.wire.schema import describe_configs as describe
from ottla.wire.schema import describe_topic_partitions as pages
from ottla.wire.schema import incremental_alter_configs as alter
from tests.harness.in_process import Client, brokers, run

BROKER = 4


def test_topics_are_deleted_by_name_or_by_id_and_named_once(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:

            async def refused(*topics: tuple[str | None, bytes]) -> list[tuple[int, str | None]]:
                states = [delete.DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics]
                request = delete.DeleteTopicsRequest(topics=states, timeout_ms=10_000)
                answer = await client.call(request, delete.DeleteTopicsResponse, 6)
                return [(each.error_code, each.error_message) for each in answer.responses]

            await one.cluster.create_topics([TopicSpec(name, 1, 1) for name in "abc"])
            topic_id, nobody = one.image.topics["a"].id, bytes(16)
            cases: list[tuple[list[tuple[str | None, bytes]], str]] = [
                ([("a", topic_id)], "You may not specify both topic name and topic id."),
                ([(None, nobody)], "Neither topic name nor id were specified."),
                ([("a", nobody), ("a", nobody)], "Duplicate topic name."),
                ([(None, topic_id), (None, topic_id)], "Duplicate topic id."),
            ]
            for topics, why in cases:
                assert await refused(*topics) == [(ErrorCode.invalid_request, why)]
            assert set(one.image.topics) == {"a", "b", "c"}
            mixed = await refused(("b", nobody), ("a", nobody), (None, topic_id))
            assert [code for code, _ in mixed] == [ErrorCode.none, ErrorCode.none, ErrorCode.invalid_request]
            assert set(one.image.topics) == {"c"}
            request = delete.DeleteTopicsRequest(topic_names=["c", "c"], timeout_ms=10_000)
            answer = await client.call(request, delete.DeleteTopicsResponse, 5)
            assert [each.error_code for each in answer.responses] == [ErrorCode.invalid_request]
            assert set(one.image.topics) == {"c"}

    run(test)


@pytest.mark.parametrize("name", ["²", "٣", "9" * 400, "9" * 5000, "2147483648", "-1", "one"])
def test_what_is_no_broker_id_has_no_settings(tmp_path: Path, name):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            resource = describe.DescribeConfigsResource(resource_type=BROKER, resource_name=name)
            request = describe.DescribeConfigsRequest(resources=[resource])
            described = await client.call(request, describe.DescribeConfigsResponse, 4)
            assert [each.error_code for each in described.results] == [ErrorCode.invalid_request]
            edit = alter.AlterableConfig(name="message.max.bytes", value="5000")
            change = alter.IncrementalAlterConfigsRequest(
                resources=[alter.AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=[edit])]
            )
            altered = await client.call(change, alter.IncrementalAlterConfigsResponse, 1)
            assert [each.error_code for each in altered.responses] == [ErrorCode.invalid_request]
            assert list(one.image.broker_configs) == [None]

    run(test)


def test_a_page_of_partitions_is_as_long_as_the_broker_allows(tmp_path: Path):
    async def test() -> None:
        settings = {"max.request.partition.size.limit": "3"}
        async with brokers(tmp_path, 1, **settings) as (one,), Client.to(one) as client:
            await one.cluster.create_topics([TopicSpec("t", 5, 1)])
            request = pages.DescribeTopicPartitionsRequest(topics=[pages.TopicRequest(name="t")])
            answer = await client.call(request, pages.DescribeTopicPartitionsResponse, 0)
            assert len(answer.topics[0].partitions) == 3
            assert answer.next_cursor is not None
            assert answer.next_cursor.partition_index == 3

    run(test)
