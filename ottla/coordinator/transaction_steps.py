"""Transaction state transitions of one transactional id, as functions from value to value (KIP-98, KIP-360, KIP-890).

    EMPTY ----------add----------> ONGOING --end or timeout--> PREPARE_x ---all markers written--> COMPLETE_x
      ^                             ^                                                                |    |
      +----------init---------------|----------------------------init--------------------------------+    |
                                    +------------------------------add------------------------------------+

A prepared transaction is decided: its markers are written to every partition, with retries, and then it is complete.
Under version 2 of the protocol an abort also leads from EMPTY and COMPLETE_x to PREPARE_ABORT, for a producer that
cannot know whether any part of its transaction has reached the broker.

Requests are accepted by producer id and epoch. A new producer of the transactional id gets a higher epoch, which fences
the old one (`init`). Under version 2 every transaction ends with a higher epoch, so that a late request of one
transaction cannot change the next (`end`). A request may be a retry whose response was lost: it then carries the epoch
before the last bump, if its own producer caused that bump (`last_epoch`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordinator.decision import ProducerIdAndEpoch
from ottla.coordinator.transaction_records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TransactionState,
    TransactionValue,
)
from ottla.errors import ErrorCode, Refused
from ottla.wire.topic_partition import TopicPartition

EPOCH_MAX = 2**15 - 1
EPOCH_USABLE_MAX = EPOCH_MAX - 1
"""The last epoch a producer gets: one more is needed to fence it."""
EPOCH_BUMPS_FROM = 2
"""From this version of the protocol on."""

PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class ProducerIdNeeded(Exception):
    """The step takes a new producer id: ask again with one."""


def init(
    value: TransactionValue | None,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    spare_id: int | None,
    now_ms: int,
) -> TransactionValue:
    """InitProducerId; `expected`: the producer id and epoch that the producer has already (KIP-360).

    The next value. If that is prepared, the producer's open transaction is aborted first.
    """
    if value is None:
        return TransactionValue(_take(spare_id), 0, timeout_ms, updated_ms=now_ms)
    if expected is not None and not _may_be(expected, value) and expected != after(value):
        raise Refused(ErrorCode.producer_fenced)
    if value.state in PREPARED:
        raise Refused(ErrorCode.concurrent_transactions)
    if value.state is TransactionState.ONGOING:
        if expected is not None and expected.epoch != value.producer_epoch:
            raise Refused(ErrorCode.producer_fenced)
        return fence(value, now_ms, by_itself=expected is not None)
    producer_id, epoch = value.producer_id, value.producer_epoch
    asks_again = expected is not None and expected.epoch != epoch
    if expected is not None and asks_again and expected.epoch != value.last_epoch:
        raise Refused(ErrorCode.producer_fenced)
    last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.epoch
    if epoch > EPOCH_USABLE_MAX or (epoch == EPOCH_USABLE_MAX and not asks_again):
        producer_id, epoch = _take(spare_id), 0
    elif asks_again:  # the bump it wants has happened
        return value._replace(
            timeout_ms=timeout_ms, state=TransactionState.EMPTY, updated_ms=now_ms, started_ms=NO_TIMESTAMP
        )
    else:
        epoch += 1
    return value._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=(),
        updated_ms=now_ms,
        started_ms=NO_TIMESTAMP,
        previous_producer_id=value.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def _take(spare_id: int | None) -> int:
    if spare_id is None:
        raise ProducerIdNeeded
    return spare_id


def _may_be(expected: ProducerIdAndEpoch, value: TransactionValue) -> bool:
    """Whether it is the current producer id, or the one before, whose epochs were used up."""
    return expected.producer_id == value.producer_id or (
        expected.producer_id == value.previous_producer_id and expected.epoch >= EPOCH_USABLE_MAX
    )


def check_producer(value: TransactionValue | None, producer: ProducerIdAndEpoch) -> TransactionValue:
    """The value, if the request comes from its current producer."""
    if value is not None and value.state in PREPARED and producer == after(value) != _current(value):
        raise Refused(ErrorCode.concurrent_transactions)  # it uses its next producer id before the markers are written
    if value is None or value.producer_id != producer.producer_id:
        raise Refused(ErrorCode.invalid_producer_id_mapping)
    if value.producer_epoch != producer.epoch:
        raise Refused(ErrorCode.producer_fenced)
    return value


def add(
    value: TransactionValue, partitions: Iterable[TopicPartition], version: int, now_ms: int
) -> TransactionValue | None:
    """Add partitions to the transaction; the first one begins it. None: nothing changes."""
    if value.state in PREPARED:
        raise Refused(ErrorCode.concurrent_transactions)
    wanted = set(partitions)
    if not wanted or (value.state is TransactionState.ONGOING and wanted.issubset(value.partitions)):
        return None
    return value._replace(
        state=TransactionState.ONGOING,
        partitions=tuple(sorted(wanted.union(value.partitions))),
        started_ms=value.started_ms if value.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        previous_producer_id=value.producer_id,
        version=version,
    )


def fence(value: TransactionValue, now_ms: int, *, by_itself: bool = False) -> TransactionValue:
    """Abort an open transaction and fence its producer. With `by_itself` the producer asked for it, and may get the new
    epoch with InitProducerId."""
    assert value.state is TransactionState.ONGOING
    assert value.producer_epoch < EPOCH_MAX
    return value._replace(
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=value.producer_epoch + 1,
        last_epoch=value.producer_epoch if by_itself else NO_PRODUCER_EPOCH,
        updated_ms=now_ms,
        previous_producer_id=value.producer_id,
    )


def end(
    value: TransactionValue | None, producer: ProducerIdAndEpoch, now_ms: int, *, committed: bool
) -> TransactionValue | None:
    """EndTxn under version 1: the epoch stays. None: the transaction has ended like that already.

    A late request may end the next transaction instead of the one it was sent for; version 2 prevents that.
    """
    value = check_producer(value, producer)
    prepare, complete = _ends(committed)
    if value.state is TransactionState.ONGOING:
        return value._replace(
            state=prepare,
            updated_ms=now_ms,
            previous_producer_id=value.producer_id,
            version=min(value.version, EPOCH_BUMPS_FROM - 1),
        )
    _check_ended(value, prepare, complete)
    return None


def _ends(committed: bool) -> tuple[TransactionState, TransactionState]:
    if committed:
        return TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
    return TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT


def _check_ended(value: TransactionValue, prepare: TransactionState, complete: TransactionState) -> None:
    if value.state is prepare:
        raise Refused(ErrorCode.concurrent_transactions)
    if value.state is not complete:
        raise Refused(ErrorCode.invalid_txn_state, f"the transaction is in state {value.state.label}")


def end_and_bump(
    value: TransactionValue | None, producer: ProducerIdAndEpoch, spare_id: int | None, now_ms: int, *, committed: bool
) -> TransactionValue | None:
    """EndTxn under version 2: the epoch rises. None: the transaction has ended like that already."""
    if value is None:
        raise Refused(ErrorCode.invalid_producer_id_mapping)
    prepare, complete = _ends(committed)
    if _asks_again(producer, value):
        _check_ended(value, prepare, complete)
        return None
    value = check_producer(value, producer)
    if value.state in PREPARED:
        # The producer got its next epoch with the answer to the end, and uses it before the markers are written
        # (KAFKA-18464): an abort of a transaction of which nothing has been sent comes that early.
        raise Refused(ErrorCode.concurrent_transactions)
    if value.state is not TransactionState.ONGOING and committed:
        raise Refused(ErrorCode.invalid_txn_state, f"the transaction is in state {value.state.label}")
    exhausted = value.producer_epoch >= EPOCH_USABLE_MAX
    return value._replace(
        state=prepare,
        producer_epoch=value.producer_epoch + 1,
        last_epoch=value.producer_epoch,
        next_producer_id=_take(spare_id) if exhausted else NO_PRODUCER_ID,
        started_ms=value.started_ms if value.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        previous_producer_id=value.producer_id,
        version=max(value.version, EPOCH_BUMPS_FROM),
    )


def _asks_again(producer: ProducerIdAndEpoch, value: TransactionValue) -> bool:
    """Whether this is a retry of the EndTxn that has raised the epoch."""
    if value.state not in PREPARED + COMPLETE or producer.epoch != value.last_epoch:
        return False
    rotated = value.state in COMPLETE and value.producer_epoch == 0
    return producer.producer_id == (value.previous_producer_id if rotated else value.producer_id)


def complete(value: TransactionValue, now_ms: int) -> TransactionValue:
    """All markers are written."""
    assert value.state in PREPARED
    following = after(value)
    return value._replace(
        state=TransactionState.COMPLETE_COMMIT
        if value.state is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT,
        producer_id=following.producer_id,
        producer_epoch=following.epoch,
        previous_producer_id=value.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=(),
        updated_ms=now_ms,
    )


def after(value: TransactionValue) -> ProducerIdAndEpoch:
    """The producer id and epoch for the transaction after this one."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(value.next_producer_id, 0)
    return _current(value)


def _current(value: TransactionValue) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(value.producer_id, value.producer_epoch)
