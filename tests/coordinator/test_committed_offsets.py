"""Committed offsets: transactions, deleted topics, expiry."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.coordinator import group_records
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Decision, LogRecord, ProducerIdAndEpoch
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.coordinator.loader import Loader
from ottla.coordinator.marker_writer import TransactionEnd, write_through
from ottla.coordinator.shard import Shard
from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import Partition
from ottla.runtime.disk import RealDisk
from ottla.wire.batch import CODECS
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.schema.offset_commit import OffsetCommitRequest
from ottla.wire.schema.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup
from tests.coordinator.consumer_scenarios import Context
from tests.coordinator.group_scenarios import GroupScenario
from tests.harness.manual_clock import delayed_operations
from tests.log.batches import NOW, stored
from tests.log.compacting import compact

KEY = OffsetCommitKey("g", "t", 0)
NO_ID = bytes(16)


def value(offset: int, topic_id: bytes = NO_ID) -> OffsetCommitValue:
    return OffsetCommitValue(offset, commit_timestamp_ms=NOW, topic_id=topic_id)


def fetched(groups: GroupMachine, group_id: str = "g") -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    ((_, response),) = groups.fetch_offsets(request, object(), stable=True).replies
    assert isinstance(response, OffsetFetchResponseGroup)
    (partition,) = response.topics[0].partitions
    return partition.error_code, partition.committed_offset


def replay(groups: GroupMachine, decision: Decision) -> None:
    for key, changed in decision.records:
        groups.replay(key, changed)


@pytest.fixture
def groups() -> GroupMachine:
    return GroupMachine(Context())


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_transactional_commits_the_later_one_counts(groups, first):
    groups.replay(KEY, value(10), ProducerIdAndEpoch(1, 0))
    groups.replay(KEY, value(20), ProducerIdAndEpoch(2, 0))
    groups.replay_end(first, committed=True)
    if first == 1:
        assert fetched(groups) == (ErrorCode.unstable_offset_commit, -1)
    groups.replay_end(3 - first, committed=True)
    assert fetched(groups) == (ErrorCode.none, 20)


def test_the_end_of_a_transaction_does_not_undo_a_later_commit(groups):
    groups.replay(KEY, value(10), ProducerIdAndEpoch(1, 0))
    groups.replay(KEY, value(30))
    groups.replay_end(1, committed=True)
    assert fetched(groups) == (ErrorCode.none, 30)


def test_offsets_of_a_new_topic_with_the_same_name_stay(groups):
    old, new = b"o" * 16, b"n" * 16
    for group_id in ("g1", "g2"):
        groups.replay(OffsetCommitKey(group_id, "t", 0), value(5, old))
    forgetting = groups.forget_topic("t", old)
    replay(groups, next(forgetting))
    groups.replay(OffsetCommitKey("g2", "t", 0), value(1, new))  # while others have their turn
    for decision in forgetting:
        replay(groups, decision)
    assert fetched(groups, "g1") == (ErrorCode.none, -1)
    assert fetched(groups, "g2") == (ErrorCode.none, 1)


def test_offsets_of_a_deleted_topic_with_the_same_name_are_not_returned():
    scenario = GroupScenario()
    scenario.run(["topics t=1"])
    scenario.groups.replay(KEY, value(5, b"o" * 16))
    assert fetched(scenario.groups) == (ErrorCode.none, -1)
    scenario.groups.replay(KEY, value(6, scenario.context.image.topics["t"].id))
    assert fetched(scenario.groups) == (ErrorCode.none, 6)


def test_a_stale_member_epoch_in_a_transaction_is_illegal_generation(groups):
    hello = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"], topic_partitions=[],
    )  # fmt: skip
    replay(groups, groups.consumer_heartbeat(hello, MemberClient(), object(), 0.0, 0))
    commit = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=7, member_id="m", topics=[])
    with pytest.raises(Refused) as refused:
        groups.commit_in_transaction(commit, ProducerIdAndEpoch(1, 0), object(), 0.0, 0)
    assert refused.value.code == ErrorCode.illegal_generation
    with pytest.raises(Refused) as refused:
        groups.commit_offsets(commit, 9, object(), 0.0, 0)
    assert refused.value.code == ErrorCode.stale_member_epoch


def test_expiry_keeps_a_group_that_was_deleted_and_created_again():
    scenario = GroupScenario()
    scenario.groups.replay(OffsetCommitKey("another", "t", 0), value(1))
    scenario.run(
        [
            "topics t=4",
            "a enter ->",
            "wait 3s -> a joined 1 range leads a",
            "a sync a=x -> a synced x",
            "a leave -> a none",
        ]
    )
    expiring = scenario.groups.expire_offsets(NOW)
    next(expiring)
    replay(scenario.groups, scenario.groups.delete("g", object()))
    scenario.run(["b enter ->", "wait 3s -> b joined 1 range leads b", "b sync b=y -> b synced y"])
    made = scenario.groups.get("g")
    for decision in expiring:
        replay(scenario.groups, decision)
    assert scenario.groups.get("g") is made


@pytest.mark.parametrize("codec", CODECS[:2])
def test_an_aborted_commit_keeps_the_one_before_in_a_compressed_topic(tmp_path: Path, groups, codec):
    config = LogConfig(cleanup_compact=True, cleanup_delete=False)
    log = PartitionLog.open(RealDisk(), str(tmp_path / "__consumer_offsets-0"), config, now_ms=NOW)
    partition = Partition("__consumer_offsets", NO_ID, 0, 1, log, AppendPolicy())
    partition.become(State(replicas=(1,), leader=1, leader_epoch=0, in_sync=(1,), partition_epoch=0))

    def send_reply(reply_to: object, reply: object) -> None:
        if isinstance(reply_to, Promise):
            reply_to.answer(reply)

    delayed = delayed_operations()[1]
    shard = Shard(partition, groups, group_records, send_reply, delayed, commit_timeout_s=5.0, compression=codec)
    shard.activate(0.0, NOW)
    shard.apply(Decision([LogRecord(KEY, value(10))]), 0.0, NOW)
    shard.apply(Decision([LogRecord(KEY, value(20))], (), ProducerIdAndEpoch(7, 0)), 0.0, NOW)
    promise = Promise(delayed)
    write_through(shard, TransactionEnd(7, 0, committed=False, coordinator_epoch=3), 0.0, NOW, promise)
    assert isinstance(promise.reply, TransactionEnd)
    assert fetched(groups) == (ErrorCode.none, 10)
    compact(log)
    loaded = GroupMachine(Context())
    loader = Loader(loaded, group_records, log.log_start)
    for batch in stored(log):
        for _ in loader.feed(batch):
            pass
    for _ in loader.replay():
        pass
    assert fetched(loaded) == (ErrorCode.none, 10)
