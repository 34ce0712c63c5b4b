"""Changes as store operations: what to write to the nodes of the store for each change.

A list of changes is split into steps of one commit each. Every step has whole changes, so each leaves a valid image (a
topic whose partitions do not all have leaders yet, a deleted one that is partly removed), and the next controller finds
in the image what is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ottla.cluster import changes as c
from ottla.cluster import layout
from ottla.cluster.image import Draft, Image
from ottla.cluster.model import PartitionState, Tombstone, TopicImage
from ottla.cluster.store import ANY_VERSION, COMMIT_BYTES_MAX, COMMIT_OPS_MAX, Create, Delete, Op, Set

STEP_OPS_MAX: Final = COMMIT_OPS_MAX - 10
"""Leaves space for the fence, the change node and a registration."""
STEP_BYTES_MAX: Final = COMMIT_BYTES_MAX // 3
"""The data of a step is written twice, in its nodes and in its change node; a single change may be larger."""
REMOVED_PARTITIONS_MAX: Final = STEP_OPS_MAX // 2


class Step(NamedTuple):
    """One commit: the changes for the log, and the operations on nodes."""

    changes: tuple[c.Change, ...]
    ops: tuple[Op, ...]


def steps(image: Image, changes: Iterable[c.Change]) -> Iterator[Step]:
    """Split changes into commits, in order; lazily, so that a long list does not hold up the loop."""
    draft = Draft(image)
    step = _Step()
    for change in changes:
        ops = _OPS[type(change)](draft, change)
        size = sum(len(op.data) for op in ops if isinstance(op, Create | Set))
        moved = _assignment_moved(draft, change)
        assert len(ops) <= STEP_OPS_MAX, change
        if step.changes and step.full(len(ops), size, moved):
            yield step.finished(draft)
            step = _Step()
        step.add(change, ops, size, moved)
        draft.apply(change)
    if step.changes:
        yield step.finished(draft)


class _Step:
    """Collects one commit. The node of a topic has the assignments of all its partitions: it is written once, however
    many of them have changed."""

    __slots__ = ("changes", "moved", "ops", "size")

    def __init__(self) -> None:
        self.changes: list[c.Change] = []
        self.ops: list[Op] = []
        self.size = 0
        self.moved: dict[bytes, int] = {}

    def full(self, ops: int, size: int, moved: TopicImage | None) -> bool:
        if moved is not None and moved.id not in self.moved:
            ops += 1
            size += _assignment_size(moved)
        return len(self.ops) + len(self.moved) + ops > STEP_OPS_MAX or self.size + size > STEP_BYTES_MAX

    def add(self, change: c.Change, ops: list[Op], size: int, moved: TopicImage | None) -> None:
        self.changes.append(change)
        self.ops += ops
        self.size += size
        if moved is not None and moved.id not in self.moved:
            self.moved[moved.id] = _assignment_size(moved)
            self.size += self.moved[moved.id]

    def finished(self, after: Draft) -> Step:
        for topic_id in self.moved:
            topic = after.topic(topic_id)
            if topic is not None:
                self.ops.append(Set(layout.topic_path(topic.name), layout.topic_data(topic.id, topic.partitions)))
        return Step(tuple(self.changes), tuple(self.ops))


def _assignment_moved(before: Draft, change: c.Change) -> TopicImage | None:
    """The topic whose node has to be written because the assignment of one partition has changed."""
    if not isinstance(change, c.PartitionChanged) or change.replicas is None:
        return None
    return before.topics.map[before.names.map[change.topic_id]]


def _assignment_size(topic: TopicImage) -> int:
    """The approximate size of the topic's node."""
    return 80 + len(topic.partitions) * (12 + 6 * len(topic.partitions[0].replicas))


def _topic_created(before: Draft, change: c.TopicCreated) -> list[Op]:
    partitions = (PartitionState(replicas) for replicas in change.assignments)
    return [
        Create(layout.topic_path(change.name), layout.topic_data(change.topic_id, partitions)),
        Create(layout.partitions_path(change.name)),
        Create(layout.topic_config_path(change.name), layout.configs_data(change.configs)),
    ]


def _partitions_added(before: Draft, change: c.PartitionsAdded) -> list[Op]:
    topic = before.topic(change.topic_id)
    assert topic is not None
    assert change.first == len(topic.partitions)
    partitions = (*topic.partitions, *(PartitionState(replicas) for replicas in change.assignments))
    return [Set(layout.topic_path(topic.name), layout.topic_data(topic.id, partitions))]


def _partition_changed(before: Draft, change: c.PartitionChanged) -> list[Op]:
    name = before.names.map[change.topic_id]
    old = before.partition(change.topic_id, change.partition)
    assert change.partition_epoch == old.partition_epoch + 1, "every change of a state is counted"
    data = layout.state_data(change.applied_to(old), before.controller_epoch)
    path = layout.state_path(name, change.partition)
    if old.initialized:
        return [Set(path, data, old.partition_epoch)]
    return [Create(layout.partition_path(name, change.partition)), Create(path, data)]


def _topic_config_changed(before: Draft, change: c.TopicConfigChanged) -> list[Op]:
    name = before.names.map[change.topic_id]
    return [Set(layout.topic_config_path(name), layout.configs_data(change.configs))]


def _topic_deleted(before: Draft, change: c.TopicDeleted) -> list[Op]:
    ops: list[Op] = [Create(layout.deletion_path(change.name), layout.deletion_data(change.topic_id))]
    if change.replicas:
        tombstone = Tombstone(change.name, change.replicas)
        ops.append(Create(layout.tombstone_path(change.topic_id), layout.tombstone_data(tombstone)))
    return ops


def _partitions_removed(before: Draft, change: c.PartitionsRemoved) -> list[Op]:
    topic = before.deleting.map[change.topic_id]
    ops: list[Op] = []
    for index in range(change.first, change.stop):
        if topic.partitions[index].initialized:
            ops.append(Delete(layout.state_path(topic.name, index)))
            ops.append(Delete(layout.partition_path(topic.name, index)))
    return ops


def _topic_removed(before: Draft, change: c.TopicRemoved) -> list[Op]:
    topic = before.deleting.map[change.topic_id]
    return [
        Delete(layout.partitions_path(topic.name)),
        Delete(layout.topic_path(topic.name)),
        Delete(layout.topic_config_path(topic.name)),
        Delete(layout.deletion_path(topic.name)),
    ]


def _replica_deleted(before: Draft, change: c.ReplicaDeleted) -> list[Op]:
    return [replica_deleted(change, before.tombstones.map[change.topic_id], ANY_VERSION)]


def replica_deleted(change: c.ReplicaDeleted, tombstone: Tombstone, version: int) -> Op:
    """The one change that every broker commits for itself: so with the version of the tombstone that it has read."""
    left = tombstone._replace(replicas=tuple(b for b in tombstone.replicas if b != change.broker))
    path = layout.tombstone_path(change.topic_id)
    return Set(path, layout.tombstone_data(left), version) if left.replicas else Delete(path, version)


def _broker_config_changed(before: Draft, change: c.BrokerConfigChanged) -> list[Op]:
    known = change.broker in before.broker_configs.map
    return _configs(layout.broker_config_path(change.broker), change.configs, known)


def _group_config_changed(before: Draft, change: c.GroupConfigChanged) -> list[Op]:
    known = change.group in before.group_configs.map
    return _configs(layout.group_config_path(change.group), change.configs, known)


def _configs(path: str, configs: Mapping[str, str], known: bool) -> list[Op]:
    """The node exists only while there are settings."""
    if not configs:
        return [Delete(path)] if known else []
    data = layout.configs_data(configs)
    return [Set(path, data) if known else Create(path, data)]


def _nothing(before: Draft, change: c.Change) -> list[Op]:
    """Of ephemeral nodes: their owner creates them, and the end of its session removes them."""
    return []


_OPS: Final[dict[type[c.Change], Callable[[Draft, Any], list[Op]]]] = {
    c.TopicCreated: _topic_created,
    c.PartitionsAdded: _partitions_added,
    c.PartitionChanged: _partition_changed,
    c.TopicConfigChanged: _topic_config_changed,
    c.TopicDeleted: _topic_deleted,
    c.PartitionsRemoved: _partitions_removed,
    c.TopicRemoved: _topic_removed,
    c.ReplicaDeleted: _replica_deleted,
    c.BrokerRegistered: _nothing,
    c.BrokerGone: _nothing,
    c.BrokerConfigChanged: _broker_config_changed,
    c.GroupConfigChanged: _group_config_changed,
    c.ControllerChanged: _nothing,
}
