"""Replica placement: which brokers get the replicas of new partitions, spread evenly and over racks. Deterministic.

As in Apache Kafka: the leaders of successive partitions go round the brokers, and the followers start one broker
further each time round, so that all others take over the load of a lost broker. Where every broker has a rack, brokers
of different racks alternate, and a rack gets a second replica of a partition only when each has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from ottla.cluster.model import BrokerRegistration


def assign_replicas(
    brokers: Iterable[BrokerRegistration],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """The replicas of `partitions` new partitions, preferred leader first. `start`: the first broker."""
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


def start_after(brokers: Iterable[BrokerRegistration], replicas: Sequence[int]) -> int:
    """The `start` of a topic whose first partition is on `replicas`, so that new partitions continue its placement."""
    ring = [broker.id for broker in _ring(brokers)]
    return ring.index(replicas[0]) if replicas[0] in ring else 0


def _ring(brokers: Iterable[BrokerRegistration]) -> list[BrokerRegistration]:
    """Brokers in the order of use: by id; where all have a rack, alternating between racks."""
    ordered = sorted(brokers)
    by_rack: dict[str, list[BrokerRegistration]] = {}
    for broker in ordered:
        if broker.rack is None:
            return [each._replace(rack=None) for each in ordered]
        by_rack.setdefault(broker.rack, []).append(broker)
    tiers = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for tier in tiers for broker in tier if broker is not None]


def _followers(ring: Sequence[BrokerRegistration], lead: int, *, shift: int) -> list[BrokerRegistration]:
    """All others, in the order in which they become followers."""
    others = len(ring) - 1
    return [ring[(lead + 1 + (shift + i) % others) % len(ring)] for i in range(others)]


def _rest(ring: Sequence[BrokerRegistration], lead: int, replicas: Sequence[int], replication_factor: int) -> list[int]:
    """Racks of uneven size: brokers that were passed over because their rack was used before all others."""
    if len(replicas) == replication_factor:
        return []
    left = [broker.id for broker in _followers(ring, lead, shift=0) if broker.id not in replicas]
    return left[: replication_factor - len(replicas)]
