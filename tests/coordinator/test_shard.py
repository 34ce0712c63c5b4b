"""Shards on real logs: appends, replies, loading, loss of leadership."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.coordinator import group_records
from ottla.coordinator.decision import NOTHING, Decision, LogRecord, ProducerIdAndEpoch, answer
from ottla.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.coordinator.loader import SLICE_RECORDS, Loader
from ottla.coordinator.shard import Shard
from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import Partition
from ottla.wire.batch import read_header
from ottla.wire.records import Record, build_batch
from tests.harness.failing_disk import FailingDisk
from tests.harness.manual_clock import delayed_operations

NOW = 1000.0
NOW_MS = 1_790_000_000_000


def committed(offset: int, group: str = "g", partition: int = 0) -> LogRecord:
    return LogRecord(OffsetCommitKey(group, "t", partition), OffsetCommitValue(offset, commit_timestamp_ms=NOW_MS))


class Notes:
    """The simplest machine: it remembers what it was told."""

    def __init__(self) -> None:
        self.offsets: dict[object, int] = {}
        self.pending: dict[int, dict[object, int]] = {}
        self.waiting: list[object] = []
        self.due: list[Decision] = []
        self.deadline: float | None = None
        self.replayed = 0

    def replay(self, key: object, value: object | None, producer: ProducerIdAndEpoch | None = None) -> None:
        self.replayed += 1
        into = self.offsets if producer is None else self.pending.setdefault(producer.producer_id, {})
        if isinstance(value, OffsetCommitValue):
            into[key] = value.offset
        else:
            into.pop(key, None)

    def replay_end(self, producer_id: int, *, committed: bool) -> None:
        ended = self.pending.pop(producer_id, {})
        if committed:
            self.offsets.update(ended)

    def settle(self, now: float, now_ms: int) -> Iterator[Decision]:
        return iter(())

    def expire(self, now: float, now_ms: int) -> Iterator[Decision]:
        while self.due:
            yield self.due.pop(0)

    def pending_replies(self) -> Iterator[object]:
        return iter(self.waiting)


class Fixture:
    def __init__(self, path: Path) -> None:
        self.path = str(path / "__consumer_offsets-0")
        self.disk = FailingDisk()
        self.log = PartitionLog.open(self.disk, self.path, LogConfig(segment_bytes=100_000), now_ms=NOW_MS)
        self.partition = Partition("__consumer_offsets", bytes(16), 0, 1, self.log, AppendPolicy())
        self.lead()
        self.heard: list[tuple[object, object]] = []
        self.machine = Notes()
        self.clock, self.delayed = delayed_operations(NOW)
        self.shard = self.made(self.machine)
        self.shard.activate(NOW, NOW_MS)

    def lead(self, *in_sync: int, epoch: int = 0) -> None:
        members = (1, *in_sync)
        changes = self.partition.partition_epoch + 1
        self.partition.become(
            State(replicas=members, leader=1, leader_epoch=epoch, in_sync=members, partition_epoch=changes)
        )

    def made(self, machine: Notes) -> Shard[Notes]:
        def send_reply(reply_to: object, reply: object) -> None:
            self.heard.append((reply_to, reply.code if isinstance(reply, Refused) else reply))

        return Shard(self.partition, machine, group_records, send_reply, self.delayed, commit_timeout_s=5.0)

    def apply(self, decision: Decision) -> list[tuple[object, object]]:
        self.heard.clear()
        self.shard.apply(decision, NOW, NOW_MS)
        return list(self.heard)

    def replicated(self) -> None:
        """The other replica has caught up."""
        self.partition.leader.fetched_by(2, 1, self.log.log_end, self.partition.leader_epoch)

    def loaded(self) -> Notes:
        machine = Notes()
        loader = Loader(machine, group_records, self.log.log_start)
        while loader.next_offset < self.log.log_end:
            piece = self.log.read(loader.next_offset, 10_000, limit=self.log.log_end)
            assert piece is not None
            for _ in loader.feed(piece.load()):
                pass
        for _ in loader.replay():
            pass
        return machine

    def append(self, **how: object) -> None:
        """A batch that no shard of ours would write by itself."""
        data = memoryview(bytearray(build_batch(**how)))  # type: ignore[arg-type]
        self.log.append(data, read_header(data), leader_epoch=0, now_ms=NOW_MS)


@pytest.fixture
def on_disk(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_a_decision_is_appended_as_one_batch_replayed_and_answered(on_disk: Fixture):
    heard = on_disk.apply(Decision([committed(1), committed(2, partition=1)], [("a", "done"), ("b", "done")]))
    assert heard == [("a", "done"), ("b", "done")]
    assert on_disk.log.log_end == 2
    assert sorted(on_disk.machine.offsets.values()) == [1, 2]
    piece = on_disk.log.read(0, 10_000, limit=2)
    assert piece is not None
    assert read_header(piece.load()).record_count == 2


def test_replies_wait_until_all_replicas_have_the_records(on_disk: Fixture):
    on_disk.lead(2)
    assert on_disk.apply(Decision([committed(1)], [("a", "done")])) == []
    assert on_disk.machine.offsets, "replayed at once: the next decision builds on it"
    assert on_disk.apply(answer("b", "what a has changed")) == []
    on_disk.replicated()
    assert on_disk.heard == [("a", "done"), ("b", "what a has changed")]
    assert on_disk.apply(answer("c", "at once")) == [("c", "at once")]


def test_replies_time_out(on_disk: Fixture):
    on_disk.lead(2)
    on_disk.apply(Decision([committed(1)], [("a", "done")]))
    on_disk.clock.reach(NOW + 4.9)
    assert on_disk.heard == []
    on_disk.clock.reach(NOW + 5.0)
    assert on_disk.heard == [("a", ErrorCode.coordinator_not_available)]
    on_disk.replicated()
    assert len(on_disk.heard) == 1, "answered once"


@pytest.mark.parametrize(
    ("refused", "reported"),
    [
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.record_list_too_large, ErrorCode.unknown_server_error),
    ],
)
def test_a_failed_append_changes_nothing(on_disk: Fixture, refused: ErrorCode, reported: ErrorCode):
    on_disk.disk.fail("__consumer_offsets-0", Refused(refused))
    assert on_disk.apply(Decision([committed(1)], [("a", "done")])) == [("a", reported)]
    on_disk.disk.fail("__consumer_offsets-0", None)
    assert not on_disk.machine.offsets
    assert on_disk.apply(Decision([committed(1)], [("a", "done")])) == [("a", "done")]


def test_with_too_few_in_sync_replicas_only_reads_are_answered(on_disk: Fixture):
    on_disk.partition.policy = AppendPolicy(in_sync_min=2)
    on_disk.partition.become(State(replicas=(1, 2), leader=1, leader_epoch=0, in_sync=(1,), partition_epoch=1))
    reported = [("a", ErrorCode.coordinator_not_available)]
    assert on_disk.apply(Decision([committed(1)], [("a", "done")])) == reported
    assert on_disk.apply(answer("b", "known")) == [("b", "known")]


def test_an_unloaded_shard_answers_not_coordinator(on_disk: Fixture):
    on_disk.lead(2)
    on_disk.apply(Decision([committed(1)], [("a", "done")]))
    on_disk.machine.waiting = ["b"]
    on_disk.shard.unload()
    assert on_disk.heard == [("a", ErrorCode.not_coordinator), ("b", ErrorCode.not_coordinator)]
    on_disk.replicated()
    assert len(on_disk.heard) == 2
    with pytest.raises(Refused) as refused:
        on_disk.shard.check_active()
    assert refused.value.code == ErrorCode.not_coordinator


def test_replies_of_a_lost_leadership_are_not_coordinator_before_the_shard_is_unloaded(on_disk: Fixture):
    on_disk.lead(2)
    on_disk.apply(Decision([committed(1)], [("a", "done")]))
    on_disk.partition.step_down()
    assert on_disk.heard == [("a", ErrorCode.not_coordinator)]
    on_disk.shard.unload()
    on_disk.clock.reach(NOW + 5.0)
    assert len(on_disk.heard) == 1, "answered once"


def test_a_shard_appends_in_its_own_leader_epoch_only(on_disk: Fixture):
    assert on_disk.shard.leads
    on_disk.lead(epoch=1)
    assert not on_disk.shard.leads
    assert on_disk.apply(Decision([committed(1)], [("a", "done")])) == [("a", ErrorCode.not_coordinator)]
    assert not on_disk.machine.offsets


def test_a_loading_shard_serves_no_requests(on_disk: Fixture):
    with pytest.raises(Refused) as refused:
        on_disk.made(Notes()).check_active()
    assert refused.value.code == ErrorCode.coordinator_load_in_progress


def test_decisions_of_timers_are_applied_one_by_one(on_disk: Fixture):
    on_disk.machine.due = [Decision([committed(1)], [("a", "woken")]), NOTHING, Decision([committed(2)])]
    on_disk.shard.expire(NOW, NOW_MS)
    assert on_disk.heard == [("a", "woken")]
    assert list(on_disk.machine.offsets.values()) == [2]


def test_loading_decodes_only_the_newest_value_of_each_key(on_disk: Fixture):
    for number in range(5000):
        on_disk.apply(Decision([committed(number, f"g{number % 7}"), committed(number, "h", number % 3)]))
    on_disk.apply(Decision([LogRecord(OffsetCommitKey("g3", "t", 0), None)]))
    assert len(on_disk.log.segments) > 1
    loaded = on_disk.loaded()
    assert loaded.offsets == on_disk.machine.offsets
    assert loaded.replayed == 7 + 3


def test_loading_keeps_the_order_of_the_records_of_a_group(on_disk: Fixture):
    seen: list[int] = []
    for number in (1, 2, 3, 1):
        on_disk.apply(Decision([committed(number, "g", number)]))
    machine = Notes()
    machine.replay = lambda key, value, producer=None: seen.append(key.partition)  # type: ignore[method-assign,attr-defined]
    piece = on_disk.log.read(0, 10_000, limit=on_disk.log.log_end)
    assert piece is not None
    loader = Loader(machine, group_records, 0)
    assert not list(loader.feed(piece.load()))
    assert not list(loader.replay())
    assert seen == [2, 3, 1]


def test_loading_works_in_slices(on_disk: Fixture):
    for number in range(3 * SLICE_RECORDS):
        on_disk.apply(Decision([committed(number, f"g{number}")]))
    piece = on_disk.log.read(0, 10_000_000, limit=on_disk.log.log_end)
    assert piece is not None
    loader = Loader(Notes(), group_records, 0)
    read = len(list(loader.feed(piece.load())))
    assert read * SLICE_RECORDS >= loader.records - SLICE_RECORDS
    assert len(list(loader.replay())) >= read


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_loaded(on_disk: Fixture, codec: str):
    on_disk.partition.policy = AppendPolicy(codec=codec)
    on_disk.apply(Decision([committed(number, partition=number) for number in range(100)]))
    piece = on_disk.log.read(0, 10_000, limit=100)
    assert piece is not None
    assert read_header(piece.load()).codec
    assert on_disk.loaded().offsets == on_disk.machine.offsets


@pytest.mark.parametrize("ends", [True, False], ids=["committed", "aborted"])
def test_transactional_offsets_count_after_a_commit_marker(on_disk: Fixture, ends: bool):
    key = OffsetCommitKey("g", "t", 0)
    on_disk.apply(Decision([committed(1)]))
    heard = on_disk.apply(Decision([committed(2)], [("a", "done")], ProducerIdAndEpoch(7, 0)))
    assert heard == [("a", "done")]
    assert on_disk.loaded().offsets == {key: 1}
    on_disk.apply(Decision([committed(3, partition=1)]))
    marker = Record(0, NOW_MS, bytes([0, 0, 0, 1 if ends else 0]), bytes(6))
    on_disk.append(records=[marker], control=True, transactional=True, producer_id=7, producer_epoch=0)
    loaded = on_disk.loaded()
    assert loaded.offsets == {key: 2 if ends else 1, OffsetCommitKey("g", "t", 1): 3}
    assert not loaded.pending


def test_a_damaged_batch_is_not_loaded(on_disk: Fixture):
    on_disk.apply(Decision([committed(1)]))
    piece = on_disk.log.read(0, 10_000, limit=1)
    assert piece is not None
    data = bytearray(piece.load())
    data[-3] ^= 1
    with pytest.raises(Refused) as refused:
        list(Loader(Notes(), group_records, 0).feed(data))
    assert refused.value.code == ErrorCode.corrupt_message
