"""The coordinator service: shards when leadership moves, loading, and the hash of keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.broker.broker import Broker
from ottla.cluster.changes import TopicDeleted
from ottla.cluster.model import PartitionState as State
from ottla.cluster.requests import TopicSpec
from ottla.coordinator import group_records, log_batch
from ottla.coordinator.coordinator_service import KEY_CHARS_CACHED, KEY_CHARS_MAX, Interleaved, _cached_hash, java_hash
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.coordinator.shard import Phase
from ottla.errors import ErrorCode, StorageFault
from ottla.local.waiting import until
from ottla.replication.partition import Partition
from ottla.wire.batch import CODECS, read_header
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.schema.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from tests.harness.in_process import Client, brokers, run

SETTINGS = {"offsets_topic_num_partitions": "1", "offsets_topic_replication_factor": "1"}
ANOTHER_BROKER = 2
COMMIT_VERSION, FETCH_VERSION, JOIN_VERSION = 8, 7, 3


async def commit(client: Client, offset: int) -> int:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
    response = await client.call(request, OffsetCommitResponse, COMMIT_VERSION)
    return response.topics[0].partitions[0].error_code


async def fetch(client: Client) -> tuple[int, int]:
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    response = await client.call(request, OffsetFetchResponse, FETCH_VERSION)
    return response.error_code, response.topics[0].partitions[0].committed_offset


async def settled(client: Client) -> tuple[int, int]:
    """What is fetched once the shard is loaded."""
    while (fetched := await fetch(client))[0] == ErrorCode.coordinator_load_in_progress:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return fetched


async def coordinating(broker: Broker) -> Partition:
    await broker.groups.create_topic()
    await broker.context.topic_creation.create([TopicSpec("t", 1, 1)])
    await until(lambda: broker.image.topic("t") is not None)
    partition = broker.replicas.get(broker.groups.topic, 0)
    assert partition is not None
    await until(lambda: partition.leads)
    return partition


def move(broker: Broker, partition: Partition, leader: int, *, noticed: bool = True) -> None:
    """The next leader epoch begins; `noticed`: the coordinator learns of it before another one begins."""
    partition.become(
        State(
            replicas=partition.replicas,
            leader=leader,
            leader_epoch=partition.leader_epoch + 1,
            in_sync=partition.in_sync,
            partition_epoch=partition.partition_epoch + 1,
        )
    )
    topic = broker.image.topic(broker.groups.topic)
    assert topic is not None
    if noticed:
        broker.groups.leadership_changed(topic, 0)


def replicated(partition: Partition, offset: int) -> None:
    """Another leader has committed an offset, and this broker has copied it."""
    key = group_records.encode_key(OffsetCommitKey("g", "t", 0))
    data, header = log_batch.build([(key, group_records.encode_value(OffsetCommitValue(offset)))], 1_790_000_000_000)
    partition.log.append(memoryview(data), header, leader_epoch=partition.leader_epoch, now_ms=1_790_000_000_000)


def test_waiting_requests_get_not_coordinator_when_leadership_moves(tmp_path: Path):
    async def test() -> None:
        async with (
            brokers(tmp_path, 1, **SETTINGS) as (broker,),
            Client.to(broker) as client,
            Client.to(broker) as other,
        ):
            partition = await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
            join = JoinGroupRequest(
                group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols
            )
            joining = asyncio.create_task(other.call(join, JoinGroupResponse, JOIN_VERSION))
            shard = broker.groups.active()[0]
            await until(lambda: list(shard.machine.pending_replies()))
            move(broker, partition, ANOTHER_BROKER)
            assert (await joining).error_code == ErrorCode.not_coordinator
            assert await commit(client, 6) == ErrorCode.not_coordinator
            assert (await fetch(client))[0] == ErrorCode.not_coordinator

    run(test)


def test_records_of_leader_epochs_in_between_are_loaded(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, **SETTINGS) as (broker,), Client.to(broker) as client:
            partition = await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            for offset, reported in ((9, True), (12, False)):
                move(broker, partition, ANOTHER_BROKER, noticed=reported)
                replicated(partition, offset)
                move(broker, partition, broker.id)
                assert await settled(client) == (ErrorCode.none, offset)

    run(test)


def test_a_broker_with_an_expired_session_does_not_answer_from_its_shard(tmp_path: Path):
    """It may be registered again, and in touch with the store, before it hears who was elected meanwhile."""

    async def test() -> None:
        async with brokers(tmp_path, 1, **SETTINGS) as (broker,), Client.to(broker) as client:
            await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            broker.replicas.session_expired()
            assert broker.cluster.has_session_lease
            assert (await fetch(client))[0] == ErrorCode.not_coordinator

    run(test)


def test_offsets_of_a_topic_deleted_during_loading_are_removed(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, **SETTINGS) as (broker,), Client.to(broker) as client:
            partition = await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            move(broker, partition, ANOTHER_BROKER)
            move(broker, partition, broker.id)
            shard = broker.groups.shard(0)
            assert shard is not None
            assert {shard.phase} == {Phase.LOADING}
            topic = broker.image.topic("t")
            assert topic is not None
            broker.groups.image_changed(broker.image, broker.image, TopicDeleted(topic.id, "t", ()))
            await until(lambda: shard.phase is Phase.ACTIVE)
            await until(lambda: not len(shard.machine))

    run(test)


def test_a_commit_is_answered_when_all_in_sync_replicas_have_it(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 2, **(SETTINGS | {"offsets_topic_replication_factor": "2"})) as both:
            await both[0].groups.create_topic()
            await both[0].context.topic_creation.create([TopicSpec("t", 1, 1)])
            await until(lambda: all(broker.replicas.get(OFFSETS_TOPIC, 0) for broker in both))
            copies = [broker.replicas.get(OFFSETS_TOPIC, 0) for broker in both]
            await until(lambda: any(copy is not None and copy.leads and len(copy.in_sync) == 2 for copy in copies))
            await until(lambda: all(broker.image.topic("t") is not None for broker in both))
            ours, theirs = sorted(copies, key=lambda copy: copy is None or not copy.leads)
            assert ours is not None
            assert theirs is not None
            leader = next(broker for broker in both if broker.id == ours.broker_id)
            async with Client.to(leader) as client:
                for offset in range(20):
                    assert await commit(client, offset) == ErrorCode.none
                    assert theirs.log.log_end == ours.log.log_end == offset + 1

    run(test)


def test_commits_are_compressed_with_offsets_topic_compression_codec(tmp_path: Path):
    async def test() -> None:
        settings = SETTINGS | {"offsets_topic_compression_codec": "4"}
        async with brokers(tmp_path, 1, **settings) as (broker,), Client.to(broker) as client:
            partition = await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            piece = partition.log.read(0, 10_000, limit=partition.log.log_end)
            assert piece is not None
            assert CODECS[read_header(piece.load()).codec] == "zstd"
            move(broker, partition, broker.id)
            assert await settled(client) == (ErrorCode.none, 5)

    run(test)


def test_a_shard_of_an_earlier_leader_epoch_cannot_append(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, **SETTINGS) as (broker,), Client.to(broker) as client:
            partition = await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            log_end = partition.log.log_end
            move(broker, partition, broker.id, noticed=False)
            assert await commit(client, 6) == ErrorCode.not_coordinator
            assert partition.log.log_end == log_end

    run(test)


class Unreadable:
    """A source on a disk that cannot be read."""

    tries = 0

    def read(self, *_: object, **__: object) -> None:
        self.tries += 1
        raise StorageFault("Input/output error")


def test_loading_is_retried_after_a_storage_error(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, **SETTINGS) as (broker,), Client.to(broker) as client:
            partition = await coordinating(broker)
            assert await commit(client, 5) == ErrorCode.none
            partition.source = unreadable = Unreadable()
            move(broker, partition, ANOTHER_BROKER)
            move(broker, partition, broker.id)
            await until(lambda: unreadable.tries)
            assert (await fetch(client))[0] == ErrorCode.coordinator_load_in_progress
            partition.source = partition.log
            assert await settled(client) == (ErrorCode.none, 5)

    run(test)


def test_long_keys_are_hashed_in_slices_and_not_cached():
    long = "x" * (KEY_CHARS_CACHED + 1)
    kept = _cached_hash.cache_info().currsize
    assert java_hash(long) == java_hash(long)
    assert java_hash("x" * KEY_CHARS_MAX + "y") == java_hash("x" * KEY_CHARS_MAX)
    assert _cached_hash.cache_info().currsize == kept

    async def turns() -> int:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for key in Interleaved(f"{number}{'x' * KEY_CHARS_MAX}" for number in range(10)):
            java_hash(key)
        task.cancel()
        return others

    assert asyncio.run(turns()) >= 9


def test_keys_are_hashed_like_java_strings():
    assert [java_hash(text) for text in ("", "g", "my-group", "ünïcödé", "😀")] == [0, 103, *map(reference, LONGER)]


LONGER = ("my-group", "ünïcödé", "😀")


def reference(text: str) -> int:
    data = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) % 2**32
    return abs(value - 2**32 if value >= 2**31 else value)
