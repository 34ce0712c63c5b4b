"""The transaction machine on a replicated shard: replies and markers wait for the high watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.coordinator import transaction_records
from ottla.coordinator.decision import ProducerIdAndEpoch
from ottla.coordinator.shard import Shard
from ottla.coordinator.transaction_machine import Markers, Prepared, TransactionLimits, TransactionMachine
from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import Partition
from ottla.runtime.disk import RealDisk
from ottla.wire.topic_partition import TopicPartition
from tests.harness.manual_clock import delayed_operations

NOW, NOW_MS = 100.0, 1_700_000_000_000


class Coordinator:
    """Broker 1 leads; broker 2 is in sync, and has what it is said to have."""

    def __init__(self, path: Path) -> None:
        self.log = PartitionLog.open(RealDisk(), str(path / "__transaction_state-0"), LogConfig(), now_ms=NOW_MS)
        self.partition = Partition("__transaction_state", bytes(16), 0, 1, self.log, AppendPolicy())
        self.partition.become(State(replicas=(1, 2), leader=1, leader_epoch=0, in_sync=(1, 2), partition_epoch=0))
        self.heard: list[tuple[object, object]] = []
        self.machine = TransactionMachine(lambda: TransactionLimits(900_000, 10**9))
        self.clock, delayed = delayed_operations(NOW)
        self.shard = Shard(
            self.partition, self.machine, transaction_records, self.send_reply, delayed, commit_timeout_s=5.0
        )
        self.shard.activate(NOW, NOW_MS)

    def send_reply(self, reply_to: object, reply: object) -> None:
        self.heard.append((reply_to, reply.code if isinstance(reply, Refused) else reply))

    def replicated(self) -> list[tuple[object, object]]:
        """The follower has everything: what is told then."""
        self.heard.clear()
        self.partition.leader.fetched_by(2, 1, self.log.log_end, 0)
        return self.heard

    def begun(self) -> ProducerIdAndEpoch:
        """Until there is an open transaction."""
        self.shard.apply(self.machine.init("x", 60_000, None, "init", NOW_MS, spare_id=7), NOW, NOW_MS)
        assert self.replicated() == [("init", ProducerIdAndEpoch(7, 0))]
        added = self.machine.add("x", ProducerIdAndEpoch(7, 0), [TopicPartition("t", 0)], "add", NOW_MS)
        self.shard.apply(added, NOW, NOW_MS)
        assert self.replicated() == [("add", {TopicPartition("t", 0): ErrorCode.none})]
        self.heard.clear()
        return ProducerIdAndEpoch(7, 0)


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path)


def test_the_end_is_answered_and_markers_are_sent_after_the_commit(coordinator: Coordinator):
    producer = coordinator.begun()
    end = coordinator.machine.end("x", producer, "end", NOW_MS, committed=True, bumps=False)
    coordinator.shard.apply(end, NOW, NOW_MS)
    assert coordinator.heard == []
    ticket = Prepared("x", 7, 0)
    assert coordinator.replicated() == [("end", producer), (ticket, Markers(True, (TopicPartition("t", 0),), 0))]
    coordinator.shard.apply(coordinator.machine.complete(ticket, "complete", NOW_MS), NOW, NOW_MS)
    assert coordinator.replicated() == [("complete", True)]


def test_a_read_waits_for_the_records_it_depends_on(coordinator: Coordinator):
    producer = coordinator.begun()
    added = coordinator.machine.add("x", producer, [TopicPartition("t", 1)], "add", NOW_MS)
    coordinator.shard.apply(added, NOW, NOW_MS)
    coordinator.shard.apply(coordinator.machine.verify("x", producer, [TopicPartition("t", 1)], "verify"), NOW, NOW_MS)
    assert coordinator.heard == []
    assert [token for token, _ in coordinator.replicated()] == ["add", "verify"]


def test_markers_that_timed_out_are_requested_again(coordinator: Coordinator):
    producer = coordinator.begun()
    end = coordinator.machine.end("x", producer, "end", NOW_MS, committed=False, bumps=True)
    coordinator.shard.apply(end, NOW, NOW_MS)
    coordinator.clock.reach(NOW + 5.0)
    ticket = Prepared("x", 7, 1)
    unavailable = ErrorCode.coordinator_not_available
    assert coordinator.heard == [("end", unavailable), (ticket, unavailable)]
    coordinator.shard.apply(coordinator.machine.resume(ticket), NOW + 5.1, NOW_MS + 5100)
    assert coordinator.replicated() == [(ticket, Markers(False, (TopicPartition("t", 0),), 2))]


def test_waiting_requests_get_not_coordinator_when_another_broker_leads(coordinator: Coordinator):
    producer = coordinator.begun()
    end = coordinator.machine.end("x", producer, "end", NOW_MS, committed=True, bumps=False)
    coordinator.shard.apply(end, NOW, NOW_MS)
    coordinator.shard.unload()
    gone = ErrorCode.not_coordinator
    assert coordinator.heard == [("end", gone), (Prepared("x", 7, 0), gone)]


def test_a_late_complete_does_not_complete_the_next_transaction(coordinator: Coordinator):
    producer = coordinator.begun()

    def end() -> Prepared:
        """The ticket with which its markers are handed out."""
        ended = coordinator.machine.end("x", producer, "end", NOW_MS, committed=True, bumps=False)
        coordinator.shard.apply(ended, NOW, NOW_MS)
        ticket, _ = coordinator.replicated()[-1]
        assert isinstance(ticket, Prepared)
        return ticket

    first = end()
    coordinator.shard.apply(coordinator.machine.complete(first, "complete", NOW_MS), NOW, NOW_MS)
    coordinator.heard.clear()
    coordinator.clock.reach(NOW + 5.0)
    assert coordinator.heard == [("complete", ErrorCode.coordinator_not_available)]  # and so it is said again
    coordinator.shard.apply(
        coordinator.machine.add("x", producer, [TopicPartition("t", 0)], "add", NOW_MS), NOW, NOW_MS
    )
    second = end()
    coordinator.shard.apply(coordinator.machine.complete(first, "complete", NOW_MS), NOW, NOW_MS)
    assert coordinator.heard[-1] == ("complete", False)
    coordinator.shard.apply(coordinator.machine.complete(second, "complete", NOW_MS), NOW, NOW_MS)
    assert coordinator.replicated() == [("complete", True)]
