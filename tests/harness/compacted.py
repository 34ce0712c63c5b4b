"""What the tests of compaction share: topics that are compacted all the time, readers of all that is left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.harness.topics import create_topic
from tests.interop.clients import Confluent, Record

CONFLUENT = Confluent()
SEGMENT_BYTES = 50_000

EAGER = ("--set", "log.cleaner.backoff.ms=50", "--set", "log.segment.delete.delay.ms=0")
"""A broker that looks for something to compact all the time."""


def compacted_topic(broker: WatchedBroker, name: str = "compacted", partitions: int = 1, **config: object) -> str:
    settings: dict[str, object] = {
        "cleanup_policy": "compact",
        "internal_segment_bytes": SEGMENT_BYTES,
        "min_cleanable_dirty_ratio": 0.0,
        **config,
    }
    return create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), name, partitions, **settings)


def put(broker: WatchedBroker, topic: str, pairs: list[tuple[bytes, bytes | None]], **options) -> list[int]:
    return CONFLUENT.produce(broker.bootstrap, topic, [Record(value, key) for key, value in pairs], **options)


def seal(broker: WatchedBroker, topic: str) -> None:
    """Write enough that everything before lies in a closed segment."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for at in range(4):
        producer.produce(topic, b"x" * (SEGMENT_BYTES // 3), b"filler %d" % at)
        assert producer.flush(30) == 0


def read_all(broker: WatchedBroker, topic: str, partition: int = 0, start: int = 0) -> list[Record]:
    """Every record there is, up to the end of the partition."""
    consumer = CONFLUENT.consumer(broker.bootstrap, **{"enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
    found: list[Record] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end of the partition did not come"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(Record(message.value(), message.key(), offset=message.offset()))
    finally:
        consumer.close()


def segments(broker: WatchedBroker, topic: str, partition: int = 0) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for path in sorted((broker.data / f"{topic}-{partition}").glob("*.log")):
        with suppress(FileNotFoundError):  # it was deleted since it was listed
            sizes[path.name] = path.stat().st_size
    return sizes


def cleaned_up_to(broker: WatchedBroker, topic: str, partition: int = 0) -> int:
    """What the cleaner's checkpoint says."""
    path = broker.data / "cleaner-offset-checkpoint"
    for line in path.read_text().splitlines()[2:] if path.exists() else ():
        if line.startswith(f"{topic} {partition} "):
            return int(line.split(" ")[2])
    return 0


def wait_until_cleaned(broker: WatchedBroker, topic: str, offset: int, partition: int = 0) -> None:
    wait_for(lambda: cleaned_up_to(broker, topic, partition) >= offset, f"{topic} to be compacted up to {offset}", 60)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [child for child in map(int, found) if not is_gone(child)]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
