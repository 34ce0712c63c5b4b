"""Producer id and epoch: under which an idempotent producer numbers its batches (KIP-98), asked of any broker.

A transactional producer gets its own from the coordinator of its transactional id instead (`transaction_manager`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import Send, backoff_s, code_of
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.batch import NO_PRODUCER
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.client.producing.produce_requests import ProducerSettings

NO_TIMEOUT_MS: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER
    epoch: int = -1

    def next_epoch(self) -> ProducerIdAndEpoch:
        """An idempotent producer raises its epoch by itself; after the last one it needs another id."""
        return self._replace(epoch=self.epoch + 1) if self.epoch < PRODUCER_EPOCH_MAX else NO_ID


NO_ID: Final = ProducerIdAndEpoch()


class ProducerIdRequests:
    """InitProducerId of a producer without transactions: one request at a time, again after a while if refused."""

    def __init__(self, metadata: Metadata, settings: ProducerSettings) -> None:
        self.in_flight: Send | None = None
        self.due_at = 0.0
        self._metadata = metadata
        self._settings = settings
        self._attempts = 0

    def next(self, now: float) -> Send | None:
        """The request to send now, if there is one."""
        broker = None if self.in_flight is not None or now < self.due_at else self._metadata.any_broker(now)
        if broker is None:
            return None
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TIMEOUT_MS)
        self.in_flight = Send(request, broker, self._settings.request_timeout_ms / 1000)
        return self.in_flight

    def answered(self, response: InitProducerIdResponse, now: float) -> ProducerIdAndEpoch | ErrorCode:
        """What the producer is from now on, or an error that does not go away."""
        self.in_flight = None
        code = code_of(response.error_code)
        if code is ErrorCode.none:
            self._attempts = 0
            return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if code not in RETRIABLE:
            return code
        settings = self._settings
        self.due_at = now + backoff_s(self._attempts, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._attempts += 1
        return NO_ID
