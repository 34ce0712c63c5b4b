"""Load of transactions: producers that commit one transaction after the other, and an exactly-once copy.

A producer is a generator: it yields the next frame and receives the response, or yields the seconds it waits. So one
can drive a connection alone, and many can share a process.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Generator
from typing import TypeAlias

from bench import frames
from bench import transaction_frames as wire
from bench.connection import Broken, Connection
from bench.group_load import wait_for_coordinator
from bench.load import Target, percentiles
from bench.workers import Start, Tally, Worker

COORDINATOR_TIMEOUT_S = 30.0
CONCURRENT_TRANSACTIONS = 51
NOT_YET = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
"""The coordinator loads, is not there, is another one; or the transaction before is not complete."""
BACKOFF_S = 0.02
"""What the Java client and librdkafka wait before they ask once more whether the transaction before is complete."""
DELAY_S = 0.001

Steps: TypeAlias = Generator[bytes | float, memoryview, memoryview]
Endless: TypeAlias = Generator[bytes | float, memoryview, None]


def asked(frame: bytes, error_at: int) -> Steps:
    """Repeat a request until its response has no error."""
    while True:
        answer = yield frame
        (error,) = frames.I16.unpack_from(answer, error_at)
        if not error:
            return answer
        if error not in NOT_YET:
            raise Broken(f"a request of a transaction was answered error {error}")
        yield BACKOFF_S


class Transactor:
    """A transactional producer that writes one batch per transaction, by version 1 or 2 of the protocol."""

    def __init__(self, transactional_id: str, target: Target, batch: bytes, count: int, version: int) -> None:
        self._id = transactional_id
        self._target = target
        self._batch = batch
        self._count = count
        self._version = version
        self._sequence = 0
        self._producer = wire.Identity(*wire.NO_PRODUCER)
        self._produced_at = frames.produce_error_at(target.topic)
        self._added_at = wire.error_at(target.topic)

    def begin(self) -> Endless:
        self._producer = wire.read_identity((yield from asked(wire.init(self._id), wire.ERROR_AT)))

    def write(self) -> Endless:
        """Send the batch, as the first of a transaction."""
        topic, partition = self._target.topic, self._target.partition
        if self._version == 1:
            yield from asked(wire.add_partition(self._id, self._producer, topic, partition), self._added_at)
        records = bytes(wire.in_transaction(self._batch, self._producer, self._sequence))
        frame = frames.produce(
            topic, partition, records, transactional_id=self._id, version=9 if self._version == 1 else 12
        )
        yield from asked(frame, self._produced_at)
        self._sequence += self._count

    def commit_offset(self, group: str, topic: str, offset: int) -> Endless:
        if self._version == 1:
            yield from asked(wire.add_offsets(self._id, self._producer, group), wire.ERROR_AT)
        version = 3 if self._version == 1 else 5
        frame = wire.commit_offset(self._id, self._producer, group, topic, offset, version=version)
        yield from asked(frame, wire.error_at(topic))

    def ending(self) -> bytes:
        return wire.end(self._id, self._producer, version=3 if self._version == 1 else 5)

    def ended(self, answer: memoryview) -> None:
        if self._version == 2:
            self._producer = wire.read_identity(answer)
            self._sequence = 0

    def transaction(self) -> Endless:
        yield from self.write()
        self.ended((yield from asked(self.ending(), wire.ERROR_AT)))


def drive(connection: Connection, steps: Endless) -> None:
    """Run a producer to its end, on one connection."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, float):
                time.sleep(step)
                step = next(steps)
            else:
                step = steps.send(connection.call(step))
    except StopIteration:
        pass


def await_coordinator(port: int, transactional_id: str) -> None:
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    with Connection(port) as connection:
        while True:
            answer = connection.call(wire.find_coordinator(transactional_id))
            (error,) = frames.I16.unpack_from(answer, wire.ERROR_AT)
            if not error:
                return
            if time.monotonic() > deadline:
                raise Broken(f"{transactional_id} has no coordinator: error {error}")
            time.sleep(0.01)


class _Turns:
    """Many producers in one process: each continues when its response arrives or its wait ends."""

    def __init__(self) -> None:
        self.latencies: list[int] = []
        self.waits = 0
        self._poll = select.epoll()
        self._seats: dict[int, tuple[Connection, Transactor]] = {}
        self._under_way: dict[int, Endless] = {}
        self._began: dict[int, int] = {}
        self._waiting: list[tuple[float, int]] = []

    def seat(self, connection: Connection, producer: Transactor) -> None:
        fd = connection.socket.fileno()
        self._seats[fd] = (connection, producer)
        self._poll.register(fd, select.EPOLLIN)

    def run(self, stop: float) -> None:
        """Run transactions until then, and finish those in progress."""
        for fd in self._seats:
            self._next(fd)
        while self._under_way:
            due = self._waiting[0][0] - time.monotonic() if self._waiting else -1.0
            for fd, _ in self._poll.poll(max(due, 0.0) if self._waiting else None):
                connection, _ = self._seats[fd]
                self._answered(fd, connection.answer(), stop)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, fd = heapq.heappop(self._waiting)
                self._do(fd, next(self._under_way[fd]))

    def close(self) -> None:
        for connection, _ in self._seats.values():
            connection.socket.close()

    def _next(self, fd: int) -> None:
        _, producer = self._seats[fd]
        self._under_way[fd] = steps = producer.transaction()
        self._began[fd] = time.perf_counter_ns()
        self._do(fd, next(steps))

    def _answered(self, fd: int, answer: memoryview, stop: float) -> None:
        try:
            step = self._under_way[fd].send(answer)
        except StopIteration:
            self.latencies.append(time.perf_counter_ns() - self._began[fd])
            del self._under_way[fd]
            if time.monotonic() < stop:
                self._next(fd)
        else:
            self._do(fd, step)

    def _do(self, fd: int, step: bytes | float) -> None:
        if isinstance(step, float):
            self.waits += 1
            heapq.heappush(self._waiting, (time.monotonic() + step, fd))
        else:
            self._seats[fd][0].socket.sendall(step)


def transactions(targets: list[Target], names: list[str], batch: bytes, count: int, version: int) -> Worker:
    """A producer for each name, with its own connection, that starts its next transaction when one has ended."""

    def work(start: Start) -> Tally:
        turns = _Turns()
        for number, name in enumerate(names):
            target = targets[number % len(targets)]
            await_coordinator(target.port, name)
            connection = Connection(target.port)
            producer = Transactor(name, target, batch, count, version)
            drive(connection, producer.begin())
            drive(connection, producer.transaction())
            turns.seat(connection, producer)
        stop = start()
        tally = Tally(begin=time.monotonic())
        turns.run(stop)
        tally.end = time.monotonic()
        turns.close()
        tally.requests = len(turns.latencies)
        tally.records = tally.requests * count
        tally.waits = turns.waits
        tally.latencies_us = percentiles(turns.latencies)
        return tally

    return work


class _Tail:
    """A read_committed Fetch that waits at the end of a partition."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = Connection(target.port)
        self._frame, self._offset_at = frames.fetch(target.topic, target.partition, wait_ms=10_000, committed=True)
        self.offset = 0

    def wait(self) -> None:
        frames.I64.pack_into(self._frame, self._offset_at, self.offset)
        self._connection.socket.sendall(self._frame)

    def seen(self) -> None:
        fetched = frames.read_fetched(self._connection.answer(), self._target.topic, self.offset)
        if fetched.error or not fetched.records:
            raise Broken(f"Fetch answered error {fetched.error}, {fetched.records} records")
        self.offset = fetched.next_offset

    def close(self) -> None:
        self._connection.socket.close()


def copies(source: Target, sink: Target, name: str, runs: int, record: bytes, version: int) -> Worker:
    """Copy one record after the other in a transaction with its offset: latency from sending it to reading the
    committed copy on another connection."""

    def work(start: Start) -> Tally:
        wait_for_coordinator(source.port, name, source.topic)
        await_coordinator(source.port, name)
        producer = Transactor(name, sink, record, 1, version)
        frame, error_at = frames.produce(source.topic, source.partition, record), frames.produce_error_at(source.topic)
        latencies: list[int] = []
        reading, seeing = _Tail(source), _Tail(sink)
        with Connection(source.port) as writing, Connection(source.port) as copying:
            drive(copying, producer.begin())
            start()
            tally = Tally(begin=time.monotonic())
            for _ in range(runs):
                reading.wait()
                seeing.wait()
                time.sleep(DELAY_S)  # let the broker park both, and complete the transaction before
                sent_at = time.perf_counter_ns()
                writing.socket.sendall(frame)
                reading.seen()
                drive(copying, producer.write())
                drive(copying, producer.commit_offset(name, source.topic, reading.offset))
                copying.socket.sendall(producer.ending())
                seeing.seen()
                latencies.append(time.perf_counter_ns() - sent_at)
                _check(writing.answer(), error_at)
                producer.ended(_check(copying.answer(), wire.ERROR_AT))
            tally.end = time.monotonic()
        reading.close()
        seeing.close()
        tally.requests = tally.records = runs
        tally.latencies_us = percentiles(latencies)
        return tally

    return work


def _check(answer: memoryview, error_at: int) -> memoryview:
    (error,) = frames.I16.unpack_from(answer, error_at)
    if error:
        raise Broken(f"a copy was answered error {error}")
    return answer
