"""Preferred leader election: on request (ElectLeaders, KIP-183 and KIP-460), and automatic leader rebalancing.

The preferred replica of a partition is its first. Placement spreads first replicas evenly, so the load is even while
each partition is led by its own; after a failure or a restart it is not, until leadership moves back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.changes import Change, partition_changed
from ottla.cluster.elections import LiveBrokers, Terms, counted, settled
from ottla.cluster.image import Image
from ottla.cluster.model import NO_BROKER, PartitionState, TopicImage
from ottla.cluster.requests import ControllerDecision, ElectionKind, PartitionResult, Rules
from ottla.errors import ErrorCode, Refused


def elect_leaders(
    image: Image, kind: ElectionKind, wanted: Sequence[tuple[str, int]] | None, rules: Rules
) -> ControllerDecision[PartitionResult]:
    """Elect leaders of these partitions, each independently, or of all (None). Of all, those that need no election have
    no result."""
    live = LiveBrokers(image.brokers)
    decision: ControllerDecision[PartitionResult] = ControllerDecision([], [])
    everywhere = ((topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions)))
    for name, index in everywhere if wanted is None else dict.fromkeys(wanted):
        try:
            topic = image.topic(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                raise Refused(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
            old = topic.partitions[index]
            if kind is ElectionKind.preferred:
                new = _preferred(old, live)
            else:
                new = _unclean(topic, old, live.of(topic.id, index), rules)
        except Refused as refused:
            if wanted is not None or refused.code is not ErrorCode.election_not_needed:
                decision.results.append(PartitionResult(name, index, refused.code, refused.message))
            continue
        decision.changes.append(partition_changed(topic.id, index, new, old))
        decision.results.append(PartitionResult(name, index))
    return decision


def _preferred(partition: PartitionState, live: LiveBrokers) -> PartitionState:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise Refused(ErrorCode.election_not_needed, "The preferred leader leads already.")
    if not _can_lead(partition, preferred, live):
        raise Refused(
            ErrorCode.preferred_leader_not_available, f"Broker {preferred} is not in sync, not there or about to stop."
        )
    return _led_by_preferred(partition, live)


def _led_by_preferred(partition: PartitionState, live: LiveBrokers) -> PartitionState:
    preferred = partition.replicas[0]
    return counted(partition, partition._replace(leader=preferred, broker_epoch=live.staying[preferred]))


def _can_lead(partition: PartitionState, replica: int, live: LiveBrokers) -> bool:
    known = dict(zip(partition.in_sync, partition.in_sync_epochs, strict=True))
    return partition.leader != NO_BROKER and replica in known and live.staying.get(replica) == known[replica]


def _unclean(topic: TopicImage, partition: PartitionState, live: LiveBrokers, rules: Rules) -> PartitionState:
    if partition.leader != NO_BROKER:
        raise Refused(ErrorCode.election_not_needed, "The partition has a leader.")
    terms = Terms.of(topic, rules)._replace(unclean=True)
    new = settled(partition, live, terms)
    if new.leader == NO_BROKER:
        raise Refused(ErrorCode.eligible_leaders_not_available, "No replica is alive.")
    return new


def balanced(image: Image, imbalance_percent: int) -> list[Change]:
    """Move leadership back to brokers of whose preferred partitions more than so many percent are led by others."""
    live = LiveBrokers(image.brokers)
    strays: dict[int, list[tuple[TopicImage, int]]] = {}
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
            if not old.adding and not old.removing and _can_lead(old, broker, live):
                changes.append(partition_changed(topic.id, index, _led_by_preferred(old, live), old))
    return changes
