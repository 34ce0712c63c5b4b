"""What stands between the brokers of a test's cluster and everybody who talks to them, each other included.

Each broker is known to clients and to other brokers by the address of its proxy. Who speaks is told by the first
request on a connection: brokers call themselves `broker-N`. Where the network is cut, connections stand and nothing
comes through; when it is healed, it does, as with TCP. Requests of clients meet the faults that a test has injected.
Answers come in the order of the requests, so one that is made here waits until those before it have come.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.errors import BadFrame
from ottla.testing.faults import Faults, Verdict
from ottla.wire.frame import parse_request_header

HOST: Final = "127.0.0.1"
CLIENTS: Final = 0
"""Who is no broker."""
LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1 << 30
_BROKER: Final = re.compile(r"broker-(\d+)")


class Network:
    """Who hears whom. Belongs to the proxies' loop."""

    def __init__(self) -> None:
        self._cut: set[frozenset[int]] = set()
        self._changed = asyncio.Event()

    def cut(self, pairs: set[frozenset[int]]) -> None:
        self._cut |= pairs

    def heal(self) -> None:
        self._cut.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def open(self, one: int, other: int) -> None:
        """Until they hear each other."""
        while frozenset((one, other)) in self._cut:
            await self._changed.wait()


class Proxy:
    """Before one broker."""

    def __init__(self, broker_id: int, target: Callable[[], int], network: Network, faults: Faults) -> None:
        self.broker_id = broker_id
        self.port = 0
        self._target = target
        self._network = network
        self._faults = faults
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
            broker_reader, broker_writer = await asyncio.open_connection(HOST, self._target())
            link = _Link(self._network, self._faults, _source(first), self.broker_id, writer, broker_writer)
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
        faults: Faults,
        source: int,
        target: int,
        client: asyncio.StreamWriter,
        broker: asyncio.StreamWriter,
    ) -> None:
        self._network = network
        self._faults = faults
        self._source = source
        self._target = target
        self._client = client
        self._broker = broker
        self._owed: deque[tuple[int, bytes | None, Verdict | None]] = deque()
        """Correlation id, the answer if it was made here, and what is to become of the broker's."""

    async def requests(self, frame: bytes, reader: asyncio.StreamReader) -> None:
        while True:
            await self._network.open(self._source, self._target)
            if not await self._pass_on(frame):
                return
            frame = await _frame(reader)

    async def _pass_on(self, frame: bytes) -> bool:
        """False: the connection is to end."""
        body = memoryview(frame)[LENGTH_BYTES:]
        verdict = self._faults.meet(body) if self._source == CLIENTS else None
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
            await self._network.open(self._source, self._target)
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
