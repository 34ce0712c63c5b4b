"""A thin shell for the client's machines: sockets and a clock, nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ottla.client.consuming.fetcher import Fetcher
from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import Node, Send
from ottla.client.producing.accumulator import Action
from ottla.client.producing.produce_requests import Delivered, Undelivered
from ottla.client.producing.sender import Sender
from ottla.errors import ErrorCode
from ottla.net.outbound import Versions
from ottla.wire.frame import LENGTH_BYTES, framed, parse_response_header, read_length, request_header
from ottla.wire.messages import decode, encode, message_class
from ottla.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse

Machine = Metadata | Sender | Fetcher


class Line:
    """One connection. What is sent before it stands waits for it."""

    def __init__(self, driver: Driver, to: Node) -> None:
        self.driver = driver
        self.to = to
        self.waiting: deque[tuple[Machine, Send]] = deque()
        self.awaited: deque[tuple[Machine, Send, int, int]] = deque()
        self.versions: Versions | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.correlation_id = 0
        self.task = asyncio.create_task(self.live())
        self.task.add_done_callback(lambda _: driver.woken.set())

    async def live(self) -> None:
        try:
            host, port = self.driver.address_of(self.to)
            reader, self.writer = await asyncio.open_connection(host, port)
            question = ApiVersionsRequest(client_software_name="ottla-test", client_software_version="0")
            self.writer.write(framed(request_header(18, 3, 0, "test"), encode(question, 3)))
            answer = decode(ApiVersionsResponse, 3, (await self.frame(reader))[4:])
            assert answer.error_code == 0
            self.versions = Versions(answer)
            while self.waiting:
                self.write(*self.waiting.popleft())
            while True:
                frame = await self.frame(reader)
                machine, send, correlation_id, version = self.awaited.popleft()
                found, start = parse_response_header(frame, send.request.API_KEY, version)
                assert found == correlation_id
                response = decode(message_class(send.request.API_KEY, "response"), version, frame[start:])
                machine.answered(send, response, self.driver.now)
                self.driver.woken.set()
        except (OSError, asyncio.IncompleteReadError):
            self.lose()

    async def frame(self, reader: asyncio.StreamReader) -> memoryview:
        return memoryview(await reader.readexactly(read_length(await reader.readexactly(LENGTH_BYTES))))

    def send(self, machine: Machine, send: Send) -> None:
        if self.versions is None:
            self.waiting.append((machine, send))
        else:
            self.write(machine, send)

    def write(self, machine: Machine, send: Send) -> None:
        assert self.versions is not None
        assert self.writer is not None
        version = self.versions.common(send.request.API_KEY, send.request.VERSIONS, send.version_max)
        if version is None:
            machine.failed(send, self.driver.now, ErrorCode.unsupported_version)
            self.driver.woken.set()
            return
        self.correlation_id += 1
        if send.awaited:
            self.awaited.append((machine, send, self.correlation_id, version))
        header = request_header(send.request.API_KEY, version, self.correlation_id, "test")
        self.writer.write(framed(header, encode(send.request, version)))

    def lose(self) -> None:
        self.driver.lines.pop(self.to.node_id, None)
        if self.writer is not None:
            self.writer.close()
        for machine, send in [(entry[0], entry[1]) for entry in self.awaited] + list(self.waiting):
            machine.failed(send, self.driver.now)
        self.driver.woken.set()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if self.writer is not None:
            self.writer.close()
            await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


class Driver:
    def __init__(self, metadata: Metadata, *machines: Sender | Fetcher) -> None:
        self.machines: tuple[Machine, ...] = (metadata, *machines)
        self.lines: dict[int, Line] = {}
        self.woken = asyncio.Event()
        self.delivered: list[Delivered] = []
        self.undelivered: list[Undelivered] = []

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def address_of(self, broker: Node) -> tuple[str, int]:
        return broker.host, broker.port

    async def run_until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while True:
                self.woken.clear()
                self.pump()
                for line in self.lines.values():
                    if line.task.done():
                        line.task.result()
                if done():
                    return
                self.pump()  # what was taken makes room for more
                deadlines = [deadline for machine in self.machines if (deadline := machine.deadline) is not None]
                wait = max(0.0, min(deadlines) - self.now) if deadlines else None
                try:
                    await asyncio.wait_for(self.woken.wait(), wait)
                except TimeoutError:
                    pass

    def pump(self) -> None:
        said = True
        while said:
            said = False
            for machine in self.machines:
                for action in machine.decide(self.now):
                    said = True
                    self.do(machine, action)

    def do(self, machine: Machine, action: Action) -> None:
        if isinstance(action, Delivered):
            self.delivered.append(action)
        elif isinstance(action, Undelivered):
            self.undelivered.append(action)
        else:
            line = self.lines.get(action.to.node_id)
            if line is None:
                line = self.lines[action.to.node_id] = Line(self, action.to)
            line.send(machine, action)

    async def close(self) -> None:
        for line in list(self.lines.values()):
            await line.close()
