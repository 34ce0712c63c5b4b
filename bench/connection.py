"""Blocking connection to a broker: requests and responses as frames, and the topic calls that cells need."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from bench import frames
from ottla.cluster.ensemble import HOST

ANSWER_BYTES_MAX = frames.PARTITION_BYTES_MAX + (1 << 16)
TOPIC_TIMEOUT_S = 30.0
TOPIC_ALREADY_EXISTS = 36


class Broken(Exception):
    """The broker closed the connection or answered with an error; the measured run is void."""


class Connection:
    """Responses are read into one preallocated buffer; a view of it is valid until the next response."""

    def __init__(self, port: int, *, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(answer_bytes_max))

    def answer(self) -> memoryview:
        """The next response, without its size."""
        (size,) = frames.I32.unpack_from(self.exactly(4))
        if size > len(self._buffer):
            raise Broken(f"an answer of {size} bytes, more than was asked for")
        return self.exactly(size)

    def exactly(self, size: int) -> memoryview:
        """The next bytes."""
        got = self.socket.recv_into(self._buffer, size, socket.MSG_WAITALL)
        while got < size:
            more = self.socket.recv_into(self._buffer[got:], size - got, socket.MSG_WAITALL)
            if more == 0:
                raise Broken("the broker closed the connection")
            got += more
        return self._buffer[:size]

    def call(self, frame: bytes | bytearray) -> memoryview:
        self.socket.sendall(frame)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


def create_topic(port: int, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic and wait until every partition serves."""
    deadline = time.monotonic() + TOPIC_TIMEOUT_S
    with Connection(port) as connection:
        answer = connection.call(frames.create_topic(topic, partitions, configs))
        (error,) = frames.I16.unpack_from(answer, frames.topic_error_at(topic))
        if error not in (0, TOPIC_ALREADY_EXISTS):
            raise Broken(f"topic {topic} could not be created: error {error}")
        for partition in range(partitions):
            frame, _ = frames.fetch(topic, partition, wait_ms=0)
            while error := frames.read_fetched(connection.call(frame), topic, 0).error:
                if time.monotonic() > deadline:
                    raise Broken(f"partition {topic}-{partition} does not serve: error {error}")
                time.sleep(0.002)


def delete_topic(port: int, topic: str) -> None:
    with Connection(port) as connection:
        answer = connection.call(frames.delete_topic(topic))
        (error,) = frames.I16.unpack_from(answer, frames.topic_error_at(topic))
        if error:
            raise Broken(f"topic {topic} could not be deleted: error {error}")
