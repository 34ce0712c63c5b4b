"""Network proxies of a local cluster: cut and delay traffic between brokers, intercept requests of clients.

Each broker advertises the address of its proxy, to other brokers only or to clients, too. The client id of the first
request on a connection names the sender: brokers use `broker-N`. A cut holds frames back without closing connections,
and `heal` lets them pass, as TCP does. Responses stay in the order of the requests: a response that the proxy makes
waits for the earlier ones.
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
"""Stands for all senders that are not brokers."""
PEERS: Final = "PEERS"
"""The inter-broker listener, if clients connect to another listener without a proxy."""
LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1 << 30
_BROKER: Final = re.compile(r"broker-(\d+)")

Pair = tuple[int, int]
"""Sender and receiver."""


class Interception(NamedTuple):
    """What to do with a request."""

    delay_s: float = 0.0
    disconnect: bool = False
    answer: bytes | None = None
    """A response frame that replaces the broker's."""
    rewrite: Callable[[bytes], bytes] | None = None
    """Changes the broker's response."""


Intercept = Callable[[memoryview], Interception | None]
"""Receives a client's request without its length; None: pass it on."""


class ProxiedNetwork:
    """Cuts and delays, for each direction. Used in the proxies' loop only."""

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
        """Wait until a frame may pass."""
        if delay_s := self._delay_s.get(pair):
            await asyncio.sleep(delay_s)
        while pair in self._cut:
            await self._healed.wait()


class ClusterProxies:
    """A proxy before each broker of a cluster that has not been started, on the loop of a thread."""

    def __init__(
        self, cluster: LocalCluster, thread: LoopThread, *, clients: bool, intercept: Intercept = lambda frame: None
    ) -> None:
        """`clients`: whether clients connect to the proxies, too."""
        self.ports: dict[int, int] = {}
        self._thread = thread
        self._proxies: list[Proxy] = []
        thread.run(self._open(cluster, clients, intercept))

    async def _open(self, cluster: LocalCluster, clients: bool, intercept: Intercept) -> None:
        self._network = ProxiedNetwork()
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
        """Hold back frames in these directions."""
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
    """Proxy of one broker."""

    def __init__(self, broker_id: int, target: int, network: ProxiedNetwork, intercept: Intercept) -> None:
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
            link = _ProxiedConnection(
                self._network, self._intercept, _source(first), self.broker_id, writer, broker_writer
            )
            there = asyncio.create_task(link.requests(first, reader))
            back = asyncio.create_task(link.answers(broker_reader))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except (OSError, EOFError, BadFrame, asyncio.CancelledError):
            pass  # one side has closed the connection
        finally:
            self._links.discard(task)
            for each in (writer, broker_writer):
                if each is not None:
                    each.transport.abort()


class _ProxiedConnection:
    """One connection through a proxy."""

    def __init__(
        self,
        network: ProxiedNetwork,
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
        self._owed: deque[tuple[int, bytes | None, Interception | None]] = deque()
        """Outstanding requests: correlation id, the response if the proxy made it, and the interception."""

    async def requests(self, frame: bytes, reader: asyncio.StreamReader) -> None:
        while True:
            await self._network.passage((self._source, self._target))
            if not await self._pass_on(frame):
                return
            frame = await _frame(reader)

    async def _pass_on(self, frame: bytes) -> bool:
        """False: close the connection."""
        body = memoryview(frame)[LENGTH_BYTES:]
        interception = self._intercept(body) if self._source == CLIENTS else None
        if interception is not None and interception.delay_s:
            await asyncio.sleep(interception.delay_s)
        if interception is not None and interception.disconnect:
            return False
        correlation_id = int.from_bytes(body[4:8], "big", signed=True)
        answer = None if interception is None else interception.answer
        self._owed.append((correlation_id, answer, interception))
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
                owed_id, answer, interception = self._owed.popleft()
                if answer is not None:
                    self._client.write(answer)
                elif owed_id == correlation_id:
                    rewrite = interception.rewrite if interception is not None else None
                    self._client.write(rewrite(frame) if rewrite is not None else frame)
                    break
                # else: a Produce with acks=0, which has no response
            await self._settle()

    async def _settle(self) -> None:
        """Send responses of the proxy that no earlier request blocks."""
        while self._owed and (answer := self._owed[0][1]) is not None:
            self._owed.popleft()
            self._client.write(answer)
        await self._client.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One frame with its length."""
    prefix = await reader.readexactly(LENGTH_BYTES)
    length = int.from_bytes(prefix, "big", signed=True)
    if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {length} bytes")
    return prefix + await reader.readexactly(length)


def _source(frame: bytes) -> int:
    client_id = parse_request_header(memoryview(frame)[LENGTH_BYTES:])[3]
    found = _BROKER.fullmatch(client_id or "")
    return int(found[1]) if found else CLIENTS
