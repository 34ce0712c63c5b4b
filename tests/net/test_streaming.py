"""Large responses that are loaded while they are sent: the cost of slow readers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.local.waiting import until
from ottla.net import server as net
from ottla.net.connection_limits import NetworkLimits
from ottla.net.response_memory import CHUNK_BYTES_MIN, STALLED_SECONDS_MAX
from ottla.net.server import Connection, Pending, Server
from ottla.net.streaming import Streamed
from tests.net.test_server import frame, read_frame, serving

LARGE = 12_000_000
PATTERN = bytes(range(251)) * (60_000_000 // 251)


class Bytes:
    """A source whose bytes can be told from one another, and which counts what was asked of it."""

    def __init__(self, size: int = LARGE, *, cold_every: int = 0) -> None:
        self.size = size
        self.read_bytes = self.reads = self.held = 0
        self.cold_every = cold_every
        self.failure: Exception | None = None

    def __len__(self) -> int:
        return self.size

    def content(self, start: int, size: int) -> bytes:
        return PATTERN[start % 251 : start % 251 + size]

    def read_into(self, start: int, buffer: memoryview) -> int | None:
        if self.failure is not None:
            raise self.failure
        self.reads += 1
        if self.cold_every and self.reads % self.cold_every == 0:
            return None
        count = min(len(buffer), self.size - start)
        buffer[:count] = self.content(start, count)
        self.read_bytes += count
        return count

    def read(self, start: int, size: int) -> bytes:
        self.read_bytes += size
        return self.content(start, size)

    def hold(self) -> None:
        self.held += 1


def streamed(*sources: Bytes) -> Streamed:
    size = sum(4 + len(source) for source in sources)
    parts: list[object] = [size.to_bytes(4, "big")]
    for source in sources:
        parts += [b"head", source]
    return Streamed(parts)  # type: ignore[arg-type]


async def small_window(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client whose kernel takes little that the client does not read."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=plain, limit=16 * 1024)


@pytest.mark.parametrize("cold_every", [0, 1, 3])
def test_a_streamed_response_arrives_whole_and_in_order(cold_every):
    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(frame(b"fetch it") + frame(b"metadata") + frame(b"fetch it"))
        for body in (b"fetch it", b"metadata", b"fetch it"):
            got = await read_frame(reader)
            if body == b"metadata":
                assert got == body
                continue
            sizes = (100_000, LARGE, 1)
            expected = b"".join(b"head" + Bytes(size).content(0, size) for size in sizes)
            assert got == expected
        assert server.response_memory.held_bytes == 0
        writer.close()

    def serve(connection: Connection, body: memoryview) -> net.Reply:
        if bytes(body) == b"metadata":
            return frame(bytes(body))
        return streamed(*(Bytes(size, cold_every=cold_every) for size in (100_000, LARGE, 1)))

    serving(serve, test)


def test_a_client_that_does_not_read_costs_a_few_thousand_bytes():
    source = Bytes(50_000_000)

    async def test(server: Server, port: int) -> None:
        reader, writer = await small_window(port)
        writer.write(frame(b"fetch it"))
        await until(lambda: server.response_memory.held_bytes > 0)
        loaded = source.read_bytes
        await asyncio.sleep(0.05)
        assert source.read_bytes == loaded < len(source)
        assert server.response_memory.held_bytes <= CHUNK_BYTES_MIN
        assert source.held == 1, "what it has not read yet must not go"
        assert len(await read_frame(reader)) == len(source) + 4
        await until(lambda: server.response_memory.held_bytes == 0)
        writer.close()

    serving(lambda connection, body: streamed(source), test, NetworkLimits(unread_bytes_max=1 << 26))


def test_a_response_of_one_partition_is_loaded_once_while_memory_is_free():
    sources = [Bytes(1 << 20) for _ in range(4)]
    left = iter(sources)

    async def test(server: Server, port: int) -> None:
        reader, writer = await small_window(port)
        for source in sources:
            writer.write(frame(b"fetch it"))
            assert len(await read_frame(reader)) == len(source) + 4
            assert (source.reads, source.read_bytes) == (1, len(source))
        writer.close()

    def serve(connection: Connection, body: memoryview) -> net.Reply:
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        return streamed(next(left))

    serving(serve, test, NetworkLimits(unread_bytes_max=1 << 26))


def test_the_end_of_a_response_is_not_kept_when_memory_is_short():
    source = Bytes(1 << 20)

    async def test(server: Server, port: int) -> None:
        reader, writer = await small_window(port)
        writer.write(frame(b"fetch it"))
        await until(lambda: server.response_memory.held_bytes > 0)
        assert server.response_memory.held_bytes <= CHUNK_BYTES_MIN
        assert len(await read_frame(reader)) == len(source) + 4
        assert source.read_bytes > len(source), "some of it was loaded again"
        writer.close()

    def serve(connection: Connection, body: memoryview) -> net.Reply:
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        return streamed(source)

    serving(serve, test, NetworkLimits(unread_bytes_max=1 << 20))


def test_many_clients_that_do_not_read_leave_memory_for_one_that_does():
    most = 2_000_000

    async def test(server: Server, port: int) -> None:
        pairs = [await small_window(port) for _ in range(60)]
        for _, writer in pairs:
            writer.write(frame(b"fetch it"))
        await until(lambda: sum(stalls(connection) for connection in server.connections) == 60)
        assert 0 < server.response_memory.held_bytes <= most
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in range(3):
            writer.write(frame(b"fetch it"))
            assert len(await read_frame(reader)) == LARGE + 4
            writer.write(frame(b"metadata"))
            assert await read_frame(reader) == b"metadata"
        assert server.response_memory.held_bytes <= most
        for _, each in [*pairs, (reader, writer)]:
            each.close()
        await until(lambda: server.response_memory.held_bytes == 0)

    serving(large_or_small, test, NetworkLimits(unread_bytes_max=most))


def stalls(connection: Connection) -> bool:
    return connection._stream is not None and connection._stream.paused


def large_or_small(connection: Connection, body: memoryview) -> net.Reply:
    return streamed(Bytes()) if bytes(body) == b"fetch it" else frame(bytes(body))


def test_without_response_memory_small_responses_and_brokers_are_served_and_others_wait_for_stalled_clients():
    def serve(connection: Connection, body: memoryview) -> net.Reply:
        if bytes(body) == b"i am a broker":
            connection.session.broker_id = 2
            return frame(bytes(body))
        return large_or_small(connection, body)

    async def test(server: Server, port: int) -> None:
        stalled = [await small_window(port) for _ in range(5)]
        for _, writer in stalled:
            writer.write(frame(b"fetch it"))
        await until(lambda: server.response_memory.waiting > 0)
        broker, to_broker = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        to_broker.write(frame(b"i am a broker"))
        assert await read_frame(broker) == b"i am a broker"
        to_broker.write(frame(b"fetch it"))
        assert len(await read_frame(broker)) == LARGE + 4
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(frame(b"metadata"))
        assert await read_frame(reader) == b"metadata"
        writer.write(frame(b"fetch it"))
        assert len(await read_frame(reader)) == LARGE + 4, "those who took nothing were closed"
        for _, each in [*stalled, (reader, writer), (broker, to_broker)]:
            each.close()

    limits = NetworkLimits(unread_bytes_max=3 * CHUNK_BYTES_MIN)
    serving(serve, test, limits, clock_speed=STALLED_SECONDS_MAX / 0.4)


@pytest.mark.parametrize(
    "failure", [Refused(ErrorCode.not_leader_or_follower, "truncated"), StorageFault("no such file")]
)
def test_a_response_that_cannot_be_finished_closes_its_connection_only(failure):
    source = Bytes()

    async def test(server: Server, port: int) -> None:
        reader, writer = await small_window(port)
        writer.write(frame(b"fetch it"))
        await until(lambda: server.response_memory.held_bytes > 0)
        source.failure = failure
        other, to_other = await asyncio.open_connection("127.0.0.1", port)
        to_other.write(frame(b"metadata"))
        assert await read_frame(other) == b"metadata"
        size = 0
        try:
            while data := await reader.read(1 << 16):
                size += len(data)
        except ConnectionError:
            pass
        assert size < LARGE
        await until(lambda: len(server.connections) == 1)
        assert server.response_memory.held_bytes == 0
        for each in (writer, to_other):
            each.close()

    def serve(connection: Connection, body: memoryview) -> net.Reply:
        return streamed(source) if bytes(body) == b"fetch it" else frame(bytes(body))

    serving(serve, test)


def test_a_file_that_has_become_shorter_closes_the_connection():
    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"fetch it"))
        await until(lambda: not server.connections)
        assert server.response_memory.held_bytes == 0
        writer.close()
        del reader

    class Short(Bytes):
        def read_into(self, start: int, buffer: memoryview) -> int | None:
            return 0 if start > 1_000_000 else super().read_into(start, buffer)

    serving(lambda connection, body: streamed(Short()), test)


def test_a_client_that_reads_nothing_is_closed_as_idle_and_a_slow_one_is_not():
    source = Bytes(8_000_000)

    async def test(server: Server, port: int) -> None:
        _, writer = await small_window(port)
        writer.write(frame(b"fetch it"))
        slow, to_slow = await small_window(port)
        to_slow.write(frame(b"fetch it"))
        await until(lambda: len(server.connections) == 2)

        async def read_slowly() -> int:
            size = 0
            while size < len(source) + 8:
                size += len(await slow.read(60_000))
                await asyncio.sleep(0.03)
            return size

        assert await read_slowly() == len(source) + 8, "longer than the idle time, and closed for nothing"
        await until(lambda: len(server.connections) <= 1)
        for each in (writer, to_slow):
            each.close()

    serving(lambda connection, body: streamed(source), test, NetworkLimits(idle_ms_max=2_500))


def test_a_response_behind_an_unread_one_waits_for_the_socket():
    source = Bytes()
    before = bytes(8_000_000)
    answers: list[net.Reply | Pending] = [frame(before), streamed(source)]
    early = Pending(overlaps=True)

    def serve(connection: Connection, body: memoryview) -> net.Reply | Pending:
        return early if bytes(body) == b"produce it" else answers.pop(0)

    async def test(server: Server, port: int) -> None:
        reader, writer = await small_window(port)
        writer.write(frame(b"produce it") + frame(b"a request") * 2)
        await until(lambda: not answers)
        early.resolve(frame(b"first"))
        await until(lambda: bool(server.response_memory.held_bytes))
        assert source.read_bytes == 0, "the answer before it has not been taken"
        assert await read_frame(reader) == b"first"
        assert await read_frame(reader) == before
        assert len(await read_frame(reader)) == LARGE + 4
        writer.close()

    serving(serve, test)


def test_responses_behind_a_streamed_one_wait_and_keep_their_order():
    """Produce overlaps: its acknowledgements come while a Fetch between them is on its way."""
    first, last = Pending(overlaps=True), Pending(overlaps=True)
    source = Bytes()
    answers: list[net.Reply | Pending] = [first, streamed(source), last]

    async def test(server: Server, port: int) -> None:
        reader, writer = await small_window(port)
        writer.write(frame(b"a request") * 3)
        await until(lambda: not answers)
        assert source.held == 1, "it is there, and not due"
        first.resolve(frame(b"first"))
        last.resolve(frame(b"last"))
        assert await read_frame(reader) == b"first"
        assert len(await read_frame(reader)) == LARGE + 4
        assert await read_frame(reader) == b"last"
        writer.close()

    serving(lambda connection, body: answers.pop(0), test)


def test_a_disconnect_during_a_response_releases_everything():
    import weakref

    sources: list[weakref.ref[Bytes]] = []

    def serve(connection: Connection, body: memoryview) -> net.Reply:
        source = Bytes()
        sources.append(weakref.ref(source))
        return streamed(source)

    async def test(server: Server, port: int) -> None:
        _, writer = await small_window(port)
        writer.write(frame(b"fetch it"))
        await until(lambda: server.response_memory.held_bytes > 0)
        writer.transport.abort()
        await until(lambda: not server.connections)
        assert server.response_memory.held_bytes == 0
        await until(lambda: sources[0]() is None)

    serving(serve, test)
