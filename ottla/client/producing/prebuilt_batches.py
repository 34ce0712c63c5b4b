"""Pre-built batches: sent in the same way as those that the accumulator fills itself.

Only the builder of such a batch knows its records, and one `Shipment` reports the outcome of all batches that
belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ottla.client.errors import ClientError
from ottla.client.producing.batches import Batch
from ottla.client.values import RecordMetadata
from ottla.wire.records import Record

R_contra = TypeVar("R_contra", contravariant=True)


class BatchContent(Protocol):
    """Records of one batch."""

    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int:
        """In bytes, before compression."""

    @property
    def base_timestamp(self) -> int: ...
    def encode(self, **how: Any) -> bytes: ...
    def halves(self) -> Sequence[BatchContent]: ...


class Promise(Protocol[R_contra]):
    """A future, of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: R_contra, /) -> object: ...
    def set_exception(self, exception: ClientError, /) -> object: ...
    def exception(self) -> object: ...


class Shipment:
    """Many batches with one outcome: how many records were delivered, or the first failure."""

    def __init__(self, promise: Promise[int]) -> None:
        self._promise = promise
        self._open = 1  # callers of `add`
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
        """Marks the failure as seen, for a caller that has got it in another way."""
        return self._promise.exception() if self._promise.done() else None


class PrebuiltBatch(Batch):
    """To the user it is one thing, delivered or not; to the log it is as many records as it has."""

    __slots__ = ("_content", "_shipment")

    def __init__(
        self, serial: int, created_at: float, deadline: float, content: BatchContent, shipment: Shipment
    ) -> None:
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
            PrebuiltBatch(self.serial, self.created_at, self.deadline, half, self._shipment)
            for half in self._content.halves()
        ]
