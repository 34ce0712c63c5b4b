"""The log cleaner of a running broker: its choice of logs, faults, and its end."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.harness.compacted import (
    EAGER,
    children,
    cleaned_up_to,
    compacted_topic,
    is_gone,
    put,
    read_all,
    seal,
    segments,
    wait_until_cleaned,
)

SLOW = (*EAGER, "--set", "log.cleaner.io.max.bytes.per.second=20000")
"""Half a minute for what the tests write: long enough to be met at work."""


def set_config(broker: WatchedBroker, kind: ResourceType, resource: str, **settings: object) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    changed = ConfigResource(kind, resource, incremental_configs=entries)
    admin.incremental_alter_configs([changed])[changed].result(30)


def write(broker: WatchedBroker, topic: str, iterations: int = 20, keys: int = 100) -> dict[bytes, bytes]:
    """Many versions of some keys, all but the last few sealed; the last version of each."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2})
    for number in range(iterations):
        for key in range(keys):
            producer.produce(topic, b"version %d" % number * 20, b"key %d" % key)
        assert producer.flush(30) == 0
    seal(broker, topic)
    return {b"key %d" % key: b"version %d" % (iterations - 1) * 20 for key in range(keys)}


def check(broker: WatchedBroker, topic: str, expected: dict[bytes, bytes]) -> None:
    last = {record.key: record.value for record in read_all(broker, topic)}
    assert {key: last.get(key) for key in expected} == expected


def at_work(broker: WatchedBroker) -> int:
    """Wait for the cleaner's child; its process id."""
    return wait_for(lambda: children(broker.pid), "the cleaner to begin")[0]


def test_a_log_becomes_smaller_and_keeps_the_last_version_of_every_key(start_broker):
    broker = start_broker(*EAGER)
    topic = compacted_topic(broker)
    expected = write(broker, topic)
    wait_until_cleaned(broker, topic, 2000)
    wait_for(lambda: sum(segments(broker, topic).values()) < 150_000, "the old files to go")
    check(broker, topic, expected)
    assert len(read_all(broker, topic)) < 500
    assert wait_for(lambda: not children(broker.pid), "the child to end")


def test_a_topic_that_is_not_compacted_is_left_alone(start_broker):
    broker = start_broker(*EAGER)
    kept = compacted_topic(broker, "kept", cleanup_policy="delete")
    compacted = compacted_topic(broker)
    write(broker, kept)
    write(broker, compacted)
    wait_until_cleaned(broker, compacted, 2000)
    assert len(read_all(broker, kept)) == 2004


def test_compaction_can_be_turned_off_on_a_broker(start_broker):
    broker = start_broker(*EAGER, "--set", "log.cleaner.enable=false")
    topic = compacted_topic(broker)
    write(broker, topic, iterations=5)
    assert broker.stop() == 0
    assert cleaned_up_to(broker, topic) == 0
    assert "ottla.cleaner" not in broker.log_text()


def test_compaction_can_be_switched_on_for_a_topic(start_broker):
    broker = start_broker(*EAGER)
    topic = compacted_topic(broker, cleanup_policy="delete")
    expected = write(broker, topic, iterations=5)
    assert len(read_all(broker, topic)) == 504
    set_config(broker, ResourceType.TOPIC, topic, cleanup_policy="compact")
    wait_until_cleaned(broker, topic, 500)
    check(broker, topic, expected)
    assert len(read_all(broker, topic)) < 200


def test_the_cleaner_checkpoint_is_known_after_a_restart(start_broker):
    broker = start_broker(*EAGER)
    topic = compacted_topic(broker)
    expected = write(broker, topic, iterations=5)
    wait_until_cleaned(broker, topic, 500)
    for restart in (broker.stop, broker.kill):
        restart()
        broker.start()
        check(broker, topic, expected)
        assert cleaned_up_to(broker, topic) >= 500


def test_an_old_record_is_compacted_even_if_little_is_dirty_and_nothing_follows(start_broker):
    broker = start_broker(*EAGER)
    topic = compacted_topic(broker, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=500)
    put(broker, topic, [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")])
    wait_until_cleaned(broker, topic, 3)
    assert [(record.offset, record.value) for record in read_all(broker, topic)] == [(1, b"2"), (2, b"1")]


@pytest.mark.broker_may_log("the process of .* was killed .*; it will be tried again")
def test_a_child_that_is_killed_is_started_again(start_broker):
    broker = start_broker(*SLOW)
    topic = compacted_topic(broker)
    expected = write(broker, topic)
    for _ in range(3):
        child = at_work(broker)
        os.kill(child, signal.SIGKILL)
        wait_for(partial(is_gone, child), "the broker to notice")
    set_config(broker, ResourceType.BROKER, "1", log_cleaner_io_max_bytes_per_second=1e9)
    os.kill(at_work(broker), signal.SIGKILL)
    wait_until_cleaned(broker, topic, 2000)
    wait_for(lambda: broker.times_said("was killed") >= 4, "four lines, or fewer with their count")
    check(broker, topic, expected)
    leftovers = [path for path in (broker.data / f"{topic}-0").iterdir() if path.suffix in (".cleaned", ".swap")]
    assert leftovers == []


def test_a_clean_stop_ends_the_child(start_broker):
    broker = start_broker(*SLOW)
    topic = compacted_topic(broker)
    expected = write(broker, topic)
    child = at_work(broker)
    assert broker.stop() == 0
    assert is_gone(child)
    broker.arguments = EAGER
    broker.start()
    wait_until_cleaned(broker, topic, 2000)
    check(broker, topic, expected)


def test_the_child_ends_when_the_broker_is_killed(start_broker):
    broker = start_broker(*SLOW)
    topic = compacted_topic(broker)
    expected = write(broker, topic)
    child = at_work(broker)
    broker.kill()
    wait_for(lambda: is_gone(child), "the child to end", 5)
    broker.arguments = EAGER
    broker.start()
    check(broker, topic, expected)
    wait_until_cleaned(broker, topic, 2000)
    check(broker, topic, expected)


def test_a_topic_can_be_deleted_and_made_again_while_it_is_compacted(start_broker):
    broker = start_broker(*SLOW)
    topic = compacted_topic(broker)
    write(broker, topic)
    child = at_work(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: is_gone(child), "the child to end", 5)
    set_config(broker, ResourceType.BROKER, "1", log_cleaner_io_max_bytes_per_second=1e9)
    topic = compacted_topic(broker)
    expected = write(broker, topic, iterations=3)
    wait_until_cleaned(broker, topic, 300)
    check(broker, topic, expected)


def test_records_can_be_deleted_while_a_log_is_compacted(start_broker):
    broker = start_broker(*SLOW, "--set", "log.retention.check.interval.ms=50")
    topic = compacted_topic(broker, cleanup_policy="compact,delete")
    expected = write(broker, topic)
    at_work(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partition = TopicPartition(topic, 0, 1000)
    admin.delete_records([partition])[partition].result(30)
    wait_for(lambda: min(segments(broker, topic)) > f"{900:020d}", "the segments to go")
    set_config(broker, ResourceType.BROKER, "1", log_cleaner_io_max_bytes_per_second=1e9)
    wait_until_cleaned(broker, topic, 2000)
    records = read_all(broker, topic, start=1000)
    assert {record.key: record.value for record in records if record.key in expected} == expected
    assert len(records) < 500


@pytest.mark.broker_may_log("damaged-0 cannot be compacted: corrupt_message")
def test_a_damaged_log_is_not_compacted_and_the_others_are(start_broker):
    broker = start_broker(*EAGER, "--set", "log.cleaner.enable=false")
    damaged, sound = compacted_topic(broker, "damaged"), compacted_topic(broker, "sound")
    write(broker, damaged, iterations=5)
    expected = write(broker, sound, iterations=5)
    broker.stop()
    victim = min((broker.data / f"{damaged}-0").glob("*.log"))
    data = bytearray(victim.read_bytes())
    data[200] ^= 1
    victim.write_bytes(data)
    broker.arguments = EAGER
    broker.start()
    wait_until_cleaned(broker, sound, 500)
    check(broker, sound, expected)
    wait_for(lambda: "cannot be compacted" in broker.log_text(), "the warning")
    assert victim.read_bytes() == data
    assert put(broker, damaged, [(b"a", b"still here")])
    assert broker.log_text().count("damaged-0 cannot be compacted") == 1
