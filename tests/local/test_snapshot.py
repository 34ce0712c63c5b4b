"""What happened between two looks at a cluster, in words."""

from __future__ import annotations

import pytest

from ottla.local.snapshot import NOBODY, ClusterSnapshot, Replicas, differences

ALL = (1, 2, 3)


def snapshot(controller=1, internal=(), **partitions):
    states = {(name, 0): state for name, state in partitions.items()}
    return ClusterSnapshot(controller, ALL, states, frozenset(internal))


BEFORE = Replicas(1, ALL, ALL)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (BEFORE, []),
        (Replicas(2, ALL, (2, 3)), ["orders-0: broker 2 leads (was 1), in sync 2, 3"]),
        (Replicas(NOBODY, ALL, (1,)), ["orders-0: nobody leads (was 1), in sync 1"]),
        (Replicas(1, ALL, (1, 2)), ["orders-0: in sync 1, 2"]),
        (Replicas(1, (1, 2, 4), (1, 2, 4)), ["orders-0: kept on 1, 2, 4, in sync 1, 2, 4"]),
        (Replicas(1, ALL, (3, 2, 1)), []),
    ],
)
def test_a_partition_that_changed_is_told_in_one_line(after, told):
    assert list(differences(snapshot(orders=BEFORE), snapshot(orders=after))) == told


def test_topics_and_controllers_come_and_go():
    assert list(differences(snapshot(1), snapshot(2, orders=BEFORE))) == [
        "broker 2 is the controller",
        "topic orders was created",
    ]
    assert list(differences(snapshot(1, orders=BEFORE), snapshot(NOBODY))) == ["topic orders was deleted"]


def test_partitions_of_internal_topics_are_passed_over():
    after = snapshot(internal=["offsets"], offsets=Replicas(2, ALL, (2,)))
    assert list(differences(snapshot(internal=["offsets"], offsets=BEFORE), after)) == []
