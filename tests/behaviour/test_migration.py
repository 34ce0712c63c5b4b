"""docs/migrate.md, done: topics copied with plain clients, offsets of groups translated, partitions moved on disk."""

from __future__ import annotations

import re
import shutil
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs two brokers of its own")

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "migrate.md"
TOPIC = "orders"
PARTITIONS = 3
RECORDS = 300
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def sides(tmp_path):
    """The old side with a topic whose first records are gone, and the new side with an empty one."""
    old, new = (WatchedBroker(tmp_path / name).start() for name in ("old", "new"))
    try:
        admins = [AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0}) for side in (old, new)]
        for admin in admins:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        producer = Producer({"bootstrap.servers": old.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(
                TOPIC,
                b"%d" % number,
                b"key %d" % number,
                number % PARTITIONS,
                timestamp=FIRST_MS + number,
                headers=[("number", b"%d" % number)],
            )
        assert producer.flush(30) == 0
        gone = TopicPartition(TOPIC, 0, 10)
        admins[0].delete_records([gone])[gone].result(30)
        yield old, new
    finally:
        old.close()
        new.close()


def everything(side):
    """Of each partition what it holds, without offsets."""
    consumer = Consumer({"bootstrap.servers": side.bootstrap, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    held: list[list[tuple]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + 30
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        record = consumer.poll(1)
        if record is None:
            continue
        if record.error():
            ended.add(record.partition())
            continue
        held[record.partition()].append((record.key(), record.value(), record.timestamp()[1], record.headers()))
    consumer.close()
    return held


def copy(old, new):
    """The program in the document, until there is nothing left to copy."""
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    program = program.replace('"old:9092", "new:9092"', f'"{old.bootstrap}", "{new.bootstrap}"')
    program = program.replace("while True:", "while not finished():")
    assert old.bootstrap in program

    def finished():
        return sum(map(len, everything(new))) >= RECORDS - 10

    failures: list[BaseException] = []

    def run():
        try:
            exec(compile(program, str(DOCUMENT), "exec"), {"finished": finished})
        except BaseException as failure:  # noqa: BLE001 (told in the other thread)
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the copy did not come to an end"
    assert not failures, failures


def test_a_topic_is_copied_with_plain_clients_record_for_record(sides):
    old, new = sides
    copy(old, new)
    assert everything(new) == everything(old)


def test_offsets_of_a_group_are_translated_by_time(sides):
    old, new = sides
    copy(old, new)
    group = {"group.id": "readers", "enable.auto.commit": False}
    reader = Consumer({"bootstrap.servers": old.bootstrap, **group})
    reader.commit(offsets=[TopicPartition(TOPIC, index, 40) for index in range(PARTITIONS)], asynchronous=False)

    reader.assign(reader.committed([TopicPartition(TOPIC, index) for index in range(PARTITIONS)], 10))
    next_times: dict[int, int] = {}

    def noted():
        record = reader.poll(1)
        if record is not None and record.error() is None:
            next_times.setdefault(record.partition(), record.timestamp()[1])
        return len(next_times) == PARTITIONS

    wait_for(noted, "the next record of each partition", 30)
    reader.close()
    writer = Consumer({"bootstrap.servers": new.bootstrap, **group})
    wanted = [TopicPartition(TOPIC, index, at) for index, at in next_times.items()]
    translated = writer.offsets_for_times(wanted, timeout=10)
    writer.commit(offsets=translated, asynchronous=False)
    writer.close()
    assert {each.partition: each.offset for each in translated} == {0: 30, 1: 40, 2: 40}


def test_partitions_are_handed_over_on_disk(sides):
    old, new = sides
    held = everything(old)
    assert old.stop() == 0
    assert new.stop() == 0
    for index in range(PARTITIONS):
        source, target = (side.data / f"{TOPIC}-{index}" for side in (old, new))
        target.mkdir(exist_ok=True)
        for path in source.iterdir():
            if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
                shutil.copy(path, target)
        shutil.copy(source / "leader-epoch-checkpoint", target)
    for name in ("recovery-point", "log-start", "replication"):
        checkpoint = new.data / f"{name}-offset-checkpoint"
        if checkpoint.exists():
            version, _, *lines = checkpoint.read_text().splitlines()
            kept = [line for line in lines if not line.startswith(f"{TOPIC} ")]
            checkpoint.write_text("\n".join([version, str(len(kept)), *kept, ""]))
    (new.data / ".kafka_cleanshutdown").unlink()
    new.start()
    taken = everything(new)
    assert taken[1:] == held[1:]
    assert taken[0][-len(held[0]) :] == held[0], "what was deleted by offset, not yet from disk, is there again"
