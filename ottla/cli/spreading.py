"""Partitions spread evenly over brokers, with as few moves as that takes; pure.

What is there stays. Then replicas leave the broker that has most for the one that has fewest, one by one, until no two
brokers differ by more than one; there is always one to move, because the first has partitions that the other has not.
The same is done with leaders, among the replicas of each partition, as far as that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ottla.client.values import TopicPartition

Moves = dict[TopicPartition, list[int]]


def spread(now: Mapping[TopicPartition, Sequence[int]], brokers: Sequence[int], copies: int | None) -> Moves:
    """Replicas for each partition, the preferred leader first. ValueError: there are too few brokers."""
    moves: Moves = {}
    held = _Counts(brokers)
    for place, replicas in now.items():
        count = copies or len(replicas)
        if count > len(brokers):
            raise ValueError(f"{place}: {count} replicas need as many brokers; there are {len(brokers)}")
        moves[place] = [broker for broker in replicas if broker in brokers][:count]
        held.add(moves[place])
    for place, replicas in now.items():
        while len(moves[place]) < (copies or len(replicas)):
            added = held.fewest(lambda broker, place=place: broker not in moves[place])  # type: ignore[misc]
            moves[place].append(added)
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
