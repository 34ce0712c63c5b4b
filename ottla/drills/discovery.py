"""Drills about bootstrap and metadata, and about fetching from a near follower."""

from __future__ import annotations

from ottla.client.consuming.consumer import Consumer
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.drills.partitions import read_on
from ottla.drills.stage import Stage
from ottla.errors import ErrorCode

TOPIC = "routes"
HOLDERS = (1, 2, 3)


async def bootstrap(stage: Stage) -> None:
    stage.show_topics(TOPIC)
    await stage.create(TOPIC, [(1,), (2,), (3,)])
    snapshots = [await stage.probe.snapshot_of(broker_id) for broker_id in HOLDERS]
    for broker_id, snapshot in zip(HOLDERS, snapshots, strict=True):
        stage.check(
            snapshot.brokers == HOLDERS,
            f"the metadata of broker {broker_id} names all brokers: {', '.join(map(str, snapshot.brokers))}",
            snapshot.brokers,
        )
    stage.check(
        all(snapshot.partitions == snapshots[0].partitions for snapshot in snapshots),
        "all brokers return the same topics, partitions and leaders",
    )
    for broker_id in HOLDERS:
        address = stage.cluster[broker_id].bootstrap
        async with Producer(address) as producer:
            given = [await producer.send_and_wait(TOPIC, b"found", partition=n) for n in range(3)]
        for each in given:
            stage.acknowledged.setdefault((TOPIC, each.partition), []).append("found")
        stage.check(
            [each.partition for each in given] == [0, 1, 2],
            f"a producer that knows only broker {broker_id} writes to {TOPIC}-0, {TOPIC}-1 and {TOPIC}-2, each at "
            f"its leader",
        )
        await stage.draw()
    async with Consumer(bootstrap_servers=stage.cluster[3].bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, n) for n in range(3)])
        got = await read_on(consumer, 9)
    stage.check(len(got) == 9, "a consumer that knows only broker 3 reads all of them", len(got))
    refused = await stage.probe.write_to(2, TOPIC, ["astray"], 0)
    name = refused.name.upper() if isinstance(refused, ErrorCode) else "it was acknowledged"
    stage.check(
        refused is ErrorCode.not_leader_or_follower,
        f"broker 2 refuses a write to {TOPIC}-0, which broker 1 leads ({name}): only the leader accepts writes",
        name,
    )


async def replica_reads(stage: Stage) -> None:
    topic = "nearby"
    stage.show_replicas(topic)
    await stage.create(topic, [HOLDERS])
    await stage.in_sync(topic, HOLDERS)
    await stage.write(topic, 10)
    stage.say("Each broker is in its own rack: broker 1 in rack-1, broker 2 in rack-2, broker 3 in rack-3.")
    near = await stage.until(
        f"the leader of {topic}-0 names broker 2 as preferred read replica for client.rack=rack-2",
        lambda: stage.probe.preferred_replica(topic, "rack-2"),
        lambda named: named == 2,
    )

    async def read() -> list[str] | ErrorCode:
        return await stage.probe.fetch_from(int(near), topic)

    await stage.until(
        f"broker 2, a follower, serves all 10 records of {topic}-0",
        read,
        lambda found: found == stage.acknowledged[topic, 0],
    )
    async with Consumer(
        bootstrap_servers=stage.cluster.bootstrap, client_rack="rack-2", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        got = [value for _, _, value in await read_on(consumer, 10)]
    stage.check(got == stage.acknowledged[topic, 0], f"a consumer in rack-2 reads {topic}-0 in order", len(got))
    given = await stage.probe.write_to(2, topic, ["astray"])
    stage.check(
        given is ErrorCode.not_leader_or_follower,
        f"broker 2 still refuses writes to {topic}-0: they go to the leader",
        given,
    )
