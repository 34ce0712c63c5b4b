"""Drills about consumer groups: rebalance, committed offsets, and failover of members.

The members are Ottla's consumers with a heartbeat every 100 ms, so that a rebalance is short.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Self

from ottla.blocking import ConsumerPool
from ottla.client.admin import Admin, ResourceKind
from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.cluster.ensemble import end_with
from ottla.drills import pictures
from ottla.drills.partitions import read_on
from ottla.drills.stage import Stage

HEARTBEAT_MS: Final = 100
SESSION_MS: Final = 2000
POLL_MS: Final = 50
OFFSETS_TOPIC: Final = "__consumer_offsets"


class DrillMember:
    """A consumer that records what it has read."""

    def __init__(self, stage: Stage, topic: str, group: str, name: str) -> None:
        self.name = name
        self.group = group
        self.seen: list[tuple[int, int]] = []
        """Partition and offset of each record, in the order of reading."""
        self._consumer = Consumer(
            topic,
            bootstrap_servers=stage.cluster.bootstrap,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
        )
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> Self:
        await self._consumer.start()
        self._task = asyncio.create_task(self._read(), name=f"member {self.name}")
        return self

    async def leave(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self._consumer.stop()

    async def _read(self) -> None:
        while True:
            found = await self._consumer.getmany(timeout_ms=POLL_MS)
            self.seen += [(each.partition, each.offset) for records in found.values() for each in records]


class DrillGroup:
    """The members of one group, and how the coordinator describes them."""

    def __init__(self, stage: Stage, admin: Admin, stack: AsyncExitStack, topic: str, name: str) -> None:
        self.name = name
        self.members: dict[str, DrillMember] = {}
        self._stage, self._admin, self._stack, self._topic = stage, admin, stack, topic

    async def join(self, *names: str) -> None:
        for name in names:
            member = await DrillMember(self._stage, self._topic, self.name, name).join()
            self._stack.push_async_callback(member.leave)
            self.members[name] = member
        verb = "joins" if len(names) == 1 else "join"
        self._stage.say(f"{', '.join(names)} {verb} group {self.name}.")

    async def leave(self, name: str) -> None:
        await self.members.pop(name).leave()
        self._stage.say(f"{name} leaves group {self.name}.")

    async def shares(self) -> dict[str, tuple[int, ...]]:
        """Partitions of each member, from the group coordinator; empty during a rebalance."""
        try:
            described = (await self._admin.describe_groups([self.name]))[self.name]
        except ClientError:
            return {}
        if described.state not in ("Stable", "stable"):
            return {}
        return {
            member.client_id: tuple(sorted(tp.partition for tp in member.partitions))
            for member in sorted(described.members, key=lambda each: each.client_id)
        }

    async def has_shares(self, *sizes: int, partitions: int) -> dict[str, tuple[int, ...]]:
        """Wait until the members have these numbers of partitions, and every partition has one member."""

        def holds(found: dict[str, tuple[int, ...]]) -> bool:
            owned = sorted(partition for each in found.values() for partition in each)
            return sorted(map(len, found.values())) == sorted(sizes) and owned == list(range(partitions))

        words = ", ".join(map(str, sorted(sizes, reverse=True)))
        return await self._stage.until(
            f"group {self.name}: {partitions} partitions are assigned {words}; each has one member", self.shares, holds
        )

    async def coordinator(self) -> int:
        return (await self._admin.describe_groups([self.name]))[self.name].coordinator

    async def seen_all(self, wanted: dict[int, int]) -> None:
        """Wait until the members together have read every record once."""
        records = sorted((partition, offset) for partition, end in wanted.items() for offset in range(end))

        async def seen() -> list[tuple[int, int]]:
            return sorted(each for member in self.members.values() for each in member.seen)

        await self._stage.until(
            f"group {self.name} as a whole has read all {len(records)} records, each by one member",
            seen,
            lambda found: found == records,
        )


async def _picture(topic: str, partitions: int, groups: Sequence[DrillGroup]) -> list[str]:
    found = {group.name: await group.shares() for group in groups if group.members}
    return pictures.shares(topic, range(partitions), found) if all(found.values()) else []


async def fair_share(stage: Stage) -> None:
    topic = "shares"
    stage.show_topics(topic)
    await stage.create(topic, [(1,), (2,), (2,), (1,)])
    stage.say(f"Broker 1 leads {topic}-0 and {topic}-3, broker 2 leads {topic}-1 and {topic}-2.")
    async with AsyncExitStack() as stack, Admin(stage.cluster.bootstrap) as admin:
        a, b = (DrillGroup(stage, admin, stack, topic, name) for name in ("share-A", "share-B"))
        stage.show(lambda: _picture(topic, 4, (a, b)))
        await a.join("C1")
        await a.has_shares(4, partitions=4)
        stage.say(f"Broker {await a.coordinator()} is the group coordinator of {a.name}.")
        await a.join("C2")
        await a.has_shares(2, 2, partitions=4)
        stage.say("The assignor decides which two each member gets (partition.assignment.strategy).")
        await b.join("C3", "C4", "C5", "C6")
        await b.has_shares(1, 1, 1, 1, partitions=4)
        for partition in range(4):
            await stage.write(topic, 10, partition)
        for group in (a, b):
            await group.seen_all(dict.fromkeys(range(4), 10))
        for member in b.members.values():
            own = ", ".join(f"{topic}-{partition}" for partition in sorted({each for each, _ in member.seen}))
            stage.check(member.seen == sorted(member.seen), f"{member.name} has read {own} in the order of the log")
        await a.leave("C2")
        await a.has_shares(4, partitions=4)
        stage.say("The remaining member takes over: no partition stays without a consumer.")


async def idle_consumer(stage: Stage) -> None:
    topic = "TopicA3"
    await stage.create(topic, partitions=3, copies=1)
    async with AsyncExitStack() as stack, Admin(stage.cluster.bootstrap) as admin:
        one, two = (DrillGroup(stage, admin, stack, topic, name) for name in ("Group1", "Group2"))
        stage.show(lambda: _picture(topic, 3, (one, two)))
        await one.join("G1-consumer1", "G1-consumer2")
        await one.has_shares(2, 1, partitions=3)
        await two.join("G2-consumer1", "G2-consumer2", "G2-consumer3")
        await two.has_shares(1, 1, 1, partitions=3)
        stage.say("A fourth consumer joins, but there are only three partitions.")
        await two.join("G2-consumer4")
        shares = await two.has_shares(1, 1, 1, 0, partitions=3)
        idle = next(name for name, owned in shares.items() if not owned)
        stage.say(f"{idle} is idle: within a group, a partition has one consumer only.")
        await two.leave(next(name for name in two.members if name != idle))
        shares = await two.has_shares(1, 1, 1, partitions=3)
        stage.check(len(shares[idle]) == 1, f"{idle} has taken over {topic}-{shares[idle][0]}", shares)


async def log_picture(stage: Stage, topic: str, groups: dict[str, str], others: dict[str, int]) -> list[str]:
    """A partition as a log, with the committed offsets of groups (by label) and other positions."""
    tp = TopicPartition(topic, 0)
    async with Admin(stage.cluster.bootstrap) as admin:
        offsets = {name: await admin.group_offsets(group) for name, group in groups.items()}
    committed = {name: each[tp].offset for name, each in offsets.items() if tp in each}
    end = int(await stage.probe.end(topic))
    return pictures.log(f"{topic}-0", end, {**committed, **others, "the producer": end})


async def consumer_failover(stage: Stage) -> None:
    topic, group = "tickets", "desk"
    await stage.create(topic, partitions=1, copies=1)
    await stage.write(topic, 10)
    read: dict[str, int] = {}
    stage.show(lambda: log_picture(stage, topic, {"committed": group}, read))
    await stage.draw()
    arguments = [stage.cluster.bootstrap, topic, group, "anna", str(SESSION_MS), "10", "6"]
    anna = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ottla.drills.member", *arguments, stdout=PIPE, preexec_fn=end_with(os.getpid())
    )
    try:
        assert anna.stdout is not None
        printed = [(await anna.stdout.readline()).decode().strip() for _ in range(2)]
    finally:
        with suppress(ProcessLookupError):
            anna.kill()
        await anna.wait()
    stage.check(
        printed == ["committed 6", "read 10"],
        f"anna has processed all 10 records of {topic}-0, and committed offset 6",
        printed,
    )
    read["anna"] = 10
    await stage.draw()
    stage.say(f"anna is killed with kill -9 (pid {anna.pid}) before she commits the rest.")
    stage.say(f"The coordinator removes her after the session timeout: session.timeout.ms={SESSION_MS}.")
    bert = await DrillMember(stage, topic, group, "bert").join()
    try:

        async def seen() -> list[int]:
            return [offset for _, offset in bert.seen]

        await stage.write(topic, 2)
        got = await stage.until(
            f"bert, in the same group, has {topic}-0 now and reads up to offset 11", seen, lambda got: 11 in got
        )
    finally:
        await bert.leave()
    read["bert"] = 12
    stage.check(got == list(range(6, 12)), "bert started at the committed offset 6, and missed nothing", got)
    again = [offset for offset in got if offset < 10]
    stage.check(
        again == [6, 7, 8, 9],
        "offsets 6 to 9 were processed twice: at least once. Processing should be idempotent",
        again,
    )
    await stage.draw()


async def two_groups(stage: Stage) -> None:
    topic = "pace"
    await stage.create(topic, partitions=1, copies=1)
    tp = TopicPartition(topic, 0)
    names = {"A": "pace-A", "B": "pace-B"}

    stage.show(lambda: log_picture(stage, topic, {f"group {name}": group for name, group in names.items()}, {}))
    await stage.write(topic, 12)
    for name, count in (("A", 6), ("B", 9)):
        got = await _consume(stage, topic, names[name], count)
        stage.check(got == list(range(count)), f"group {name} reads {count} records of {topic}-0 and commits", got)
        await stage.draw()
    async with Admin(stage.cluster.bootstrap) as admin:
        lags = {name: (await admin.group_lag(group))[tp] for name, group in names.items()}
    stage.check(
        {name: (lag.committed, lag.end, lag.lag) for name, lag in lags.items()} == {"A": (6, 12, 6), "B": (9, 12, 3)},
        f"{topic}-0: the producer writes at offset 12, group A reads at 6 (lag 6), group B reads at 9 (lag 3)",
        lags,
    )
    stage.say("The producer does not wait for them.")
    await stage.write(topic, 2)
    got = await _consume(stage, topic, names["A"], 1)
    stage.check(got == [6], "group A continues at its committed offset 6", got)
    got = await _consume(stage, topic, names["B"], 1)
    stage.check(got == [9], "group B continues at its own committed offset 9", got)
    await stage.draw()


async def _consume(stage: Stage, topic: str, group: str, count: int) -> list[int]:
    """Read and commit so many records; returns their offsets."""
    async with Consumer(
        topic,
        bootstrap_servers=stage.cluster.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        seen = await read_on(consumer, count)
        await consumer.commit({TopicPartition(topic, partition): offset + 1 for partition, offset, _ in seen})
    return [offset for _, offset, _ in seen]


async def consumer_offsets(stage: Stage) -> None:
    topic, group = "news", "readers"
    await stage.create(topic, [(1, 2, 3)])
    await stage.write(topic, 9)
    await _consume(stage, topic, group, 3)
    holder = await _offsets_partition(stage, group)
    stage.show(lambda: log_picture(stage, topic, {f"group {group}": group}, {}))
    await stage.draw()
    before = await stage.probe.end(OFFSETS_TOPIC, holder)
    for step in range(3):
        await _consume(stage, topic, group, 1)
        stage.say(f"DrillGroup {group} reads a record of {topic}-0, and commits offset {step + 4}.")
        await stage.draw()
    after = await stage.probe.end(OFFSETS_TOPIC, holder)
    stage.check(after - before >= 3, f"each commit is a record in {OFFSETS_TOPIC}-{holder}", (before, after))
    async with Admin(stage.cluster.bootstrap) as admin:
        entries = await admin.describe_configs(ResourceKind.TOPIC, OFFSETS_TOPIC)
        coordinator = (await admin.describe_groups([group]))[group].coordinator
    policy = next(each.value for each in entries if each.name == "cleanup.policy")
    stage.check(policy == "compact", f"{OFFSETS_TOPIC} is compacted: the last offset of each group stays", policy)
    leader = (await stage.probe.replicas(OFFSETS_TOPIC, holder)).leader
    stage.check(leader == coordinator, f"broker {leader} leads {OFFSETS_TOPIC}-{holder}: it is the group coordinator")
    stage.show_topics(OFFSETS_TOPIC)
    await stage.draw()
    await stage.kill(leader)
    await stage.led_by_other(OFFSETS_TOPIC, leader, holder)
    got = await _consume(stage, topic, group, 1)
    stage.check(got == [6], f"another broker coordinates, and group {group} continues where it stopped: offset 6", got)


async def _offsets_partition(stage: Stage, group: str) -> int:
    """The partition with the offsets of a group: Java's hash of its id, modulo the partitions."""
    snapshot = await stage.probe.snapshot()
    count = sum(topic == OFFSETS_TOPIC for topic, _ in snapshot.partitions)
    value = 0
    for character in group:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % count


async def consumer_threads(stage: Stage) -> None:
    topic, threads = "work", 3
    await stage.create(topic, partitions=threads, copies=1)
    stage.show_logs(topic, threads)
    for partition in range(threads):
        await stage.write(topic, 10, partition)
    seen: dict[str, dict[int, list[int]]] = {}
    guard, done = threading.Lock(), threading.Event()

    def handle(record: ConsumerRecord[Any, Any]) -> None:
        with guard:
            name = threading.current_thread().name
            seen.setdefault(name, {}).setdefault(record.partition, []).append(record.offset)
            if sum(len(offsets) for parts in seen.values() for offsets in parts.values()) == 10 * threads:
                done.set()

    def run() -> bool:
        settings = {"heartbeat_interval_ms": HEARTBEAT_MS, "group_id": "pool", "auto_offset_reset": "earliest"}
        with ConsumerPool(threads, topic, handle=handle, bootstrap_servers=stage.cluster.bootstrap, **settings):  # type: ignore[arg-type]
            return done.wait(20)

    stage.say(f"One process runs {threads} threads, each with a consumer of its own, all in group pool.")
    stage.check(await asyncio.to_thread(run), f"they have read all {10 * threads} records", seen)
    by_thread = sorted(seen.values(), key=sorted)
    for number, parts in enumerate(by_thread, 1):
        owned = ", ".join(f"{topic}-{partition}" for partition in sorted(parts))
        stage.check(
            all(offsets == list(range(10)) for offsets in parts.values()),
            f"thread {number} has read {owned}, offsets 0 to 9 in order",
            parts,
        )
    stage.show(lambda: _threads_picture(topic, by_thread))
    await stage.draw()


async def _threads_picture(topic: str, by_thread: list[dict[int, list[int]]]) -> list[str]:
    owned = {f"thread {number}": sorted(parts) for number, parts in enumerate(by_thread, 1)}
    return pictures.shares(topic, range(len(by_thread)), {"pool": owned})
