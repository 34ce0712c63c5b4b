"""Replica placement of `ottla reassign plan`."""

from __future__ import annotations

import pytest

from ottla.cli.spreading import spread
from ottla.client.values import TopicPartition


def test_replicas_are_spread_evenly_with_few_moves():
    now = {TopicPartition("t", n): (1, 2) for n in range(6)}
    moves = spread(now, [1, 2, 3], None)
    held = [broker for replicas in moves.values() for broker in replicas]
    assert [held.count(broker) for broker in (1, 2, 3)] == [4, 4, 4]
    assert [[replicas[0] for replicas in moves.values()].count(broker) for broker in (1, 2, 3)] == [2, 2, 2]
    assert all(len(set(replicas)) == 2 for replicas in moves.values())
    stayed = sum(broker in (1, 2) for broker in held)
    assert stayed == 8, "only what has to move is moved"
    assert spread(moves, [1, 2, 3], None) == moves
    assert all(set(replicas) == {2, 3} for replicas in spread(now, [2, 3], None).values())
    with pytest.raises(ValueError, match="3 replicas need as many brokers"):
        spread(now, [1, 2], 3)
