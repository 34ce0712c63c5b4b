"""Transactions on a shard whose records have to be replicated: nothing is promised before they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.coordinator import transaction_records
from ottla.coordinator.shard import Shard
from ottla.coordinator.transaction_machine import Markers, Prepared, TransactionLimits, TransactionMachine
from ottla.coordinator.transaction_steps import Identity
from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import Partition
from ottla.runtime.disk import RealDisk
from tests.coordinator.at_once import AtOnce

NOW, NOW_MS = 100.0, 1_700_000_000_000


class Coordinator:
    """Broker 1 leads; broker 2 is in sync, and has what it is said to have."""

    def __init__(self, path: Path) -> None:
        self.log = PartitionLog.open(RealDisk(), str(path / "__transaction_state-0"), LogConfig(), now_ms=NOW_MS)
        self.partition = Partition("__transaction_state", bytes(16), 0, 1, self.log, AppendPolicy())
        self.partition.become(State(replicas=(1, 2), leader=1, leader_epoch=0, in_sync=(1, 2), partition_epoch=0))
        self.heard: list[tuple[object, object]] = []
        self.machine = TransactionMachine(lambda: TransactionLimits(900_000, 10**9))
        self.shard = Shard(self.partition, self.machine, transaction_records, self.tell, AtOnce(), held_s_max=5.0)
        self.shard.activate(NOW, NOW_MS)

    def tell(self, reply_to: object, reply: object) -> None:
        self.heard.append((reply_to, reply.code if isinstance(reply, Refused) else reply))

    def replicated(self) -> list[tuple[object, object]]:
        """The follower has everything: what is told then."""
        self.heard.clear()
        self.partition.leader.fetched_by(2, 1, self.log.log_end, 0)
        return self.heard

    def begun(self) -> Identity:
        """Until there is an open transaction."""
        self.shard.apply(self.machine.init("x", 60_000, None, "init", NOW_MS, spare_id=7), NOW, NOW_MS)
        assert self.replicated() == [("init", Identity(7, 0))]
        added = self.machine.add("x", Identity(7, 0), [("t", 0)], "add", NOW_MS)
        self.shard.apply(added, NOW, NOW_MS)
        assert self.replicated() == [("add", {("t", 0): ErrorCode.none})]
        self.heard.clear()
        return Identity(7, 0)


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path)


def test_the_end_is_promised_and_markers_leave_only_when_it_cannot_be_lost(coordinator: Coordinator):
    speaker = coordinator.begun()
    end = coordinator.machine.end("x", speaker, "end", NOW_MS, committed=True, bumps=False)
    coordinator.shard.apply(end, NOW, NOW_MS)
    assert coordinator.heard == []
    ticket = Prepared("x", 7, 0)
    assert coordinator.replicated() == [("end", speaker), (ticket, Markers(True, (("t", 0),), 0))]
    coordinator.shard.apply(coordinator.machine.complete(ticket, "complete", NOW_MS), NOW, NOW_MS)
    assert coordinator.replicated() == [("complete", True)]


def test_a_question_waits_for_what_it_shows(coordinator: Coordinator):
    speaker = coordinator.begun()
    added = coordinator.machine.add("x", speaker, [("t", 1)], "add", NOW_MS)
    coordinator.shard.apply(added, NOW, NOW_MS)
    coordinator.shard.apply(coordinator.machine.verify("x", speaker, [("t", 1)], "verify"), NOW, NOW_MS)
    assert coordinator.heard == []
    assert [who for who, _ in coordinator.replicated()] == ["add", "verify"]


def test_markers_that_could_not_leave_in_time_are_asked_for_again(coordinator: Coordinator):
    speaker = coordinator.begun()
    end = coordinator.machine.end("x", speaker, "end", NOW_MS, committed=False, bumps=True)
    coordinator.shard.apply(end, NOW, NOW_MS)
    coordinator.shard.expire(NOW + 5.0, NOW_MS + 5000)
    ticket = Prepared("x", 7, 1)
    unavailable = ErrorCode.coordinator_not_available
    assert coordinator.heard == [("end", unavailable), (ticket, unavailable)]
    coordinator.shard.apply(coordinator.machine.resume(ticket), NOW + 5.1, NOW_MS + 5100)
    assert coordinator.replicated() == [(ticket, Markers(False, (("t", 0),), 2))]


def test_whoever_waits_is_sent_away_when_another_broker_leads(coordinator: Coordinator):
    speaker = coordinator.begun()
    end = coordinator.machine.end("x", speaker, "end", NOW_MS, committed=True, bumps=False)
    coordinator.shard.apply(end, NOW, NOW_MS)
    coordinator.shard.unload()
    gone = ErrorCode.not_coordinator
    assert coordinator.heard == [("end", gone), (Prepared("x", 7, 0), gone)]


def test_what_is_said_again_of_a_transaction_does_not_complete_the_next_one(coordinator: Coordinator):
    speaker = coordinator.begun()

    def end() -> Prepared:
        """The ticket with which its markers are handed out."""
        ended = coordinator.machine.end("x", speaker, "end", NOW_MS, committed=True, bumps=False)
        coordinator.shard.apply(ended, NOW, NOW_MS)
        ticket, _ = coordinator.replicated()[-1]
        assert isinstance(ticket, Prepared)
        return ticket

    first = end()
    coordinator.shard.apply(coordinator.machine.complete(first, "complete", NOW_MS), NOW, NOW_MS)
    coordinator.heard.clear()
    coordinator.shard.expire(NOW + 5.0, NOW_MS)
    assert coordinator.heard == [("complete", ErrorCode.coordinator_not_available)]  # and so it is said again
    coordinator.shard.apply(coordinator.machine.add("x", speaker, [("t", 0)], "add", NOW_MS), NOW, NOW_MS)
    second = end()
    coordinator.shard.apply(coordinator.machine.complete(first, "complete", NOW_MS), NOW, NOW_MS)
    assert coordinator.heard[-1] == ("complete", False)
    coordinator.shard.apply(coordinator.machine.complete(second, "complete", NOW_MS), NOW, NOW_MS)
    assert coordinator.replicated() == [("complete", True)]
