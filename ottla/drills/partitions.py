"""Drills about topics, partitions and offsets: the log, consumer positions, and partitioners."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.client.admin import Admin, ResourceKind
from ottla.client.consuming.consumer import Consumer
from ottla.client.producing.partitioners import PriorityPartitioner, partition_of_key
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.drills import pictures
from ottla.drills.stage import Stage

ENDS: Final = (7, 10, 11)
"""The log end offset of each partition in the course text: the last offsets are 6, 9 and 10."""
WEEK_MS: Final = 7 * 24 * 3600 * 1000
SEGMENT_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 300_000
READ_MS: Final = 2000
RUNS_MAX: Final = 8


async def read_on(consumer: Consumer, count: int) -> list[tuple[int, int, str]]:
    """Partition, offset and value of the next so many records."""
    seen: list[tuple[int, int, str]] = []
    async with asyncio.timeout(READ_MS / 1000 * 10):
        while len(seen) < count:
            for records in (await consumer.getmany(timeout_ms=READ_MS, max_records=count - len(seen))).values():
                seen += [(each.partition, each.offset, each.value.decode()) for each in records]
    return seen


async def offsets(stage: Stage) -> None:
    topic = "stream"
    await stage.create(topic, partitions=3, copies=1)
    stage.show_logs(topic, 3)
    stage.say(f"Topic {topic} has three partitions. Each has its own offsets, from 0 on.")
    for partition, count in enumerate(ENDS):
        await stage.write(topic, count, partition)
    ends = [await stage.probe.end(topic, partition) for partition in range(3)]
    stage.check(tuple(ends) == ENDS, "the last offsets are 6, 9 and 10: each partition has its own", ends)
    seen = {
        (partition, offset): value for partition in range(3) for offset, value in await _values(stage, topic, partition)
    }
    stage.check(
        len(seen) == sum(ENDS) == len(set(seen.values())),
        f"each of {sum(ENDS)} records has a unique name: (topic, partition, offset)",
        len(seen),
    )
    asked = await stage.probe.fetch_from((await stage.probe.replicas(topic, 1)).leader, topic, 1, 4)
    stage.check(
        isinstance(asked, list) and asked[0] == seen[1, 4],
        f"({topic}, 1, 4) is {seen[1, 4]!r}, and a Fetch of that offset returns it",
        asked,
    )
    await stage.write(topic, 5, 1)
    again = dict(await _values(stage, topic, 1))
    stage.check(
        all(again[offset] == value for (partition, offset), value in seen.items() if partition == 1),
        f"new records in {topic}-1 have changed no existing record",
    )


async def _values(stage: Stage, topic: str, partition: int) -> list[tuple[int, str]]:
    return list(enumerate(await stage.read(topic, partition)))


async def two_readers(stage: Stage) -> None:
    topic = "log"
    await stage.create(topic, partitions=1, copies=1)
    position: dict[str, int] = {}

    async def picture() -> list[str]:
        end = await stage.probe.end(topic)
        return pictures.log(f"{topic}-0", int(end), {**position, "the producer": int(end)})

    stage.show(picture)
    await stage.write(topic, 8)
    tp = TopicPartition(topic, 0)
    async with _reader(stage) as a, _reader(stage) as b:
        for name, consumer, offset in (("A", a, 4), ("B", b, 7)):
            consumer.assign([tp])
            consumer.seek(tp, offset)
            position[name] = offset
        stage.say("Consumer A seeks to offset 4, and consumer B to offset 7.")
        await stage.draw()
        [(_, offset, value)] = await read_on(a, 1)
        position["A"] = await a.position(tp)
        stage.check((offset, value) == (4, "record 4"), f"A reads offset 4 of {topic}-0", (offset, value))
        await stage.draw()
        stage.check(await b.position(tp) == 7, f"B is still at 7: reading by A does not change {topic}-0")
        await stage.write(topic, 2)
        got = [offset for _, offset, _ in await read_on(b, 3)]
        position["B"] = await b.position(tp)
        stage.check(got == [7, 8, 9], f"B reads on to the end of {topic}-0: offsets 7, 8, 9", got)
        await stage.draw()
        a.seek(tp, 0)
        position["A"] = 0
        got = [offset for _, offset, _ in await read_on(a, 10)]
        position["A"] = await a.position(tp)
        stage.check(got == list(range(10)), "A goes back to 0 and reads everything again, offsets 0 to 9", got)
        await stage.draw()


def _reader(stage: Stage, **settings: str) -> Consumer:
    return Consumer(bootstrap_servers=stage.cluster.bootstrap, auto_offset_reset="earliest", **settings)  # type: ignore[arg-type]


async def order(stage: Stage) -> None:
    one, many = "one", "many"
    await stage.create(one, partitions=1, copies=1)
    await stage.create(many, partitions=3, copies=1)
    sent = [f"message {n}" for n in range(1, 8)]
    await _produce(stage, one, sent)
    await _produce(stage, many, sent)
    stage.say("A producer writes message 1 to message 7 to topic one (1 partition) and to topic many (3 partitions).")
    stage.show(lambda: _contents(stage, {one: 1, many: 3}))
    await stage.draw()
    stage.check(await stage.read(one) == sent, f"{one}-0 has them in the order in which they were sent")
    async with _reader(stage) as consumer:
        consumer.assign([TopicPartition(one, 0)])
        got = [value for _, _, value in await read_on(consumer, 7)]
        stage.check(got == sent, f"a consumer of {one} sees them in the order of the log", got)
    async with _reader(stage) as consumer:
        consumer.assign([TopicPartition(many, n) for n in range(3)])
        seen = await read_on(consumer, 7)
    got = [value for _, _, value in seen]
    stage.say(f"A consumer of {many} sees: {', '.join(value.removeprefix('message ') for value in got)}.")
    stage.check(got != sent and sorted(got) == sent, f"so topic {many} as a whole is out of order", got)
    for partition in range(3):
        mine = [value for where, _, value in seen if where == partition]
        stage.check(mine == sorted(mine), f"but {many}-{partition} is in order: {', '.join(mine)}", mine)
    await _produce(stage, one, [f"a{n}" for n in range(50)], [f"b{n}" for n in range(50)])
    log = (await stage.read(one))[7:]
    for name in "ab":
        mine = [value for value in log if value.startswith(name)]
        stage.check(
            mine == [f"{name}{n}" for n in range(50)],
            f"two producers write to {one}-0 at once: the records of producer {name} are in its order",
        )
    stage.show(lambda: _runs(stage, one))
    await stage.draw()
    stage.say("The order between producers is not defined: it is guaranteed for one producer in one partition.")


async def _contents(stage: Stage, topics: dict[str, int]) -> list[str]:
    """All records of each partition."""
    return [
        f"{topic}-{partition}  {' '.join(f'│ {value}' for value in await stage.read(topic, partition))} │"
        for topic, count in topics.items()
        for partition in range(count)
    ]


async def _runs(stage: Stage, topic: str) -> list[str]:
    """The records of a partition in short: runs of records of the same producer."""
    runs: list[list[str]] = []
    for value in await stage.read(topic):
        if not runs or runs[-1][0][0] != value[0]:
            runs.append([])
        runs[-1].append(value)
    shown = [f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in runs[:RUNS_MAX]]
    more = f" │ and {len(runs) - RUNS_MAX} more changes" if len(runs) > RUNS_MAX else ""
    return [f"{topic}-0  │ {' │ '.join(shown)}{more} │"]


async def _produce(stage: Stage, topic: str, *producers: list[str]) -> None:
    """A producer for each list, all at the same time, round robin over the partitions."""

    async def write(values: list[str]) -> list[tuple[int, int, str]]:
        async with Producer(stage.cluster.bootstrap, partitioner="round_robin") as producer:
            sent = [await producer.send(topic, value.encode()) for value in values]
            return [
                ((given := await each).partition, given.offset, value) for each, value in zip(sent, values, strict=True)
            ]

    for written in sorted(each for sent in await asyncio.gather(*map(write, producers)) for each in sent):
        partition, _, value = written
        stage.acknowledged.setdefault((topic, partition), []).append(value)


async def keys_and_partitions(stage: Stage) -> None:
    topic, count = "employees", 3
    people = ("alice", "bert", "cleo", "dora")
    await stage.create(topic, partitions=count, copies=1)
    stage.show(lambda: _contents(stage, {topic: count}))
    where: dict[str, set[int]] = {}
    async with Producer(stage.cluster.bootstrap) as producer:
        for step in ("hired", "moved", "promoted"):
            for name in people:
                given = await producer.send_and_wait(topic, f"{name} {step}".encode(), key=name.encode())
                where.setdefault(name, set()).add(given.partition)
                stage.acknowledged.setdefault((topic, given.partition), []).append(f"{name} {step}")
    await stage.draw()
    for name in people:
        chosen = partition_of_key(name.encode(), count)
        stage.check(
            where[name] == {chosen},
            f"key {name!r}: all records are in {topic}-{chosen}, which is murmur2(key) modulo {count}",
            where[name],
        )
    for partition in range(count):
        values = await stage.read(topic, partition)
        for name in {value.split()[0] for value in values}:
            mine = [value.split()[1] for value in values if value.startswith(f"{name} ")]
            stage.check(
                mine == ["hired", "moved", "promoted"], f"{topic}-{partition}: {name}'s records are in order", mine
            )
    await _without_keys(stage)


async def _without_keys(stage: Stage) -> None:
    await stage.create("visits", partitions=3, copies=1)
    stage.show(lambda: _contents(stage, {"visits": 3}))
    await _produce(stage, "visits", [f"visit {n}" for n in range(12)])
    counts = [len(await stage.read("visits", partition)) for partition in range(3)]
    stage.check(
        counts == [4, 4, 4], "no key, round robin: 12 records are 4 in each of visits-0, visits-1, visits-2", counts
    )
    await stage.draw()
    band = PriorityPartitioner((1, 1, 1)).band(0, 3)
    async with Producer(stage.cluster.bootstrap, partitioner="priority") as producer:
        urgent = await producer.send_and_wait("visits", b"urgent", headers=[("priority", b"0")])
        later = await producer.send_and_wait("visits", b"later", headers=[("priority", b"2")])
    stage.check(
        urgent.partition in band and later.partition not in band,
        f"by priority: the urgent record goes to visits-{urgent.partition}, the other one to visits-{later.partition}",
    )
    await stage.draw()
    async with Producer(stage.cluster.bootstrap) as producer:
        given = await producer.send_and_wait("visits", b"here", partition=2)
    for partition, value in ((urgent.partition, "urgent"), (later.partition, "later"), (2, "here")):
        stage.acknowledged["visits", partition].append(value)
    stage.check(
        given.partition == 2, "or the program names the partition: visits-2. The producer chooses, not the broker"
    )
    await stage.draw()


async def log_on_disk(stage: Stage) -> None:
    topic, brokers = "archive", (1, 2)
    await stage.create(topic, [brokers, (2, 3)], configs={"segment.bytes": str(SEGMENT_BYTES)})
    piece = "x" * PIECE_BYTES
    for _ in range(8):
        written = await stage.probe.write(topic, [piece])
        if isinstance(written, int):
            stage.check(False, "a write is taken", written.name)
        stage.acknowledged.setdefault((topic, 0), []).append(piece)
    stage.say(f"8 records of {PIECE_BYTES:,} bytes are written to {topic}-0; segment.bytes is 1 MiB.")

    async def picture() -> list[str]:
        return [
            f"broker {broker_id}  {topic}-0/{file.name}  {file.stat().st_size:>9,} bytes"
            for broker_id in brokers
            for file in sorted((stage.cluster[broker_id].data / f"{topic}-0").glob("*.log"))
        ]

    stage.show(picture)
    await stage.in_sync(topic, brokers)
    files = len(await picture())
    stage.check(files > 2, f"the log of {topic}-0 is {files} segment files on two brokers", files)
    positions: dict[str, int] = {}

    async def readers() -> list[str]:
        return pictures.log(f"{topic}-0", int(await stage.probe.end(topic)), positions)

    stage.show(readers)
    for group, policy, expected in (("first", "earliest", 8), ("second", "earliest", 8), ("late", "latest", 0)):
        name = f"archive-{group}"
        positions[f"group {name}"] = await _read_by_group(stage, topic, name, policy, expected)
        await stage.draw()
    stage.check(len(await stage.read(topic)) == 8, f"the 8 records are still in {topic}-0")
    async with Admin(stage.cluster.bootstrap) as admin:
        entries = await admin.describe_configs(ResourceKind.TOPIC, topic)
    retention_ms = next(int(each.value or 0) for each in entries if each.name == "retention.ms")
    stage.check(
        retention_ms == WEEK_MS, f"records are retained for retention.ms={WEEK_MS}, one week by default", retention_ms
    )


async def _read_by_group(stage: Stage, topic: str, group: str, policy: str, expected: int) -> int:
    """Returns the position of the group."""
    async with Consumer(
        topic,
        bootstrap_servers=stage.cluster.bootstrap,
        group_id=group,
        auto_offset_reset=policy,  # type: ignore[arg-type]
        fetch_max_bytes=1 << 24,
    ) as consumer:
        seen = await read_on(consumer, expected)
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=50)
        at = await consumer.position(TopicPartition(topic, 0))
    stage.check(
        (len(seen), at) == (expected, 8),
        f"new group {group}, auto.offset.reset={policy}: it reads {expected} old records, and its position is {at}",
        len(seen),
    )
    return at
