"""The marker queue of the transaction coordinator (Kafka: TransactionMarkerChannelManager).

Markers for one broker are sent in one request; markers that come while it is in flight go with the next one. A failed
marker is retried as long as this broker coordinates the transaction in the same leader epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from ottla.cluster.image import NO_BROKER, Image
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Decision, Reply, ReplyTo
from ottla.coordinator.marker_writer import MarkerWriter, TransactionEnd
from ottla.coordinator.transaction_machine import Markers, Prepared, TransactionMachine
from ottla.errors import ErrorCode, Refused
from ottla.net.outbound import PeerLost
from ottla.replication.ports import Peers
from ottla.runtime import Runtime
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.wire.topic_partition import TopicPartition, by_topic

log = logging.getLogger("ottla.coordinator")

RETRY_SECONDS: Final = 0.1

_SETTLED: Final = {
    ErrorCode.none: None,
    ErrorCode.invalid_producer_epoch: "its producer has gone on already",
    ErrorCode.unsupported_for_message_format: "it is in a format without transactions",
}
"""After these error codes the marker is done; the text is logged."""


class Coordinator(Protocol):
    """The transaction coordinator, as the queue sees it."""

    def coordinator_epoch(self, transactional_id: str) -> int | None: ...

    def ask(self, key: str, act: Callable[[TransactionMachine, ReplyTo, float, int], Decision]) -> Promise: ...


class _PendingEnd:
    """A prepared transaction, until all its markers are written."""

    __slots__ = ("committed", "coordinator_epoch", "left", "ticket", "version")

    def __init__(self, ticket: Prepared, what: Markers, coordinator_epoch: int) -> None:
        self.ticket = ticket
        self.committed = what.committed
        self.left = dict.fromkeys(what.partitions)
        self.version = what.version
        self.coordinator_epoch = coordinator_epoch

    def end(self) -> TransactionEnd:
        ticket = self.ticket
        return TransactionEnd(
            ticket.producer_id, ticket.producer_epoch, self.committed, self.coordinator_epoch, self.version
        )


_Marker = tuple[_PendingEnd, TopicPartition]


class MarkerQueue:
    """The markers that have to be written, by the broker that has to write them."""

    def __init__(
        self,
        runtime: Runtime,
        broker_id: int,
        image: Callable[[], Image],
        peers: Peers,
        writer: MarkerWriter,
        coordinator: Coordinator,
    ) -> None:
        self._runtime = runtime
        self._broker_id = broker_id
        self._image = image
        self._peers = peers
        self._writer = writer
        self._coordinator = coordinator
        self._waiting: dict[int, list[_Marker]] = {}
        self._sending: set[int] = set()
        self._again: list[_Marker] = []

    def add(self, ticket: Prepared, what: Markers, coordinator_epoch: int) -> None:
        pending = _PendingEnd(ticket, what, coordinator_epoch)
        if pending.left:
            self._enqueue([(pending, partition) for partition in pending.left])
        else:
            self._runtime.call_soon(self._complete, pending)

    def _enqueue(self, markers: list[_Marker]) -> None:
        image = self._image()
        for marker in markers:
            partition = image.partition(*marker[1])
            if partition is None:
                # The topic is deleted, and all that was in it. Later: this may run inside an append.
                self._runtime.call_soon(self._written, marker, ErrorCode.none)
            elif partition.leader == NO_BROKER or partition.leader not in image.brokers:
                self._later(marker)
            else:
                self._send_soon(partition.leader, marker)

    def _send_soon(self, broker_id: int, marker: _Marker) -> None:
        """At the end of this loop iteration, with all that are added until then."""
        markers = self._waiting.setdefault(broker_id, [])
        markers.append(marker)
        if len(markers) == 1 and broker_id not in self._sending:
            self._runtime.call_soon(self._send, broker_id)

    def _send(self, broker_id: int) -> None:
        markers = [marker for marker in self._waiting.pop(broker_id, []) if self._is_ours(marker[0])]
        if broker_id == self._broker_id:
            for marker in markers:
                pending, (topic, index) = marker
                self._writer.write(topic, index, pending.end(), partial(self._written, marker))
        elif markers:
            self._sending.add(broker_id)
            self._runtime.spawn(self._call(broker_id, markers), name=f"markers for broker {broker_id}")

    async def _call(self, broker_id: int, markers: list[_Marker]) -> None:
        try:
            response = await self._peers.call(
                broker_id, WriteTxnMarkersRequest(markers=self._requests(markers)), WriteTxnMarkersResponse
            )
            codes = {
                (result.producer_id, topic.name, each.partition_index): ErrorCode(each.error_code)
                for result in response.markers
                for topic in result.topics
                for each in topic.partitions
            }
        except PeerLost as lost:
            log.info("broker %d did not write %d markers: %s", broker_id, len(markers), lost)
            codes = {}
        finally:
            self._sending.discard(broker_id)
        for marker in markers:
            pending, (topic, index) = marker
            self._written(marker, codes.get((pending.ticket.producer_id, topic, index), ErrorCode.network_exception))
        if broker_id in self._waiting:
            self._send(broker_id)

    def _written(self, marker: _Marker, code: ErrorCode) -> None:
        pending, (topic, index) = marker
        ticket = pending.ticket
        if not self._is_ours(pending):
            return
        if code == ErrorCode.transaction_coordinator_fenced:
            log.info("%s is coordinated by another broker by now", ticket.transactional_id)
        elif code not in _SETTLED:
            self._later(marker)
        else:
            if (why := _SETTLED[code]) is not None:
                log.warning("%s: no marker in %s-%d: %s", ticket.transactional_id, topic, index, why)
            pending.left.pop(marker[1], None)
            if not pending.left:
                self._complete(pending)

    def _later(self, marker: _Marker) -> None:
        if not self._again:
            self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._try_again)
        self._again.append(marker)

    def _try_again(self) -> None:
        markers, self._again = self._again, []
        self._enqueue([marker for marker in markers if self._is_ours(marker[0])])

    def _is_ours(self, pending: _PendingEnd) -> bool:
        """Whether this broker still coordinates it in the leader epoch in which it was found prepared."""
        return self._coordinator.coordinator_epoch(pending.ticket.transactional_id) == pending.coordinator_epoch

    def _complete(self, pending: _PendingEnd) -> None:
        ticket = pending.ticket

        def replied(reply: Reply) -> None:
            if isinstance(reply, Refused):
                self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._complete, pending)

        if self._is_ours(pending):
            promise = self._coordinator.ask(
                ticket.transactional_id, lambda machine, to, now, now_ms: machine.complete(ticket, to, now_ms)
            )
            promise.on_reply(replied)

    def _requests(self, markers: list[_Marker]) -> list[WritableTxnMarker]:
        """One for each transaction, its partitions by topic."""
        partitions: dict[_PendingEnd, list[TopicPartition]] = {}
        for pending, partition in markers:
            partitions.setdefault(pending, []).append(partition)
        return [
            WritableTxnMarker(
                producer_id=pending.ticket.producer_id,
                producer_epoch=pending.ticket.producer_epoch,
                transaction_result=pending.committed,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(left).items()
                ],
                coordinator_epoch=pending.coordinator_epoch,
                transaction_version=pending.version,
            )
            for pending, left in partitions.items()
        ]
