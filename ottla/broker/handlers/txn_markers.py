"""WriteTxnMarkers and DescribeProducers: served by partition leaders."""

from __future__ import annotations

from functools import partial

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.handlers.replies import respond
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Reply
from ottla.coordinator.marker_writer import TransactionEnd
from ottla.errors import ErrorCode, Refused
from ottla.log.producers import NO_SEQUENCE, ProducerStateEntry
from ottla.net.server import Pending
from ottla.replication.waits import DelayedOperations
from ottla.wire.apis import DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS
from ottla.wire.schema import describe_producers
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

COMMIT_TIMEOUT_S = 10.0
"""How long to wait until markers are committed; then the coordinator has to retry."""


@serves(WRITE_TXN_MARKERS)
def handle(context: Context, message: WriteTxnMarkersRequest, request: Request) -> WriteTxnMarkersResponse | Pending:
    delayed = DelayedMarkers(context.delayed, message)
    for number, marker in enumerate(message.markers):
        end = TransactionEnd(
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        for topic in marker.topics:
            for index in topic.partition_indexes:
                context.marker_writer.write(topic.name, index, end, partial(delayed.done, number, topic.name, index))
    promise = delayed.wait(context.runtime.now() + COMMIT_TIMEOUT_S)
    return respond(promise, request, delayed.response, overlaps=True)


class DelayedMarkers:
    """The error code of each marker; REQUEST_TIMED_OUT for those without one in time."""

    def __init__(self, delayed: DelayedOperations, message: WriteTxnMarkersRequest) -> None:
        self._delayed = delayed
        self._message = message
        self._codes: dict[tuple[int, str, int], ErrorCode] = {}
        self._left = sum(len(topic.partition_indexes) for marker in message.markers for topic in marker.topics)
        self._promise = Promise(delayed)
        self.finished = True  # it does not wait yet

    def done(self, number: int, topic: str, index: int, code: ErrorCode) -> None:
        self._codes[number, topic, index] = code
        self._left -= 1
        if not self._left and not self.finished:
            self._delayed.finish(self)
            self._promise.answer(self._codes)

    def wait(self, deadline: float) -> Promise:
        if self._left:
            self.finished = False
            self._delayed.add(self, deadline)
        else:
            self._promise.answer(self._codes)
        return self._promise

    def expire(self) -> None:
        self._promise.answer(self._codes)

    def response(self, _: Reply) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=self._codes.get(
                                        (number, topic.name, index), ErrorCode.request_timed_out
                                    ),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for number, marker in enumerate(self._message.markers)
            ]
        )


@serves(DESCRIBE_PRODUCERS)
def describe(
    context: Context, message: describe_producers.DescribeProducersRequest, request: Request
) -> describe_producers.DescribeProducersResponse:
    return describe_producers.DescribeProducersResponse(
        topics=[
            describe_producers.TopicResponse(
                name=topic.name, partitions=[_describe(context, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in message.topics
        ]
    )


def _describe(context: Context, topic: str, index: int) -> describe_producers.PartitionResponse:
    try:
        partition = context.replica_manager.find(topic, index)
        partition.check_leads()
    except Refused as refused:
        return describe_producers.PartitionResponse(
            partition_index=index, error_code=refused.code, error_message=refused.message
        )
    return describe_producers.PartitionResponse(
        partition_index=index,
        active_producers=[_state(producer_id, producer) for producer_id, producer in partition.producers.items()],
    )


def _state(producer_id: int, producer: ProducerStateEntry) -> describe_producers.ProducerState:
    return describe_producers.ProducerState(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )
