"""RecordAccumulator: the producer without its network, pure: records in, Produce requests out.

Who speaks: the client with the leader of each partition (Produce), and once with any broker for an identity
(InitProducerId). Records gather in batches by partition; a batch leaves when it is full, when its time (linger) is up,
or when the user flushes. A request to a broker carries at most one batch for each of its partitions, and at most five
requests are on their way to one broker. `batches` says how order and uniqueness survive lost answers and new leaders.

What can be lost: with acks=all nothing the user was told of as delivered, as long as one in-sync replica survives. What
could not be delivered in time is reported as such; it may be in the log nevertheless (its answer was lost).
What is not numbered (acks 0 or 1) may be written twice after a lost answer, but still in order: one batch of a
partition at a time.

A transactional producer gets its identity from outside (`identify`), may write only to partitions of its transaction
(`admit`), and never numbers anew by itself: what goes wrong ends the transaction (`transaction_error`).
The contract with the shell stands in `core.requests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.client.core.metadata import Leader, Metadata
from ottla.client.core.requests import STALE_METADATA, Node, Send, backoff_s, code_of
from ottla.client.errors import ClientError, TimedOut, error_of
from ottla.client.producing.batches import (
    MISNUMBERED,
    Batch,
    BatchState,
    PartitionQueue,
    new_record,
    size_of,
)
from ottla.client.producing.partitioners import Partitioner
from ottla.client.producing.produce_requests import (
    DELIVERED,
    DOUBTFUL,
    NO_OFFSET,
    TOO_LARGE,
    AppendResult,
    Delivered,
    Load,
    ProducerSettings,
    Undelivered,
    flaw_of,
    produce,
    results_of,
    too_large,
)
from ottla.client.producing.producer_id import NO_ID, ProducerIdAndEpoch, ProducerIdRequests
from ottla.client.values import TopicPartition
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.batch import HEADER_BYTES
from ottla.wire.records import Headers, Record
from ottla.wire.schema.init_producer_id import InitProducerIdResponse
from ottla.wire.schema.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from ottla.wire.tree import Message

Action = Send | Delivered | Undelivered


class RecordAccumulator:
    """One producer."""

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
        self._in_flight: dict[Send, Load] = {}
        self._slots: dict[int, int] = {}
        self._slots_max = self.settings.max_in_flight_requests_per_connection
        self._may_renumber = self.settings.idempotent and self.settings.transactional_id is None
        self._id_requests = ProducerIdRequests(metadata, self.settings)
        self._serial = 0
        self._pending: dict[int, int] = {}  # batches whose outcome the user waits for, by serial
        self._pressed = False  # somebody waits for memory: nothing lingers
        self._turn = 0
        self._decided_at = 0.0
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
            self._pressed = True
            return AppendResult.FULL
        if partition is None:
            partition = self._partitioner.choose(known, record)
            if partition not in known.leaders:
                raise ClientError(f"the partitioner chose {partition}, which topic {topic} does not have")
        self._add((topic, partition), record, token, size, now)
        self._partitioner.appended(known, partition, size)
        return AppendResult.ACCEPTED

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
        """Whether everything appended before that flush was delivered or has failed, and `decide` has said so."""
        return not self._out and next(iter(self._pending), mark + 1) > mark

    @property
    def idle(self) -> bool:
        return not self._busy  # nothing waits to leave, nothing is on its way, not even what was given up

    def close(self) -> int:
        """Take no more records, and flush."""
        self.closed = True
        return self.flush()

    # What a transaction does to its producer.

    def identify(self, identity: ProducerIdAndEpoch) -> None:
        """Write under this identity from now on; what is numbered already keeps its own until it is done."""
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

    # The machine.

    def decide(self, now: float) -> list[Action]:
        self._decided_at = now
        self._expire(now)
        if self.failure is None and self._busy:
            if not self.settings.idempotent or self.identity is not NO_ID:
                self._drain(now)
            elif self._admitted is None and (send := self._id_requests.next(now)) is not None:
                self._out.append(send)
        decided, self._out = self._out, []
        return decided

    @property
    def deadline(self) -> float | None:
        """What could be done before has been done, or waits for an answer or for metadata."""
        times = [time for queue in self._busy.values() for time in self._times(queue)]
        if self._busy and self.identity is NO_ID and self._id_requests.in_flight is None:
            times.append(self._id_requests.due_at)
        return min((time for time in times if time > self._decided_at), default=None)

    def _times(self, queue: PartitionQueue) -> Iterator[float]:
        expiry = queue.deadline
        if expiry is not None:
            yield expiry
        waiting = any(batch.state is BatchState.WAITING for batch in queue.sent)
        if not waiting and not queue.queued:
            return
        leader = self._metadata.leader(queue.topic, queue.partition)
        may_at = max(queue.muted_until, self._metadata.reachable_at(leader.node_id))
        if waiting or queue.closed or self._pressed:
            yield may_at
        else:
            yield max(may_at, queue.queued[0].created_at + self.settings.linger_ms / 1000)

    def answered(self, send: Send, response: Message, now: float) -> None:
        self._metadata.reached(send.to.node_id)
        if send is self._id_requests.in_flight:
            assert isinstance(response, InitProducerIdResponse)
            self._identified(response, now)
            return
        assert isinstance(send.request, ProduceRequest)
        assert isinstance(response, ProduceResponse)
        results = results_of(send.request, response)
        for queue, batch in self._returned(send):
            result = results.get((queue.topic, queue.partition))
            if result is None:
                result = PartitionProduceResponse(error_code=ErrorCode.unknown_server_error)
            self._settle(queue, batch, result, response, now)
            self._tidy(queue)

    def failed(self, send: Send, now: float, code: ErrorCode = ErrorCode.network_exception) -> None:
        if code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
            self._metadata.lost(send.to.node_id, now)
        if send is self._id_requests.in_flight:
            self._identified(InitProducerIdResponse(error_code=code), now)
            return
        for queue, batch in self._returned(send):
            self._refused(queue, batch, code, None, now)
            self._tidy(queue)

    def _returned(self, send: Send) -> Load:
        load = self._in_flight.pop(send, None)
        if load is None:
            return []  # nothing was awaited
        self._slots[send.to.node_id] -= 1
        for queue, batch in load:
            queue.wait(batch)
        return load

    def _identified(self, response: InitProducerIdResponse, now: float) -> None:
        given = self._id_requests.answered(response, now)
        if isinstance(given, ProducerIdAndEpoch):
            self.identity = given
            return
        self.failure = error_of(given, "the cluster gives us no producer id")
        assert self.failure is not None
        self.abort(self.failure)

    # Out: requests.

    def _drain(self, now: float) -> None:
        queues = [queue for tp, queue in self._busy.items() if self._admitted is None or tp in self._admitted]
        self._turn += 1
        first = self._turn % len(queues) if queues else 0
        queues = queues[first:] + queues[:first]
        while loads := self._load(queues, now):
            for broker, load in loads.values():
                self._send(broker, load)
            queues = [queue for _, load in loads.values() for queue, _ in load]

    def _load(self, queues: Iterable[PartitionQueue], now: float) -> dict[int, tuple[Node, Load]]:
        """At most one request for each broker, with at most one batch for each partition."""
        loads: dict[int, tuple[Node, Load]] = {}
        sizes: dict[int, int] = {}
        for queue in queues:
            broker = self._destination(queue, now)
            if broker is None or self._slots.get(broker.node_id, 0) >= self._slots_max:
                continue
            room = self.settings.max_request_size - sizes.get(broker.node_id, 0)
            batch = self._next(queue, broker.node_id, room, now)
            if batch is not None:
                loads.setdefault(broker.node_id, (broker, []))[1].append((queue, batch))
                sizes[broker.node_id] = sizes.get(broker.node_id, 0) + batch.size
        return loads

    def _destination(self, queue: PartitionQueue, now: float) -> Node | None:
        return None if now < queue.muted_until else self._metadata.leading_broker(queue.topic, queue.partition, now)

    def _next(self, queue: PartitionQueue, node_id: int, room: int, now: float) -> Batch | None:
        """The batch that may go to this broker now."""
        misnumbered = queue.renumber or (queue.gap and not queue.sent)
        if misnumbered and (queue.in_flight or not self._renumbered(queue)):
            return None
        if not queue.may_send(node_id, self._slots_max if self.settings.idempotent else 1):
            return None
        retry = queue.next_retry(node_id)
        if retry is not None:
            return retry if retry.size <= room or room == self.settings.max_request_size else None
        if queue.gap or any(batch.state is BatchState.WAITING for batch in queue.sent):
            return None
        if not queue.ripe(now, self.settings.linger_ms / 1000, at_once=self._pressed):
            return None
        if queue.queued[0].size > room and room < self.settings.max_request_size:
            return None
        if self.settings.idempotent and queue.identity != self.identity:
            if queue.sent or self.identity is NO_ID:
                return None
            queue.adopt(self.identity)
        return queue.take()

    def _renumbered(self, queue: PartitionQueue) -> bool:
        if queue.identity == self.identity:
            if not self._may_renumber:
                return False
            self.identity = self.identity.next_epoch()
        if self.identity is NO_ID:
            return False
        queue.adopt(self.identity)
        return True

    def _send(self, broker: Node, load: Load) -> None:
        for queue, batch in list(load):
            queue.wait(batch)
            if (flaw := flaw_of(queue, batch, self.settings)) is not None:
                load.remove((queue, batch))
                self._give_up(queue, batch, flaw)
            batch.depart(broker.node_id)
        if not load:
            return
        send = produce(broker, load, self._metadata, self.settings, self.produce_version_max)
        self._out.append(send)
        if send.awaited:
            self._in_flight[send] = load
            self._slots[broker.node_id] = self._slots.get(broker.node_id, 0) + 1
        else:
            for queue, batch in load:
                self._delivered(queue, batch, NO_OFFSET, -1)
                self._tidy(queue)

    # Outcomes.

    def _settle(
        self,
        queue: PartitionQueue,
        batch: Batch,
        result: PartitionProduceResponse,
        response: ProduceResponse,
        now: float,
    ) -> None:
        code = code_of(result.error_code)
        if code in DELIVERED:
            offset = result.base_offset if code is ErrorCode.none else NO_OFFSET
            self._delivered(queue, batch, offset, result.log_append_time_ms)
            return
        hint = Leader(result.current_leader.leader_id, result.current_leader.leader_epoch)
        hinted = self._metadata.hinted(queue.topic, queue.partition, hint, response.node_endpoints)
        details = {error.batch_index: error.batch_index_error_message or "" for error in result.record_errors}
        self._refused(queue, batch, code, result.error_message, now, details=details, hinted=hinted)

    def _refused(
        self,
        queue: PartitionQueue,
        batch: Batch,
        code: ErrorCode,
        message: str | None,
        now: float,
        *,
        details: Mapping[int, str] | None = None,
        hinted: bool = False,
    ) -> None:
        queue.refused(code, message)
        batch.doubtful = batch.doubtful or code in DOUBTFUL
        if code in STALE_METADATA and not hinted:
            self._metadata.refresh()
        if batch.given_up:
            queue.drop(batch)
            return
        if code in TOO_LARGE and len(batch) > 1:
            queue.split(batch)
            self._pending[batch.serial] += 1
            return
        first = queue.is_first(batch)
        if code in MISNUMBERED and self._may_renumber and not (first and batch.halved_in_doubt):
            # Whoever has a predecessor on its way is refused because of that one. The first has none.
            queue.renumber = queue.renumber or first
        elif code not in RETRIABLE or batch.attempts > self.settings.retries:
            error = error_of(code, f"{queue.topic}-{queue.partition}", message)
            assert error is not None
            self._give_up(queue, batch, error, details or {})
            return
        if not hinted:
            queue.muted_until = max(queue.muted_until, now + self._backoff(batch.attempts - 1))

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
        self._pressed = False
        self._pending[batch.serial] -= 1
        if not self._pending[batch.serial]:
            del self._pending[batch.serial]

    def _expire(self, now: float) -> None:
        for queue in list(self._busy.values()):
            deadline = queue.deadline
            if deadline is None or now < deadline:
                continue
            last = self._metadata.obstacle(queue.topic, queue.partition, queue.last_error, queue.last_message)
            waited = f"not delivered within {self.settings.delivery_timeout_ms} ms"
            for batch in list(queue):
                if batch.deadline <= now and not batch.given_up:
                    self._give_up(queue, batch, TimedOut(f"{queue.topic}-{queue.partition}: {waited}; last: {last}"))

    def _tidy(self, queue: PartitionQueue) -> None:
        """A queue that has nothing is forgotten, unless its numbers go on."""
        if queue.idle:
            tp = TopicPartition(queue.topic, queue.partition)
            self._busy.pop(tp, None)
            if queue.identity is NO_ID:
                self._queues.pop(tp, None)

    def _backoff(self, attempts: int) -> float:
        return backoff_s(attempts, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
