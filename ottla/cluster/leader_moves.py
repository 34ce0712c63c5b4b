"""Leadership that moves though nobody has failed: on request (ElectLeaders, KIP-183 and KIP-460), and by itself, back
to the preferred replicas, when too much of it lies elsewhere.

The preferred replica of a partition is its first. Placement spreads first replicas evenly, so when all partitions are
led by theirs the load is even too; after a failure or a restart it is not, until leadership moves back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.changes import Change, partition_changed
from ottla.cluster.elections import Census, Terms, counted, settled
from ottla.cluster.image import Image
from ottla.cluster.model import NO_BROKER, Partition, Topic
from ottla.cluster.requests import Decision, ElectionKind, PartitionResult, Rules
from ottla.errors import ErrorCode, Refused


def elect_leaders(
    image: Image, kind: ElectionKind, wanted: Sequence[tuple[str, int]] | None, rules: Rules
) -> Decision[PartitionResult]:
    """Elect leaders of these partitions, or of all (None), each for itself. Of all, those that need no election are
    not mentioned."""
    census = Census(image.brokers)
    decision: Decision[PartitionResult] = Decision([], [])
    everywhere = ((topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions)))
    for name, index in everywhere if wanted is None else dict.fromkeys(wanted):
        try:
            topic = image.topic(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                raise Refused(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
            old = topic.partitions[index]
            if kind is ElectionKind.preferred:
                new = _preferred(old, census)
            else:
                new = _unclean(topic, old, census.of(topic.id, index), rules)
        except Refused as refused:
            if wanted is not None or refused.code is not ErrorCode.election_not_needed:
                decision.results.append(PartitionResult(name, index, refused.code, refused.message))
            continue
        decision.changes.append(partition_changed(topic.id, index, new, old))
        decision.results.append(PartitionResult(name, index))
    return decision


def _preferred(partition: Partition, census: Census) -> Partition:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise Refused(ErrorCode.election_not_needed, "The preferred leader leads already.")
    if not _can_lead(partition, preferred, census):
        raise Refused(
            ErrorCode.preferred_leader_not_available, f"Broker {preferred} is not in sync, not there or about to stop."
        )
    return _led_by_preferred(partition, census)


def _led_by_preferred(partition: Partition, census: Census) -> Partition:
    preferred = partition.replicas[0]
    return counted(partition, partition._replace(leader=preferred, broker_epoch=census.staying[preferred]))


def _can_lead(partition: Partition, replica: int, census: Census) -> bool:
    known = dict(zip(partition.in_sync, partition.in_sync_epochs, strict=True))
    return partition.leader != NO_BROKER and replica in known and census.staying.get(replica) == known[replica]


def _unclean(topic: Topic, partition: Partition, census: Census, rules: Rules) -> Partition:
    if partition.leader != NO_BROKER:
        raise Refused(ErrorCode.election_not_needed, "The partition has a leader.")
    terms = Terms.of(topic, rules)._replace(unclean=True)
    new = settled(partition, census, terms)
    if new.leader == NO_BROKER:
        raise Refused(ErrorCode.eligible_leaders_not_available, "No replica is alive.")
    return new


def balanced(image: Image, imbalance_percent: int) -> list[Change]:
    """Give leadership back to brokers of whose preferred partitions more than so many percent are led by others."""
    census = Census(image.brokers)
    strays: dict[int, list[tuple[Topic, int]]] = {}
    preferred: dict[int, int] = {}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            broker = partition.replicas[0]
            preferred[broker] = preferred.get(broker, 0) + 1
            if partition.leader != broker:
                strays.setdefault(broker, []).append((topic, index))
    changes: list[Change] = []
    for broker, moved in strays.items():
        if 100 * len(moved) <= imbalance_percent * preferred[broker]:
            continue
        for topic, index in moved:
            old = topic.partitions[index]
            if not old.adding and not old.removing and _can_lead(old, broker, census):
                changes.append(partition_changed(topic.id, index, _led_by_preferred(old, census), old))
    return changes
