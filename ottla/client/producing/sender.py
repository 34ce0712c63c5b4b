"""Sender: drains the record accumulator into Produce requests, and settles their answers. Pure.

Who speaks: the client with the leader of each partition (Produce), and once with any broker for an identity
(InitProducerId). A request to a broker carries at most one batch for each of its partitions, and at most five requests
are in flight to one broker.

What can be lost: with acks=all nothing that was reported as delivered, as long as one in-sync replica survives. Records
that could not be delivered in time are reported as failed; they may be in the log, if the answer was lost. Records
without sequence (acks 0 or 1) may be written twice after a lost answer, but in order: one batch of a partition at a
time. `core.requests` has the contract with the shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.client.core.metadata import Leader, Metadata
from ottla.client.core.requests import STALE_METADATA, Node, Send, code_of
from ottla.client.errors import TimedOut, error_of
from ottla.client.producing.accumulator import Action, RecordAccumulator
from ottla.client.producing.batches import MISNUMBERED, NO_ID, Batch, BatchState, PartitionQueue, ProducerIdAndEpoch
from ottla.client.producing.partitioners import Partitioner
from ottla.client.producing.produce_requests import (
    DELIVERED,
    DOUBTFUL,
    NO_OFFSET,
    TOO_LARGE,
    Load,
    ProducerSettings,
    flaw_of,
    produce,
    results_of,
)
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.schema.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from ottla.wire.tree import Message

NO_TIMEOUT_MS: Final = 2**31 - 1


class ProducerIdRequests:
    """InitProducerId of a producer without transactions, asked of any broker: one request at a time, again after a
    backoff if refused. A transactional producer gets its id from its coordinator (`transaction_manager`)."""

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
        self.in_flight = Send(request, broker, self._settings.request_timeout_s)
        return self.in_flight

    def answered(self, response: InitProducerIdResponse, now: float) -> ProducerIdAndEpoch | ErrorCode:
        """The producer id and epoch from now on, or an error that is not retriable."""
        self.in_flight = None
        code = code_of(response.error_code)
        if code is ErrorCode.none:
            self._attempts = 0
            return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if code not in RETRIABLE:
            return code
        self.due_at = now + self._settings.retry_backoff_s(self._attempts)
        self._attempts += 1
        return NO_ID


class Sender(RecordAccumulator):
    """One producer, without its network."""

    def __init__(self, metadata: Metadata, partitioner: Partitioner, settings: ProducerSettings | None = None) -> None:
        super().__init__(metadata, partitioner, settings)
        self._in_flight: dict[Send, Load] = {}
        self._requests_to: dict[int, int] = {}  # requests in flight by broker
        self._requests_max = self.settings.max_in_flight_requests_per_connection
        self._may_renumber = self.settings.idempotent and self.settings.transactional_id is None
        self._id_requests = ProducerIdRequests(metadata, self.settings)
        self._drain_index = 0
        self._decided_at = 0.0

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
        if waiting or queue.closed or self._memory_full:
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
        self._requests_to[send.to.node_id] -= 1
        for _, batch in load:
            batch.state = BatchState.WAITING
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
        self._drain_index += 1
        first = self._drain_index % len(queues) if queues else 0
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
            if now < queue.muted_until:
                continue
            broker = self._metadata.leading_broker(queue.topic, queue.partition, now)
            if broker is None or self._requests_to.get(broker.node_id, 0) >= self._requests_max:
                continue
            bytes_left = self.settings.max_request_size - sizes.get(broker.node_id, 0)
            batch = self._next(queue, broker.node_id, bytes_left, now)
            if batch is not None:
                loads.setdefault(broker.node_id, (broker, []))[1].append((queue, batch))
                sizes[broker.node_id] = sizes.get(broker.node_id, 0) + batch.size
        return loads

    def _next(self, queue: PartitionQueue, node_id: int, bytes_left: int, now: float) -> Batch | None:
        """The batch that may go to this broker now."""
        misnumbered = queue.renumber or (queue.gap and not queue.sent)
        if misnumbered and (queue.in_flight or not self._renumbered(queue)):
            return None
        if not queue.may_send(node_id, self._requests_max if self.settings.idempotent else 1):
            return None
        retry = queue.next_retry(node_id)
        if retry is not None:
            return retry if retry.size <= bytes_left or bytes_left == self.settings.max_request_size else None
        if queue.gap or any(batch.state is BatchState.WAITING for batch in queue.sent):
            return None
        if not queue.ripe(now, self.settings.linger_ms / 1000, at_once=self._memory_full):
            return None
        if queue.queued[0].size > bytes_left and bytes_left < self.settings.max_request_size:
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
            batch.state = BatchState.WAITING
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
            self._requests_to[broker.node_id] = self._requests_to.get(broker.node_id, 0) + 1
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
            # A batch with a predecessor in flight is refused because of that one. The first has none.
            queue.renumber = queue.renumber or first
        elif code not in RETRIABLE or batch.attempts > self.settings.retries:
            error = error_of(code, f"{queue.topic}-{queue.partition}", message)
            assert error is not None
            self._give_up(queue, batch, error, details or {})
            return
        if not hinted:
            queue.muted_until = max(queue.muted_until, now + self.settings.retry_backoff_s(batch.attempts - 1))

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
