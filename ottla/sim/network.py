"""A network between simulated machines: links that are slow, lossy or cut, and TCP on top of them.

What TCP promises holds: bytes arrive in order and once, or the connection breaks. A lost packet shows as a delay of
everything behind it. A cut link holds back what is sent until it heals, so a connection through it hangs, and only a
timeout of its user ends it. Links have a direction, and so has a cut. A process that dies has its connections closed by
its machine's kernel; a machine that loses power closes nothing, and answers with a reset when it is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from math import log
from random import Random
from typing import Any, Final, cast

from ottla.errors import Fault
from ottla.runtime import Buffer
from ottla.sim.loop import SimLoop
from ottla.sim.trace import Trace

KERNEL_BYTES: Final = 256 * 1024
"""The part of a stream that the machines buffer, beside the buffer of the writing process."""
CONNECT_SECONDS: Final = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0)
"""After the first try to connect, the kernel tries again at these times; at the last it gives up."""
RETRANSMIT_SECONDS: Final = (0.2, 1.0)
HEALED_SECONDS: Final = 0.5
EPHEMERAL_PORT: Final = 40_000


class Sign(Enum):
    """What passes between kernels beside data."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    END = "end"
    RESET = "reset"


class Link:
    """One direction between two machines."""

    __slots__ = ("bytes_per_second", "cut", "delay_s", "held", "loss", "random", "spread_s")

    def __init__(self, random: Random, delay_s: float, spread_s: float) -> None:
        self.random = random
        self.delay_s = delay_s
        self.spread_s = spread_s
        self.loss = 0.0
        self.bytes_per_second: float | None = None
        self.cut = False
        self.held: dict[Wire, None] = {}

    def delay(self) -> float:
        delay = self.delay_s - log(1.0 - self.random.random()) * self.spread_s  # an exponential distribution
        if self.loss and self.random.random() < self.loss:
            delay += self.random.uniform(*RETRANSMIT_SECONDS)
        return delay


class Wire:
    """Messages from one machine to another, in order."""

    __slots__ = ("_arrived", "_arrives_at", "_held", "_kernel", "_link")

    def __init__(self, network: Network, source: str, target: str, arrived: Callable[[Any], None]) -> None:
        self._kernel = network.kernel
        self._link = network.link(source, target)
        self._arrived = arrived
        self._arrives_at = 0.0
        self._held: deque[Any] = deque()

    def send(self, message: object, size: int = 0) -> None:
        link = self._link
        arrives_at = max(self._kernel.timeline.now + link.delay(), self._arrives_at)
        if link.bytes_per_second is not None:
            arrives_at += size / link.bytes_per_second
        self._arrives_at = arrives_at
        self._kernel.call_at(arrives_at, self._arrive, message)

    def _arrive(self, message: object) -> None:
        if self._link.cut or self._held:
            self._held.append(message)
            self._link.held[self] = None
        else:
            self._arrived(message)

    def release(self) -> None:
        """The link has healed, and the first retransmission gets through."""
        while self._held and not self._link.cut:
            self._arrived(self._held.popleft())


class Host:
    """A machine on the network."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.listeners: dict[int, SimListener] = {}
        self.ends: dict[SimTransport, None] = {}
        self.orphans: list[SimTransport] = []
        """Ends of connections that went down with the machine's power."""
        self.port = EPHEMERAL_PORT

    def next_port(self) -> int:
        self.port += 1
        return self.port


class Network:
    """All machines, and the links between them. `kernel` is a loop that belongs to no process and never stops."""

    def __init__(
        self, kernel: SimLoop, random: Random, trace: Trace, *, delay_s: float = 0.0002, spread_s: float = 0.0003
    ) -> None:
        self.kernel = kernel
        self.trace = trace
        self.hosts: dict[str, Host] = {}
        self._random = random
        self._delay_s = delay_s
        self._spread_s = spread_s
        self._links: dict[tuple[str, str], Link] = {}

    def host(self, name: str) -> Host:
        return self.hosts.setdefault(name, Host(name))

    # Faults.

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self._random, self._delay_s, self._spread_s)
        return link

    def reset_delay(self, source: str, target: str) -> None:
        """As fast as a healthy link."""
        link = self.link(source, target)
        link.delay_s, link.spread_s, link.bytes_per_second = self._delay_s, self._spread_s, None

    def cut(self, source: str, target: str) -> None:
        """Nothing from one to the other any more; the other direction is another link."""
        self.link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if link.cut:
            link.cut = False
            held, link.held = link.held, {}
            for wire in held:
                self.kernel.call_later(self._random.uniform(0, HEALED_SECONDS), wire.release)

    def heal_all(self) -> None:
        for source, target in list(self._links):
            self.heal(source, target)
            link = self._links[source, target]
            link.loss, link.bytes_per_second = 0.0, None
            link.delay_s, link.spread_s = self._delay_s, self._spread_s

    def process_died(self, host: Host, loop: SimLoop) -> None:
        """The kernel closes the connections of the process."""
        for end in _ends_of(host, loop):
            end.vanish(Sign.END if self._random.random() < 0.5 else Sign.RESET)
        _drop_listeners(host, loop)

    def power_lost(self, host: Host, loop: SimLoop) -> None:
        host.up = False
        for end in _ends_of(host, loop):
            end.vanish(None)
            host.orphans.append(end)
        _drop_listeners(host, loop)

    def power_back(self, host: Host) -> None:
        """Senders that still wait for an acknowledgement learn that the connection is gone."""
        host.up = True
        for end in host.orphans:
            end.reset_peer_in_doubt()
        host.orphans.clear()

    # What processes ask for.

    def listen(
        self, host: Host, loop: SimLoop, protocol: Callable[[], asyncio.BaseProtocol], name: str, port: int
    ) -> SimListener:
        port = port or host.next_port()
        if port in host.listeners:
            raise Fault(f"cannot listen on {name}:{port}: Address already in use")
        listener = host.listeners[port] = SimListener(host, loop, protocol, name, port)
        return listener

    async def connect(
        self, host: Host, loop: SimLoop, protocol: Callable[[], asyncio.BaseProtocol], name: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        target = self.hosts.get(name)
        if target is None:
            raise OSError(f"no machine is called {name}")
        connecting = _Connecting(self, host, target, port, loop)
        transport = await connecting.transport
        made = protocol()
        transport.begin(made)
        return transport, made


def _ends_of(host: Host, loop: SimLoop) -> list[SimTransport]:
    return [end for end in host.ends if end.loop is loop]


def _drop_listeners(host: Host, loop: SimLoop) -> None:
    for port in [port for port, listener in host.listeners.items() if listener.loop is loop]:
        del host.listeners[port]


class _Connecting:
    """The kernel's part of connecting: it retries for a while without an answer."""

    def __init__(self, network: Network, host: Host, target: Host, port: int, loop: SimLoop) -> None:
        self.transport: asyncio.Future[SimTransport] = loop.create_future()
        self._network = network
        self._host = host
        self._target = target
        self._port = port
        self._loop = loop
        self._began = network.kernel.time()
        self._tries = 0
        self._done = False
        self._ask()

    def _ask(self) -> None:
        Wire(self._network, self._host.name, self._target.name, self._asked).send(None)
        due = self._began + CONNECT_SECONDS[self._tries]
        self._network.kernel.call_at(due, self._ask_again)

    def _ask_again(self) -> None:
        if self._done or self.transport.done():
            return
        self._tries += 1
        if self._tries < len(CONNECT_SECONDS):
            self._ask()
        else:
            self._fail(TimeoutError(f"no answer from {self._target.name}:{self._port}"))

    def _asked(self, _: None) -> None:
        """At the other machine."""
        if self._done or self._loop.dead or not self._target.up:
            return
        listener = self._target.listeners.get(self._port)
        if listener is None or not listener.accepting:
            Wire(self._network, self._target.name, self._host.name, self._refused).send(Sign.REFUSED)
            return
        self._done = True
        here = SimTransport(self._network, self._host, self._loop, (self._target.name, self._port))
        there = SimTransport(self._network, self._target, listener.loop, (self._host.name, self._host.next_port()))
        here.wire_to(there, self._accepted)
        there.wire_to(here)
        there.wire.send(Sign.ACCEPTED)
        listener.loop.call_soon(listener.accept, there)

    def _refused(self, _: Sign) -> None:
        if not self._done:
            self._fail(ConnectionRefusedError(111, f"{self._target.name}:{self._port} refused the connection"))

    def _fail(self, failure: Exception) -> None:
        self._done = True
        self._loop.call_soon(_settle, self.transport, None, failure)

    def _accepted(self, transport: SimTransport) -> None:
        self._loop.call_soon(_settle, self.transport, transport, None)


def _settle(future: asyncio.Future[SimTransport], transport: SimTransport | None, failure: Exception | None) -> None:
    if future.done():
        if transport is not None:
            transport.abort()  # the caller has given up
    elif failure is not None:
        future.set_exception(failure)
    else:
        assert transport is not None
        future.set_result(transport)


class SimListener:
    def __init__(
        self, host: Host, loop: SimLoop, protocol: Callable[[], asyncio.BaseProtocol], name: str, port: int
    ) -> None:
        self.host = name
        self.port = port
        self.loop = loop
        self.accepting = False
        self._machine = host
        self._protocol = protocol

    async def start(self) -> None:
        self.accepting = True

    async def close(self) -> None:
        """Stop accepting; open connections stay open."""
        self.accepting = False
        self._machine.listeners.pop(self.port, None)

    def accept(self, transport: SimTransport) -> None:
        if self.accepting:
            transport.begin(self._protocol())
        else:
            transport.abort()


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, host: Host, loop: SimLoop, peername: tuple[str, int]) -> None:
        super().__init__({"peername": peername, "sockname": (host.name, 0)})
        self.loop = loop
        self.wire: Wire
        self.in_flight_bytes = 0
        """Sent, and not yet read by the process at the other end."""
        self._network = network
        self._host = host
        self._peer: SimTransport
        self._accepted: Callable[[SimTransport], None] | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[bytes | Sign] = deque()
        self._gone = False
        self._closing = False
        self._reading = True
        self._writing = True
        self._high_bytes = 64 * 1024
        host.ends[self] = None

    # Between kernels.

    def wire_to(self, peer: SimTransport, accepted: Callable[[SimTransport], None] | None = None) -> None:
        self._peer = peer
        self._accepted = accepted
        self.wire = Wire(self._network, self._host.name, peer._host.name, peer._arrived)

    def _arrived(self, message: bytes | Sign) -> None:
        if self._gone:
            if message is not Sign.RESET and self._host.up:
                self.wire.send(Sign.RESET)
        elif message is Sign.ACCEPTED:
            assert self._accepted is not None
            self._accepted(self)
        else:
            if isinstance(message, bytes):
                self._network.trace.packet(message)
            self.loop.call_soon(self._take, message)

    def vanish(self, sign: Sign | None) -> None:
        """Its process is dead."""
        self._gone = True
        self._host.ends.pop(self, None)
        if sign is not None:
            self.wire.send(sign)

    def reset_peer_in_doubt(self) -> None:
        if self._peer.in_flight_bytes and not self._peer._gone:
            self.wire.send(Sign.RESET)

    # In the process.

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        if self._gone:
            protocol.connection_made(self)
            protocol.connection_lost(ConnectionResetError("Connection reset by peer"))
            return
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_on()

    def _take(self, message: bytes | Sign) -> None:
        if self._gone:
            return
        if message is Sign.RESET:
            self._lose(ConnectionResetError("Connection reset by peer"))
            return
        self._inbox.append(message)
        self._read_on()

    def _read_on(self) -> None:
        while self._inbox and self._reading and self._protocol is not None and not self._gone:
            message = self._inbox.popleft()
            if isinstance(message, bytes):
                self._peer.read(len(message))
                self._hand_over(message)
            elif not cast(asyncio.Protocol, self._protocol).eof_received():
                self.close()

    def _hand_over(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, self._protocol).data_received(data)
            return
        rest = memoryview(data)
        while rest:
            if self._gone:
                return
            if not self._reading:
                self._inbox.appendleft(bytes(rest))
                self._peer.in_flight_bytes += len(rest)
                return
            buffer = cast(memoryview, self._protocol.get_buffer(-1))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self._protocol.buffer_updated(count)

    def read(self, count: int) -> None:
        """The other process has read so many of the sent bytes."""
        self.in_flight_bytes -= count
        if not self._writing and not self._gone and self.get_write_buffer_size() <= self._high_bytes // 4:
            self._writing = True
            self.loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._gone and self._protocol is not None:
            self._protocol.resume_writing()

    def _lose(self, failure: Exception | None) -> None:
        if not self._gone:
            self._gone = True
            self._host.ends.pop(self, None)
            if self._protocol is not None:
                self._protocol.connection_lost(failure)

    # What asyncio asks of a transport.

    def is_closing(self) -> bool:
        return self._closing or self._gone

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def write(self, data: Buffer) -> None:
        if self._gone or self._closing or not data:
            return
        self.in_flight_bytes += len(data)
        self.wire.send(bytes(data), len(data))
        if self._writing and self.get_write_buffer_size() > self._high_bytes:
            self._writing = False
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing and not self._gone:
            self._closing = True
            self.wire.send(Sign.END)
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._gone:
            self._closing = True
            self.wire.send(Sign.RESET)
            self.loop.call_soon(self._lose, None)

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self._reading and not self._gone

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.loop.call_soon(self._read_on)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return max(0, self.in_flight_bytes - KERNEL_BYTES)
