"""Admin API of transactions: list, describe, find hanging ones, abort, fence, and end one from outside."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from ottla.client.admin.admin_base import AdminBase, for_each, raise_if, remember
from ottla.client.core.find_coordinator import TRANSACTION, find_coordinator
from ottla.client.core.requests import Node
from ottla.client.errors import ClientError, error_of
from ottla.client.values import OpenTransaction, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from ottla.wire.schema.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ottla.wire.schema.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.schema.list_transactions import ListTransactionsRequest, ListTransactionsResponse

FENCING_TIMEOUT_MS: Final = 60_000
UNDER_WAY: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States in which a coordinator will see to the end of a transaction."""
OPEN_FOR_MS: Final = 15 * 60_000
"""The default of `transaction.max.timeout.ms`: no producer may keep a transaction open for longer."""


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    """-1: none is under way."""
    coordinator: int
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(NamedTuple):
    """A producer as the leader of a partition knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start: int
    """Where its open transaction began; -1: none is open."""
    coordinator_epoch: int


class HangingTransaction(NamedTuple):
    """Hanging transaction: open in a partition, but unknown to its coordinator, so that no request will end it."""

    partition: TopicPartition
    producer: ActiveProducer


class TransactionAdmin(AdminBase):
    async def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """Of all coordinators; only those in these states, if any are named."""
        found: set[TransactionListing] = set()
        for broker in (await self._brokers()).values():
            request = ListTransactionsRequest(state_filters=list(states))
            answer = await self._call(request, ListTransactionsResponse, broker)
            raise_if(error_of(answer.error_code, f"transactions of broker {broker.node_id}"))
            if answer.unknown_state_filters:
                unknown = ", ".join(answer.unknown_state_filters)
                raise ClientError(f"there is no state {unknown}", code=ErrorCode.invalid_request)
            found |= {
                TransactionListing(each.transactional_id, each.producer_id, each.transaction_state)
                for each in answer.transaction_states
            }
        return sorted(found)

    async def describe_transactions(self, ids: Collection[str]) -> dict[str, TransactionDescription]:
        return await for_each("describe transactions", ids, self._describe_transaction)

    async def _describe_transaction(self, transactional_id: str) -> TransactionDescription:
        return await self._at_coordinator(transactional_id, self._described_transaction, TRANSACTION)

    async def _described_transaction(self, transactional_id: str, coordinator: Node) -> TransactionDescription:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await self._once(request, DescribeTransactionsResponse, coordinator)
        reported = answer.transaction_states[0]
        raise_if(error_of(reported.error_code, f"transactional id {transactional_id}"))
        partitions = [TopicPartition(each.topic, number) for each in reported.topics for number in each.partitions]
        return TransactionDescription(
            transactional_id,
            reported.transaction_state,
            reported.producer_id,
            reported.producer_epoch,
            reported.transaction_timeout_ms,
            reported.transaction_start_time_ms,
            coordinator.node_id,
            tuple(sorted(partitions)),
        )

    async def describe_producers(self, partition: TopicPartition) -> list[ActiveProducer]:
        """Idempotent and transactional producers of a partition, as its leader knows them."""
        topic, number = partition
        leader = await self._leader(partition, self._deadline())
        if leader is None:
            raise await self._why_not_led(partition)
        request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[number])])
        answer = await self._call(request, DescribeProducersResponse, leader)
        reported = answer.topics[0].partitions[0]
        raise_if(error_of(reported.error_code, str(partition), reported.error_message))
        return sorted(
            ActiveProducer(
                each.producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.last_timestamp,
                each.current_txn_start_offset,
                each.coordinator_epoch,
            )
            for each in reported.active_producers
        )

    async def _why_not_led(self, partition: TopicPartition) -> ClientError:
        """Requested again: the remembered metadata may be older than the partition."""
        name, number = partition
        [topic] = (await self._metadata([name])).topics
        if not topic.error_code and number not in {each.partition_index for each in topic.partitions}:
            return ClientError(
                f"topic {name} has no partition {number}; it has {len(topic.partitions)}",
                code=ErrorCode.unknown_topic_or_partition,
            )
        return ClientError(f"{partition}: it has no leader now", code=ErrorCode.leader_not_available, retriable=True)

    async def hanging_transactions(
        self, partitions: Collection[TopicPartition], *, open_for_ms: int = OPEN_FOR_MS
    ) -> list[HangingTransaction]:
        """Hanging transactions in these partitions: open, last written so long ago, and unknown to every coordinator.
        The coordinators are asked first: a transaction that ends between the two requests is no longer open in its
        partition."""
        listed = [each.transactional_id for each in await self.list_transactions(UNDER_WAY)]
        ends = {
            (each.producer_id, tp)
            for each in (await self.describe_transactions(listed)).values()
            for tp in each.partitions
        }
        wall_ms = self._driver.runtime.wall_ms()
        return [
            HangingTransaction(tp, producer)
            for tp in partitions
            for producer in await self.describe_producers(tp)
            if producer.transaction_start >= 0
            and wall_ms - producer.last_timestamp >= open_for_ms
            and (producer.producer_id, tp) not in ends
        ]

    async def end_transaction(self, transaction: OpenTransaction, *, committed: bool) -> None:
        """One that its producer has handed over. Asking twice for the same end is asking once."""
        name = transaction.transactional_id
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=committed,
        )

        async def end() -> None:
            coordinator = self._coordinators.pop(name, None) or await find_coordinator(
                self._driver, name, self._request_timeout_s, TRANSACTION
            )
            answer = await self._once(request, EndTxnResponse, coordinator, transaction.end_txn_version_max)
            raise_if(error_of(answer.error_code, f"transactional id {name}"))
            remember(self._coordinators, name, coordinator)

        await self._driver.insist(end, timeout_s=self._timeout_s)

    async def fence_producer(self, transactional_id: str) -> None:
        """Fence the producer of this transactional id: its open transaction is aborted. A new producer with the same id
        would do the same, so the id must exist."""
        await self._describe_transaction(transactional_id)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCING_TIMEOUT_MS)

        async def fence(_: str, coordinator: Node) -> None:
            answer = await self._once(request, InitProducerIdResponse, coordinator)
            raise_if(error_of(answer.error_code, f"transactional id {transactional_id}"))

        await self._at_coordinator(transactional_id, fence, TRANSACTION)
