"""The simulated network keeps TCP's promises, and breaks everything else."""

from __future__ import annotations

import asyncio

import pytest

from ottla.sim.world import World


@pytest.fixture
def world():
    return World(1)


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def serving(world, protocol=Echo):
    process = world.process("server")

    async def serve():
        listener = await process.listen(protocol, "server", 7)
        await listener.start()

    world.run_in(process, serve())
    return process


class Caller(asyncio.Protocol):
    """The client's end: what came, and how it ended."""

    def __init__(self):
        self.received = b""
        self.ended = None
        self.paused = False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data

    def connection_lost(self, failure):
        self.ended = failure or "closed"

    def pause_writing(self):
        self.paused = True


def connected(world):
    client = world.process("client")
    _, caller = world.run_in(client, client.connect(Caller, "server", 7))
    return caller


def test_bytes_arrive_once_and_in_order_however_lossy_the_link(world):
    serving(world)
    caller = connected(world)
    for link in (("client", "server"), ("server", "client")):
        world.network.link(*link).loss = 0.5
    for number in range(200):
        caller.transport.write(b"%03d" % number)
    world.run(lambda: len(caller.received) >= 600, 60)
    assert caller.received == b"".join(b"%03d" % number for number in range(200))
    assert world.timeline.now > 1, "what is lost is sent again, and that takes its time"


@pytest.mark.parametrize("link", [("client", "server"), ("server", "client")])
def test_a_connection_through_a_cut_hangs_until_it_heals(world, link):
    serving(world)
    caller = connected(world)
    world.network.cut(*link)
    caller.transport.write(b"hello")
    world.run(lambda: False, 30)
    assert caller.received == b""
    world.network.heal(*link)
    assert world.run(lambda: caller.received == b"hello", 2)


def test_a_cut_holds_up_new_connections_and_a_timeout_ends_the_wait(world):
    serving(world)
    client = world.process("client")
    world.network.cut("client", "server")

    async def connect():
        async with asyncio.timeout(5):
            await client.connect(Caller, "server", 7)

    with pytest.raises(TimeoutError):
        world.run_in(client, connect())


def test_a_connection_without_a_listener_is_refused(world):
    world.process("server")
    client = world.process("client")
    with pytest.raises(ConnectionRefusedError):
        world.run_in(client, client.connect(Caller, "server", 7))


def test_the_peer_of_a_killed_process_learns_of_it_at_once(world):
    server = serving(world)
    caller = connected(world)
    world.kill(server)
    assert world.run(lambda: caller.ended is not None, 1)


def test_the_peer_of_a_machine_without_power_learns_of_it_when_the_machine_is_back(world):
    server = serving(world)
    caller = connected(world)
    world.kill(server, power=True)
    caller.transport.write(b"hello")
    world.run(lambda: False, 30)
    assert caller.ended is None
    world.network.power_back(server.machine.host)
    assert world.run(lambda: isinstance(caller.ended, ConnectionResetError), 2)


def test_a_paused_server_accepts_connections_and_answers_after_it_resumes(world):
    server = serving(world)
    server.loop.pause()
    caller = connected(world)
    caller.transport.write(b"hello")
    world.run(lambda: False, 30)
    assert caller.received == b""
    server.loop.resume()
    assert world.run(lambda: caller.received == b"hello", 1)


def test_a_reader_that_pauses_stops_the_writer(world):
    class Deaf(asyncio.Protocol):
        def connection_made(self, transport):
            transport.pause_reading()

    serving(world, Deaf)
    caller = connected(world)
    for _ in range(10):
        caller.transport.write(bytes(100_000))
    assert caller.paused
