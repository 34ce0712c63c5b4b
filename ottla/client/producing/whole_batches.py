"""Pre-built batches, sent in the same way as those that the accumulator fills itself.

What is in such a batch is known only to whoever made it, who is told once of all that belong together (`Shipment`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ottla.client.core import wait_reasons
from ottla.client.errors import ClientError
from ottla.client.producing.accumulator import RecordAccumulator
from ottla.client.producing.batches import Batch
from ottla.client.producing.produce_requests import AppendResult, too_large
from ottla.client.values import RecordMetadata, TopicPartition
from ottla.wire.batch import HEADER_BYTES
from ottla.wire.records import Record


class Content(Protocol):
    """Records of one batch."""

    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int:
        """In bytes, before compression."""

    @property
    def base_timestamp(self) -> int: ...
    def encode(self, **how: Any) -> bytes: ...
    def halves(self) -> Sequence[Content]: ...


class Promise(Protocol):
    def done(self) -> bool: ...
    def set_result(self, result: int, /) -> object: ...
    def set_exception(self, exception: ClientError, /) -> object: ...
    def exception(self) -> object: ...


class Shipment:
    """Many batches with one outcome: how many records were delivered, or the first failure."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._open = 1  # whoever adds batches
        self._records = 0

    def done(self) -> bool:
        return False  # every batch counts, also after a failure

    def add(self, records: int = 0) -> None:
        """One more batch is on its way."""
        self._open += 1
        self._records += records

    def set_result(self, _: RecordMetadata | None = None, /) -> None:
        self._open -= 1
        if not self._open and not self._promise.done():
            self._promise.set_result(self._records)

    def set_exception(self, error: ClientError, /) -> None:
        self._open -= 1
        if not self._promise.done():
            self._promise.set_exception(error)

    def exception(self) -> object:
        """Somebody has been told of the failure who need not ask for it."""
        return self._promise.exception() if self._promise.done() else None


class WholeBatch(Batch):
    """To the user it is one thing, delivered or not; to the log it is as many records as it has."""

    __slots__ = ("_content", "_shipment")

    def __init__(self, serial: int, created_at: float, deadline: float, content: Content, shipment: Shipment) -> None:
        super().__init__(serial, created_at, deadline)
        self._content = content
        self._shipment = shipment
        self.add(Record(0, content.base_timestamp), shipment, content.size)

    def __len__(self) -> int:
        return self._content.count

    def _build(self, **how: Any) -> bytes:
        return self._content.encode(**how)

    def halves(self) -> list[Batch]:
        self._shipment.add()
        return [
            WholeBatch(self.serial, self.created_at, self.deadline, half, self._shipment)
            for half in self._content.halves()
        ]


class WholeBatches(RecordAccumulator):
    """An accumulator that also takes batches as they are."""

    def batch_bytes(self, wanted: int) -> int:
        """How large such a batch may be: as is wanted, or as the user wants all batches, and fits a request."""
        return min(max(wanted, self.settings.batch_size), self.settings.max_request_size)

    def append_batch(self, tp: TopicPartition, content: Content, shipment: Shipment, now: float) -> AppendResult:
        """Take it, or say why not yet. The topic's partitions are known to whoever made the batch."""
        self._check_open()
        settings = self.settings
        if content.count == 1 and HEADER_BYTES + content.size > settings.max_request_size:
            raise too_large(content.size)
        if self.buffered_bytes + content.size > settings.buffer_memory and self.buffered_bytes:
            self._pressed = True
            return AppendResult.FULL
        queue = self._queue(tp, now)
        self._serial += 1
        self._pending[self._serial] = 1
        queue.close_batch()
        queue.queued.append(WholeBatch(self._serial, now, now + settings.delivery_timeout_ms / 1000, content, shipment))
        queue.close_batch()
        self.buffered_bytes += content.size
        shipment.add(content.count)
        return AppendResult.ACCEPTED

    def obstacles(self, now: float) -> Iterator[wait_reasons.Obstacle]:
        """Why partitions that have records to send get on with none."""
        for queue in self._busy.values():
            reported = queue.last_error, queue.last_message
            found = wait_reasons.of_partition(self._metadata, queue.topic, queue.partition, now, *reported)
            if found is not None:
                yield found
