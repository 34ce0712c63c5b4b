"""The metadata image: an immutable snapshot of the cluster's metadata, and how a change makes the next one.

A broker holds one reference and replaces it. `apply` shares everything that a change does not concern: a change costs a
copy of the maps and topics that it changes, not of ten thousand partitions. Changes that were committed together are
applied together and cost one copy. `version` grows with every step, so a value computed from an image (an encoded
Metadata response) can be cached under it.

Invariant, tested after every commit: the image loaded from the store equals the image that the changes were applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ottla.cluster import changes as c
from ottla.cluster import layout
from ottla.cluster.model import NO_BROKER, NO_EPOCH, BrokerRegistration, Endpoint, PartitionState, Tombstone, TopicImage
from ottla.cluster.store import Node
from ottla.errors import Fault

__all__ = [
    "EMPTY", "NO_BROKER", "BrokerRegistration", "Draft", "Endpoint", "Image", "PartitionState", "Tombstone",
    "TopicImage",
]  # fmt: skip

K = TypeVar("K")
V = TypeVar("V")


class Image(NamedTuple):
    version: int = 0
    cluster_id: str = ""
    controller_id: int = NO_BROKER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerRegistration] = {}
    topics: Mapping[str, TopicImage] = {}
    names: Mapping[bytes, str] = {}
    """Of topics, by id."""
    broker_configs: Mapping[int | None, Mapping[str, str]] = {}
    """None: of all brokers."""
    group_configs: Mapping[str, Mapping[str, str]] = {}
    """Of groups that have any."""
    deleting: Mapping[bytes, TopicImage] = {}
    """Topics that no client sees any more and that are not yet out of the store."""
    tombstones: Mapping[bytes, Tombstone] = {}

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionState | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def apply(self, *changes: c.Change) -> Image:
        """The image after these changes, in their order."""
        draft = Draft(self)
        for change in changes:
            draft.apply(change)
        return draft.image(self.version + 1)

    @classmethod
    def load(cls, nodes: Iterable[Node], *, version: int = 0) -> Image:
        """Read the image from the nodes of `layout.IMAGE_PATHS`."""
        return _Loader(nodes).image(version)

    def __eq__(self, other: object) -> bool:
        """By content: the version says how an image came about."""
        return isinstance(other, Image) and self[1:] == other[1:]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return (
            f"Image(version={self.version}, controller={self.controller_id}@{self.controller_epoch}, "
            f"brokers={sorted(self.brokers)}, topics={len(self.topics)})"
        )


EMPTY: Final = Image()


class _Map(Generic[K, V]):
    """A map of the image, copied at the first write."""

    __slots__ = ("_copied", "map")

    def __init__(self, shared: Mapping[K, V]) -> None:
        self.map: Mapping[K, V] = shared
        self._copied: dict[K, V] | None = None

    def writable(self) -> dict[K, V]:
        if self._copied is None:
            self.map = self._copied = dict(self.map)
        return self._copied

    def put(self, key: K, value: V) -> None:
        self.writable()[key] = value

    def drop(self, key: K) -> None:
        if key in self.map:
            del self.writable()[key]


class Draft:
    """A mutable image: changes are applied to it one by one, then `image` freezes it."""

    __slots__ = (
        "_partitions", "broker_configs", "brokers", "cluster_id", "controller_epoch", "controller_id", "deleting",
        "group_configs", "names", "tombstones", "topics",
    )  # fmt: skip

    def __init__(self, base: Image) -> None:
        self.cluster_id = base.cluster_id
        self.controller_id = base.controller_id
        self.controller_epoch = base.controller_epoch
        self.brokers = _Map(base.brokers)
        self.topics = _Map(base.topics)
        self.names = _Map(base.names)
        self.broker_configs = _Map(base.broker_configs)
        self.group_configs = _Map(base.group_configs)
        self.deleting = _Map(base.deleting)
        self.tombstones = _Map(base.tombstones)
        self._partitions: dict[str, list[PartitionState]] = {}  # of topics whose partitions this draft changes

    def topic(self, topic_id: bytes) -> TopicImage | None:
        """With all changes so far; None if deleted or unknown."""
        name = self.names.map.get(topic_id)
        if name is None:
            return None
        self._settle(name)
        return self.topics.map[name]

    def partition(self, topic_id: bytes, index: int) -> PartitionState:
        name = self.names.map[topic_id]
        return (self._partitions.get(name) or self.topics.map[name].partitions)[index]

    def apply(self, change: c.Change) -> None:
        _APPLY[type(change)](self, change)

    def image(self, version: int) -> Image:
        for name in list(self._partitions):
            self._settle(name)
        return Image(
            version=version,
            cluster_id=self.cluster_id,
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            brokers=self.brokers.map,
            topics=self.topics.map,
            names=self.names.map,
            broker_configs=self.broker_configs.map,
            group_configs=self.group_configs.map,
            deleting=self.deleting.map,
            tombstones=self.tombstones.map,
        )

    def _settle(self, name: str) -> None:
        partitions = self._partitions.pop(name, None)
        if partitions is not None:
            self.topics.put(name, self.topics.map[name]._replace(partitions=tuple(partitions)))

    def _forget(self, name: str) -> None:
        self._partitions.pop(name, None)
        self.names.drop(self.topics.map[name].id)
        self.topics.drop(name)

    def _topic_created(self, change: c.TopicCreated) -> None:
        if change.name in self.topics.map:
            self._forget(change.name)
        partitions = tuple(PartitionState(replicas) for replicas in change.assignments)
        self.topics.put(change.name, TopicImage(change.name, change.topic_id, partitions, change.configs))
        self.names.put(change.topic_id, change.name)

    def _partitions_added(self, change: c.PartitionsAdded) -> None:
        topic = self.topic(change.topic_id)
        if topic is not None:
            added = tuple(PartitionState(replicas) for replicas in change.assignments)
            self.topics.put(topic.name, topic._replace(partitions=topic.partitions[: change.first] + added))

    def _partition_changed(self, change: c.PartitionChanged) -> None:
        name = self.names.map.get(change.topic_id)
        if name is None:
            return
        partitions = self._partitions.get(name)
        if partitions is None:
            partitions = self._partitions[name] = list(self.topics.map[name].partitions)
        if change.partition < len(partitions):
            partitions[change.partition] = change.applied_to(partitions[change.partition])

    def _topic_config_changed(self, change: c.TopicConfigChanged) -> None:
        topic = self.topic(change.topic_id)
        if topic is not None:
            self.topics.put(topic.name, topic._replace(configs=change.configs))

    def _topic_deleted(self, change: c.TopicDeleted) -> None:
        topic = self.topic(change.topic_id)
        if topic is not None:
            self._forget(topic.name)
            self.deleting.put(change.topic_id, topic)
        if change.replicas:
            self.tombstones.put(change.topic_id, Tombstone(change.name, change.replicas))

    def _partitions_removed(self, change: c.PartitionsRemoved) -> None:
        topic = self.deleting.map.get(change.topic_id)
        if topic is not None:
            partitions = list(topic.partitions)
            for index in range(change.first, min(change.stop, len(partitions))):
                old = partitions[index]
                partitions[index] = PartitionState(old.replicas, adding=old.adding, removing=old.removing)
            self.deleting.put(change.topic_id, topic._replace(partitions=tuple(partitions)))

    def _topic_removed(self, change: c.TopicRemoved) -> None:
        self.deleting.drop(change.topic_id)

    def _replica_deleted(self, change: c.ReplicaDeleted) -> None:
        tombstone = self.tombstones.map.get(change.topic_id)
        if tombstone is None:
            return
        replicas = tuple(broker for broker in tombstone.replicas if broker != change.broker)
        if replicas:
            self.tombstones.put(change.topic_id, tombstone._replace(replicas=replicas))
        else:
            self.tombstones.drop(change.topic_id)

    def _broker_registered(self, change: c.BrokerRegistered) -> None:
        broker = BrokerRegistration(*change)
        if broker.clean_since == NO_EPOCH:  # written by an earlier release
            broker = broker._replace(clean_since=broker.epoch)
        self.brokers.put(change.id, broker)

    def _broker_gone(self, change: c.BrokerGone) -> None:
        broker = self.brokers.map.get(change.id)
        if broker is not None and broker.epoch == change.epoch:
            self.brokers.drop(change.id)

    def _broker_config_changed(self, change: c.BrokerConfigChanged) -> None:
        if change.configs:
            self.broker_configs.put(change.broker, change.configs)
        else:
            self.broker_configs.drop(change.broker)

    def _group_config_changed(self, change: c.GroupConfigChanged) -> None:
        if change.configs:
            self.group_configs.put(change.group, change.configs)
        else:
            self.group_configs.drop(change.group)

    def _controller_changed(self, change: c.ControllerChanged) -> None:
        self.controller_id = change.id
        self.controller_epoch = change.epoch
        live = set(change.live)
        for broker in [b for b in self.brokers.map.values() if (b.id, b.epoch) not in live]:
            self.brokers.drop(broker.id)


_APPLY: Final[dict[type[c.Change], Callable[[Draft, Any], None]]] = {
    c.TopicCreated: Draft._topic_created,
    c.PartitionsAdded: Draft._partitions_added,
    c.PartitionChanged: Draft._partition_changed,
    c.TopicConfigChanged: Draft._topic_config_changed,
    c.TopicDeleted: Draft._topic_deleted,
    c.PartitionsRemoved: Draft._partitions_removed,
    c.TopicRemoved: Draft._topic_removed,
    c.ReplicaDeleted: Draft._replica_deleted,
    c.BrokerRegistered: Draft._broker_registered,
    c.BrokerGone: Draft._broker_gone,
    c.BrokerConfigChanged: Draft._broker_config_changed,
    c.GroupConfigChanged: Draft._group_config_changed,
    c.ControllerChanged: Draft._controller_changed,
}


class _Loader:
    """Builds an image from the nodes of a store. Unknown nodes are ignored."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._single: dict[str, bytes] = {}
        self._brokers: dict[int, BrokerRegistration] = {}
        self._topics: dict[str, tuple[bytes, list[PartitionState]]] = {}
        self._topic_configs: dict[str, Mapping[str, str]] = {}
        self._broker_configs: dict[int | None, Mapping[str, str]] = {}
        self._group_configs: dict[str, Mapping[str, str]] = {}
        self._deleting: set[str] = set()
        self._tombstones: dict[bytes, Tombstone] = {}
        self._states: list[tuple[str, int, PartitionState]] = []
        for node in nodes:
            try:
                self._take(node)
            except (KeyError, TypeError, ValueError) as failure:
                raise Fault(f"the store's node {node.path} cannot be read: {failure!r}") from failure
        self._apply_states()

    def _take(self, node: Node) -> None:
        match node.path.split("/")[1:]:
            case ["brokers", "topics", topic, "partitions", index, "state"]:
                state = layout.state_of(node.data, node.version)
                self._states.append((layout.unescaped(topic), int(index), state))
            case ["brokers", "topics", topic]:
                self._topics[layout.unescaped(topic)] = layout.topic_of(node.data)
            case ["brokers", "ids", broker]:
                self._brokers[int(broker)] = layout.broker_of(int(broker), node.data)
            case ["config", "topics", topic]:
                self._topic_configs[layout.unescaped(topic)] = layout.configs_of(node.data)
            case ["config", "brokers", broker]:
                broker_id = None if broker == layout.CLUSTER_DEFAULT else int(broker)
                self._broker_configs[broker_id] = layout.configs_of(node.data)
            case ["config", "groups", group]:
                self._group_configs[layout.unescaped(group)] = layout.configs_of(node.data)
            case ["admin", "delete_topics", topic]:
                self._deleting.add(layout.unescaped(topic))
            case ["ottla", "deleted_topics", topic_id]:
                self._tombstones[layout.id_bytes(topic_id)] = layout.tombstone_of(node.data)
            case _:
                self._single[node.path] = node.data

    def _apply_states(self) -> None:
        for topic, index, state in self._states:
            # A store that takes several reads may show a state without its topic: the change log brings the rest.
            _, partitions = self._topics.get(topic, (b"", []))
            if index < len(partitions):
                assigned = partitions[index]
                partitions[index] = state._replace(
                    replicas=assigned.replicas, adding=assigned.adding, removing=assigned.removing
                )

    def image(self, version: int) -> Image:
        topics = {
            name: TopicImage(name, topic_id, tuple(partitions), self._topic_configs.get(name, {}))
            for name, (topic_id, partitions) in self._topics.items()
        }
        controller = self._single.get(layout.CONTROLLER)
        cluster_id = self._single.get(layout.CLUSTER_ID)
        return Image(
            version=version,
            cluster_id="" if cluster_id is None else layout.decode(cluster_id)["id"],
            controller_id=NO_BROKER if controller is None else layout.controller_of(controller),
            controller_epoch=int(self._single.get(layout.CONTROLLER_EPOCH, b"0")),
            brokers=self._brokers,
            topics={name: topic for name, topic in topics.items() if name not in self._deleting},
            names={topic.id: name for name, topic in topics.items() if name not in self._deleting},
            broker_configs=self._broker_configs,
            group_configs=self._group_configs,
            deleting={topic.id: topic for name, topic in topics.items() if name in self._deleting},
            tombstones=self._tombstones,
        )
