"""Requests of a transactional producer to the coordinators of its transactional id and of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.client.producing.batches import ProducerIdAndEpoch
from ottla.client.values import GroupMetadata, Offsets, TopicPartition
from ottla.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.schema.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.schema.end_txn import EndTxnRequest
from ottla.wire.schema.init_producer_id import InitProducerIdRequest
from ottla.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.wire.topic_partition import by_topic


class TransactionRequests:
    """Of one transactional id."""

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id

    def _of(self, producer: ProducerIdAndEpoch) -> dict[str, Any]:
        return {"transactional_id": self._id, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}

    def init_producer_id(self, known: ProducerIdAndEpoch, timeout_ms: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(transaction_timeout_ms=timeout_ms, **self._of(known))

    def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in by_topic(partitions).items()
            ],
        )

    def add_offsets(self, producer: ProducerIdAndEpoch, group_id: str) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(group_id=group_id, **self._of(producer))

    def offset_commit(
        self, producer: ProducerIdAndEpoch, reader: GroupMetadata, offsets: Offsets
    ) -> TxnOffsetCommitRequest:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), committed in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        return TxnOffsetCommitRequest(
            group_id=reader.group_id,
            generation_id=reader.generation_id,
            member_id=reader.member_id,
            group_instance_id=reader.group_instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
            **self._of(producer),
        )

    def end(self, producer: ProducerIdAndEpoch, *, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(committed=committed, **self._of(producer))
