"""ListOffsets and DeleteRecords: new leaders, replicas, full disks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.replication.partition import Partition
from ottla.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.broker.test_traffic import METRICS, page
from tests.harness.full_disk import FullDisk
from tests.harness.in_process import Client, brokers, run
from tests.replication.test_partition import batch

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NOT_YET = (ErrorCode.offset_not_available, -1)


async def led(broker: Broker, *replicas: int) -> Partition:
    """The only partition of topic t, led by this broker."""
    await broker.cluster.create_topics([TopicSpec("t", assignments=[(0, list(replicas))])])
    await until(lambda: (found := broker.replicas.get("t", 0)) is not None and found.leads)
    return broker.replica_manager.find("t", 0)


async def listed(client: Client, timestamp: int, version: int = 7, replica: int = -1) -> tuple[ErrorCode, int]:
    wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=replica, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    answer = await client.call(request, ListOffsetsResponse, version)
    (found,) = answer.topics[0].partitions
    return ErrorCode(found.error_code), found.offset


def test_a_new_leader_answers_offset_not_available_until_the_high_watermark_is_known(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,):
            partition = await led(broker, 1)
            now_ms = broker.runtime.wall_ms()
            partition.append(batch(b"a", timestamp=now_ms - 1000), 1, now_ms)
            shared = broker.image.topics["t"].partitions[0]._replace(replicas=(1, 2), in_sync=(1, 2))
            partition.become(shared._replace(partition_epoch=shared.partition_epoch + 1))
            partition.append(batch(b"b", timestamp=now_ms), 1, now_ms)
            leader_epoch = shared.leader_epoch + 1
            partition.become(shared._replace(partition_epoch=shared.partition_epoch + 2, leader_epoch=leader_epoch))
            assert (partition.high_watermark, partition.log.log_end) == (1, 2)
            async with Client.to(broker) as client:
                for time in (LATEST, MAX_TIMESTAMP, now_ms, now_ms + 1000):
                    assert await listed(client, time) == NOT_YET
                    assert await listed(client, time, replica=2) == NOT_YET, "a replica would hear of the log's end"
                    assert await listed(client, time, version=4) == (ErrorCode.leader_not_available, -1)
                assert await listed(client, EARLIEST) == (ErrorCode.none, 0)
                assert await listed(client, now_ms - 1000) == (ErrorCode.none, 0)
                partition.leader.fetched_by(2, 1, 2, shared.leader_epoch)
                assert await listed(client, now_ms) == (ErrorCode.none, 1)
                assert await listed(client, MAX_TIMESTAMP) == (ErrorCode.none, 1)
                assert await listed(client, now_ms + 1000) == (ErrorCode.none, -1)

    run(test)


async def deleted(client: Client, offset: int, timeout_ms: int) -> tuple[ErrorCode, int]:
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    answer = await client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=timeout_ms), DeleteRecordsResponse, 2)
    (result,) = answer.topics[0].partitions
    return ErrorCode(result.error_code), result.low_watermark


async def shared(leader: Broker, follower: Broker, *values: bytes) -> tuple[Partition, Partition]:
    """A partition with these records, on both brokers and committed."""
    partition = await led(leader, leader.id, follower.id)
    now_ms = leader.runtime.wall_ms()
    partition.append(batch(*values, timestamp=now_ms), 1, now_ms)
    end = len(values)
    await until(lambda: (copy := follower.replicas.get("t", 0)) is not None and copy.high_watermark == end)
    return partition, follower.replica_manager.find("t", 0)


def test_delete_records_waits_for_all_in_sync_replicas(tmp_path):
    async def test():
        async with brokers(tmp_path, 2) as (leader, follower), Client.to(leader) as client:
            _, copy = await shared(leader, follower, b"a", b"b", b"c")
            assert await deleted(client, 2, 60_000) == (ErrorCode.none, 2)
            assert copy.log.log_start == 2
            assert await deleted(client, 1, 60_000) == (ErrorCode.none, 2)
            assert await deleted(client, -1, 60_000) == (ErrorCode.none, 3)
            assert copy.log.log_start == 3

    run(test)


def test_delete_records_times_out_while_an_in_sync_replica_has_the_records(tmp_path):
    async def test():
        async with brokers(tmp_path, 2) as (leader, follower), Client.to(leader) as client:
            partition, copy = await shared(leader, follower, b"a", b"b")
            follower.replica_manager._leave(copy)  # it is slow, and in sync
            assert await deleted(client, 2, 100) == (ErrorCode.request_timed_out, 0)
            assert (partition.log.log_start, copy.log.log_start) == (2, 0)
            again = asyncio.create_task(deleted(client, 2, 60_000))
            follower.replica_manager.follow(copy)
            assert await again == (ErrorCode.none, 2)
            assert copy.log.log_start == 2

    run(test)


def test_delete_records_gets_not_leader_when_leadership_moves(tmp_path):
    async def test():
        async with brokers(tmp_path, 2) as (leader, follower), Client.to(leader) as client:
            partition, copy = await shared(leader, follower, b"a", b"b")
            follower.replica_manager._leave(copy)
            waiting = asyncio.create_task(deleted(client, 2, 60_000))
            await until(lambda: partition.log.log_start == 2)
            await leader.cluster.drain()
            assert await waiting == (ErrorCode.not_leader_or_follower, -1)

    run(test)


def test_a_full_disk_is_an_error_of_the_partition_only(tmp_path):
    async def test():
        disk = FullDisk()
        async with brokers(tmp_path, 1, [disk], **METRICS) as (broker,):
            partition = await led(broker, 1)
            for value in (b"a", b"b", b"c"):
                partition.append(batch(value, timestamp=(now_ms := broker.runtime.wall_ms())), 1, now_ms)
            disk.fill("/log-start-offset-checkpoint")
            async with Client.to(broker) as client:
                assert await deleted(client, 2, 1000) == (ErrorCode.kafka_storage_error, -1)
                disk.make_room()
                assert await deleted(client, 2, 1000) == (ErrorCode.none, 2)
            metrics = await page(broker)
            assert metrics['ottla_errors_total{api="DeleteRecords",error="KAFKA_STORAGE_ERROR"}'] == 1

    run(test)


def test_on_a_full_disk_delete_records_removes_files_first(tmp_path):
    async def test():
        disk = FullDisk()
        async with brokers(tmp_path, 1, [disk], log_segment_bytes="1048576") as (broker,):
            partition = await led(broker, 1)
            for value in (b"a", b"b", b"c"):
                partition.append(batch(value, timestamp=(now_ms := broker.runtime.wall_ms())), 1, now_ms)
                partition.log.roll(broker.runtime.wall_ms())
            directory = Path(partition.log.path)

            def full() -> bool:
                return len([*directory.glob("*.log*")]) > 2

            disk.fill("/log-start-offset-checkpoint", while_=full)
            async with Client.to(broker) as client:
                assert await deleted(client, 2, 1000) == (ErrorCode.none, 2)
            assert partition.log.segments[0].base_offset == 2

    run(test)
