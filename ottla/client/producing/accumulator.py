"""RecordAccumulator: records that wait to be sent, in batches by partition. Pure; `sender` is built on it.

A batch is closed when it is full, when its linger is over, or when the user flushes. A record uses
`buffer_memory` until its batch is delivered or given up. `batches` says how order and uniqueness survive lost answers
and new leaders. Nothing here is durable: what was not delivered is lost with the process.

A transactional producer gets its identity from outside (`identify`), may write only to partitions of its transaction
(`admit`), and never renumbers by itself: an error ends the transaction (`transaction_error`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import Send
from ottla.client.core.wait_reasons import Obstacle, of_partition
from ottla.client.errors import ClientError
from ottla.client.producing.batches import (
    NO_ID,
    Batch,
    BatchState,
    PartitionQueue,
    ProducerIdAndEpoch,
    new_record,
    size_of,
)
from ottla.client.producing.partitioners import Partitioner
from ottla.client.producing.prebuilt_batches import BatchContent, PrebuiltBatch, Shipment
from ottla.client.producing.produce_requests import AppendResult, Delivered, ProducerSettings, Undelivered, too_large
from ottla.client.values import TopicPartition
from ottla.wire.batch import HEADER_BYTES
from ottla.wire.records import Headers, Record

Action = Send | Delivered | Undelivered


class RecordAccumulator:
    """Of one producer."""

    def __init__(self, metadata: Metadata, partitioner: Partitioner, settings: ProducerSettings | None = None) -> None:
        self.settings = settings or ProducerSettings()
        self.identity = NO_ID
        self.buffered_bytes = 0
        self.failure: ClientError | None = None  # nothing can be sent any more
        self.transaction_error: ClientError | None = None  # it can only be aborted: `abort`, then `identify` again
        self.produce_version_max: int | None = None  # later ones mean another version of the transaction protocol
        self.closed = False
        self._metadata = metadata
        metadata.in_use = lambda: (tp.topic for tp in self._busy)
        self._partitioner = partitioner
        self._queues: dict[TopicPartition, PartitionQueue] = {}  # all written to under a number, for the next one
        self._busy: dict[TopicPartition, PartitionQueue] = {}  # those that have a batch
        self._admitted: set[TopicPartition] | None = set() if self.settings.transactional_id is not None else None
        self._serial = 0
        self._pending: dict[int, int] = {}  # batches of `flush` calls, by serial
        self._memory_full = False  # a caller waits for memory: nothing lingers
        self._out: list[Action] = []

    # In: records.

    def append(
        self,
        topic: str,
        value: bytes | None,
        now: float,
        *,
        timestamp_ms: int,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        token: object = None,
    ) -> AppendResult:
        """Take a record, or say why not yet. ClientError: not ever."""
        self._check_open()
        known = self._metadata.topic(topic)
        if known is None or (partition is not None and partition not in known.leaders):
            if (refusal := self._metadata.refusal(topic)) is not None:
                raise refusal
            self._metadata.want(topic, now)
            if known is not None:
                self._metadata.refresh()
            return AppendResult.METADATA_MISSING
        record = new_record(Record, (0, timestamp_ms, key, value, headers))
        size = size_of(record)
        if HEADER_BYTES + size > self.settings.max_request_size:
            raise too_large(size)
        if self.buffered_bytes + size > self.settings.buffer_memory and self.buffered_bytes:
            self._memory_full = True
            return AppendResult.FULL
        if partition is None:
            partition = self._partitioner.choose(known, record)
            if partition not in known.leaders:
                raise ClientError(f"the partitioner chose {partition}, which topic {topic} does not have")
        self._add((topic, partition), record, token, size, now)
        self._partitioner.appended(known, partition, size)
        return AppendResult.ACCEPTED

    def append_batch(self, tp: TopicPartition, content: BatchContent, shipment: Shipment, now: float) -> AppendResult:
        """Append the record, or return why not yet. The maker of the batch knows the partitions of the topic."""
        self._check_open()
        settings, deadline = self.settings, now + self.settings.delivery_timeout_ms / 1000
        if content.count == 1 and HEADER_BYTES + content.size > settings.max_request_size:
            raise too_large(content.size)
        if self.buffered_bytes + content.size > settings.buffer_memory and self.buffered_bytes:
            self._memory_full = True
            return AppendResult.FULL
        queue = self._queue(tp, now)
        self._serial += 1
        self._pending[self._serial] = 1
        queue.close_batch()
        queue.queued.append(PrebuiltBatch(self._serial, now, deadline, content, shipment))
        queue.close_batch()
        self.buffered_bytes += content.size
        shipment.add(content.count)
        return AppendResult.ACCEPTED

    def batch_bytes(self, wanted: int) -> int:
        """How large such a batch may be: as is wanted, or as the user wants all batches, and fits a request."""
        return min(max(wanted, self.settings.batch_size), self.settings.max_request_size)

    def _check_open(self) -> None:
        error = self.failure or self.transaction_error
        if error is not None:
            raise error
        if self.closed:
            raise ClientError("the producer is closed")

    def _add(self, tp: tuple[str, int], record: Record, token: object, size: int, now: float) -> None:
        queue = self._busy.get(tp)  # type: ignore[call-overload]
        if queue is None:
            queue = self._queue(TopicPartition(*tp), now)
        batch = queue.open_batch()
        if batch is not None and batch.size + size > self.settings.batch_size:
            queue.close_batch()
            batch = None
        if batch is None:
            self._serial += 1
            batch = Batch(self._serial, now, now + self.settings.delivery_timeout_ms / 1000)
            self._pending[self._serial] = 1
            queue.queued.append(batch)
        batch.add(record, token, size)
        self.buffered_bytes += size
        if batch.size >= self.settings.batch_size:
            queue.close_batch()

    def _queue(self, tp: TopicPartition, now: float) -> PartitionQueue:
        self._metadata.want(tp.topic, now)
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(*tp)
        self._busy[tp] = queue
        return queue

    def flush(self) -> int:
        """Let everything that was appended leave now. The mark to ask `flushed` about."""
        for queue in self._busy.values():
            queue.close_batch()
        return self._serial

    def flushed(self, mark: int) -> bool:
        """Whether everything appended before that flush was delivered or has failed, and `decide` has reported it."""
        return not self._out and next(iter(self._pending), mark + 1) > mark

    @property
    def idle(self) -> bool:
        return not self._busy  # nothing is queued and nothing is in flight, including batches that were given up

    def close(self) -> int:
        """Take no more records, and flush."""
        self.closed = True
        return self.flush()

    # Calls of the transaction manager.

    def identify(self, identity: ProducerIdAndEpoch) -> None:
        """Use this producer id and epoch from now on; batches with a sequence keep theirs until they are done."""
        self.identity = identity
        self.transaction_error = None

    def admit(self, partitions: Iterable[TopicPartition]) -> None:
        """They are part of the transaction now."""
        assert self._admitted is not None, "only a transactional producer is admitted to partitions"
        self._admitted.update(partitions)

    def not_admitted(self) -> list[TopicPartition]:
        """Partitions that have records and are not part of the transaction yet."""
        admitted = self._admitted
        return [] if admitted is None else [tp for tp in self._busy if tp not in admitted]

    def end_transaction(self) -> None:
        """It is committed or aborted: nothing is admitted to the next one yet."""
        assert self._admitted is not None
        self._admitted.clear()

    def abort(self, error: ClientError) -> None:
        """Give up everything that was not delivered."""
        for queue in list(self._busy.values()):
            for batch in list(queue):
                self._give_up(queue, batch, error)

    # Outcomes.

    def _delivered(self, queue: PartitionQueue, batch: Batch, offset: int, log_append_time_ms: int) -> None:
        queue.acknowledge(batch)
        if not batch.given_up:
            self._done(batch)
            result = Delivered(queue.topic, queue.partition, offset, log_append_time_ms, batch.records, batch.tokens)
            self._out.append(result)

    def _give_up(
        self, queue: PartitionQueue, batch: Batch, error: ClientError, details: Mapping[int, str] | None = None
    ) -> None:
        if not batch.given_up:
            batch.given_up = True
            self._done(batch)
            if self.settings.transactional_id is not None:
                self.transaction_error = self.transaction_error or error
            failed = Undelivered(queue.topic, queue.partition, batch.records, batch.tokens, error, details or {})
            self._out.append(failed)
        if batch.state is not BatchState.IN_FLIGHT:
            queue.drop(batch)
            self._tidy(queue)

    def _done(self, batch: Batch) -> None:
        self.buffered_bytes -= batch.size - HEADER_BYTES
        self._memory_full = False
        self._pending[batch.serial] -= 1
        if not self._pending[batch.serial]:
            del self._pending[batch.serial]

    def _tidy(self, queue: PartitionQueue) -> None:
        """Remove an empty queue, unless its sequence numbers continue."""
        if queue.idle:
            tp = TopicPartition(queue.topic, queue.partition)
            self._busy.pop(tp, None)
            if queue.identity is NO_ID:
                self._queues.pop(tp, None)

    def obstacles(self, now: float) -> Iterator[Obstacle]:
        """Why partitions that have records to send get on with none."""
        for queue in self._busy.values():
            reported = queue.last_error, queue.last_message
            found = of_partition(self._metadata, queue.topic, queue.partition, now, *reported)
            if found is not None:
                yield found
