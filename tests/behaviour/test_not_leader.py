"""Requests to a broker without the partition: NOT_LEADER_OR_FOLLOWER, not unknown topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.wire.schema import delete_records, fetch, list_offsets, offset_for_leader_epoch, produce
from tests.harness.in_process import Client, brokers, run
from tests.replication.test_partition import batch

NO_HINT = (-1, -1)
ErrorAndLeader = tuple[int, tuple[int, int]]
"""The error, and leader and epoch where the answer has a place for them."""


async def produced(client: Client, topic_id: bytes, index: int) -> ErrorAndLeader:
    data = produce.PartitionProduceData(index=index, records=bytes(batch(b"a")))
    topic = produce.TopicProduceData(name="t", partition_data=[data])
    request = produce.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
    answer = await client.call(request, produce.ProduceResponse, 12)
    (result,) = answer.responses[0].partition_responses
    return result.error_code, (result.current_leader.leader_id, result.current_leader.leader_epoch)


def wanted(topic_id: bytes, index: int, session_epoch: int) -> fetch.FetchRequest:
    partitions = [fetch.FetchPartition(partition=index, partition_max_bytes=1000)]
    topics = [fetch.FetchTopic(topic_id=topic_id, topic="t", partitions=partitions)]
    return fetch.FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics, session_epoch=session_epoch)


def error_and_leader(answer: fetch.FetchResponse) -> ErrorAndLeader:
    (result,) = answer.responses[0].partitions
    return result.error_code, (result.current_leader.leader_id, result.current_leader.leader_epoch)


async def fetched_by_name(client: Client, topic_id: bytes, index: int) -> ErrorAndLeader:
    return error_and_leader(await client.call(wanted(topic_id, index, session_epoch=-1), fetch.FetchResponse, 12))


async def fetched_by_id(client: Client, topic_id: bytes, index: int) -> ErrorAndLeader:
    """In a session, which tells again what is wrong as long as it is."""
    first = await client.call(wanted(topic_id, index, session_epoch=0), fetch.FetchResponse, 17)
    going_on = fetch.FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=first.session_id, session_epoch=1)
    assert error_and_leader(await client.call(going_on, fetch.FetchResponse, 17)) == error_and_leader(first)
    return error_and_leader(first)


async def listed(client: Client, topic_id: bytes, index: int) -> ErrorAndLeader:
    partition = list_offsets.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
    topics = [list_offsets.ListOffsetsTopic(name="t", partitions=[partition])]
    request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
    answer = await client.call(request, list_offsets.ListOffsetsResponse, 7)
    return answer.topics[0].partitions[0].error_code, NO_HINT


async def epoch_ended(client: Client, topic_id: bytes, index: int) -> ErrorAndLeader:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(
        partition=index, current_leader_epoch=-1, leader_epoch=0
    )
    topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic="t", partitions=[partition])]
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
    answer = await client.call(request, offset_for_leader_epoch.OffsetForLeaderEpochResponse, 4)
    return answer.topics[0].partitions[0].error_code, NO_HINT


async def deleted(client: Client, topic_id: bytes, index: int) -> ErrorAndLeader:
    partition = delete_records.DeleteRecordsPartition(partition_index=index, offset=0)
    topics = [delete_records.DeleteRecordsTopic(name="t", partitions=[partition])]
    request = delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    answer = await client.call(request, delete_records.DeleteRecordsResponse, 2)
    return answer.topics[0].partitions[0].error_code, NO_HINT


HINTING = (produced, fetched_by_name, fetched_by_id)


@pytest.mark.parametrize("ask", [*HINTING, listed, epoch_ended, deleted], ids=lambda ask: ask.__name__)
def test_a_partition_of_other_brokers_is_answered_with_not_leader(
    tmp_path, ask: Callable[[Client, bytes, int], Awaitable[ErrorAndLeader]]
):
    async def test():
        async with brokers(tmp_path, 2) as (one, _):
            await one.cluster.create_topics([TopicSpec("t", assignments=[(0, [2])])])
            await until(lambda: (state := one.image.partition("t", 0)) is not None and state.leader == 2)
            topic = one.image.topics["t"]
            async with Client.to(one) as client:
                hint = (2, topic.partitions[0].leader_epoch) if ask in HINTING else NO_HINT
                assert await ask(client, topic.id, 0) == (ErrorCode.not_leader_or_follower, hint)
                assert await ask(client, topic.id, 1) == (ErrorCode.unknown_topic_or_partition, NO_HINT)

    run(test)


def test_an_unknown_topic_id_is_answered_with_unknown_topic_id(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,), Client.to(broker) as client:
            assert await fetched_by_id(client, bytes(range(16)), 0) == (ErrorCode.unknown_topic_id, NO_HINT)

    run(test)
