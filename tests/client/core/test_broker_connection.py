"""A connection that meets something else than a well-behaved broker."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from ottla.client.admin import parse_bootstrap
from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.errors import (
    ConnectionLost,
    NotUnderstood,
    TimedOut,
    Unreachable,
)
from ottla.errors import ErrorCode
from ottla.runtime.real import RealRuntime
from ottla.wire.apis import API_VERSIONS, METADATA
from ottla.wire.frame import framed, parse_request_header, response_header
from ottla.wire.messages import encode
from ottla.wire.schema.api_versions import ApiVersion, ApiVersionsResponse
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker


@asynccontextmanager
async def peer(serve):
    """A server on a port of its own that treats each connection with `serve(reader, writer)`."""

    async def served(reader, writer):
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def read_request(reader):
    length = int.from_bytes(await reader.readexactly(4), "big")
    return parse_request_header(memoryview(await reader.readexactly(length)))


def versions_answer(version, correlation_id, *apis, error=0):
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in apis]
    body = encode(ApiVersionsResponse(error_code=error, api_keys=keys), version)
    return framed(response_header(API_VERSIONS, version, correlation_id), body)


async def agree(reader, writer, *apis):
    _, version, correlation_id, _, _ = await read_request(reader)
    writer.write(versions_answer(version, correlation_id, *apis))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def test_the_highest_common_version_is_spoken():
    asked = []

    async def serve(reader, writer):
        await agree(reader, writer, (METADATA, 0, 5))
        key, version, correlation_id, client_id, _ = await read_request(reader)
        asked.append((key, version, client_id))
        body = encode(MetadataResponse(controller_id=3), version)
        writer.write(framed(response_header(METADATA, version, correlation_id), body))

    async def scenario():
        async with peer(serve) as port:
            opened = await BrokerConnection.open("127.0.0.1", port, client_id="me")
            answer = await opened.call(MetadataRequest(topics=[]), MetadataResponse)
            await opened.close()
            return answer.controller_id

    assert run(scenario()) == 3
    assert asked == [(METADATA, 5, "me")]


def test_a_broker_that_knows_only_old_versions_is_asked_again():
    asked = []

    async def serve(reader, writer):
        for _ in range(2):
            _, version, correlation_id, _, _ = await read_request(reader)
            asked.append(version)
            error = ErrorCode.unsupported_version if version > 0 else ErrorCode.none
            writer.write(versions_answer(0, correlation_id, error=error))

    async def scenario():
        async with peer(serve) as port:
            await (await BrokerConnection.open("127.0.0.1", port)).close()

    run(scenario())
    assert asked[1] == 0 < asked[0]


def test_an_api_the_broker_does_not_have_is_not_asked_for():
    async def serve(reader, writer):
        await agree(reader, writer)
        await reader.read()

    async def scenario():
        async with peer(serve) as port:
            opened = await BrokerConnection.open("127.0.0.1", port)
            try:
                await opened.call(MetadataRequest(topics=[]), MetadataResponse)
            finally:
                await opened.close()

    with pytest.raises(NotUnderstood, match="no version of Metadata"):
        run(scenario())


def test_connection_refused_is_unreachable_and_retriable():
    async def scenario():
        async with peer(lambda reader, writer: reader.read()) as port:
            pass
        await BrokerConnection.open("127.0.0.1", port)

    with pytest.raises(Unreachable, match="Connection refused") as refused:
        run(scenario())
    assert refused.value.retriable
    assert refused.value.code is ErrorCode.network_exception


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"\0\0\0\x04\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
    ],
    ids=["http", "tls", "another correlation id", "negative length"],
)
def test_a_server_of_another_protocol_is_not_understood(bytes_sent):
    async def serve(reader, writer):
        await read_request(reader)
        writer.write(bytes_sent)
        await reader.read()

    async def scenario():
        async with peer(serve) as port:
            await BrokerConnection.open("127.0.0.1", port)

    with pytest.raises(NotUnderstood) as refused:
        run(scenario())
    assert not refused.value.retriable


def test_a_connection_that_breaks_fails_what_waits_on_it_and_what_comes_after():
    async def serve(reader, writer):
        await agree(reader, writer, (METADATA, 0, 5))
        await read_request(reader)

    async def scenario():
        async with peer(serve) as port:
            opened = await BrokerConnection.open("127.0.0.1", port)
            for _ in range(2):
                with pytest.raises(ConnectionLost, match="closed the connection"):
                    await opened.call(MetadataRequest(topics=[]), MetadataResponse)
            await opened.close()

    run(scenario())


def test_many_requests_are_under_way_and_answers_of_any_size_find_their_own():
    async def serve(reader, writer):
        await agree(reader, writer, (METADATA, 0, 5))
        answers = []
        for length in (10, 200_000, 1, 70_000, 65_536 - 100):
            _, version, correlation_id, _, _ = await read_request(reader)
            body = encode(MetadataResponse(cluster_id="x" * 100, brokers=brokers(length)), version)
            answers.append(framed(response_header(METADATA, version, correlation_id), body))
        stream = b"".join(answers)
        for start in range(0, len(stream), 50_001):
            writer.write(stream[start : start + 50_001])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    def brokers(length):
        return [MetadataResponseBroker(node_id=at, host="h" * 1000) for at in range(length // 1000 + 1)]

    async def scenario():
        async with peer(serve) as port:
            opened = await BrokerConnection.open("127.0.0.1", port)
            calls = [opened.call(MetadataRequest(topics=[]), MetadataResponse) for _ in range(5)]
            answers = await asyncio.gather(*calls)
            await opened.close()
            return [len(answer.brokers) for answer in answers]

    assert run(scenario()) == [1, 201, 1, 71, 66]


def test_one_request_without_an_answer_ends_the_connection_and_all_that_wait_on_it():
    async def serve(reader, writer):
        await agree(reader, writer, (METADATA, 0, 5))
        await reader.read()

    async def scenario():
        async with peer(serve) as port:
            opened = await BrokerConnection.open("127.0.0.1", port)
            patient = asyncio.ensure_future(opened.call(MetadataRequest(topics=[]), MetadataResponse, timeout_s=60))
            await asyncio.sleep(0)
            with pytest.raises(TimedOut):
                await opened.call(MetadataRequest(topics=[]), MetadataResponse, timeout_s=0.05)
            with pytest.raises(TimedOut):
                await patient
            await opened.close()

    run(scenario())


def test_a_broker_that_does_not_answer_is_not_waited_for_for_ever():
    async def scenario():
        async with peer(lambda reader, writer: reader.read()) as port:
            await BrokerConnection.open("127.0.0.1", port, timeout_s=0.05)

    with pytest.raises(TimedOut) as refused:
        run(scenario())
    assert refused.value.retriable


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("localhost", [("localhost", 9092)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers_are_addresses(text, addresses):
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "host:port", "host:0", "host:65536", ":9092", "host:" + "9" * 5000])
def test_an_invalid_address_is_refused(text):
    with pytest.raises(ValueError):
        parse_bootstrap(text)


def test_a_broker_that_dies_as_soon_as_it_has_accepted_is_not_waited_for_for_ever():
    class Transport:
        def write(self, data):
            pass

        def abort(self):
            pass

        close = abort

    class Runtime(RealRuntime):
        async def connect(self, protocol, host, port):
            made = protocol()
            made.connection_made(Transport())
            made.connection_lost(None)  # before anybody could ask it anything
            return Transport(), made

    async def main():
        runtime = Runtime()
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(5):
                await BrokerConnection.open("127.0.0.1", 9, runtime=runtime, timeout_s=0.1)
        await runtime.close()

    asyncio.run(main())
