"""Who leads a partition, given who is alive.

One function says what a partition's state should be; whatever differs from it is work to do. So a broker that
registers, a broker that is lost and a controller that takes over in the middle of something are all the same case, and
nothing about them has to be remembered anywhere but in the image.

    not led yet                                -> the first live replica leads, all live replicas are in sync
    leader alive since it was elected          -> it goes on; replicas that are gone leave the in-sync set
    leader gone, or registered again since     -> an in-sync replica that is alive leads, leader_epoch + 1
    no in-sync replica alive                   -> nobody leads, leader_epoch + 1; the in-sync set waits unchanged

A leader that has registered again may have lost the end of its log with its memory, so another in-sync replica comes
first; where there is none, it leads again under a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.cluster.changes import Change, PartitionsErased, TopicErased, partition_changed
from ottla.cluster.image import Image
from ottla.cluster.model import NO_BROKER, NO_EPOCH, Broker, Partition, Topic
from ottla.cluster.persist import ERASED_PARTITIONS_MAX


def settled(partition: Partition, brokers: Mapping[int, Broker]) -> Partition:
    """The partition as it should be; the very same object when there is nothing to do."""
    if not partition.has_state:
        return _first_state(partition, brokers)
    in_sync = tuple(replica for replica in partition.in_sync if replica in brokers)
    leader = brokers.get(partition.leader)
    if leader is not None and leader.epoch == partition.broker_epoch:
        if in_sync == partition.in_sync:
            return partition
        return partition._replace(in_sync=in_sync, partition_epoch=partition.partition_epoch + 1)
    if not in_sync:
        if partition.leader == NO_BROKER:
            return partition
        return _led(partition, NO_BROKER, NO_EPOCH, partition.in_sync)
    able = [replica for replica in partition.replicas if replica in in_sync]
    chosen = next((replica for replica in able if replica != partition.leader), able[0])
    return _led(partition, chosen, brokers[chosen].epoch, in_sync)


def _first_state(partition: Partition, brokers: Mapping[int, Broker]) -> Partition:
    alive = tuple(replica for replica in partition.replicas if replica in brokers)
    return _led(partition, alive[0], brokers[alive[0]].epoch, alive) if alive else partition


def _led(partition: Partition, leader: int, broker_epoch: int, in_sync: tuple[int, ...]) -> Partition:
    return partition._replace(
        leader=leader,
        broker_epoch=broker_epoch,
        in_sync=in_sync,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def unfinished(image: Image) -> Iterator[Change]:
    """All that a controller has to do now, whoever left it: partitions to be led, deleted topics to be erased."""
    for topic in image.topics.values():
        yield from elections(topic, image.brokers)
    for topic in image.deleting.values():
        yield from erasure(topic)


def elections(topic: Topic, brokers: Mapping[int, Broker], first: int = 0) -> Iterator[Change]:
    for index in range(first, len(topic.partitions)):
        partition = topic.partitions[index]
        if (new := settled(partition, brokers)) is not partition:
            yield partition_changed(topic.id, index, new)


def erasure(topic: Topic) -> Iterator[Change]:
    """Take a deleted topic out of the store, its partitions before itself."""
    for first in range(0, len(topic.partitions), ERASED_PARTITIONS_MAX):
        stop = min(first + ERASED_PARTITIONS_MAX, len(topic.partitions))
        if any(partition.has_state for partition in topic.partitions[first:stop]):
            yield PartitionsErased(topic.id, first, stop)
    yield TopicErased(topic.id)
