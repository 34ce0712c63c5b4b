"""Moving replicas from broker to broker while everybody goes on (KIP-455).

A partition that is to move has, for a while, the replicas it had and those it shall have: `replicas` are all of them
(those to be first), `adding` and `removing` say which. The new ones fetch like any follower. When all of them are in
sync the controller drops the rest (`elections.reassigned`): that is decided from the image alone, so a controller that
takes over in between has nothing to ask. What a call says replaces what an earlier one said; None calls it off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ottla.cluster.changes import partition_changed
from ottla.cluster.elections import Census, Terms, counted, due
from ottla.cluster.image import Image
from ottla.cluster.model import NO_BROKER, Partition
from ottla.cluster.requests import Decision, PartitionResult, Reassignment, Rules
from ottla.errors import ErrorCode, Refused


def alter_reassignments(
    image: Image, wanted: Sequence[Reassignment], rules: Rules, *, factor_may_change: bool = True
) -> Decision[PartitionResult]:
    """Begin, replace or call off reassignments, each for itself."""
    everybody = Census(image.brokers)
    decision: Decision[PartitionResult] = Decision([], [])
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
            census = everybody.of(topic.id, each.partition)
            terms = Terms.of(topic, rules)
            if each.replicas is None:
                new = _called_off(old, census, terms)
            else:
                _check(old, tuple(each.replicas), census, factor_may_change)
                new = _begun(old, tuple(each.replicas), census, terms)
        except Refused as refused:
            decision.results.append(PartitionResult(each.topic, each.partition, refused.code, refused.message))
            continue
        if new is not old:
            decision.changes.append(partition_changed(topic.id, each.partition, new, old))
        decision.results.append(PartitionResult(each.topic, each.partition))
    return decision


def _original(partition: Partition) -> tuple[int, ...]:
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def _check(partition: Partition, replicas: tuple[int, ...], census: Census, factor_may_change: bool) -> None:
    original = _original(partition)
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        problem = "The manual partition assignment includes a broker more than once."
    elif strangers := [r for r in replicas if r not in census.brokers and r not in original]:
        problem = f"The manual partition assignment includes broker {strangers[0]}, but no such broker is registered."
    elif not factor_may_change and len(replicas) != len(original):
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(original)} to {len(replicas)}.",
        )
    else:
        return
    raise Refused(ErrorCode.invalid_replica_assignment, problem)


def _begun(partition: Partition, target: tuple[int, ...], census: Census, terms: Terms) -> Partition:
    original = _original(partition)
    if not partition.has_state:  # no records yet that would have to move
        new = due(partition._replace(replicas=target), census, terms)
        if new.leader == NO_BROKER:
            raise Refused(ErrorCode.invalid_replica_assignment, "None of the replicas is there to lead the partition.")
        return counted(partition, new)
    removing = tuple(replica for replica in original if replica not in target)
    moving = partition._replace(
        replicas=(*target, *removing),
        adding=tuple(replica for replica in target if replica not in original),
        removing=removing,
    )
    return _moved(partition, moving, census, terms)


def _called_off(partition: Partition, census: Census, terms: Terms) -> Partition:
    if not partition.adding and not partition.removing:
        raise Refused(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    return _moved(partition, partition._replace(replicas=_original(partition), adding=(), removing=()), census, terms)


def _moved(old: Partition, moving: Partition, census: Census, terms: Terms) -> Partition:
    """With the new assignment; whoever is no longer in it leaves the sets."""
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
    return counted(old, due(new, census, terms))


def _kept(replicas: Iterable[int], epochs: Iterable[int], of: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pairs = [(replica, epoch) for replica, epoch in zip(replicas, epochs, strict=True) if replica in of]
    return tuple(replica for replica, _ in pairs), tuple(epoch for _, epoch in pairs)


def under_way(image: Image, wanted: Iterable[tuple[str, int]] | None = None) -> list[tuple[str, int, Partition]]:
    """Partitions that are moving, of these or of all."""
    if wanted is None:
        wanted = ((topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions)))
    found = []
    for name, index in wanted:
        partition = image.partition(name, index)
        if partition is not None and (partition.adding or partition.removing):
            found.append((name, index, partition))
    return found
