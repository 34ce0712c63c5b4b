"""Transaction markers, written into the partitions that this broker leads (WriteTxnMarkers).

The response waits until the marker is committed. A marker that is written twice changes nothing: the second one is
found in the log, and only waited for. In `__consumer_offsets` a marker also commits or drops pending offsets, so it is
written by the shard that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Decision, ReplyTo
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.shard import Phase, Shard
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM
from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import ACKS_ALL, COORDINATOR, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Runtime
from ottla.wire import marker as wire
from ottla.wire.batch import BatchHeader
from ottla.wire.marker import Marker

Done = Callable[[ErrorCode], None]


class TransactionEnd(NamedTuple):
    """Commit or abort of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    version: int = 0
    """Of the transaction protocol."""


class MarkerWriter:
    def __init__(self, runtime: Runtime, replica_manager: ReplicaManager, groups: GroupCoordinator) -> None:
        self._runtime = runtime
        self._replica_manager = replica_manager
        self._groups = groups

    def write(self, topic: str, index: int, end: TransactionEnd, done: Done) -> None:
        """Write the marker; `done` is called once with its error code, now or later."""
        try:
            partition = self._replica_manager.find(topic, index)
            partition.check_leads()
            shard = self._shard(index) if topic == OFFSETS_TOPIC else None
            needed = partition.transactions.check_marker(
                end.producer_id, end.producer_epoch, end.coordinator_epoch, bumped=end.version >= EPOCH_BUMPS_FROM
            )
            now_ms = self._runtime.wall_ms()
            if needed and shard is not None:
                promise = Promise(self._replica_manager.delayed)
                write_through(shard, end, self._runtime.now(), now_ms, promise)
                promise.on_reply(lambda reply: done(reply.code if isinstance(reply, Refused) else ErrorCode.none))
                return
            if needed:
                data, header = _batch(end, now_ms)
                partition.append(
                    memoryview(data), ACKS_ALL, now_ms,
                    origin=COORDINATOR, header=header, leader_epoch=partition.leader_epoch,
                )  # fmt: skip
        except Refused as refused:
            done(refused.code)
            return
        if partition.high_watermark >= partition.log_end:
            done(ErrorCode.none)
        else:
            delayed = DelayedMarker(self._replica_manager.delayed, done)
            partition.await_committed(partition.log_end, delayed)

    def _shard(self, index: int) -> Shard[GroupMachine] | None:
        """The shard that replays the marker. None if it could not be loaded."""
        shard = self._groups.shard(index)
        if shard is not None and shard.phase is Phase.FAILED:
            return None
        if shard is None or shard.phase is not Phase.ACTIVE:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return shard


def _batch(end: TransactionEnd, now_ms: int) -> tuple[bytearray, BatchHeader]:
    return wire.build(end.producer_id, end.producer_epoch, Marker(end.committed, end.coordinator_epoch), now_ms)


class DelayedMarker:
    """A marker that is written and not committed yet."""

    __slots__ = ("_code", "_delayed", "_done")

    def __init__(self, delayed: DelayedOperations, done: Done) -> None:
        self._delayed = delayed
        self._done = done
        self._code = ErrorCode.none

    def on_committed(self, partition: Partition) -> None:
        self._delayed.mark(self)

    def on_leadership_lost(self, partition: Partition) -> None:
        self._code = ErrorCode.not_leader_or_follower
        self._delayed.mark(self)

    def complete(self) -> None:
        self._done(self._code)


class _EncodedMarker:
    """Implements `decision.PreEncoded`."""

    def __init__(self, end: TransactionEnd, now_ms: int) -> None:
        self._end = end
        self.data, self.header = _batch(end, now_ms)

    def replay_into(self, machine: GroupMachine) -> None:
        machine.replay_end(self._end.producer_id, committed=self._end.committed)


def write_through(shard: Shard[GroupMachine], end: TransactionEnd, now: float, now_ms: int, reply_to: ReplyTo) -> None:
    """Write the marker into `__consumer_offsets`, and replay it into the shard."""
    shard.apply(Decision(replies=((reply_to, end),), pre_encoded=_EncodedMarker(end, now_ms)), now, now_ms)
