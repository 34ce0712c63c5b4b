"""The server with real sockets and a `serve` of the test: order, limits, buffers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from ottla.errors import BadFrame
from ottla.local.waiting import until
from ottla.net import server as net
from ottla.net.connection_limits import NetworkLimits
from ottla.net.server import Connection, Pending, Server
from tests.harness.fast_clock import FastRuntime

DEADLINE = 20.0
NO_LIMITS = NetworkLimits()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def echo(connection: Connection, body: memoryview) -> bytes:
    return frame(bytes(body))


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def serving(
    serve: net.Serve,
    test: Callable[[Server, int], Awaitable[None]],
    limits: NetworkLimits = NO_LIMITS,
    *,
    clock_speed: float = 1.0,
) -> None:
    async def run() -> None:
        runtime = FastRuntime(clock_speed)
        server = Server(runtime, serve, limits)
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE):
                await test(server, listener.port)
        finally:
            await server.close()
            await asyncio.sleep(0)
            await runtime.close()

    asyncio.run(run())


def test_frames_of_any_size_are_received_in_any_pieces():
    bodies = [b"x" * size for size in (8, 9, 4096, 70_000, 300_000, 1_000_000, 8)]

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = b"".join(map(frame, bodies))
        for start in range(0, len(data), 99_991):
            writer.write(data[start : start + 99_991])
            await writer.drain()
        assert [await read_frame(reader) for _ in bodies] == bodies
        writer.close()

    serving(echo, test)


def test_a_frame_that_arrives_byte_by_byte_is_answered():
    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in frame(b"slow and steady"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await read_frame(reader) == b"slow and steady"
        writer.close()

    serving(echo, test)


@pytest.mark.parametrize("size", [-1, 0, 7, 2**31 - 1, 1001])
def test_an_impossible_length_closes_the_connection_and_no_other(size):
    async def test(server: Server, port: int) -> None:
        good_reader, good_writer = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", size) + b"junk")
        assert await closed(reader)
        good_writer.write(frame(b"still here"))
        assert await read_frame(good_reader) == b"still here"
        writer.close()
        good_writer.close()

    serving(echo, test, NetworkLimits(frame_bytes_max=1000))


def test_responses_are_sent_in_the_order_of_the_requests():
    waiting: list[Pending] = []

    def serve(connection: Connection, body: memoryview) -> net.Reply | Pending:
        if bytes(body).startswith(b"later"):
            pending = Pending(overlaps=True)
            waiting.append(pending)
            return pending
        return frame(bytes(body))

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"later 1.") + frame(b"at once 2") + frame(b"later 3.") + frame(b"at once 4"))
        await until(lambda: len(waiting) == 2)
        waiting[1].resolve(frame(b"answer 3"))
        waiting[0].resolve(frame(b"answer 1"))
        answers = [await read_frame(reader) for _ in range(4)]
        assert answers == [b"answer 1", b"at once 2", b"answer 3", b"at once 4"]
        writer.close()

    serving(serve, test)


def test_a_pending_response_holds_back_the_next_request():
    waiting: list[Pending] = []
    served: list[bytes] = []

    def serve(connection: Connection, body: memoryview) -> Pending:
        served.append(bytes(body))
        waiting.append(Pending())
        return waiting[-1]

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(200):
            writer.write(frame(b"request %d" % number))
        for number in range(200):
            await until(lambda: len(waiting) > number)  # noqa: B023
            assert len(served) == number + 1
            waiting[number].resolve(frame(b"answer %d" % number))
            assert await read_frame(reader) == b"answer %d" % number
        writer.close()

    serving(serve, test)


def test_many_requests_in_one_read_are_all_answered_in_order():
    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = [b"request %06d" % number for number in range(5000)]
        writer.write(b"".join(map(frame, bodies)))
        assert [await read_frame(reader) for _ in bodies] == bodies
        writer.close()

    serving(echo, test)


def test_a_request_without_a_response_does_not_stop_the_others():
    def serve(connection: Connection, body: memoryview) -> net.Reply:
        return None if bytes(body).startswith(b"silence") else frame(bytes(body))

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"silence!") + frame(b"hello again"))
        assert await read_frame(reader) == b"hello again"
        writer.close()

    serving(serve, test)


def test_a_malformed_frame_closes_the_connection_after_earlier_responses():
    def serve(connection: Connection, body: memoryview) -> bytes:
        if bytes(body).startswith(b"bad"):
            raise BadFrame("no message")
        return frame(bytes(body))

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"good one") + frame(b"bad frame") + frame(b"never served"))
        assert await read_frame(reader) == b"good one"
        assert await closed(reader)
        writer.close()

    serving(serve, test)


def test_responses_of_one_loop_iteration_are_sent_before_connections_close():
    waiting: list[tuple[Connection, bytes, Pending]] = []

    def serve(connection: Connection, body: memoryview) -> Pending:
        pending = Pending(overlaps=True)
        waiting.append((connection, bytes(body), pending))
        return pending

    async def test(server: Server, port: int) -> None:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        bodies = [[b"%08d" % number, b"%08d" % -number, b"x" * 20_000] for number in range(1, 6)]
        for (_, writer), sent in zip(clients, bodies, strict=True):
            writer.write(b"".join(map(frame, sent)))
        await until(lambda: len(waiting) == 15)
        for connection, body, pending in waiting:
            pending.resolve(frame(body))
            if body == b"-0000003":
                connection.hang_up()
        assert [await read_frame(clients[2][0]) for _ in range(2)] == bodies[2][:2]
        assert await closed(clients[2][0])
        for (reader, _), sent in zip(clients[:2] + clients[3:], bodies[:2] + bodies[3:], strict=True):
            assert [await read_frame(reader) for _ in sent] == sent
        for _, writer in clients:
            writer.close()

    serving(serve, test)


def test_a_pending_response_that_is_ready_at_once_is_sent_once():
    served: list[bytes] = []

    def serve(connection: Connection, body: memoryview) -> Pending:
        served.append(bytes(body))
        pending = Pending()
        pending.resolve(frame(served[-1]))
        return pending

    async def test(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = [b"%08d" % number for number in range(20)]
        data = b"".join(map(frame, bodies))
        writer.write(data[:6])
        await until(lambda: any(connection.held_bytes for connection in server.connections))
        writer.write(data[6:])
        assert [await read_frame(reader) for _ in bodies] == bodies
        assert served == bodies
        writer.close()

    serving(serve, test)


def test_no_request_is_served_within_another():
    waiting: list[Pending] = []
    served: list[bytes] = []
    depth = 0

    def serve(connection: Connection, body: memoryview) -> bytes | Pending:
        nonlocal depth
        assert not depth, "another request is being served"
        depth += 1
        try:
            served.append(bytes(body))
            if served[-1].startswith(b"wait"):
                waiting.append(Pending())
                return waiting[-1]
            while waiting:
                waiting.pop().resolve(frame(b"answered"))
            return frame(served[-1])
        finally:
            depth -= 1

    async def test(server: Server, port: int) -> None:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in clients[:2]:
            writer.write(frame(b"wait for") + frame(b"behind 1") + frame(b"behind 2"))
        await until(lambda: len(waiting) == 2 and all(c.held_bytes for c in list(server.connections)[:2]))
        clients[2][1].write(frame(b"go ahead"))
        for reader, _ in clients[:2]:
            assert [await read_frame(reader) for _ in range(3)] == [b"answered", b"behind 1", b"behind 2"]
        assert await read_frame(clients[2][0]) == b"go ahead"
        assert len(served) == 7
        for _, writer in clients:
            writer.close()

    serving(serve, test)


def test_a_client_that_never_reads_is_served_a_limited_number_of_requests():
    served = 0

    def serve(connection: Connection, body: memoryview) -> bytes:
        nonlocal served
        served += 1
        return frame(b"x" * 100_000)

    async def test(server: Server, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame(b"request!") * 2000)
        before = -1
        while before != served:  # until the answers have nowhere to go
            before = served
            await asyncio.sleep(0.1)
        assert served < 1000  # 200 MB would have been asked for
        writer.transport.abort()

    serving(serve, test)


def test_a_disconnect_is_noticed_while_a_response_is_pending():
    abandoned: list[bool] = []

    def serve(connection: Connection, body: memoryview) -> Pending:
        pending = Pending()
        pending.abandoned = lambda: abandoned.append(True)
        return pending

    async def test(server: Server, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"long poll"))
        await until(lambda: len(server.connections) == 1)
        writer.close()
        await until(lambda: bool(abandoned))
        await until(lambda: not server.connections)

    serving(serve, test)


def test_a_response_after_the_disconnect_is_dropped():
    waiting: list[Pending] = []

    def serve(connection: Connection, body: memoryview) -> Pending:
        waiting.append(Pending())
        return waiting[-1]

    async def test(server: Server, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"request!"))
        await until(lambda: bool(waiting))
        writer.close()
        await until(lambda: not server.connections)
        waiting[0].resolve(frame(b"too late"))
        assert waiting[0].resolved

    serving(serve, test)


def test_idle_connections_are_closed_and_busy_ones_are_not():
    waiting: list[Pending] = []

    def serve(connection: Connection, body: memoryview) -> Pending:
        waiting.append(Pending())
        return waiting[-1]

    async def test(server: Server, port: int) -> None:
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        idle_writer.write(b"\0\0")  # half a length prefix
        busy_reader, busy_writer = await asyncio.open_connection("127.0.0.1", port)
        busy_writer.write(frame(b"long poll"))
        assert await closed(idle_reader)
        waiting[0].resolve(frame(b"here it is"))
        assert await read_frame(busy_reader) == b"here it is"
        idle_writer.close()
        busy_writer.close()

    serving(serve, test, NetworkLimits(idle_ms_max=300))


def test_connections_are_limited_in_total_and_per_address():
    async def test(server: Server, port: int) -> None:
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(server.connections) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await closed(reader)
        writer.close()
        kept.pop()[1].close()
        await until(lambda: len(server.connections) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"now there is room"))
        assert await read_frame(reader) == b"now there is room"
        for _, each in [*kept, (reader, writer)]:
            each.close()

    serving(echo, test, NetworkLimits(connections_max=3))
    serving(echo, test, NetworkLimits(connections_per_address_max=3))


def test_large_requests_wait_for_memory_and_all_arrive():
    body = b"x" * 1_000_000

    async def send(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_000_000)
        writer.write(frame(body))
        assert await read_frame(reader) == body
        writer.close()

    async def test(server: Server, port: int) -> None:
        await asyncio.gather(*(send(port) for _ in range(12)))

    serving(echo, test, NetworkLimits(held_bytes_max=2_500_000))


def test_brokers_do_not_wait_for_memory_of_clients():
    def serve(connection: Connection, body: memoryview) -> bytes:
        if bytes(body) == b"a broker":
            connection.authenticated_as_broker(2)
        return frame(bytes(body[:8]))

    async def test(server: Server, port: int) -> None:
        _, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(struct.pack(">i", 1_000_000) + b"x" * 300_000)
        await until(lambda: server.request_memory.held_bytes > 0)
        reader, broker = await asyncio.open_connection("127.0.0.1", port)
        broker.write(frame(b"a broker"))
        assert await read_frame(reader) == b"a broker"
        broker.write(frame(b"proposal" * 100_000))
        assert await read_frame(reader) == b"proposal"
        slow.close()
        broker.close()

    serving(serve, test, NetworkLimits(held_bytes_max=1_000_000))


def test_a_large_length_alone_costs_no_memory():
    async def test(server: Server, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in pairs:
            writer.write(struct.pack(">i", 100_000_000) + b"only this much")
        await until(lambda: sum(c.held_bytes > 0 for c in server.connections) == 50)
        assert sum(c.held_bytes for c in server.connections) < 50 * 16_384
        for _, writer in pairs:
            writer.close()

    serving(echo, test)


def test_delayed_operations_complete_after_the_request_that_completes_them():
    """An acks=all Produce is answered at the end of the read that brought the follower's Fetch: not inside it, and not
    a turn of the loop later."""
    happened: list[str] = []
    waiting: list[Pending] = []

    class Produced:
        def __init__(self, pending: Pending) -> None:
            self._pending = pending

        def complete(self) -> None:
            happened.append("answered")
            self._pending.resolve(frame(b"produced"))

    class Waits:
        due: list[Produced]

        def __init__(self) -> None:
            self.due = []

        def take_due(self, next_iteration: bool = False) -> list[Produced]:
            due, self.due = self.due, []
            return due

    waits = Waits()

    def serve(connection: Connection, body: memoryview) -> bytes | Pending:
        if bytes(body) == b"produce!":
            waiting.append(Pending(overlaps=True))
            return waiting[-1]
        asyncio.get_running_loop().call_soon(happened.append, "next turn")
        waits.due.append(Produced(waiting.pop()))
        happened.append("served")
        return frame(b"fetched!")

    async def test(server: Server, port: int) -> None:
        server.delayed = waits
        producer, producing = await asyncio.open_connection("127.0.0.1", port)
        follower, following = await asyncio.open_connection("127.0.0.1", port)
        producing.write(frame(b"produce!"))
        await until(lambda: bool(waiting))
        following.write(frame(b"fetch..."))
        assert await read_frame(producer) == b"produced"
        assert await read_frame(follower) == b"fetched!"
        assert happened == ["served", "answered", "next turn"]
        producing.close()
        following.close()

    serving(serve, test)
