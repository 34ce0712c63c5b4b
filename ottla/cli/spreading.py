"""Replica placement for `ottla reassign plan`: even over brokers, with few moves. Pure.

Replicas stay where they are. Then one replica after the other moves from the broker with the most to the broker with
the fewest, until no two brokers differ by more than one; one can always move, because the first broker has partitions
that the other lacks. Preferred leaders are levelled the same way, among the replicas of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ottla.client.values import TopicPartition

Moves = dict[TopicPartition, list[int]]


def spread(now: Mapping[TopicPartition, Sequence[int]], brokers: Sequence[int], copies: int | None) -> Moves:
    """Replicas for each partition, the preferred leader first. ValueError: there are too few brokers."""
    moves: Moves = {}
    held = _Counts(brokers)
    for tp, replicas in now.items():
        count = copies or len(replicas)
        if count > len(brokers):
            raise ValueError(f"{tp}: {count} replicas need as many brokers; there are {len(brokers)}")
        moves[tp] = [broker for broker in replicas if broker in brokers][:count]
        held.add(moves[tp])
    for tp, replicas in now.items():
        while len(moves[tp]) < (copies or len(replicas)):
            added = held.fewest(lambda broker, tp=tp: broker not in moves[tp])  # type: ignore[misc]
            moves[tp].append(added)
            held.add([added])
    _level_replicas(moves, held)
    _level_leaders(moves, brokers)
    return moves


class _Counts:
    def __init__(self, brokers: Sequence[int]) -> None:
        self.of = dict.fromkeys(brokers, 0)

    def add(self, brokers: Sequence[int], by: int = 1) -> None:
        for broker in brokers:
            self.of[broker] += by

    def fewest(self, fits: Callable[[int], bool] = lambda _: True) -> int:
        return min(filter(fits, self.of), key=lambda broker: (self.of[broker], broker))

    def most(self) -> int:
        return max(self.of, key=lambda broker: (self.of[broker], -broker))


def _level_replicas(moves: Moves, held: _Counts) -> None:
    while held.of[most := held.most()] - held.of[fewest := held.fewest()] > 1:
        replicas = next(each for each in moves.values() if most in each and fewest not in each)
        replicas[replicas.index(most)] = fewest
        held.add([most], -1)
        held.add([fewest])


def _level_leaders(moves: Moves, brokers: Sequence[int]) -> None:
    led = _Counts(brokers)
    led.add([replicas[0] for replicas in moves.values()])
    while True:
        swap = _better_leader(moves, led)
        if swap is None:
            return
        replicas, leader = swap
        led.add([replicas[0]], -1)
        led.add([leader])
        replicas.remove(leader)
        replicas.insert(0, leader)


def _better_leader(moves: Moves, led: _Counts) -> tuple[list[int], int] | None:
    """A partition whose leader leads two more than another of its replicas."""
    for replicas in moves.values():
        idle = min(replicas, key=lambda broker: (led.of[broker], broker))
        if led.of[replicas[0]] - led.of[idle] > 1:
            return replicas, idle
    return None
