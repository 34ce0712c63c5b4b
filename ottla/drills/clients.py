"""Drills about clients: producers and consumers with default settings while brokers fail, come back, or are added."""

from __future__ import annotations

import time
from typing import Final

from ottla.client.values import TopicPartition
from ottla.drills.stage import Stage
from ottla.drills.steady import SteadyConsumer, SteadyProducer
from ottla.local.snapshot import ClusterSnapshot, PartitionReplicas

TOPIC: Final = "orders"
SAFE: Final = {"min.insync.replicas": "2"}
MEGABYTES: Final = 50
PIECE_BYTES: Final = 500_000
CATCH_UP_SECONDS: Final = 20.0


async def producer_recovers(stage: Stage) -> None:
    stage.say(f"Topic {TOPIC} has three partitions, one led by each of three brokers. A producer writes to all.")
    stage.show_topics(TOPIC)
    await stage.create(TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], configs=SAFE)
    async with SteadyProducer(stage, TOPIC, 3) as writing:
        await writing.more(500)
        await stage.kill(1)
        await stage.led_by_other(TOPIC, 1)
        await writing.more(1000)
        await stage.restart(1)
        await writing.more(500)
        await writing.stop()
        stage.say(f"The longest the producer waited for an acknowledgement was {writing.longest_silence:.2f} s.")
        stage.check(not writing.failures, "the producer reported no error to its program", writing.failures[:1])
    for partition in range(3):
        await stage.nothing_lost(TOPIC, partition)


async def consumer_recovers(stage: Stage) -> None:
    stage.say(f"Topic {TOPIC} has three partitions on three brokers. A producer writes, and a consumer reads.")
    stage.show_topics(TOPIC)
    await stage.create(TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], configs=SAFE)
    async with SteadyConsumer(stage, TOPIC, "kitchen") as reading, SteadyProducer(stage, TOPIC, 3) as writing:
        await writing.more(500)
        await stage.until("the consumer reads", reading.seen_count, lambda count: count > 0)
        await stage.kill(1)
        await writing.more(1000)
        await stage.restart(1)
        await stage.kill(2)
        await writing.more(1000)
        await stage.restart(2)
        await writing.stop()
        wanted = sum(map(len, stage.acknowledged.values()))
        await stage.until(f"the consumer has seen all {wanted} records", reading.seen_count, lambda n: n >= wanted)
        stage.check(
            not reading.disorder, "it has read each record once, in order within partitions", reading.disorder[:2]
        )
        stage.check(not reading.failures, "the consumer reported no error to its program", reading.failures[:1])
        for partition in range(3):
            stage.check(
                reading.seen[partition] == stage.acknowledged[TOPIC, partition],
                f"{TOPIC}-{partition}: the consumer has read what was acknowledged, in that order",
            )


async def fast_catch_up(stage: Stage) -> None:
    await stage.probe.create(TOPIC, [(1, 2, 3)])
    stage.show_replicas(TOPIC)
    await stage.in_sync(TOPIC, (1, 2, 3))
    await stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    piece = "x" * PIECE_BYTES
    for _ in range(MEGABYTES * 1_000_000 // PIECE_BYTES):
        outcome = await stage.probe.write(TOPIC, [piece])
        stage.acknowledged.setdefault((TOPIC, 0), []).append(piece)
        if isinstance(outcome, int):
            stage.check(False, "a write is taken", outcome.name)
    stage.say(f"{MEGABYTES} MB are written to {TOPIC}-0 while broker 3 is down.")
    await stage.draw()
    broker = await stage.restart(3)
    begun = time.monotonic()
    stage.check(broker.ready_seconds < 5, "it serves within 5 s", f"{broker.ready_seconds:.2f} s")
    await stage.until(
        f"broker 3 is in sync with {TOPIC}-0 again",
        lambda: stage.probe.replicas(TOPIC),
        lambda state: 3 in state.in_sync,
        within=CATCH_UP_SECONDS,
    )
    took = time.monotonic() - begun
    stage.say(f"It has copied the missing {MEGABYTES} MB in {took:.2f} s: {MEGABYTES / took:.0f} MB/s.")
    await stage.same_logs(TOPIC, (1, 2, 3))


async def add_a_broker(stage: Stage) -> None:
    partitions = 12
    await stage.probe.create(TOPIC, partitions=partitions, copies=3, configs=SAFE)
    stage.say(f"Topic {TOPIC} has {partitions} partitions of three replicas: each of three brokers has all of them.")
    stage.show_topics(TOPIC)
    async with SteadyProducer(stage, TOPIC, partitions) as writing:
        await writing.more(500)
        added = stage.cluster.add(4)
        added.launch()
        await added.until_ready()
        stage.say("Broker 4 joins. It has no replicas until a reassignment moves some to it.")
        await stage.until(
            "all brokers have registered", stage.probe.registered_brokers, lambda ids: ids == {(1, 2, 3, 4)}
        )
        spread = {TopicPartition(TOPIC, n): [(n + k) % 4 + 1 for k in range(3)] for n in range(partitions)}
        await stage.probe.reassign(spread)
        share = partitions * 3 // 4
        await stage.until(
            f"every broker has its fair share, {share} replicas, all in sync",
            stage.probe.snapshot,
            lambda now: all(_held(now, broker_id) == share for broker_id in (1, 2, 3, 4)) and _whole(now),
        )
        await stage.until(
            f"and every broker leads {partitions // 4} partitions",
            stage.probe.snapshot,
            lambda snapshot: all(_led(snapshot, broker_id) == partitions // 4 for broker_id in (1, 2, 3, 4)),
        )
        await writing.more(500)
        await writing.stop()
        stage.say(f"The longest the producer waited for an acknowledgement was {writing.longest_silence:.2f} s.")
        stage.check(not writing.failures, "the producer reported no error to its program", writing.failures[:1])
    for partition in range(partitions):
        await stage.nothing_lost(TOPIC, partition)


def _orders(snapshot: ClusterSnapshot) -> list[PartitionReplicas]:
    return [state for (topic, _), state in snapshot.partitions.items() if topic == TOPIC]


def _held(snapshot: ClusterSnapshot, broker_id: int) -> int:
    return sum(broker_id in state.replicas for state in _orders(snapshot))


def _led(snapshot: ClusterSnapshot, broker_id: int) -> int:
    return sum(broker_id == state.leader for state in _orders(snapshot))


def _whole(snapshot: ClusterSnapshot) -> bool:
    return all(set(state.in_sync) == set(state.replicas) for state in _orders(snapshot))


async def replicas_spread(stage: Stage) -> None:
    brokers = (101, 102, 103, 104)
    stage.show_topics("spread")
    await stage.probe.create("spread", partitions=4, copies=2)
    snapshot = await stage.until(
        "topic spread, 4 partitions with replication factor 2, is created",
        stage.probe.snapshot,
        lambda snapshot: sum(topic == "spread" for topic, _ in snapshot.partitions) == 4,
    )
    states = [state for (topic, _), state in snapshot.partitions.items() if topic == "spread"]
    led = {broker_id: sum(state.leader == broker_id for state in states) for broker_id in brokers}
    held = {broker_id: sum(broker_id in state.replicas for state in states) for broker_id in brokers}
    followed = {broker_id: held[broker_id] - led[broker_id] for broker_id in brokers}
    stage.check(set(led.values()) == {1}, "each of the four brokers leads one partition", led)
    stage.check(set(followed.values()) == {1}, "and follows one", followed)
    stage.show_topics("TopicA")
    await stage.create("TopicA", [(101, 102), (102, 103)])
    stage.say("Topic TopicA: broker 101 leads partition 0 and 102 follows; 102 leads partition 1 and 103 follows.")
    await _replicated(stage, "TopicA", 0, (101, 102))
    await _replicated(stage, "TopicA", 1, (102, 103))
    stage.show_topics("three")
    await stage.create("three", [(101, 102, 103), (102, 103, 101)])
    stage.say("Topic three: the two followers copy every record from the leader.")
    await _replicated(stage, "three", 0, (101, 102, 103))
    await _replicated(stage, "three", 1, (101, 102, 103))


async def _replicated(stage: Stage, topic: str, partition: int, holders: tuple[int, ...]) -> None:
    await stage.write(topic, 10, partition)
    await stage.same_logs(topic, holders, partition)
    others = [each for each in stage.cluster.brokers if each not in holders]
    stage.check(
        not any(stage.on_disk(each, topic, partition) for each in others),
        f"no other broker has records of {topic}-{partition}",
    )
