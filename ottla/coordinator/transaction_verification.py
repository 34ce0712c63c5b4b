"""Transaction verification (KIP-890): before a leader takes the first record of a transaction, it asks the coordinator
whether the partition is part of it.

Producers of the first version of the protocol have told the coordinator before (AddPartitionsToTxn), and it is asked
whether they did; those of the second leave it to the leader to add the partition. The answer is true when it is given;
whether it still is when the record is appended is the guard's business (`log.transactions`).

Errors that producers of the first version would take for the end of everything, though they pass, are answered as ones
that they retry.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import NO_BROKER
from ottla.config.broker_config import LiveConfig
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Reply
from ottla.coordinator.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction_machine import Codes
from ottla.coordinator.transaction_records import TopicPartition
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM, Identity
from ottla.errors import ErrorCode, Refused
from ottla.log.transactions import Guard
from ottla.net.outbound import PeerLost
from ottla.replication.partition import Partition
from ottla.replication.ports import Peers
from ottla.replication.replicas import Replicas
from ottla.runtime import Runtime
from ottla.wire.batch import HEADER, HEADER_BYTES, BatchHeader
from ottla.wire.produce import ProduceRequest
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

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


class TransactionVerifier:
    def __init__(
        self,
        runtime: Runtime,
        config: LiveConfig,
        cluster: Cluster,
        replicas: Replicas,
        coordinator: TransactionCoordinator,
        peers: Peers,
    ) -> None:
        self.runtime = runtime
        self._config = config
        self._cluster = cluster
        self._replicas = replicas
        self._coordinator = coordinator
        self._batches = AddPartitionsBatcher(runtime, peers)

    def begin(self, message: ProduceRequest, version: int) -> Verification | None:
        """What a Produce request has to ask before it is appended, if anything. What is wrong with it otherwise, the
        append will say."""
        assert message.transactional_id is not None
        producer: Identity | None = None
        partitions = []
        for topic, batches in message.topics:
            for index, records in batches:
                partition = self._replicas.get(topic, index)
                if partition is None or not partition.leads or records is None or len(records) < HEADER_BYTES:
                    continue
                header = BatchHeader._make(HEADER.unpack_from(records))
                if header.is_transactional and header.producer_id >= 0:
                    producer = producer or Identity(header.producer_id, header.producer_epoch)
                    partitions.append(partition)
        if producer is None:
            return None
        try:
            found = Verification(self, message.transactional_id, producer, partitions, _manner(version))
        except Refused:
            return None
        return found if found.needed else None

    @property
    def enabled(self) -> bool:
        return self._config.current.transaction_partition_verification_enable

    def ask_here(
        self, transactional_id: str, producer: Identity, partitions: list[TopicPartition], *, add: bool
    ) -> Promise | None:
        """None if the coordinator is another broker."""
        if self._coordinator_id(transactional_id) != self._config.current.broker_id:
            return None
        return self._coordinator.ask(
            transactional_id,
            lambda machine, to, now, now_ms: (
                machine.add(transactional_id, producer, partitions, to, now_ms, version=EPOCH_BUMPS_FROM)
                if add
                else machine.verify(transactional_id, producer, partitions, to)
            ),
        )

    async def ask_peer(
        self, transactional_id: str, producer: Identity, partitions: list[TopicPartition], *, add: bool
    ) -> Codes:
        coordinator_id = self._coordinator_id(transactional_id)
        if coordinator_id == NO_BROKER:
            raise Refused(ErrorCode.coordinator_not_available)
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=not add,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        return await self._batches.send(coordinator_id, transaction)

    def _coordinator_id(self, transactional_id: str) -> int:
        index = self._coordinator.partition_of(transactional_id)
        state = None if index is None else self._cluster.image.partition(self._coordinator.topic, index)
        return NO_BROKER if state is None else state.leader


class Verification:
    """A producer is about to write, in its transaction, to partitions that this broker leads."""

    def __init__(
        self,
        verifier: TransactionVerifier,
        transactional_id: str,
        producer: Identity,
        partitions: list[Partition],
        manner: Manner,
    ) -> None:
        """Refused if a guard is: its epoch has passed."""
        self._verifier = verifier
        self._transactional_id = transactional_id
        self._producer = producer
        self._manner = manner
        self._guards: dict[TopicPartition, Guard] = {}
        self._codes: Codes = {}
        self._partitions = partitions
        self._take_guards()

    def _take_guards(self) -> None:
        self._guards.clear()
        for partition in self._partitions:
            guard = partition.transactions.guard(self._producer.producer_id, self._producer.epoch)
            if guard is not None:
                self._guards[partition.topic, partition.index] = guard

    @property
    def needed(self) -> bool:
        """Whether it is the first time in this transaction that it writes to one of them."""
        return bool(self._guards)

    @property
    def _must_ask(self) -> bool:
        return self._manner is Manner.ADD or self._verifier.enabled

    def verify_at_once(self) -> bool:
        """Whether that takes no waiting: the coordinator is here, and nothing stands in the way."""
        if not self._must_ask:
            return True
        promise = self._ask_here()
        if promise is None or promise.reply is None:
            return False
        return self._answered(_codes(list(self._guards), promise.reply))

    async def verify(self) -> None:
        """Ask the coordinator. Right after a transaction its markers may be in flight: then they are waited for, and a
        marker that was written meanwhile makes the answer worthless, whichever transaction it was for."""
        runtime = self._verifier.runtime
        deadline = runtime.now() + RETRY_SECONDS_MAX
        while self._must_ask:
            partitions = list(self._guards)
            try:
                self._take_guards()
            except Refused as refused:
                self._codes = dict.fromkeys(partitions, refused.code)
                return
            if not self._guards or self._answered(await self._ask()) or runtime.now() >= deadline:
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _answered(self, codes: Codes) -> bool:
        """Whether that is the answer; if not, another one may be had soon."""
        self._codes = {partition: _translated(code, self._manner) for partition, code in codes.items()}
        waits = self._manner is Manner.ADD and ErrorCode.concurrent_transactions in codes.values()
        return not waits and not self._is_void()

    def _is_void(self) -> bool:
        return any(
            not partition.transactions.holds(guard)
            for partition in self._partitions
            if (guard := self._guards.get((partition.topic, partition.index))) is not None
        )

    def _ask_here(self) -> Promise | None:
        add = self._manner is Manner.ADD
        return self._verifier.ask_here(self._transactional_id, self._producer, list(self._guards), add=add)

    async def _ask(self) -> Codes:
        partitions = list(self._guards)
        try:
            promise = self._ask_here()
            if promise is not None:
                return _codes(partitions, await promise.answered())
            add = self._manner is Manner.ADD
            return await self._verifier.ask_peer(self._transactional_id, self._producer, partitions, add=add)
        except Refused as refused:
            return dict.fromkeys(partitions, refused.code)
        except PeerLost:
            return dict.fromkeys(partitions, ErrorCode.network_exception)

    def guard(self, partition: Partition) -> Guard | None:
        """To be shown with the append. Refused if the coordinator did not agree."""
        key = (partition.topic, partition.index)
        if code := self._codes.get(key):
            raise Refused(code)
        return self._guards.get(key)


def _manner(produce_version: int) -> Manner:
    if produce_version >= ADDS_FROM:
        return Manner.ADD
    return Manner.ASK_ABORTABLE if produce_version >= ABORTABLE_FROM else Manner.ASK


def _codes(partitions: list[TopicPartition], reply: Reply) -> Codes:
    if isinstance(reply, Refused):
        return dict.fromkeys(partitions, reply.code)
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


_Waiting = tuple[AddPartitionsToTxnTransaction, "asyncio.Future[Codes]"]


class AddPartitionsBatcher:
    """AddPartitionsToTxn batching: all that comes up in one turn of the loop and is for one broker goes in one
    request."""

    def __init__(self, runtime: Runtime, peers: Peers) -> None:
        self._runtime = runtime
        self._peers = peers
        self._waiting: dict[int, list[_Waiting]] = {}

    async def send(self, broker_id: int, transaction: AddPartitionsToTxnTransaction) -> Codes:
        """What the coordinator says of each partition. PeerLost if it says nothing."""
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(broker_id, [])
        waiting.append((transaction, answer))
        if len(waiting) == 1:
            self._runtime.call_soon(self._flush, broker_id)
        return await answer

    def _flush(self, broker_id: int) -> None:
        batch = self._waiting.pop(broker_id)
        self._runtime.spawn(self._call(broker_id, batch), name=f"AddPartitionsToTxn to broker {broker_id}")

    async def _call(self, broker_id: int, batch: list[_Waiting]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[transaction for transaction, _ in batch])
        try:
            response = await self._peers.call(broker_id, request, AddPartitionsToTxnResponse)
        except PeerLost as lost:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(lost)
            return
        results = response.results_by_transaction
        missing = ErrorCode(response.error_code) or ErrorCode.network_exception
        for number, (transaction, answer) in enumerate(batch):
            if not answer.done():
                answer.set_result(_result(transaction, results[number] if number < len(results) else None, missing))


def _result(
    transaction: AddPartitionsToTxnTransaction, result: AddPartitionsToTxnResult | None, missing: ErrorCode
) -> Codes:
    codes = {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in ([] if result is None else result.topic_results)
        for each in topic.results_by_partition
    }
    partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    return {partition: codes.get(partition, missing) for partition in partitions}
