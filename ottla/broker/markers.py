"""Markers, written into the partitions that this broker leads: at the word of a coordinator here or elsewhere.

A marker counts when it is committed, so the answer waits for that. Writing one twice changes nothing: the second time
it is found in the log, and only waited for. In the offsets topic a marker does more than end a transaction: offsets
come to count, or do not, so it goes through the shard that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.coordinators import OFFSETS_TOPIC, Asking
from ottla.coordinator.decision import Decision, Reply
from ottla.coordinator.groups import Groups
from ottla.coordinator.runtime import Phase, Shard
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM
from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import Partition
from ottla.wire import marker as wire
from ottla.wire.batch import BatchHeader
from ottla.wire.marker import Marker

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

Done = Callable[[ErrorCode], None]


class End(NamedTuple):
    """Of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    version: int = 0
    """Of the protocol the transaction was written under."""


def write(broker: Broker, topic: str, index: int, end: End, done: Done) -> None:
    """Write the marker; `done` is told once what became of it, now or later."""
    try:
        partition = broker.replication.find(topic, index)
        partition.check_leads()
        if not partition.enough_in_sync:
            raise Refused(ErrorCode.not_enough_replicas)
        shard = _shard(broker, topic, index)
        needed = partition.log.transactions.check_marker(
            end.producer_id, end.producer_epoch, end.coordinator_epoch, bumped=end.version >= EPOCH_BUMPS_FROM
        )
        now_ms = broker.runtime.wall_ms()
        if needed and shard is not None:
            _through(shard, end, broker.runtime.now(), now_ms, done)
            return
        if needed:
            data, header = _batch(end, now_ms)
            partition.log.append(memoryview(data), header, leader_epoch=partition.leader_epoch, now_ms=now_ms)
            partition.advance(len(data))
    except Refused as refused:
        done(refused.code)
    else:
        _await_committed(partition, done)


def _batch(end: End, now_ms: int) -> tuple[bytearray, BatchHeader]:
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


# The offsets topic.


def _shard(broker: Broker, topic: str, index: int) -> Shard[Groups] | None:
    """The shard that has to know. None for other topics, and for one that cannot be loaded: it knows nothing anyway."""
    if topic != OFFSETS_TOPIC:
        return None
    shard = broker.groups.shard(index)
    if shard is not None and shard.phase is Phase.FAILED:
        return None
    if shard is None or shard.phase is not Phase.ACTIVE:
        raise Refused(ErrorCode.coordinator_load_in_progress)
    return shard


class _Sealed:
    """What `decision.Sealed` asks for."""

    def __init__(self, end: End, now_ms: int) -> None:
        self._end = end
        self.data, self.header = _batch(end, now_ms)

    def replay_into(self, machine: Groups) -> None:
        machine.replay_end(self._end.producer_id, committed=self._end.committed)


def _through(shard: Shard[Groups], end: End, now: float, now_ms: int, done: Done) -> None:
    def answered(reply: Reply) -> None:
        done(reply.code if isinstance(reply, Refused) else ErrorCode.none)

    asking = Asking()
    asking.then = answered
    shard.apply(Decision(replies=((asking, end),), sealed=_Sealed(end, now_ms)), now, now_ms)
