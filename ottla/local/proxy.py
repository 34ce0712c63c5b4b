"""Proxies before the brokers of a local cluster: the network between them, in our hands.

Each broker is known to others by the address of its proxy: to other brokers alone, or to clients as well. Who speaks is
told by the first request on a connection: brokers call themselves `broker-N`. Where the network is cut, connections
stand and nothing comes through; when it is healed, it does, as with TCP. Requests of clients may be intercepted.
Answers come in the order of the requests, so one that is made here waits until those before it have come.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ottla.blocking.thread import LoopThread
from ottla.cluster.ensemble import HOST, free_ports
from ottla.errors import BadFrame
from ottla.local.cluster import LocalCluster
from ottla.wire.frame import parse_request_header

CLIENTS: Final = 0
"""Who is no broker."""
PEERS: Final = "PEERS"
"""The listener between brokers, where clients have one of their own that no proxy stands before."""
LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1 << 30
_BROKER: Final = re.compile(r"broker-(\d+)")

Pair = tuple[int, int]
"""From whom, to whom."""


class Verdict(NamedTuple):
    """What is to be done with a request."""

    delay_s: float = 0.0
    disconnect: bool = False
    answer: bytes | None = None
    """A whole frame, instead of the broker's."""
    rewrite: Callable[[bytes], bytes] | None = None
    """What becomes of the broker's own answer."""


Intercept = Callable[[memoryview], Verdict | None]
"""Takes a client's request without its length; None: it passes."""


class Network:
    """Who hears whom, each direction by itself. Belongs to the proxies' loop."""

    def __init__(self) -> None:
        self._cut: set[Pair] = set()
        self._delay_s: dict[Pair, float] = {}
        self._healed = asyncio.Event()

    def cut(self, pairs: Iterable[Pair]) -> None:
        self._cut |= set(pairs)

    def delay(self, pairs: Iterable[Pair], seconds: float) -> None:
        self._delay_s |= dict.fromkeys(pairs, seconds)

    def heal(self) -> None:
        self._cut.clear()
        self._delay_s.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    async def passage(self, pair: Pair) -> None:
        """Until a frame may pass."""
        if delay_s := self._delay_s.get(pair):
            await asyncio.sleep(delay_s)
        while pair in self._cut:
            await self._healed.wait()


class ClusterProxies:
    """A proxy before each broker of a cluster that has not been started, on the loop of a thread."""

    def __init__(
        self, cluster: LocalCluster, thread: LoopThread, *, clients: bool, intercept: Intercept = lambda frame: None
    ) -> None:
        """`clients`: whether they too are told the proxies' addresses."""
        self.ports: dict[int, int] = {}
        self._thread = thread
        self._proxies: list[Proxy] = []
        thread.run(self._open(cluster, clients, intercept))

    async def _open(self, cluster: LocalCluster, clients: bool, intercept: Intercept) -> None:
        self._network = Network()
        for broker in cluster.brokers.values():
            behind = broker.port if clients else free_ports(1)[0]
            proxy = Proxy(broker.id, behind, self._network, intercept)
            self._proxies.append(proxy)
            await proxy.start()
            self.ports[broker.id] = proxy.port
            listener = "PLAINTEXT" if clients else PEERS
            broker.settings |= {
                "advertised.listeners": f"{listener}://{HOST}:{proxy.port}",
                "inter.broker.listener.name": listener,
            }
            if not clients:
                broker.settings |= {
                    "listeners": f"PLAINTEXT://{HOST}:{broker.port},{PEERS}://{HOST}:{behind}",
                    "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{PEERS}:PLAINTEXT",
                }

    def close(self) -> None:
        self._thread.run(self._close())

    async def _close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()

    def cut(self, pairs: Iterable[Pair]) -> None:
        """What goes this way is held back."""
        self._in_loop(lambda: self._network.cut(pairs))

    def delay(self, pairs: Iterable[Pair], seconds: float) -> None:
        self._in_loop(lambda: self._network.delay(pairs, seconds))

    def heal(self) -> None:
        self._in_loop(self._network.heal)

    def _in_loop(self, act: Callable[[], None]) -> None:
        async def acted() -> None:
            act()

        self._thread.run(acted())


def both_ways(one: int, others: Iterable[int]) -> list[Pair]:
    return [pair for other in others for pair in ((one, other), (other, one))]


class Proxy:
    """Before one broker."""

    def __init__(self, broker_id: int, target: int, network: Network, intercept: Intercept) -> None:
        self.broker_id = broker_id
        self.port = 0
        self._target = target
        self._network = network
        self._intercept = intercept
        self._server: asyncio.Server
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        broker_writer: asyncio.StreamWriter | None = None
        try:
            first = await _frame(reader)
            broker_reader, broker_writer = await asyncio.open_connection(HOST, self._target)
            link = _Link(self._network, self._intercept, _source(first), self.broker_id, writer, broker_writer)
            there = asyncio.create_task(link.requests(first, reader))
            back = asyncio.create_task(link.answers(broker_reader))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except (OSError, EOFError, BadFrame, asyncio.CancelledError):
            pass  # one of the two is gone, and so is the link
        finally:
            self._links.discard(task)
            for each in (writer, broker_writer):
                if each is not None:
                    each.transport.abort()


class _Link:
    """One connection through a proxy."""

    def __init__(
        self,
        network: Network,
        intercept: Intercept,
        source: int,
        target: int,
        client: asyncio.StreamWriter,
        broker: asyncio.StreamWriter,
    ) -> None:
        self._network = network
        self._intercept = intercept
        self._source = source
        self._target = target
        self._client = client
        self._broker = broker
        self._owed: deque[tuple[int, bytes | None, Verdict | None]] = deque()
        """Correlation id, the answer if it was made here, and what is to become of the broker's."""

    async def requests(self, frame: bytes, reader: asyncio.StreamReader) -> None:
        while True:
            await self._network.passage((self._source, self._target))
            if not await self._pass_on(frame):
                return
            frame = await _frame(reader)

    async def _pass_on(self, frame: bytes) -> bool:
        """False: the connection is to end."""
        body = memoryview(frame)[LENGTH_BYTES:]
        verdict = self._intercept(body) if self._source == CLIENTS else None
        if verdict is not None and verdict.delay_s:
            await asyncio.sleep(verdict.delay_s)
        if verdict is not None and verdict.disconnect:
            return False
        correlation_id = int.from_bytes(body[4:8], "big", signed=True)
        answer = None if verdict is None else verdict.answer
        self._owed.append((correlation_id, answer, verdict))
        if answer is None:
            self._broker.write(frame)
            await self._broker.drain()
        else:
            await self._settle()
        return True

    async def answers(self, reader: asyncio.StreamReader) -> None:
        while True:
            frame = await _frame(reader)
            await self._network.passage((self._target, self._source))
            correlation_id = int.from_bytes(frame[LENGTH_BYTES : LENGTH_BYTES + 4], "big", signed=True)
            while self._owed:
                owed_id, answer, verdict = self._owed.popleft()
                if answer is not None:
                    self._client.write(answer)
                elif owed_id == correlation_id:
                    rewrite = verdict.rewrite if verdict is not None else None
                    self._client.write(rewrite(frame) if rewrite is not None else frame)
                    break
                # else: nobody answers what was sent with acks=0
            await self._settle()

    async def _settle(self) -> None:
        """Send what was answered here, once nothing before it is outstanding."""
        while self._owed and (answer := self._owed[0][1]) is not None:
            self._owed.popleft()
            self._client.write(answer)
        await self._client.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """With its length."""
    prefix = await reader.readexactly(LENGTH_BYTES)
    length = int.from_bytes(prefix, "big", signed=True)
    if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {length} bytes")
    return prefix + await reader.readexactly(length)


def _source(frame: bytes) -> int:
    client_id = parse_request_header(memoryview(frame)[LENGTH_BYTES:])[3]
    found = _BROKER.fullmatch(client_id or "")
    return int(found[1]) if found else CLIENTS
