"""Cluster snapshots: their differences as lines, and dead brokers."""

from __future__ import annotations

import pytest

from ottla.local.snapshot import (
    NO_BROKER,
    ClusterSnapshot,
    PartitionReplicas,
    differences,
    in_sync_summary,
    without_dead_leaders,
)

ALL = (1, 2, 3)


def snapshot(controller=1, internal=(), **partitions):
    states = {(name, 0): state for name, state in partitions.items()}
    return ClusterSnapshot(controller, ALL, states, frozenset(internal))


BEFORE = PartitionReplicas(1, ALL, ALL)


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (BEFORE, []),
        (PartitionReplicas(2, ALL, (2, 3)), ["orders-0: leader is broker 2 (was 1), in sync: 2, 3"]),
        (PartitionReplicas(NO_BROKER, ALL, (1,)), ["orders-0: no leader (was 1), in sync: 1"]),
        (PartitionReplicas(1, ALL, (1, 2)), ["orders-0: in sync: 1, 2"]),
        (PartitionReplicas(1, (1, 2, 4), (1, 2, 4)), ["orders-0: replicas on 1, 2, 4, in sync: 1, 2, 4"]),
        (PartitionReplicas(1, ALL, (3, 2, 1)), []),
    ],
)
def test_the_changes_of_a_partition_are_one_line(after, lines):
    assert list(differences(snapshot(orders=BEFORE), snapshot(orders=after))) == lines


def test_new_topics_and_controllers_are_reported():
    assert list(differences(snapshot(1), snapshot(2, orders=BEFORE))) == [
        "broker 2 is the controller",
        "topic orders was created",
    ]
    assert list(differences(snapshot(1, orders=BEFORE), snapshot(NO_BROKER))) == ["topic orders was deleted"]


def test_partitions_of_internal_topics_are_not_reported():
    after = snapshot(internal=["offsets"], offsets=PartitionReplicas(2, ALL, (2,)))
    assert list(differences(snapshot(internal=["offsets"], offsets=BEFORE), after)) == []


def test_a_dead_broker_is_neither_leader_nor_controller():
    partitions = {
        ("orders", 0): PartitionReplicas(2, (1, 2, 3), (1, 2, 3)),
        ("orders", 1): PartitionReplicas(1, (1,), (1,)),
    }
    snapshot = ClusterSnapshot(2, (1, 2, 3), partitions)
    seen = without_dead_leaders(snapshot, [1, 3])
    assert (seen.controller, seen.partitions["orders", 0].leader, seen.partitions["orders", 1].leader) == (
        NO_BROKER,
        NO_BROKER,
        1,
    )
    assert seen.partitions["orders", 0].in_sync == (1, 2, 3), "it stays in sync until the controller takes it out"
    assert without_dead_leaders(snapshot, [1, 2, 3]) == snapshot


def test_partitions_of_a_topic_are_summed_up_in_one_line():
    partitions = [("offsets", 1, ALL, ALL), ("offsets", 2, ALL, (2,)), ("offsets", NO_BROKER, ALL, ALL)]
    assert in_sync_summary(partitions) == ["offsets: 3 partitions, 1 of them fully in sync"]
