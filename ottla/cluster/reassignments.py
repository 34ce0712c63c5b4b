"""Partition reassignment (KIP-455): replicas move from broker to broker while clients continue.

During a reassignment a partition has its old and its new replicas: `replicas` are all of them (the new ones first),
`adding` and `removing` say which change. The new ones fetch like any follower. When all of them are in sync the
controller removes the old ones (`elections.reassigned`). That is decided from the image alone, so a new controller
continues it. A request replaces an earlier one for the same partition; None cancels it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ottla.cluster.changes import partition_changed
from ottla.cluster.elections import LiveBrokers, Terms, counted, due
from ottla.cluster.image import Image
from ottla.cluster.model import NO_BROKER, PartitionState
from ottla.cluster.requests import ControllerDecision, PartitionResult, Reassignment, Rules
from ottla.errors import ErrorCode, Refused


def alter_reassignments(
    image: Image, wanted: Sequence[Reassignment], rules: Rules, *, factor_may_change: bool = True
) -> ControllerDecision[PartitionResult]:
    """Begin, replace or cancel reassignments, each independently."""
    all_live = LiveBrokers(image.brokers)
    decision: ControllerDecision[PartitionResult] = ControllerDecision([], [])
    times = Counter((each.topic, each.partition) for each in wanted)
    for each in wanted:
        try:
            if times[each.topic, each.partition] > 1:
                raise Refused(ErrorCode.invalid_request, "The partition is named more than once.")
            topic = image.topic(each.topic)
            if topic is None or not 0 <= each.partition < len(topic.partitions):
                raise Refused(
                    ErrorCode.unknown_topic_or_partition,
                    f"Unable to find a topic-partition {each.topic}-{each.partition}.",
                )
            old = topic.partitions[each.partition]
            live = all_live.of(topic.id, each.partition)
            terms = Terms.of(topic, rules)
            if each.replicas is None:
                new = _cancelled(old, live, terms)
            else:
                _check(old, tuple(each.replicas), live, factor_may_change)
                new = _started(old, tuple(each.replicas), live, terms)
        except Refused as refused:
            decision.results.append(PartitionResult(each.topic, each.partition, refused.code, refused.message))
            continue
        if new is not old:
            decision.changes.append(partition_changed(topic.id, each.partition, new, old))
        decision.results.append(PartitionResult(each.topic, each.partition))
    return decision


def _original(partition: PartitionState) -> tuple[int, ...]:
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def _check(partition: PartitionState, replicas: tuple[int, ...], live: LiveBrokers, factor_may_change: bool) -> None:
    original = _original(partition)
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        problem = "The manual partition assignment includes a broker more than once."
    elif unknown := [r for r in replicas if r not in live.brokers and r not in original]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    elif not factor_may_change and len(replicas) != len(original):
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(original)} to {len(replicas)}.",
        )
    else:
        return
    raise Refused(ErrorCode.invalid_replica_assignment, problem)


def _started(partition: PartitionState, target: tuple[int, ...], live: LiveBrokers, terms: Terms) -> PartitionState:
    original = _original(partition)
    if not partition.initialized:  # it has no records yet
        new = due(partition._replace(replicas=target), live, terms)
        if new.leader == NO_BROKER:
            raise Refused(ErrorCode.invalid_replica_assignment, "None of the replicas is there to lead the partition.")
        return counted(partition, new)
    removing = tuple(replica for replica in original if replica not in target)
    moving = partition._replace(
        replicas=(*target, *removing),
        adding=tuple(replica for replica in target if replica not in original),
        removing=removing,
    )
    return _moved(partition, moving, live, terms)


def _cancelled(partition: PartitionState, live: LiveBrokers, terms: Terms) -> PartitionState:
    if not partition.adding and not partition.removing:
        raise Refused(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    return _moved(partition, partition._replace(replicas=_original(partition), adding=(), removing=()), live, terms)


def _moved(old: PartitionState, moving: PartitionState, live: LiveBrokers, terms: Terms) -> PartitionState:
    """With the new assignment; replicas that are not in it leave ISR and ELR."""
    in_sync, in_sync_epochs = _kept(old.in_sync, old.in_sync_epochs, moving.replicas)
    eligible, eligible_epochs = _kept(old.eligible, old.eligible_epochs, moving.replicas)
    if old.in_sync and not in_sync and not terms.unclean:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            "Only replicas that would be dropped are in sync: this would require an unclean leader election.",
        )
    new = moving._replace(
        in_sync=in_sync, in_sync_epochs=in_sync_epochs, eligible=eligible, eligible_epochs=eligible_epochs
    )
    return counted(old, due(new, live, terms))


def _kept(replicas: Iterable[int], epochs: Iterable[int], of: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pairs = [(replica, epoch) for replica, epoch in zip(replicas, epochs, strict=True) if replica in of]
    return tuple(replica for replica, _ in pairs), tuple(epoch for _, epoch in pairs)


def in_progress(image: Image, wanted: Iterable[tuple[str, int]] | None = None) -> list[tuple[str, int, PartitionState]]:
    """The reassignments in progress, of these partitions or of all."""
    if wanted is None:
        wanted = ((topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions)))
    found = []
    for name, index in wanted:
        partition = image.partition(name, index)
        if partition is not None and (partition.adding or partition.removing):
            found.append((name, index, partition))
    return found
