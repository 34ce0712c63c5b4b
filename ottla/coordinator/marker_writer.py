"""Transaction markers, written into the partitions that this broker leads: on behalf of a coordinator here or
elsewhere (WriteTxnMarkers).

A marker counts when it is committed, so the answer waits for that. Writing one twice changes nothing: the second time
it is found in the log, and only waited for. In `__consumer_offsets` a marker does more than end a transaction: offsets
come to count, or do not, so it goes through the shard that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Decision, Reply
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from ottla.coordinator.groups import Groups
from ottla.coordinator.runtime import Phase, Shard
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM
from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
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
    """Of the protocol the transaction was written under."""


class MarkerWriter:
    def __init__(self, runtime: Runtime, replica_manager: ReplicaManager, groups: GroupCoordinator) -> None:
        self._runtime = runtime
        self._replica_manager = replica_manager
        self._groups = groups

    def write(self, topic: str, index: int, end: TransactionEnd, done: Done) -> None:
        """Write the marker; `done` is called once with what became of it, now or later."""
        try:
            partition = self._replica_manager.find(topic, index)
            partition.check_leads()
            if not partition.enough_in_sync:
                raise Refused(ErrorCode.not_enough_replicas)
            shard = self._shard(index) if topic == OFFSETS_TOPIC else None
            needed = partition.log.transactions.check_marker(
                end.producer_id, end.producer_epoch, end.coordinator_epoch, bumped=end.version >= EPOCH_BUMPS_FROM
            )
            now_ms = self._runtime.wall_ms()
            if needed and shard is not None:
                write_through(shard, end, self._runtime.now(), now_ms, done)
                return
            if needed:
                data, header = _batch(end, now_ms)
                partition.log.append(memoryview(data), header, leader_epoch=partition.leader_epoch, now_ms=now_ms)
                partition.advance(len(data))
        except Refused as refused:
            done(refused.code)
        else:
            _await_committed(partition, done)

    def _shard(self, index: int) -> Shard[Groups] | None:
        """The shard that has to know. None for one that cannot be loaded: it knows nothing anyway."""
        shard = self._groups.shard(index)
        if shard is not None and shard.phase is Phase.FAILED:
            return None
        if shard is None or shard.phase is not Phase.ACTIVE:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return shard


def _batch(end: TransactionEnd, now_ms: int) -> tuple[bytearray, BatchHeader]:
    return wire.build(end.producer_id, end.producer_epoch, Marker(end.committed, end.coordinator_epoch), now_ms)


def _await_committed(partition: Partition, done: Done) -> None:
    if partition.high_watermark >= partition.log.log_end:
        done(ErrorCode.none)
    else:
        partition.await_committed(partition.log.log_end, _Waiter(done))


class _Waiter:
    def __init__(self, done: Done) -> None:
        self._done = done

    def committed(self, partition: Partition) -> None:
        self._done(ErrorCode.none)

    def lost(self, partition: Partition) -> None:
        self._done(ErrorCode.not_leader_or_follower)


class _EncodedMarker:
    """What `decision.Sealed` asks for."""

    def __init__(self, end: TransactionEnd, now_ms: int) -> None:
        self._end = end
        self.data, self.header = _batch(end, now_ms)

    def replay_into(self, machine: Groups) -> None:
        machine.replay_end(self._end.producer_id, committed=self._end.committed)


def write_through(shard: Shard[Groups], end: TransactionEnd, now: float, now_ms: int, done: Done) -> None:
    """Write the marker into `__consumer_offsets`, and let its shard take it in."""

    def replied(reply: Reply) -> None:
        done(reply.code if isinstance(reply, Refused) else ErrorCode.none)

    promise = Promise()
    promise.callback = replied
    shard.apply(Decision(replies=((promise, end),), sealed=_EncodedMarker(end, now_ms)), now, now_ms)
