"""Partitions move between brokers while producers and consumers notice nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from kafka import TopicPartition as Tp
from kafka.admin import KafkaAdminClient

from ottla.local.waiting import wait_for
from tests.harness.cluster import Brokers, produce, read
from tests.interop.clients import kafka_python_admin


@pytest.fixture
def mover(brokers: Brokers) -> Iterator[KafkaAdminClient]:
    with kafka_python_admin(brokers.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(brokers: Brokers, fresh_name: Callable[[], str]) -> str:
    """A topic with one replica."""
    name = fresh_name()
    brokers.admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
    return name


def settle(brokers: Brokers, topic: str, replicas: list[int]) -> None:
    wait_for(
        lambda: (
            sorted(brokers.partition(topic).replicas) == sorted(replicas)
            and sorted(brokers.partition(topic).isrs) == sorted(replicas)
            and brokers.partition(topic).leader in replicas
        ),
        f"{topic} on {replicas}",
        40,
    )


def test_a_reassigned_partition_keeps_its_records_and_its_old_files_are_deleted(brokers, mover, topic):
    there = brokers.leader(topic)
    values = [str(n) for n in range(1000)]
    produce(brokers.bootstrap, topic, *values[:500])
    target = [number for number in (1, 2, 3) if number != there]
    assert mover.alter_partition_reassignments({Tp(topic, 0): target}) == {Tp(topic, 0): None}
    assert [type(each) for each in produce(brokers.bootstrap, topic, *values[500:])] == [int] * 500
    settle(brokers, topic, target)
    assert read(brokers.bootstrap, topic, 1000) == values
    wait_for(lambda: not (brokers[there].data / f"{topic}-0").exists(), "the old replica's files to go")
    assert not mover.list_partition_reassignments()


def test_the_replication_factor_is_raised_and_lowered(brokers, mover, topic):
    there = brokers.leader(topic)
    produce(brokers.bootstrap, topic, "a", "b")
    mover.alter_partition_reassignments({Tp(topic, 0): [there, *(n for n in (1, 2, 3) if n != there)]})
    settle(brokers, topic, [1, 2, 3])
    brokers[there].kill()
    assert produce(brokers.bootstrap, topic, "c") == [2]
    assert read(brokers.bootstrap, topic, 3) == ["a", "b", "c"]


def test_a_throttled_reassignment_does_not_slow_down_producers(brokers, mover, topic):
    there = brokers.leader(topic)
    produce(brokers.bootstrap, topic, *("x" * 10_000 for _ in range(400)))
    target = next(number for number in (1, 2, 3) if number != there)
    set_configs(brokers, ResourceType.TOPIC, topic, {"follower.replication.throttled.replicas": f"0:{target}"})
    set_configs(brokers, ResourceType.BROKER, str(target), {"follower.replication.throttled.rate": "1000000"})
    began = time.monotonic()
    mover.alter_partition_reassignments({Tp(topic, 0): [target]})
    assert produce(brokers.bootstrap, topic, "y") == [400]
    assert mover.list_partition_reassignments()
    settle(brokers, topic, [target])
    assert time.monotonic() - began > 2  # four megabytes at one a second


def test_a_reassignment_throttled_at_the_leader(brokers, mover, topic):
    there = brokers.leader(topic)
    produce(brokers.bootstrap, topic, *("x" * 10_000 for _ in range(400)))
    target = next(number for number in (1, 2, 3) if number != there)
    set_configs(brokers, ResourceType.TOPIC, topic, {"leader.replication.throttled.replicas": "*"})
    set_configs(brokers, ResourceType.BROKER, str(there), {"leader.replication.throttled.rate": "1000000"})
    began = time.monotonic()
    mover.alter_partition_reassignments({Tp(topic, 0): [target]})
    settle(brokers, topic, [target])
    assert time.monotonic() - began > 2


def set_configs(brokers: Brokers, kind: ResourceType, name: str, configs: dict[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in brokers.admin.incremental_alter_configs([resource]).values():
        future.result(10)
