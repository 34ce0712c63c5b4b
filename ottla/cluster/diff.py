"""The difference of two images as changes: for subscribers when the change log no longer reaches back far enough."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.cluster import changes as c
from ottla.cluster.image import Image
from ottla.cluster.model import PartitionState, TopicImage


def changes_between(old: Image, new: Image) -> Iterator[c.Change]:
    """Changes that lead from what clients could see in `old` to what they can see in `new`."""
    for broker in old.brokers.values():
        if broker.id not in new.brokers:
            yield c.BrokerGone(broker.id, broker.epoch)
    for broker in new.brokers.values():
        if old.brokers.get(broker.id) != broker:
            yield c.registered(broker)
    if (old.controller_id, old.controller_epoch) != (new.controller_id, new.controller_epoch):
        live = tuple((broker.id, broker.epoch) for broker in new.brokers.values())
        yield c.ControllerChanged(new.controller_id, new.controller_epoch, live)
    for broker_id in (
        *new.broker_configs,
        *(broker_id for broker_id in old.broker_configs if broker_id not in new.broker_configs),
    ):
        configs = new.broker_configs.get(broker_id, {})
        if old.broker_configs.get(broker_id, {}) != configs:
            yield c.BrokerConfigChanged(broker_id, configs)
    for group in (*new.group_configs, *(group for group in old.group_configs if group not in new.group_configs)):
        configs = new.group_configs.get(group, {})
        if old.group_configs.get(group, {}) != configs:
            yield c.GroupConfigChanged(group, configs)
    yield from _deletions(old, new)
    for topic in new.topics.values():
        before = old.topic_by_id(topic.id)
        if before is not topic:
            yield from _topic(before, topic)


def _deletions(old: Image, new: Image) -> Iterator[c.Change]:
    for topic in old.topics.values():
        if topic.id not in new.names:
            tombstone = new.tombstones.get(topic.id)
            yield c.TopicDeleted(topic.id, topic.name, tombstone.replicas if tombstone else ())
    for topic_id, tombstone in new.tombstones.items():
        if topic_id not in old.names and topic_id not in old.tombstones:
            yield c.TopicDeleted(topic_id, tombstone.name, tombstone.replicas)
    for topic_id, tombstone in old.tombstones.items():
        left = new.tombstones.get(topic_id)
        for broker in tombstone.replicas:
            if left is None or broker not in left.replicas:
                yield c.ReplicaDeleted(topic_id, broker)


def _topic(old: TopicImage | None, new: TopicImage) -> Iterator[c.Change]:
    known = () if old is None else old.partitions
    if old is None:
        yield c.TopicCreated(new.id, new.name, tuple(p.replicas for p in new.partitions), new.configs)
    else:
        if len(new.partitions) > len(known):
            added = tuple(p.replicas for p in new.partitions[len(known) :])
            yield c.PartitionsAdded(new.id, len(known), added)
        if old.configs != new.configs:
            yield c.TopicConfigChanged(new.id, new.configs)
    for index, partition in enumerate(new.partitions):
        if partition.initialized and (index >= len(known) or known[index] != partition):
            before = known[index] if index < len(known) else PartitionState(partition.replicas)
            yield c.partition_changed(new.id, index, partition, before)
