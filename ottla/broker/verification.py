"""Before a leader takes the first record of a transaction: is the partition part of it? (KIP-890)

The coordinator knows. Producers of the first version of the protocol have told it before (AddPartitionsToTxn), and it
is asked whether they did; those of the second leave it to the leader to tell it. Its answer is true when it is given;
whether it still is when the record is appended is the guard's business (`log.transactions`).

Errors that producers of the first version would take for the end of everything, though they pass, are told as ones that
they try again after.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from ottla.broker.coordinators import Asking
from ottla.cluster.image import NO_BROKER
from ottla.coordinator.decision import Reply
from ottla.coordinator.transaction_records import TopicPartition
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM, Identity
from ottla.coordinator.transactions import Codes
from ottla.errors import ErrorCode, Refused
from ottla.log.transactions import Guard
from ottla.net.outbound import PeerLost
from ottla.replication.partition import Partition
from ottla.wire.batch import HEADER, HEADER_BYTES, BatchHeader
from ottla.wire.produce import ProduceRequest
from ottla.wire.schema.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

RETRY_SECONDS = 0.02
RETRY_SECONDS_MAX = 0.5
"""So long the end of the transaction before is waited for: then its producer is told to try again."""
ABORTABLE_FROM = 11
ADDS_FROM = 12
"""Versions of Produce."""


class Manner(Enum):
    """What the producer understands, by the version of its request."""

    ASK = "ask"
    """First version of the protocol, before errors that mean: abort."""
    ASK_ABORTABLE = "ask, abortable"
    """First version of the protocol."""
    ADD = "add"
    """Second version: the leader adds the partition."""


class Beginning:
    """A producer is about to write, in its transaction, to partitions that this broker leads."""

    def __init__(
        self, broker: Broker, transactional_id: str, speaker: Identity, partitions: list[Partition], manner: Manner
    ) -> None:
        """Refused if a guard is: its epoch has passed."""
        self._broker = broker
        self._transactional_id = transactional_id
        self._speaker = speaker
        self._manner = manner
        self._guards: dict[TopicPartition, Guard] = {}
        self._codes: Codes = {}
        self._partitions = partitions
        self._take_guards()

    def _take_guards(self) -> None:
        self._guards.clear()
        for partition in self._partitions:
            guard = partition.log.transactions.guard(self._speaker.producer_id, self._speaker.epoch)
            if guard is not None:
                self._guards[partition.topic, partition.index] = guard

    @property
    def needs_asking(self) -> bool:
        """Whether it is the first time in this transaction that it writes to one of them."""
        return bool(self._guards)

    def verify_at_once(self) -> bool:
        """Whether that takes no waiting: the coordinator is here, and nothing stands in the way."""
        if not self._must_ask:
            return True
        asking = self._ask_here()
        if asking is None or asking.reply is None:
            return False
        return self._heard(_codes(list(self._guards), asking.reply))

    async def verify(self) -> None:
        """Ask the coordinator. Right after a transaction its markers may be under way: then they are waited for, and a
        marker that was written meanwhile makes the answer worthless, whichever transaction it was for."""
        deadline = self._broker.runtime.now() + RETRY_SECONDS_MAX
        while self._must_ask:
            places = list(self._guards)
            try:
                self._take_guards()
            except Refused as refused:
                self._codes = dict.fromkeys(places, refused.code)
                return
            if not self._guards or self._heard(await self._ask()) or self._broker.runtime.now() >= deadline:
                return
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _must_ask(self) -> bool:
        return self._manner is Manner.ADD or self._broker.config.transaction_partition_verification_enable

    def _heard(self, codes: Codes) -> bool:
        """Whether that is the answer; if not, another one may be had soon."""
        self._codes = {place: _translated(code, self._manner) for place, code in codes.items()}
        waits = self._manner is Manner.ADD and ErrorCode.concurrent_transactions in codes.values()
        return not waits and not self._is_void()

    def _is_void(self) -> bool:
        return any(
            not partition.log.transactions.holds(guard)
            for partition in self._partitions
            if (guard := self._guards.get((partition.topic, partition.index))) is not None
        )

    async def _ask(self) -> Codes:
        places = list(self._guards)
        try:
            asking = self._ask_here()
            if asking is not None:
                return _codes(places, await asking.answered())
            return await self._ask_peer(places)
        except Refused as refused:
            return dict.fromkeys(places, refused.code)
        except PeerLost:
            return dict.fromkeys(places, ErrorCode.network_exception)

    def _ask_here(self) -> Asking | None:
        """None if the coordinator is another broker."""
        if self._coordinator_id != self._broker.id:
            return None
        transactional_id, speaker, places = self._transactional_id, self._speaker, list(self._guards)
        adds = self._manner is Manner.ADD
        return self._broker.transactions.ask(
            transactional_id,
            lambda machine, to, now, now_ms: (
                machine.add(transactional_id, speaker, places, to, now_ms, version=EPOCH_BUMPS_FROM)
                if adds
                else machine.verify(transactional_id, speaker, places, to)
            ),
        )

    @property
    def _coordinator_id(self) -> int:
        coordinator = self._broker.transactions
        index = coordinator.partition_of(self._transactional_id)
        state = None if index is None else self._broker.image.partition(coordinator.topic, index)
        return NO_BROKER if state is None else state.leader

    async def _ask_peer(self, places: list[TopicPartition]) -> Codes:
        if self._coordinator_id == NO_BROKER:
            raise Refused(ErrorCode.coordinator_not_available)
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        question = AddPartitionsToTxnTransaction(
            transactional_id=self._transactional_id,
            producer_id=self._speaker.producer_id,
            producer_epoch=self._speaker.epoch,
            verify_only=self._manner is not Manner.ADD,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        return await self._broker.questions.ask(self._coordinator_id, question)

    def guard(self, partition: Partition) -> Guard | None:
        """To be shown with the append. Refused if the coordinator did not agree."""
        place = (partition.topic, partition.index)
        if code := self._codes.get(place):
            raise Refused(code)
        return self._guards.get(place)


def beginning(broker: Broker, message: ProduceRequest, version: int) -> Beginning | None:
    """The one that a Produce request is, if it is one. What is wrong with it otherwise, the append will say."""
    assert message.transactional_id is not None
    speaker: Identity | None = None
    partitions = []
    for topic, batches in message.topics:
        for index, records in batches:
            partition = broker.replicas.get(topic, index)
            if partition is None or not partition.leads or records is None or len(records) < HEADER_BYTES:
                continue
            header = BatchHeader._make(HEADER.unpack_from(records))
            if header.is_transactional and header.producer_id >= 0:
                speaker = speaker or Identity(header.producer_id, header.producer_epoch)
                partitions.append(partition)
    if speaker is None:
        return None
    try:
        found = Beginning(broker, message.transactional_id, speaker, partitions, _manner(version))
    except Refused:
        return None
    return found if found.needs_asking else None


def _manner(produce_version: int) -> Manner:
    if produce_version >= ADDS_FROM:
        return Manner.ADD
    return Manner.ASK_ABORTABLE if produce_version >= ABORTABLE_FROM else Manner.ASK


def _codes(places: list[TopicPartition], reply: Reply) -> Codes:
    if isinstance(reply, Refused):
        return dict.fromkeys(places, reply.code)
    assert isinstance(reply, dict)
    return reply


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
