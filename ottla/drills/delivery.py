"""Drill about delivery semantics when a consumer fails: at most once, at least once, exactly once."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.client.consuming.consumer import Consumer
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.drills.groups import POLL_MS, log_picture
from ottla.drills.partitions import read_on
from ottla.drills.stage import Stage

RESULT: Final = "RECORD "
SEEN_ALL_MS: Final = 1000
"""Timeout after which a partition counts as read to its end."""


async def delivery(stage: Stage) -> None:
    topic, copy = "invoices", "booked"
    await stage.create(topic, partitions=1, copies=1)
    await stage.create(copy, partitions=1, copies=1)
    await stage.write(topic, 5)
    tp = TopicPartition(topic, 0)
    processed: dict[str, int] = {}
    stage.show(lambda: log_picture(stage, topic, {"committed": "delivery-most"}, processed))
    await stage.draw()
    async with _careful(stage, topic, "most") as consumer:
        await read_on(consumer, 5)
        await consumer.commit({tp: 5})
    stage.say("At most once: the consumer commits offset 5 first, and fails after it has processed offsets 0, 1 and 2.")
    processed["processed"] = 3
    await stage.draw()
    async with _careful(stage, topic, "most") as consumer:
        await _assigned(consumer)
        at = await consumer.position(tp)
    stage.check(at == 5, f"the next consumer starts at 5: this group never processes offsets 3 and 4 of {topic}-0", at)
    await _at_least_once(stage, topic)
    await _exactly_once(stage, topic, copy)


async def _at_least_once(stage: Stage, topic: str) -> None:
    processed = [0, 1, 2]
    at = {"processed": 3}
    stage.show(lambda: log_picture(stage, topic, {"committed": "delivery-least"}, at))
    async with _careful(stage, topic, "least") as consumer:
        await read_on(consumer, 3)
    stage.say("At least once: the consumer processes offsets 0, 1 and 2, and fails before it commits.")
    await stage.draw()
    async with _careful(stage, topic, "least") as consumer:
        processed += [offset for _, offset, _ in await read_on(consumer, 5)]
        await consumer.commit({TopicPartition(topic, 0): 5})
    at["processed"] = 5
    stage.check(
        processed == [0, 1, 2, 0, 1, 2, 3, 4],
        f"the next consumer starts at 0: offsets 0 to 2 of {topic}-0 are processed twice, none is lost",
    )
    await stage.draw()


async def _exactly_once(stage: Stage, topic: str, copy: str) -> None:
    stage.show(lambda: _once_picture(stage, topic, copy))
    stage.say(f"Exactly once: results go to {copy}-0 and the offset is committed in one transaction.")
    await _copy_once(stage, topic, copy, fail=True)
    stage.say("The first attempt writes all five results, and fails before it commits the transaction.")
    await stage.draw()
    await _copy_once(stage, topic, copy, fail=False)
    stage.say("The second attempt commits the transaction: five results and the offset.")
    await stage.draw()
    got = await _read_committed(stage, copy)
    stage.check(
        got == [f"{RESULT}{n}" for n in range(5)],
        f"a consumer with isolation.level=read_committed sees each of the five results in {copy}-0 once",
        got,
    )
    written = len(stage.on_disk((await stage.probe.replicas(copy)).leader, copy))
    stage.check(written > 5, f"the log of {copy}-0 has the aborted results, too; read_committed skips them", written)


async def _read_committed(stage: Stage, topic: str) -> list[str]:
    """All values that a read_committed consumer sees."""
    tp = TopicPartition(topic, 0)
    got: list[str] = []
    async with Consumer(
        bootstrap_servers=stage.cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp])
        while found := (await consumer.getmany(timeout_ms=SEEN_ALL_MS)).get(tp):
            got += [each.value.decode() for each in found]
    return got


async def _once_picture(stage: Stage, topic: str, copy: str) -> list[str]:
    """The records, and the results: those in the log, and those committed."""
    source = await log_picture(stage, topic, {"committed": "delivery-exactly"}, {})
    values = stage.on_disk((await stage.probe.replicas(copy)).leader, copy)
    written = sum(value.startswith(RESULT) for value in values)  # the others are transaction markers
    seen = await _read_committed(stage, copy)
    return [
        *source,
        f"{copy}-0  in the log: {written} results, {written - len(seen)} of them of an aborted transaction",
        f"{copy}-0  a consumer with read_committed sees: {', '.join(seen) or 'nothing'}",
    ]


def _careful(stage: Stage, topic: str, group: str) -> Consumer:
    return Consumer(
        topic,
        bootstrap_servers=stage.cluster.bootstrap,
        group_id=f"delivery-{group}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


async def _assigned(consumer: Consumer) -> None:
    async with asyncio.timeout(20):
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=POLL_MS)


async def _copy_once(stage: Stage, source: str, target: str, *, fail: bool) -> None:
    async with (
        _careful(stage, source, "exactly") as consumer,
        Producer(stage.cluster.bootstrap, transactional_id="delivery-exactly") as producer,
    ):
        records = await read_on(consumer, 5)
        await producer.begin_transaction()
        for _, _, value in records:
            await producer.send_and_wait(target, value.upper().encode())
        if fail:
            await producer.abort_transaction()
            return
        await producer.send_offsets_to_transaction({TopicPartition(source, 0): 5}, consumer.group_metadata())
        await producer.commit_transaction()
