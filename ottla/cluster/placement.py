"""Which brokers hold a new partition: evenly, leaders too, and over different racks. Nothing here is left to chance.

The same spread as Apache Kafka's: the leaders of successive partitions go round the brokers, and the followers of a
partition start a little further each time round, so that the load of a lost broker is taken over by all others and not
by its neighbour. Where every broker names its rack, brokers are taken rack by rack, and a rack is used twice only when
each has been used once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from ottla.cluster.model import Broker


def place(
    brokers: Iterable[Broker],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """The replicas of `partitions` new partitions, leader first. `start` says with which broker to begin."""
    ring = _ring(brokers)
    assert 0 < replication_factor <= len(ring)
    racks = {broker.id: broker.rack for broker in ring}
    rack_count = len(set(racks.values()))
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        lead = (start + partition) % len(ring)
        replicas = [ring[lead].id]
        used = {ring[lead].rack}
        for broker in _followers(ring, lead, shift=start + partition // len(ring)):
            if len(replicas) == replication_factor:
                break
            if broker.rack not in used or len(used) == rack_count:
                replicas.append(broker.id)
                used.add(broker.rack)
        replicas += _rest(ring, lead, replicas, replication_factor)
        placed.append(tuple(replicas))
    return placed


def start_after(brokers: Iterable[Broker], replicas: Sequence[int]) -> int:
    """The `start` with which a topic whose first partition lies on `replicas` was placed, so it grows as it began."""
    ring = [broker.id for broker in _ring(brokers)]
    return ring.index(replicas[0]) if replicas[0] in ring else 0


def _ring(brokers: Iterable[Broker]) -> list[Broker]:
    """Brokers in the order they are used: by id, or taking one of each rack in turn where all have a rack."""
    ordered = sorted(brokers)
    by_rack: dict[str, list[Broker]] = {}
    for broker in ordered:
        if broker.rack is None:
            return [each._replace(rack=None) for each in ordered]
        by_rack.setdefault(broker.rack, []).append(broker)
    turns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for turn in turns for broker in turn if broker is not None]


def _followers(ring: Sequence[Broker], lead: int, *, shift: int) -> list[Broker]:
    """All others, in the order in which they are asked to follow."""
    others = len(ring) - 1
    return [ring[(lead + 1 + (shift + i) % others) % len(ring)] for i in range(others)]


def _rest(ring: Sequence[Broker], lead: int, replicas: Sequence[int], replication_factor: int) -> list[int]:
    """When racks are of uneven size, those passed over because their rack was used before all had been."""
    if len(replicas) == replication_factor:
        return []
    left = [broker.id for broker in _followers(ring, lead, shift=0) if broker.id not in replicas]
    return left[: replication_factor - len(replicas)]
