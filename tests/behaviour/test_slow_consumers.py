"""Consumers that do not read their Fetch response, and what happens to the logs meanwhile.

The answer is larger than what the kernels keep of it, so most of it is still in the files.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from ottla.wire import messages
from ottla.wire.frame import framed, parse_response_header, request_header
from ottla.wire.schema import fetch as wire
from tests.harness.in_process import Client, brokers, endpoint_of, run
from tests.replication.test_partition import batch

PARTITIONS = 16
SHARE = 900_000
VERSION = 12


@asynccontextmanager
async def slow_reader(broker: Broker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """It has asked for everything, and taken nothing."""
    endpoint = endpoint_of(broker, "PLAINTEXT")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (endpoint.host, endpoint.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=16 * 1024)
    wanted = [wire.FetchPartition(partition=index, partition_max_bytes=SHARE) for index in range(PARTITIONS)]
    request = wire.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 26, session_epoch=-1, isolation_level=1,
        topics=[wire.FetchTopic(topic="t", partitions=wanted)],
    )  # fmt: skip
    writer.write(framed(request_header(request.API_KEY, VERSION, 1, "slow"), messages.encode(request, VERSION)))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> list[bytes]:
    """The records of each partition."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    frame = memoryview(await reader.readexactly(size))
    _, pos = parse_response_header(frame, wire.FetchRequest.API_KEY, VERSION)
    response = messages.decode(wire.FetchResponse, VERSION, frame, pos)
    assert [each.error_code for each in response.responses[0].partitions] == [0] * PARTITIONS
    return [bytes(each.records or b"") for each in response.responses[0].partitions]


async def fill(broker: Broker) -> list[bytes]:
    """A topic with a segment of almost a megabyte in each partition, and some more behind it. What was written."""
    configs = {"segment.bytes": "1100000", "file.delete.delay.ms": "0", "retention.bytes": "200000"}
    (made,) = await broker.cluster.create_topics([TopicSpec("t", partitions=PARTITIONS, configs=configs)])
    assert made.code == 0, made
    await until(lambda: all((p := broker.replicas.get("t", n)) and p.leads for n in range(PARTITIONS)))
    now_ms = broker.runtime.wall_ms()
    written = []
    for index in range(PARTITIONS):
        leader = broker.replica_manager.find("t", index)
        data = b""
        for number in range(5):
            sent = batch(b"%02d-%d" % (index, number) * 60_000, timestamp=now_ms)
            leader.append(sent, ACKS_ALL, now_ms)
            data += bytes(sent) if number < 4 else b""
        assert len(leader.log.segments) == 2
        written.append(data)
    return written


def stalled(broker: Broker) -> bool:
    return broker._server.response_memory.held_bytes > 0


def with_slow_reader(
    directory: Path, test: Callable[[Broker, asyncio.StreamReader, list[bytes]], Awaitable[None]], **settings: str
) -> None:
    async def main() -> None:
        async with brokers(directory, 1, **settings) as (broker,):
            written = await fill(broker)
            async with slow_reader(broker) as (reader, _):
                await until(lambda: stalled(broker))
                await test(broker, reader, written)
            await until(lambda: not stalled(broker))

    run(main)


async def others_are_served(broker: Broker) -> None:
    async with Client.to(broker) as client:
        wanted = [wire.FetchPartition(partition=index, partition_max_bytes=SHARE) for index in range(PARTITIONS)]
        request = wire.FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=1 << 26, topics=[wire.FetchTopic(topic="t", partitions=wanted)]
        )
        assert (await client.call(request, wire.FetchResponse, VERSION)).error_code == 0


def whole(records: list[bytes], written: list[bytes]) -> bool:
    return all(sent.startswith(got) and len(got) > 500_000 for got, sent in zip(records, written, strict=True))


def test_a_slow_consumer_reads_its_response_to_the_end(tmp_path):
    async def test(broker: Broker, reader: asyncio.StreamReader, written: list[bytes]) -> None:
        await others_are_served(broker)
        assert whole(await answer(reader), written)

    with_slow_reader(tmp_path, test)


def test_segments_deleted_by_retention_are_read_to_their_end(tmp_path):
    async def test(broker: Broker, reader: asyncio.StreamReader, written: list[bytes]) -> None:
        await broker.log_manager._retain()
        logs = [broker.replica_manager.find("t", index).log for index in range(PARTITIONS)]
        assert all(log.log_start > 0 for log in logs)
        await until(lambda: not list(tmp_path.glob("data-1/t-*/*.log.deleted")))
        assert whole(await answer(reader), written)

    with_slow_reader(tmp_path, test)


def test_the_connection_is_closed_when_the_log_is_truncated(tmp_path):
    async def test(broker: Broker, reader: asyncio.StreamReader, written: list[bytes]) -> None:
        broker.replica_manager.find("t", PARTITIONS - 1).log.truncate_to(2, broker.runtime.wall_ms())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await answer(reader)
        await others_are_served(broker)

    with_slow_reader(tmp_path, test)


def test_the_connection_is_closed_when_the_topic_is_deleted(tmp_path):
    async def test(broker: Broker, reader: asyncio.StreamReader, written: list[bytes]) -> None:
        await broker.cluster.delete_topics(["t"])
        await until(lambda: broker.replicas.get("t", PARTITIONS - 1) is None)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await answer(reader)

    with_slow_reader(tmp_path, test)


def test_a_consumer_that_reads_nothing_is_closed_and_releases_its_files(tmp_path):
    async def test(broker: Broker, reader: asyncio.StreamReader, written: list[bytes]) -> None:
        segments = [broker.replica_manager.find("t", index).log.segments[0] for index in range(PARTITIONS)]
        assert any(segment.readers for segment in segments)
        await until(lambda: not broker._server.connections)
        assert not any(segment.readers for segment in segments)

    with_slow_reader(tmp_path, test, connections_max_idle_ms="1500")
