"""MirrorMaker 2 between the brokers under test and an Apache Kafka, both ways at once, killed in mid-replication.

Both ways write exactly once, which MirrorMaker takes from `CLUSTER.exactly.once.source.support`. Partitions and the
order in them have to be the source's, and the offsets of a group are translated to ones that skip no record.
"""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from bench.peers import ApacheKafka, free_port
from tests.ecosystem import connect, needs
from tests.ecosystem.ring import KAFKA_HEAP, QUIET, Failed, Program, Ring, same

TITLE = "MirrorMaker 2"
RECORDS = 30_000
PARTITIONS = 3
TOPIC = "mirror-orders"
BACK = "mirror-returns"
GROUP = "mirror-kitchen"
RETENTION_MS = "864000000"

PROPERTIES = """clusters = here, there
here.bootstrap.servers = {here}
there.bootstrap.servers = {there}
here->there.enabled = true
here->there.topics = {topic}
there->here.enabled = true
there->here.topics = {back}
here.exactly.once.source.support = enabled
there.exactly.once.source.support = enabled
dedicated.mode.enable.internal.rest = true
listeners = http://127.0.0.1:{port}
tasks.max = 2
session.timeout.ms = 6000
heartbeat.interval.ms = 1000
scheduled.rebalance.max.delay.ms = 0
refresh.topics.interval.seconds = 5
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
offset.lag.max = 10
emit.heartbeats.interval.seconds = 1
here->there.heartbeats.topic.replication.factor = 1
there->here.heartbeats.topic.replication.factor = 3
here->there.replication.factor = 1
there->here.replication.factor = 3
here->there.offset-syncs.topic.replication.factor = 3
there->here.offset-syncs.topic.replication.factor = 1
here->there.checkpoints.topic.replication.factor = 1
there->here.checkpoints.topic.replication.factor = 3
{storage}"""


def prepare() -> str:
    return connect.prepare()


def run(ring: Ring) -> str:
    single = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4",
              "transaction.state.log.num.partitions": "4", "num.partitions": str(PARTITIONS)}  # fmt: skip
    with ApacheKafka(heap=KAFKA_HEAP, settings=single) as there:
        ring.say(f"an Apache Kafka {needs.kafka()} is there to mirror to")
        return _mirror(ring, there.bootstrap)


def _mirror(ring: Ring, there: str) -> str:
    ring.topic(TOPIC, PARTITIONS, retention_ms=RETENTION_MS)
    _produce(ring, TOPIC, ring.bootstrap, range(RECORDS // 2))
    _produce(ring, BACK, there, range(RECORDS // 2))
    committed = _commit(ring, RECORDS // 12)
    storage = [f"{name}.{topic}.storage.replication.factor = {copies}\n" for name, copies in (("here", 3), ("there", 1))
               for topic in ("config", "offset", "status")]  # fmt: skip
    properties = ring.directory / "mm2.properties"
    properties.write_text(
        PROPERTIES.format(
            here=ring.bootstrap, there=there, topic=TOPIC, back=BACK, port=free_port(), storage="".join(storage)
        )
    )
    mirror = _start(ring)
    for share in (0.1, 0.6):
        _progress(ring, there, int(RECORDS * share))
        mirror.kill()
        ring.say(f"killed it at {ring.end(f'here.{TOPIC}', there)} and {ring.end(f'there.{BACK}')} records")
        mirror = _start(ring)
        if share == 0.1:
            _produce(ring, TOPIC, ring.bootstrap, range(RECORDS // 2, RECORDS))
            _produce(ring, BACK, there, range(RECORDS // 2, RECORDS))
    ring.reached(f"here.{TOPIC}", RECORDS, there)
    ring.reached(f"there.{BACK}", RECORDS)
    skipped = ring.until(lambda: _skipped(ring, there), "offsets of the group on the other side")
    ring.say(f"group {GROUP} has read {committed} records here, and skips {skipped} there")
    if any(there > here for there, here in zip(skipped, committed, strict=True)):
        raise Failed(f"the group would skip {skipped} records of each partition, but has only read {committed}")
    _settings(ring, there)
    for source, bootstrap in (("here", there), ("there", ring.bootstrap)):
        ring.until(lambda at=bootstrap, name=source: _beats(ring, name, at), f"heartbeats of {source}")
    ring.stop_all()
    _compare(ring, TOPIC, ring.bootstrap, f"here.{TOPIC}", there)
    _compare(ring, BACK, there, f"there.{BACK}", ring.bootstrap)
    return f"{RECORDS:,} records to Apache Kafka and {RECORDS:,} back, a group's offsets; killed twice in between"


def _settings(ring: Ring, there: str) -> None:
    """A setting of the topic has come along."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, f"here.{TOPIC}")
    admin = AdminClient({"bootstrap.servers": there, **QUIET})
    (found,) = (future.result(30) for future in admin.describe_configs([resource]).values())
    same("retention.ms of the copy", [found["retention.ms"].value], [RETENTION_MS])


def _beats(ring: Ring, source: str, target_at: str) -> bool:
    """Whether heartbeats of the source have been copied to the other side."""
    return ring.end(f"{source}.heartbeats", target_at) > 0


def _start(ring: Ring) -> Program:
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    return ring.java("mirror", main, connect.classpath(), str(ring.directory / "mm2.properties"))


def _produce(ring: Ring, topic: str, bootstrap: str, numbers: range) -> None:
    ring.produce(
        topic, ((f"k{n % 100}", f"v{n}") for n in numbers), partition=lambda n: n % PARTITIONS, bootstrap=bootstrap
    )


def _progress(ring: Ring, there: str, count: int) -> None:
    ring.until(lambda: ring.end(f"here.{TOPIC}", there) > count, f"{count} records there")
    ring.until(lambda: ring.end(f"there.{BACK}") > count, f"{count} records here")


def _compare(ring: Ring, source: str, source_at: str, target: str, target_at: str) -> None:
    wanted = ring.read(source, source_at)
    got = ring.exactly(target, len(wanted), target_at)
    for partition in range(PARTITIONS):
        same(
            f"{target}-{partition}",
            [(each.key, each.value) for each in got if each.partition == partition],
            [(each.key, each.value) for each in wanted if each.partition == partition],
        )


def _commit(ring: Ring, offset: int) -> list[int]:
    """A group that has read so many records of each partition."""
    consumer = Consumer({"bootstrap.servers": ring.bootstrap, "group.id": GROUP, **QUIET})
    offsets = [TopicPartition(TOPIC, partition, offset + partition) for partition in range(PARTITIONS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return [each.offset for each in offsets]


def _skipped(ring: Ring, there: str) -> list[int] | None:
    """How many records of each partition the group leaves out on the other side; None before it has offsets
    there that leave some out."""
    topic = f"here.{TOPIC}"
    consumer = Consumer({"bootstrap.servers": there, "group.id": GROUP, **QUIET})
    try:
        asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found = {each.partition: each.offset for each in consumer.committed(asked, timeout=10)}
    finally:
        consumer.close()
    if any(offset <= 0 for offset in found.values()):
        return None
    records = ring.read(topic, there)
    return [
        sum(1 for each in records if each.partition == partition and each.offset < offset)
        for partition, offset in found.items()
    ]
