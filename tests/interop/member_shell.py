"""The least that puts a group-member machine to work on a real broker: sockets, timers, and a user who only watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.core.requests import ANY_NODE, Node, Send
from ottla.client.errors import ClientError
from ottla.client.group.member import (
    Action,
    Assign,
    CountPartitions,
    Fail,
    Lose,
    MemberMachine,
    NameTopics,
    Revoke,
)
from ottla.local.waiting import until
from ottla.wire.messages import message_class
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.tree import Message
from tests.conftest import Served

SETTLED_S = 20.0


class Shell:
    """Carries out what the machine decides, and notes what its user was told."""

    def __init__(self, machine: Any, broker: Served) -> None:
        assert isinstance(machine, MemberMachine)
        self.machine: Any = machine
        self.broker = broker
        self.reported: list[tuple[str, list[int]]] = []
        self.failure: Fail | None = None
        self.dead = False
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: dict[tuple[str, int, bool], asyncio.Task[BrokerConnection]] = {}

    @property
    def owned(self) -> set[int]:
        return {partition.partition for partition in self.machine.owned}

    def of(self, kind: str) -> list[int]:
        return [partition for event, partitions in self.reported for partition in partitions if event == kind]

    def tell(self, event: Callable[..., list[Action]], *arguments: Any) -> None:
        """Something happened: ask the machine what is to be done, and do it."""
        if self.dead:
            return
        for action in event(*arguments, self.loop.time()):
            self.carry_out(action)
        if self.timer is not None:
            self.timer.cancel()
        deadline = self.machine.deadline
        self.timer = None if deadline is None else self.loop.call_at(deadline, self.tell, self.machine.wake)

    def carry_out(self, action: Action) -> None:
        match action:
            case Send():
                self.spawn(self.exchange(action))
            case Assign(partitions=partitions):
                self.reported.append(("assigned", sorted(partition.partition for partition in partitions)))
            case Revoke(partitions=partitions) | Lose(partitions=partitions):
                word = "revoked" if isinstance(action, Revoke) else "lost"
                self.reported.append((word, sorted(partition.partition for partition in partitions)))
                self.loop.call_soon(self.tell, self.machine.called_back)
            case CountPartitions() | NameTopics():
                self.spawn(self.look_up(action))
            case Fail():
                self.failure = action

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def exchange(self, send: Send) -> None:
        try:
            response = await self.call(send.request, send.to, send.timeout_s)
        except ClientError:
            self.tell(self.machine.failed, send.request)
        else:
            self.tell(self.machine.answered, send.request, response)

    async def call(self, request: Message, to: Node, timeout_s: float) -> Message:
        """The coordinator has a connection of its own: a join that waits holds up what comes behind it."""
        address = (to.host, to.port, True) if to is not ANY_NODE else (self.broker.host, self.broker.port, False)
        opening = self.connections.get(address)
        if opening is None:
            opening = self.connections[address] = self.loop.create_task(BrokerConnection.open(*address[:2]))
        try:
            connection = await asyncio.shield(opening)
            return await connection.call(request, message_class(request.API_KEY, "response"), timeout_s=timeout_s)
        except ClientError:
            self.connections.pop(address, None)
            raise

    async def look_up(self, action: CountPartitions | NameTopics) -> None:
        counts, names = await self.metadata()
        if isinstance(action, CountPartitions):
            self.tell(self.machine.counted, action, counts)
        else:
            self.tell(self.machine.named, action, {key: names[key] for key in action.ids & names.keys()})

    async def metadata(self) -> tuple[dict[str, int], dict[bytes, str]]:
        answer = await self.call(MetadataRequest(topics=None), ANY_NODE, 10)
        assert isinstance(answer, MetadataResponse)
        counts = {topic.name or "": len(topic.partitions) for topic in answer.topics if not topic.error_code}
        return counts, {topic.topic_id: topic.name or "" for topic in answer.topics if not topic.error_code}

    async def refresh(self) -> None:
        counts, _ = await self.metadata()
        self.tell(self.machine.metadata_changed, counts)

    def subscribe(self, *topics: str) -> Shell:
        self.tell(self.machine.subscribe, topics)
        return self

    async def close(self) -> None:
        self.tell(lambda now: self.machine.close(now))
        await until(lambda: self.machine.closed, "the member to close")
        await self.vanish()

    async def vanish(self) -> None:
        """As if killed: not a word more."""
        self.dead = True
        if self.timer is not None:
            self.timer.cancel()
        for task in [*self.tasks]:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for opened in await asyncio.gather(*self.connections.values(), return_exceptions=True):
            if isinstance(opened, BrokerConnection):
                await opened.close()
        self.connections.clear()


@asynccontextmanager
async def shells(broker: Served) -> AsyncIterator[Callable[[Any], Shell]]:
    """`start(machine)` puts a machine to work; all of them vanish in the end."""
    started: list[Shell] = []

    def start(machine: Any) -> Shell:
        shell = Shell(machine, broker)
        started.append(shell)
        return shell

    try:
        yield start
    finally:
        for shell in started:
            await shell.vanish()


async def settle(members: Iterable[Any], shares: Iterable[int], timeout_s: float = SETTLED_S) -> None:
    """Until the members, ours or those in processes, have so many partitions each, and every partition once."""
    members, shares = list(members), sorted(shares)

    def settled() -> bool:
        held = sorted(partition for member in members for partition in member.owned)
        return held == list(range(sum(shares))) and sorted(len(member.owned) for member in members) == shares

    try:
        await until(settled, f"shares {shares}", timeout_s)
    except AssertionError as error:
        seen = [
            (sorted(m.owned), getattr(m, "reported", None) or m.events, getattr(m, "failure", None)) for m in members
        ]
        raise AssertionError(f"{error}: {seen}") from None
