"""Before a leader takes the first record of a transaction: is the partition part of it? (KIP-890)

The coordinator knows. Producers of the first version of the protocol have told it before (AddPartitionsToTxn), and it
is asked whether they did; those of the second leave it to the leader to tell it. Its answer is true when it is given;
whether it still is when the record is appended is the guard's business (`log.transactions`).

Errors that producers of the first version would take for the end of everything, though they pass, are told as ones that
they try again after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.image import NO_BROKER
from ottla.coordinator.transaction_records import TopicPartition
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM, Identity
from ottla.coordinator.transactions import Codes
from ottla.errors import ErrorCode, Refused
from ottla.log.transactions import Guard
from ottla.net.peer import PeerLost
from ottla.replication.partition import Partition
from ottla.wire.batch import read_header
from ottla.wire.produce import ProduceRequest, Topic
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

RETRY_SECONDS = 0.02
RETRY_SECONDS_MAX = 0.5
"""So long the end of the transaction before is waited for: then its producer is told to try again."""


class Manner(Enum):
    """What the producer understands, by the version of its request."""

    ASK = "ask"
    """First version of the protocol, before errors that mean: abort."""
    ASK_ABORTABLE = "ask, abortable"
    """First version of the protocol."""
    ADD = "add"
    """Second version: the leader adds the partition."""


def manner_of(produce_version: int) -> Manner:
    if produce_version >= 12:
        return Manner.ADD
    return Manner.ASK_ABORTABLE if produce_version == 11 else Manner.ASK


async def verify(
    broker: Broker,
    transactional_id: str,
    speaker: Identity,
    partitions: Collection[TopicPartition],
    manner: Manner,
) -> Codes:
    """What the coordinator says of each partition, in words the producer understands."""
    deadline = broker.runtime.now() + RETRY_SECONDS_MAX
    while True:
        codes = await _ask(broker, transactional_id, speaker, partitions, adds=manner is Manner.ADD)
        waits = manner is Manner.ADD and ErrorCode.concurrent_transactions in codes.values()
        if not waits or broker.runtime.now() >= deadline:
            return {place: _translated(code, manner) for place, code in codes.items()}
        await asyncio.sleep(RETRY_SECONDS)


def _translated(code: ErrorCode, manner: Manner) -> ErrorCode:
    if code == ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code == ErrorCode.transaction_abortable and manner is Manner.ASK:
        return ErrorCode.invalid_txn_state
    if code in _PASSING or (code == ErrorCode.concurrent_transactions and manner is not Manner.ADD):
        return ErrorCode.not_enough_replicas  # does not even make a client ask for metadata
    return code


_PASSING = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class Unverified(NamedTuple):
    """A partition that a producer wants to write to, for the first time in its transaction."""

    partition: Partition
    speaker: Identity
    guard: Guard


Wanted = dict[tuple[Topic, int], Unverified]


def unverified(broker: Broker, message: ProduceRequest) -> Wanted:
    """What of a Produce request needs the coordinator's word. What is wrong with the rest, the append will say."""
    wanted = {}
    for topic, partitions in message.topics:
        for index, records in partitions:
            partition = broker.replicas.get(topic, index)
            if partition is None or not partition.leads or records is None:
                continue
            try:
                header = read_header(records)
                if not header.is_transactional or header.producer_id < 0:
                    continue
                guard = partition.log.transactions.guard(header.producer_id, header.producer_epoch)
            except Refused:
                continue
            if guard is not None:
                speaker = Identity(header.producer_id, header.producer_epoch)
                wanted[topic, index] = Unverified(partition, speaker, guard)
    return wanted


async def verify_all(
    broker: Broker, transactional_id: str, wanted: Wanted, manner: Manner
) -> dict[tuple[Topic, int], ErrorCode]:
    """What the coordinator says of each."""
    if manner is not Manner.ADD and not broker.config.transaction_partition_verification_enable:
        return {}
    speakers: dict[Identity, list[TopicPartition]] = {}
    for partition, speaker, _ in wanted.values():
        speakers.setdefault(speaker, []).append((partition.topic, partition.index))
    codes: Codes = {}
    for speaker, places in speakers.items():
        codes.update(await verify(broker, transactional_id, speaker, places, manner))
    return {key: codes[each.partition.topic, each.partition.index] for key, each in wanted.items()}


async def _ask(
    broker: Broker, transactional_id: str, speaker: Identity, partitions: Collection[TopicPartition], *, adds: bool
) -> Codes:
    coordinator = broker.transactions
    index = coordinator.partition_of(transactional_id)
    state = None if index is None else broker.image.partition(coordinator.topic, index)
    try:
        if state is None or state.leader == NO_BROKER:
            raise Refused(ErrorCode.coordinator_not_available)
        if state.leader != broker.id:
            return await _ask_peer(broker, state.leader, transactional_id, speaker, partitions, adds=adds)
        asking = coordinator.ask(
            transactional_id,
            lambda machine, to, now, now_ms: (
                machine.add(transactional_id, speaker, partitions, to, now_ms, version=EPOCH_BUMPS_FROM)
                if adds
                else machine.verify(transactional_id, speaker, partitions, to)
            ),
        )
        reply = await asking.answered()
        if isinstance(reply, Refused):
            raise reply
    except Refused as refused:
        return dict.fromkeys(partitions, refused.code)
    except PeerLost:
        return dict.fromkeys(partitions, ErrorCode.network_exception)
    assert isinstance(reply, dict)
    return reply


async def _ask_peer(
    broker: Broker,
    coordinator_id: int,
    transactional_id: str,
    speaker: Identity,
    partitions: Collection[TopicPartition],
    *,
    adds: bool,
) -> Codes:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    message = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=speaker.producer_id,
                producer_epoch=speaker.epoch,
                verify_only=not adds,
                topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
            )
        ]
    )
    response = await broker.peers.call(coordinator_id, message, AddPartitionsToTxnResponse)
    codes = {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
    missing = ErrorCode(response.error_code) or ErrorCode.network_exception
    return {place: codes.get(place, missing) for place in partitions}
