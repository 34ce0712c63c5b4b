"""Bootstrap: how long a client looks for its first broker, and its error when there is none."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ottla.client.admin import Admin
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import NotUnderstood, TimedOut, Unreachable
from ottla.client.producing.producer import Producer
from ottla.cluster.ensemble import free_ports
from tests.client.clients import run
from tests.client.core.test_broker_connection import peer, read_request
from tests.conftest import StartBroker


async def answer_as_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):  # its time was up before it had said anything
        await read_request(reader)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()


def test_clients_that_start_before_their_broker_wait_for_it(start_broker: StartBroker):
    port, other = free_ports(2)

    async def scenario() -> None:
        servers = f"127.0.0.1:{port},127.0.0.1:{other}"
        clients = [
            Producer(servers),
            Producer(servers, transactional_id="early"),
            Consumer(bootstrap_servers=servers),
            Admin(servers),
        ]
        starting = [asyncio.create_task(client.start()) for client in clients]
        done, _ = await asyncio.wait(starting, timeout=0.5)
        assert not done
        await asyncio.to_thread(start_broker, port=port)
        await asyncio.gather(*starting)
        for client in clients:
            await client.stop()

    run(scenario())


def test_a_start_timeout_names_the_reason_and_the_client_can_be_started_again(start_broker: StartBroker):
    port = free_ports(1)[0]

    async def scenario() -> None:
        address = f"127.0.0.1:{port}"
        producer = Producer(address, default_api_timeout_ms=300)
        consumer = Consumer("t", bootstrap_servers=address, auto_offset_reset="earliest", bootstrap_timeout_ms=0)
        for client in (producer, consumer):
            with pytest.raises(Unreachable, match="Connection refused"):
                await client.start()
        start_broker(port=port)
        async with producer, consumer:
            await producer.send_and_wait("t", b"at last")
            assert (await consumer.getone()).value == b"at last"

    run(scenario())


def test_a_client_without_reachable_bootstrap_servers_raises_unreachable():
    async def scenario() -> None:
        with pytest.raises(Unreachable, match="Connection refused") as refused:
            await Producer("127.0.0.1:1,localhost:1", bootstrap_timeout_ms=200).start()
        assert refused.value.retriable
        assert not refused.value.fatal
        assert refused.value.hint

    run(scenario())


def test_a_broker_that_does_not_answer_costs_only_its_timeout():
    async def scenario() -> None:
        async with peer(lambda reader, writer: reader.read()) as port:
            with pytest.raises(TimedOut, match=r"within 0\.2 s"):
                await Admin(f"127.0.0.1:{port}", bootstrap_timeout_ms=200).start()

    run(scenario())


def test_a_server_of_another_protocol_fails_the_start_unless_another_address_may_have_a_broker():
    async def scenario() -> None:
        async with peer(answer_as_http) as port:
            async with asyncio.timeout(20):  # the time for a start is a minute
                with pytest.raises(NotUnderstood):
                    await Admin(f"127.0.0.1:{port}").start()
            trying = asyncio.create_task(Admin(f"127.0.0.1:{port},127.0.0.1:1", bootstrap_timeout_ms=1000).start())
            done, _ = await asyncio.wait([trying], timeout=0.3)
            assert not done
            with pytest.raises(NotUnderstood):
                await trying

    run(scenario())
