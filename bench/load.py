"""Load of producers and consumers: workers that need little CPU, so that the broker is measured.

Everything a worker sends is encoded before the start; of responses it reads error codes and batch headers only.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import frames
from bench.connection import Broken, Connection
from bench.workers import Start, Tally, Worker

IN_FLIGHT_MAX = 5  # what the Java producer allows on one connection
WARM_ROUND_TRIPS = 200
PERCENTILES = (50.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Target:
    """One partition of one topic of the broker on a port."""

    port: int
    topic: str
    partition: int = 0


def percentiles(nanoseconds: list[int]) -> dict[float, float]:
    """In microseconds, nearest rank."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {rank: ordered[min(last, int(len(ordered) * rank / 100))] / 1000 for rank in PERCENTILES}


def check_produced(answer: bytes | memoryview, error_at: int) -> None:
    (error,) = frames.I16.unpack_from(answer, error_at)
    if error:
        raise Broken(f"Produce answered error {error}")


def producer(target: Target, records: bytes, count: int) -> Worker:
    """Keep five requests of one batch in flight until the time is over; then wait for their responses."""

    def work(start: Start) -> Tally:
        frame = frames.produce(target.topic, target.partition, records)
        burst = memoryview(frame * IN_FLIGHT_MAX)
        error_at = frames.produce_error_at(target.topic) + 4
        with Connection(target.port) as connection:
            first = connection.call(frame)
            check_produced(first, error_at - 4)
            answer_size = 4 + len(first)
            stop = start()
            tally = Tally(begin=time.monotonic())
            connection.socket.sendall(burst)
            in_flight, pending = IN_FLIGHT_MAX, b""
            while in_flight:
                received = connection.socket.recv(1 << 16)
                if not received:
                    raise Broken("the broker closed the connection")
                pending += received
                answered, rest = divmod(len(pending), answer_size)
                for at in range(0, answered * answer_size, answer_size):
                    check_produced(pending, at + error_at)
                pending = pending[len(pending) - rest :]
                in_flight -= answered
                tally.requests += answered
                if answered and time.monotonic() < stop:
                    connection.socket.sendall(burst[: answered * len(frame)])
                    in_flight += answered
            tally.end = time.monotonic()
        tally.records = tally.requests * count
        return tally

    return work


def consumer(target: Target, *, again: bool) -> Worker:
    """Send one Fetch after the other until the time is over; at the log end start again, or wait for more."""

    def work(start: Start) -> Tally:
        frame, offset_at = frames.fetch(target.topic, target.partition)
        offset = 0
        with Connection(target.port) as connection:
            stop = start()
            tally = Tally(begin=time.monotonic())
            while time.monotonic() < stop:
                frames.I64.pack_into(frame, offset_at, offset)
                fetched = frames.read_fetched(connection.call(frame), target.topic, offset)
                if fetched.error:
                    raise Broken(f"Fetch answered error {fetched.error}")
                tally.requests += 1
                tally.records += fetched.records
                at_end = fetched.next_offset >= fetched.high_watermark
                offset = 0 if again and at_end else fetched.next_offset
            tally.end = time.monotonic()
        return tally

    return work


def connections(target: Target, partitions: int, count: int, records: bytes) -> Worker:
    """`count` connections; each sends its next one-record request after the response to the last one."""

    def work(start: Start) -> Tally:
        sockets = {}
        poll = select.epoll()
        requests = [frames.produce(target.topic, number, records) for number in range(partitions)]
        error_at = frames.produce_error_at(target.topic) + 4
        for number in range(count):
            sock = Connection(target.port).socket
            sock.setblocking(False)
            sockets[sock.fileno()] = (sock, requests[number % partitions])
            poll.register(sock.fileno(), select.EPOLLIN)
        tally = request_loop(sockets, poll, start, lambda sock: check_produced(sock.recv(4096), error_at))
        tally.records = tally.requests
        return tally

    return work


def round_trips(target: Target, requests: int | None, records: bytes) -> Worker:
    """One connection, one record for each request, one request after the other: so many, or until the time is over."""

    def work(start: Start) -> Tally:
        frame = frames.produce(target.topic, target.partition, records)
        error_at = frames.produce_error_at(target.topic)
        latencies: list[int] = []
        clock = time.perf_counter_ns
        with Connection(target.port) as connection:
            for _ in range(requests // 10 if requests else WARM_ROUND_TRIPS):
                check_produced(connection.call(frame), error_at)
            stop = start()
            tally = Tally(begin=time.monotonic())
            while len(latencies) < requests if requests else time.monotonic() < stop:
                sent_at = clock()
                answer = connection.call(frame)
                latencies.append(clock() - sent_at)
                check_produced(answer, error_at)
            tally.end = time.monotonic()
        tally.requests = tally.records = len(latencies)
        tally.latencies_us = percentiles(latencies)
        return tally

    return work


def end_to_end(target: Target, requests: int, records: bytes) -> Worker:
    """Latency from sending a record on one connection to receiving it on another, whose Fetch was waiting."""

    def work(start: Start) -> Tally:
        frame = frames.produce(target.topic, target.partition, records)
        error_at = frames.produce_error_at(target.topic)
        waiting, offset_at = frames.fetch(target.topic, target.partition, wait_ms=10_000)
        latencies = []
        clock = time.perf_counter_ns
        with Connection(target.port) as writing, Connection(target.port) as reading:
            start()
            tally = Tally(begin=time.monotonic())
            for offset in range(requests):
                frames.I64.pack_into(waiting, offset_at, offset)
                reading.socket.sendall(waiting)
                time.sleep(0.0005)  # let the broker park the Fetch: this measures the wake-up
                sent_at = clock()
                writing.socket.sendall(frame)
                answer = reading.answer()
                latencies.append(clock() - sent_at)
                fetched = frames.read_fetched(answer, target.topic, offset)
                if fetched.error or fetched.records != 1:
                    raise Broken(f"Fetch answered error {fetched.error}, {fetched.records} records for one")
                check_produced(writing.answer(), error_at)
            tally.end = time.monotonic()
        tally.requests = tally.records = requests
        tally.latencies_us = percentiles(latencies)
        return tally

    return work


def request_loop(
    sockets: dict[int, tuple[socket.socket, bytes]], poll: select.epoll, start: Start, receive: Callable[..., None]
) -> Tally:
    """Each socket sends its request again when `receive` has read and checked the response; then all are closed."""
    latencies: list[int] = []
    clock = time.perf_counter_ns
    stop = start()
    tally = Tally(begin=time.monotonic())
    sent_at = dict.fromkeys(sockets, clock())
    for sock, request in sockets.values():
        sock.send(request)
    in_flight = len(sockets)
    while in_flight:
        sending = time.monotonic() < stop
        for fd, _ in poll.poll():
            sock, request = sockets[fd]
            receive(sock)
            now = clock()
            latencies.append(now - sent_at[fd])
            if sending:
                sent_at[fd] = now
                sock.send(request)
            else:
                in_flight -= 1
    tally.end = time.monotonic()
    for sock, _ in sockets.values():
        sock.close()
    tally.requests = len(latencies)
    tally.latencies_us = percentiles(latencies)
    return tally
