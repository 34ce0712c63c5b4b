"""Partitions move between brokers while producers and consumers notice nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

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


def single(brokers: Brokers, name: str = "t") -> int:
    """A topic with one replica; the broker that has it."""
    brokers.admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
    return brokers.leader(name)


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


def test_a_reassigned_partition_keeps_its_records_and_its_old_files_are_deleted(brokers, mover):
    there = single(brokers)
    values = [str(n) for n in range(1000)]
    produce(brokers.bootstrap, "t", *values[:500])
    target = [number for number in (1, 2, 3) if number != there]
    assert mover.alter_partition_reassignments({Tp("t", 0): target}) == {Tp("t", 0): None}
    assert [type(each) for each in produce(brokers.bootstrap, "t", *values[500:])] == [int] * 500
    settle(brokers, "t", target)
    assert read(brokers.bootstrap, "t", 1000) == values
    wait_for(lambda: not (brokers[there].data / "t-0").exists(), "the old replica's files to go")
    assert not mover.list_partition_reassignments()


def test_the_replication_factor_is_raised_and_lowered(brokers, mover):
    there = single(brokers)
    produce(brokers.bootstrap, "t", "a", "b")
    mover.alter_partition_reassignments({Tp("t", 0): [there, *(n for n in (1, 2, 3) if n != there)]})
    settle(brokers, "t", [1, 2, 3])
    brokers[there].kill()
    assert produce(brokers.bootstrap, "t", "c") == [2]
    assert read(brokers.bootstrap, "t", 3) == ["a", "b", "c"]


def test_a_throttled_reassignment_does_not_slow_down_producers(brokers, mover):
    there = single(brokers)
    produce(brokers.bootstrap, "t", *("x" * 10_000 for _ in range(400)))
    target = next(number for number in (1, 2, 3) if number != there)
    set_configs(brokers, ResourceType.TOPIC, "t", {"follower.replication.throttled.replicas": f"0:{target}"})
    set_configs(brokers, ResourceType.BROKER, str(target), {"follower.replication.throttled.rate": "1000000"})
    began = time.monotonic()
    mover.alter_partition_reassignments({Tp("t", 0): [target]})
    assert produce(brokers.bootstrap, "t", "y") == [400]
    assert mover.list_partition_reassignments()
    settle(brokers, "t", [target])
    assert time.monotonic() - began > 2  # four megabytes at one a second


def test_a_reassignment_throttled_at_the_leader(brokers, mover):
    there = single(brokers)
    produce(brokers.bootstrap, "t", *("x" * 10_000 for _ in range(400)))
    target = next(number for number in (1, 2, 3) if number != there)
    set_configs(brokers, ResourceType.TOPIC, "t", {"leader.replication.throttled.replicas": "*"})
    set_configs(brokers, ResourceType.BROKER, str(there), {"leader.replication.throttled.rate": "1000000"})
    began = time.monotonic()
    mover.alter_partition_reassignments({Tp("t", 0): [target]})
    settle(brokers, "t", [target])
    assert time.monotonic() - began > 2


def set_configs(brokers: Brokers, kind: ResourceType, name: str, configs: dict[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in brokers.admin.incremental_alter_configs([resource]).values():
        future.result(10)
