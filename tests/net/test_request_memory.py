"""Memory limits of requests and responses, of one connection and of all."""

from __future__ import annotations

import asyncio
import struct

import pytest

from ottla.local.waiting import until
from ottla.net import server as net
from ottla.net.connection_limits import NetworkLimits
from ottla.net.request_memory import STALLED_SECONDS_MAX
from ottla.net.server import Connection, Pending, Server
from tests.net.test_server import closed, echo, frame, read_frame, serving


@pytest.mark.parametrize("answer", [bytes(4_000_000), [b"head", bytearray(4_000_000)]], ids=["whole", "in pieces"])
def test_no_more_requests_are_served_while_responses_are_unread(answer):
    served = 0

    def serve(connection: Connection, body: memoryview) -> net.Reply:
        nonlocal served
        served += 1
        return answer

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"a request") * 100)
        await until(lambda: any(not connection._writable for connection in server.connections))
        await asyncio.sleep(0.05)
        assert served < 10
        while served < 100:
            await reader.read(1_000_000)
        writer.close()

    serving(serve, test)


def test_responses_that_wait_for_an_earlier_one_are_limited():
    first = Pending(overlaps=True)
    second = Pending(overlaps=True)
    served = 0

    def serve(connection: Connection, body: memoryview) -> net.Reply | Pending:
        nonlocal served
        served += 1
        if served <= 2:
            return first if served == 1 else second
        return [b"head", bytearray(1_000_000)]

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"produce or fetch") * 2)
        await until(lambda: served == 2)
        second.resolve(bytes(2_000_000))
        writer.write(frame(b"produce or fetch") * 98)
        await until(lambda: served == 4)
        await asyncio.sleep(0.05)
        assert served == 4
        first.resolve(b"at last")
        size = len(b"at last") + 2_000_000 + 98 * 1_000_004
        while size:
            size -= len(await reader.read(1_000_000))
        assert served == 100
        writer.close()

    serving(serve, test, NetworkLimits(pending_bytes_max=4_000_000))


def test_a_large_length_without_data_takes_no_memory_from_others():
    async def test(server: Server, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _, writer in pairs:
            writer.write(struct.pack(">i", 100_000_000) + b"x")
        await until(lambda: sum(c.held_bytes > 0 for c in server.connections) == 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_000_000)
        writer.write(frame(b"y" * 1_000_000))
        assert await read_frame(reader) == b"y" * 1_000_000
        for _, each in [*pairs, (reader, writer)]:
            each.close()

    serving(echo, test, NetworkLimits(held_bytes_max=2_500_000))


def test_large_requests_beyond_the_limit_are_received_one_after_another():
    body = b"x" * 1_000_000

    async def test(server: Server, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port, limit=4_000_000) for _ in range(8)]
        for _, writer in pairs:
            writer.write(frame(body)[:200_000])
            await writer.drain()
        await until(lambda: all(c.held_bytes for c in server.connections))
        for _, writer in pairs:
            writer.write(frame(body)[200_000:])
        for reader, writer in pairs:
            assert await read_frame(reader) == body
            writer.close()
        await until(lambda: server.request_memory.held_bytes == 0)

    serving(echo, test, NetworkLimits(held_bytes_max=1_500_000))


def test_a_stalled_large_request_is_closed_when_others_wait():
    async def test(server: Server, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port, limit=4_000_000) for _ in range(2)]
        for _, writer in pairs:
            writer.write(struct.pack(">i", 1_000_000) + b"x" * 300_000)
        await until(lambda: server.request_memory.held_bytes == 2_000_008)
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_000_000)
        writer.write(frame(b"y" * 1_000_000))
        assert await read_frame(reader) == b"y" * 1_000_000
        assert [await closed(each) for each, _ in pairs] == [True, True]
        for _, each in [*pairs, (reader, writer)]:
            each.close()

    serving(echo, test, NetworkLimits(held_bytes_max=1_500_000), clock_speed=STALLED_SECONDS_MAX / 0.05)


def test_a_stalled_large_request_is_closed_later_when_others_wait():
    async def test(server: Server, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port, limit=4_000_000) for _ in range(3)]
        for _, writer in pairs[:2]:
            writer.write(struct.pack(">i", 1_000_000) + b"x" * 300_000)
        await until(lambda: server.request_memory.held_bytes == 2_000_008)
        reader, writer = pairs[2]
        writer.write(frame(b"y" * 1_000_000))
        await until(lambda: any(server.request_memory.waits(each) for each in server.connections))
        assert await asyncio.wait_for(read_frame(reader), 5) == b"y" * 1_000_000
        for _, each in pairs:
            each.close()

    serving(echo, test, NetworkLimits(held_bytes_max=1_500_000), clock_speed=STALLED_SECONDS_MAX / 0.3)
