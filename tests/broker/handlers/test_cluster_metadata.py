"""Metadata and DescribeTopicPartitions: repeated topics, pages."""

from __future__ import annotations

from pathlib import Path

from ottla.cluster.requests import TopicSpec
from ottla.wire.schema import describe_topic_partitions as pages
from ottla.wire.schema import metadata
from tests.harness.in_process import Client, brokers, run


def test_describe_topic_partitions_is_limited_by_the_broker(tmp_path: Path):
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


def test_a_topic_that_is_repeated_in_metadata_is_answered_once(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            await one.cluster.create_topics([TopicSpec("t", 3, 1)])
            topics = [metadata.MetadataRequestTopic(name=name) for name in ["t", "t", "u", "t", "u"]]
            request = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            answer = await client.call(request, metadata.MetadataResponse, 12)
            assert [topic.name for topic in answer.topics] == ["t", "u"]

    run(test)
