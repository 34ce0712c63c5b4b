"""Outbound connections over real sockets, with a scripted peer."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import uvloop

from ottla.net import outbound as net
from ottla.net.authentication import (
    MECHANISM,
    NONCE_BYTES,
    SECRET_BYTES,
    Accepting,
    AuthenticationFailed,
    BrokerIdentity,
)
from ottla.net.outbound import OutboundConnection, PeerLost, Unreached, Versions, open_to_broker
from ottla.runtime.real import RealRuntime
from ottla.wire import messages
from ottla.wire.apis import (
    API_VERSIONS,
    APIS,
    DESCRIBE_CLUSTER,
    FETCH,
    LIST_GROUPS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from ottla.wire.frame import framed, parse_request_header, response_header
from ottla.wire.schema.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from ottla.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.schema.fetch import FetchRequest
from ottla.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.wire.schema.metadata import MetadataRequest
from ottla.wire.schema.produce import ProduceRequest
from ottla.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.schema.sasl_handshake import SaslHandshakeResponse
from ottla.wire.tree import Message

DEADLINE_S = 20.0
SECRET = bytes(range(SECRET_BYTES))
ME = BrokerIdentity(1, SECRET)
PEER = 2
THEIRS = BrokerIdentity(PEER, SECRET)


@dataclass
class Asked:
    """A request that has arrived, and how to answer it."""

    api_key: int
    version: int
    correlation_id: int
    body: bytes
    writer: asyncio.StreamWriter

    def answer(self, body: bytes, correlation_id: int | None = None) -> None:
        header = response_header(self.api_key, self.version, correlation_id or self.correlation_id)
        self.writer.write(framed(header, body))


@dataclass
class Peer:
    """The other side: lets brokers in, says what it speaks, and leaves the rest to the test."""

    identity: BrokerIdentity = THEIRS
    supported: dict[int, tuple[int, int]] = field(default_factory=lambda: {k: (a.min, a.max) for k, a in APIS.items()})
    asked: asyncio.Queue[Asked] = field(default_factory=asyncio.Queue)
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        accepting = Accepting(self.identity, os.urandom(NONCE_BYTES))
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                key, version, correlation_id, _, pos = parse_request_header(frame)
                asked = Asked(key, version, correlation_id, bytes(frame[pos:]), writer)
                greeting = self.greet(asked, accepting)
                if greeting is None:
                    await self.asked.put(asked)
                else:
                    asked.answer(messages.encode(greeting, version))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def greet(self, asked: Asked, accepting: Accepting) -> Message | None:
        if asked.api_key == SASL_HANDSHAKE:
            return SaslHandshakeResponse(mechanisms=[MECHANISM])
        if asked.api_key == SASL_AUTHENTICATE:
            request = messages.decode(SaslAuthenticateRequest, asked.version, asked.body)
            try:
                answer, _ = accepting.receive(request.auth_bytes)
            except AuthenticationFailed:
                return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed")
            return SaslAuthenticateResponse(auth_bytes=answer)
        if asked.api_key == API_VERSIONS:
            rows = [
                ApiVersion(api_key=k, min_version=low, max_version=high) for k, (low, high) in self.supported.items()
            ]
            return ApiVersionsResponse(api_keys=rows)
        return None


Test = Callable[[RealRuntime, Peer], Awaitable[None]]


def with_peer(test: Test, make: Callable[[], Peer] = Peer) -> None:
    async def run() -> None:
        runtime = RealRuntime()
        peer = make()
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        peer.port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await test(runtime, peer)
        finally:
            server.close()
            for writer in peer.writers:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
            await runtime.close()

    asyncio.run(run())


async def opened(runtime: RealRuntime, peer: Peer, identity: BrokerIdentity = ME) -> OutboundConnection:
    return await open_to_broker(runtime, "127.0.0.1", peer.port, identity, PEER)


def test_a_request_is_sent_in_the_highest_common_version():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        peer.supported[LIST_GROUPS] = (0, 4)
        peer.supported[DESCRIBE_CLUSTER] = (0, 99)
        connection = await opened(runtime, peer)
        calls = asyncio.gather(
            connection.call(ListGroupsRequest(), ListGroupsResponse, 5),
            connection.call(DescribeClusterRequest(), DescribeClusterResponse, 5),
        )
        first, second = await peer.asked.get(), await peer.asked.get()
        assert (first.version, second.version) == (4, APIS[DESCRIBE_CLUSTER].max)
        first.answer(messages.encode(ListGroupsResponse(throttle_time_ms=7), first.version))
        second.answer(messages.encode(DescribeClusterResponse(cluster_id="c"), second.version))
        groups, cluster = await calls
        assert (groups.throttle_time_ms, cluster.cluster_id) == (7, "c")
        connection.close()

    with_peer(test)


def test_a_request_without_a_common_version_is_not_sent():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        del peer.supported[LIST_GROUPS]
        connection = await opened(runtime, peer)
        with pytest.raises(Unreached, match="supports no version of ListGroups"):
            await connection.call(ListGroupsRequest(), ListGroupsResponse, 5)
        assert not connection.closed
        connection.close()

    with_peer(test)


def test_responses_of_any_size_are_received_in_buffers_of_their_own():
    sizes = [0, 1, 100, net.START_BYTES - 20, net.START_BYTES, net.START_BYTES + 1, 300_000, 8_000_000, 3]

    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        waiting = [connection.call_raw(FETCH, 11, [b"ab", memoryview(b"cd")], 10) for _ in sizes]
        for number, size in enumerate(sizes):
            asked = await peer.asked.get()
            assert asked.body == b"abcd"
            asked.answer(bytes([number]) * size)
        for number, (size, waits) in enumerate(zip(sizes, waiting, strict=True)):
            answer = await waits
            assert len(answer) == size
            assert not answer.readonly
            assert answer == bytes([number]) * size
        connection.close()

    with_peer(test)


def test_a_response_that_arrives_byte_by_byte_is_decoded():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        waiting = [connection.call_raw(FETCH, 11, [], 10) for _ in range(3)]
        data = b""
        for _ in waiting:
            asked = await peer.asked.get()
            data += framed(response_header(FETCH, 11, asked.correlation_id), b"slow and steady")
        for byte in data:
            asked.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert [bytes(await waits) for waits in waiting] == [b"slow and steady"] * 3
        connection.close()

    with_peer(test)


@pytest.mark.parametrize(
    "nonsense",
    [
        framed(response_header(FETCH, 11, 999), b"for another"),
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", net.ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_malformed_response_closes_the_connection_and_fails_all_requests_in_flight(nonsense):
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        waiting = [connection.call_raw(FETCH, 11, [], 10) for _ in range(2)]
        (await peer.asked.get()).writer.write(nonsense)
        for waits in waiting:
            with pytest.raises(PeerLost):
                await waits
        assert connection.closed
        with pytest.raises(Unreached):
            await connection.call_raw(FETCH, 11, [], 10)

    with_peer(test)


def test_a_response_without_a_request_closes_the_connection():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        waits = connection.call_raw(FETCH, 11, [], 10)
        asked = await peer.asked.get()
        asked.answer(b"one")
        asked.answer(b"and another")
        assert bytes(await waits) == b"one"
        with pytest.raises(PeerLost):
            await connection.call_raw(FETCH, 11, [], 10)

    with_peer(test)


def test_a_request_timeout_closes_the_connection():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        patient = connection.call_raw(FETCH, 11, [], 10)
        with pytest.raises(PeerLost, match=r"no answer within 0\.05 s") as lost:
            await connection.call_raw(FETCH, 11, [], 0.05)
        assert not isinstance(lost.value, Unreached)  # it may have been done
        with pytest.raises(PeerLost):
            await patient

    with_peer(test)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_unsent_bytes_are_dropped_with_the_connection(make_loop):
    """When it was asked again meanwhile, and done: the marker of a transaction would end the next one."""

    async def run() -> None:
        runtime, loop = RealRuntime(), asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listening.setblocking(False)
            connection = OutboundConnection(runtime, "a peer", "test", resets=True)
            await runtime.connect(lambda: connection, *listening.getsockname())
            accepted, _ = await loop.sock_accept(listening)
            with accepted:
                body = bytes(60_000)  # more than the peer's kernel takes, less than ours
                with pytest.raises(PeerLost, match="no answer"):
                    await connection.call_raw(FETCH, 11, [body], 0.05)
                arrived = 0
                with suppress(ConnectionResetError):
                    while some := await loop.sock_recv(accepted, 65_536):
                        arrived += len(some)
                assert arrived < len(body)
        await runtime.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_cancelled_caller_does_not_disturb_the_others():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        first = asyncio.ensure_future(connection.call_raw(FETCH, 11, [], 10))
        second = connection.call_raw(FETCH, 11, [], 10)
        first.cancel()
        (await peer.asked.get()).answer(b"for nobody")
        (await peer.asked.get()).answer(b"for the second")
        assert bytes(await second) == b"for the second"
        connection.close()

    with_peer(test)


def test_a_closed_connection_is_noticed_at_once():
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        connection = await opened(runtime, peer)
        waits = connection.call_raw(FETCH, 11, [], 10)
        (await peer.asked.get()).writer.transport.abort()
        with pytest.raises(PeerLost):
            await waits

    with_peer(test)


@pytest.mark.parametrize("identity", [BrokerIdentity(PEER, bytes(SECRET_BYTES)), BrokerIdentity(3, SECRET)])
def test_a_peer_without_the_secret_or_with_another_id_is_refused(identity):
    async def test(runtime: RealRuntime, peer: Peer) -> None:
        with pytest.raises(Unreached):
            await opened(runtime, peer)
        assert peer.asked.empty()

    with_peer(test, lambda: Peer(identity))


def test_connection_refused_is_unreached():
    async def run() -> None:
        runtime = RealRuntime()
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(Unreached, match=f"broker 2 at 127.0.0.1:{port} cannot be reached"):
            await open_to_broker(runtime, "127.0.0.1", port, ME, PEER)
        await runtime.close()

    asyncio.run(run())


def test_a_silent_peer_times_out():
    class Silent(Peer):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            await reader.read()

    async def test(runtime: RealRuntime, peer: Peer) -> None:
        with pytest.raises(Unreached, match=r"no answer within 0\.1 s|does not answer"):
            await open_to_broker(runtime, "127.0.0.1", peer.port, ME, PEER, timeout_s=0.1)

    with_peer(test, Silent)


def test_an_unauthenticated_peer_cannot_send_a_large_response():
    class Flooding(Peer):
        def greet(self, asked: Asked, accepting: Accepting) -> Message | None:
            return SaslHandshakeResponse(mechanisms=["x" * 1000] * 100)

    async def test(runtime: RealRuntime, peer: Peer) -> None:
        with pytest.raises(Unreached, match=r"an answer of \d+ bytes"):
            await opened(runtime, peer)

    with_peer(test, Flooding)


def versions(**ranges: tuple[int, int]) -> Versions:
    keys = {"produce": 0, "fetch": 1, "metadata": 3}
    apis = [ApiVersion(api_key=keys[name], min_version=low, max_version=high) for name, (low, high) in ranges.items()]
    features = [FinalizedFeatureKey(name="transaction.version", max_version_level=2)]
    return Versions(ApiVersionsResponse(api_keys=apis, finalized_features=features))


def common(agreed: Versions, request: type[Message], version_max: int | None = None) -> int | None:
    return agreed.common(request.API_KEY, request.VERSIONS, version_max)


def test_the_common_version_is_the_highest_of_both():
    agreed = versions(produce=(0, 9), fetch=(4, 99), metadata=(0, 12))
    assert common(agreed, ProduceRequest) == 9
    assert common(agreed, FetchRequest) == FetchRequest.VERSIONS[1]
    assert common(agreed, FetchRequest, 12) == 12
    assert agreed.features == {"transaction.version": 2}


def test_an_api_without_a_common_version_is_refused():
    agreed = versions(produce=(0, 2), fetch=(13, 18))
    assert common(agreed, ProduceRequest) is None
    assert common(agreed, MetadataRequest) is None
    assert common(agreed, FetchRequest, 12) is None
