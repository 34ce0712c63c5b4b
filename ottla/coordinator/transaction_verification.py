"""Transaction verification (KIP-890): before the first append of a transaction to a partition, the leader asks the
transaction coordinator.

Producers of version 1 of the protocol have added the partition themselves (AddPartitionsToTxn), and the coordinator is
asked whether they did. For producers of version 2 the leader adds the partition. The answer may be outdated when the
batch is appended: the guard finds out (`log.transactions`).

Temporary errors that producers of version 1 would treat as fatal are answered as errors that they retry.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import NO_BROKER
from ottla.config.broker_config import LiveConfig
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import ProducerIdAndEpoch, Reply
from ottla.coordinator.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction_machine import Codes
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM
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
from ottla.wire.topic_partition import TopicPartition, by_topic

RETRY_SECONDS = 0.02
RETRY_SECONDS_MAX = 0.5
"""How long to wait for the markers of the transaction before; then the producer has to retry."""
ABORTABLE_FROM = 11
ADDS_FROM = 12
"""Versions of Produce."""


class VerificationMode(Enum):
    """What to ask the coordinator, by the version of the producer's request."""

    ASK = "ask"
    """Version 1 of the protocol, before TRANSACTION_ABORTABLE."""
    ASK_ABORTABLE = "ask, abortable"
    """Version 1 of the protocol."""
    ADD = "add"
    """Version 2: the leader adds the partition."""

    @classmethod
    def of(cls, version: int, *, abortable_from: int, adds_from: int) -> VerificationMode:
        if version >= adds_from:
            return cls.ADD
        return cls.ASK_ABORTABLE if version >= abortable_from else cls.ASK


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
        """The verification that a Produce request needs before it is appended, if any. Other errors are found by the
        append."""
        assert message.transactional_id is not None
        producer: ProducerIdAndEpoch | None = None
        partitions = []
        for topic, batches in message.topics:
            for index, records in batches:
                partition = self._replicas.get(topic, index)
                if partition is None or not partition.leads or records is None or len(records) < HEADER_BYTES:
                    continue
                header = BatchHeader._make(HEADER.unpack_from(records))
                if header.is_transactional and header.producer_id >= 0:
                    producer = producer or ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
                    partitions.append(partition)
        if producer is None:
            return None
        mode = VerificationMode.of(version, abortable_from=ABORTABLE_FROM, adds_from=ADDS_FROM)
        try:
            found = Verification(self, message.transactional_id, producer, partitions, mode)
        except Refused:
            return None
        return found if found.needed else None

    @property
    def enabled(self) -> bool:
        return self._config.current.transaction_partition_verification_enable

    def ask_here(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: list[TopicPartition], *, add: bool
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
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: list[TopicPartition], *, add: bool
    ) -> Codes:
        coordinator_id = self._coordinator_id(transactional_id)
        if coordinator_id == NO_BROKER:
            raise Refused(ErrorCode.coordinator_not_available)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=not add,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in by_topic(partitions).items()],
        )
        return await self._batches.send(coordinator_id, transaction)

    def _coordinator_id(self, transactional_id: str) -> int:
        index = self._coordinator.partition_of(transactional_id)
        state = None if index is None else self._cluster.image.partition(self._coordinator.topic, index)
        return NO_BROKER if state is None else state.leader


class Verification:
    """The verification of one request: a producer is about to write, in its transaction, to partitions led here."""

    def __init__(
        self,
        verifier: TransactionVerifier,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: list[Partition],
        mode: VerificationMode,
    ) -> None:
        """Refused if the producer epoch is fenced."""
        self._verifier = verifier
        self._transactional_id = transactional_id
        self._producer = producer
        self._mode = mode
        self._guards: dict[TopicPartition, Guard] = {}
        self._codes: Codes = {}
        self._partitions = partitions
        self._take_guards()

    def _take_guards(self) -> None:
        self._guards.clear()
        for partition in self._partitions:
            guard = partition.transactions.guard(self._producer.producer_id, self._producer.epoch)
            if guard is not None:
                self._guards[TopicPartition(partition.topic, partition.index)] = guard

    @property
    def needed(self) -> bool:
        """Whether this is the first append of the transaction to one of the partitions."""
        return bool(self._guards)

    @property
    def _must_ask(self) -> bool:
        return self._mode is VerificationMode.ADD or self._verifier.enabled

    def verify_at_once(self) -> bool:
        """Whether it is done without waiting: the coordinator is this broker, and has answered."""
        if not self._must_ask:
            return True
        promise = self._ask_here()
        if promise is None or promise.reply is None:
            return False
        return self._answered(_codes(list(self._guards), promise.reply))

    async def verify(self) -> None:
        """Ask the coordinator. Markers of the transaction before may be in flight: they are waited for, and an answer
        is void if any marker was written meanwhile."""
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
        """Whether the answer is final; if not, ask again."""
        self._codes = {partition: _translated(code, self._mode) for partition, code in codes.items()}
        waits = self._mode is VerificationMode.ADD and ErrorCode.concurrent_transactions in codes.values()
        return not waits and not self._is_void()

    def _is_void(self) -> bool:
        return any(
            not partition.transactions.holds(guard)
            for partition in self._partitions
            if (guard := self._guards.get(TopicPartition(partition.topic, partition.index))) is not None
        )

    def _ask_here(self) -> Promise | None:
        add = self._mode is VerificationMode.ADD
        return self._verifier.ask_here(self._transactional_id, self._producer, list(self._guards), add=add)

    async def _ask(self) -> Codes:
        partitions = list(self._guards)
        try:
            promise = self._ask_here()
            if promise is not None:
                return _codes(partitions, await promise.answered())
            add = self._mode is VerificationMode.ADD
            return await self._verifier.ask_peer(self._transactional_id, self._producer, partitions, add=add)
        except Refused as refused:
            return dict.fromkeys(partitions, refused.code)
        except PeerLost:
            return dict.fromkeys(partitions, ErrorCode.network_exception)

    def guard(self, partition: Partition) -> Guard | None:
        """The guard for the append. Refused if the coordinator did not agree."""
        key = TopicPartition(partition.topic, partition.index)
        if code := self._codes.get(key):
            raise Refused(code)
        return self._guards.get(key)


def _codes(partitions: list[TopicPartition], reply: Reply) -> Codes:
    if isinstance(reply, Refused):
        return dict.fromkeys(partitions, reply.code)
    assert isinstance(reply, dict)
    return reply


def _translated(code: ErrorCode, mode: VerificationMode) -> ErrorCode:
    if code == ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code == ErrorCode.transaction_abortable and mode is VerificationMode.ASK:
        return ErrorCode.invalid_txn_state
    if code in _TEMPORARY or (code == ErrorCode.concurrent_transactions and mode is not VerificationMode.ADD):
        return ErrorCode.not_enough_replicas  # the client retries without a metadata update
    return code


_TEMPORARY = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


_Waiting = tuple[AddPartitionsToTxnTransaction, "asyncio.Future[Codes]"]


class AddPartitionsBatcher:
    """AddPartitionsToTxn batching: one request to each coordinator for all transactions of one loop iteration."""

    def __init__(self, runtime: Runtime, peers: Peers) -> None:
        self._runtime = runtime
        self._peers = peers
        self._waiting: dict[int, list[_Waiting]] = {}

    async def send(self, broker_id: int, transaction: AddPartitionsToTxnTransaction) -> Codes:
        """The error code of each partition. PeerLost if the coordinator does not answer."""
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
        TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in ([] if result is None else result.topic_results)
        for each in topic.results_by_partition
    }
    partitions = [TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    return {partition: codes.get(partition, missing) for partition in partitions}
