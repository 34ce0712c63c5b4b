"""Changes: the records of the change log. An image and a change give the next image, the same on every broker.

A change carries whole new values, never differences. So it may be applied twice, or to an image that was loaded after
it: after the last change of the log every reader has the same image. Topics are named by id, so a late change does not
apply to a new topic with the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args

from ottla.cluster import layout
from ottla.cluster.model import NO_BROKER, NO_EPOCH, BrokerRegistration, Endpoint, PartitionState, with_epochs


class TopicCreated(NamedTuple):
    """A new topic. Its partitions have no leader yet: a PartitionChanged for each follows."""

    topic_id: bytes
    name: str
    assignments: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str]


class PartitionsAdded(NamedTuple):
    """New partitions of a topic from number `first` on, without leaders yet."""

    topic_id: bytes
    first: int
    assignments: tuple[tuple[int, ...], ...]


class PartitionChanged(NamedTuple):
    """A partition's new state: leader, epochs, ISR. With `replicas`, a new assignment too."""

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    in_sync: tuple[int, ...]
    partition_epoch: int
    broker_epoch: int
    in_sync_epochs: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    eligible_epochs: tuple[int, ...] = ()
    last_leader: int = NO_BROKER
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def applied_to(self, old: PartitionState) -> PartitionState:
        if self.replicas is None:
            replicas, adding, removing = old.replicas, old.adding, old.removing
        else:
            replicas, adding, removing = self.replicas, self.adding, self.removing
        new = PartitionState(
            replicas, self.leader, self.leader_epoch, self.in_sync, self.partition_epoch, self.broker_epoch,
            adding, removing, self.in_sync_epochs, self.eligible, self.eligible_epochs, self.last_leader,
        )  # fmt: skip
        return with_epochs(new)


class TopicConfigChanged(NamedTuple):
    topic_id: bytes
    configs: Mapping[str, str]


class TopicDeleted(NamedTuple):
    """The topic is deleted: no client sees it any more. `replicas`: the brokers that still have files of it."""

    topic_id: bytes
    name: str
    replicas: tuple[int, ...]


class PartitionsRemoved(NamedTuple):
    """The states of these partitions of a deleted topic were removed from the store."""

    topic_id: bytes
    first: int
    stop: int


class TopicRemoved(NamedTuple):
    """A deleted topic was removed from the store: its name is free."""

    topic_id: bytes


class ReplicaDeleted(NamedTuple):
    """A broker has deleted its files of a deleted topic."""

    topic_id: bytes
    broker: int


class BrokerRegistered(NamedTuple):
    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    draining: bool = False
    clean_since: int = NO_EPOCH
    incarnation: str = ""
    damaged: tuple[tuple[str, int], ...] = ()


class BrokerGone(NamedTuple):
    """This registration has ended."""

    id: int
    epoch: int


class BrokerConfigChanged(NamedTuple):
    """`broker` None: of all brokers."""

    broker: int | None
    configs: Mapping[str, str]


class GroupConfigChanged(NamedTuple):
    """The settings of a group; empty: those of the brokers apply."""

    group: str
    configs: Mapping[str, str]


class ControllerChanged(NamedTuple):
    """A new controller. `live` are the registrations (id, epoch) that it found: a broker that left while there was no
    controller has no BrokerGone in the log."""

    id: int
    epoch: int
    live: tuple[tuple[int, int], ...]


Change = (
    TopicCreated | PartitionsAdded | PartitionChanged | TopicConfigChanged | TopicDeleted | PartitionsRemoved
    | TopicRemoved | ReplicaDeleted | BrokerRegistered | BrokerGone | BrokerConfigChanged | GroupConfigChanged
    | ControllerChanged
)  # fmt: skip

_TYPES: Final[dict[str, type[Change]]] = {change.__name__: change for change in get_args(Change)} | {
    "PartitionsErased": PartitionsRemoved, "TopicErased": TopicRemoved, "ReplicaErased": ReplicaDeleted,
}  # fmt: skip
_TYPE_NAMES: Final = {change: name for name, change in _TYPES.items()}
"""The type of a change as the log says it; the same in all releases."""


class UnknownChange(Exception):
    """A change of a newer release. The reader loads the image from the store instead."""


def partition_changed(
    topic_id: bytes, index: int, state: PartitionState, before: PartitionState | None = None
) -> PartitionChanged:
    """The new state, and the new assignment where it is not that of `before`."""
    change = PartitionChanged(
        topic_id, index, state.leader, state.leader_epoch, state.in_sync, state.partition_epoch, state.broker_epoch,
        state.in_sync_epochs, state.eligible, state.eligible_epochs, state.last_leader,
    )  # fmt: skip
    if before is None or assignment_of(before) == assignment_of(state):
        return change
    return change._replace(replicas=state.replicas, adding=state.adding, removing=state.removing)


def assignment_of(partition: PartitionState) -> tuple[tuple[int, ...], ...]:
    return partition.replicas, partition.adding, partition.removing


def registered(broker: BrokerRegistration) -> BrokerRegistered:
    return BrokerRegistered(*broker)


def to_json(change: Change) -> dict[str, object]:
    unsaid = change._field_defaults
    fields: dict[str, object] = {
        name: value
        for name, value in zip(change._fields, change, strict=True)
        if name not in unsaid or value != unsaid[name]
    }
    if "topic_id" in fields:
        fields["topic_id"] = layout.id_text(fields["topic_id"])  # type: ignore[arg-type]
    return {"type": _TYPE_NAMES[type(change)], **fields}


def from_json(fields: Mapping[str, Any]) -> Change:
    kind = _TYPES.get(fields["type"])
    if kind is None:
        raise UnknownChange(fields["type"])
    known = {name: _value(name, fields[name]) for name in kind._fields if name in fields}
    return kind(**known)


def _value(name: str, value: Any) -> Any:
    if name == "topic_id":
        return layout.id_bytes(value)
    if name == "endpoints":
        return tuple(Endpoint(*each) for each in value)
    if isinstance(value, list):
        return tuple(tuple(each) if isinstance(each, list) else each for each in value)
    return value


def encoded(changes: tuple[Change, ...]) -> bytes:
    """The data of one change node: what one commit changed."""
    return layout.encode({"version": 1, "changes": [to_json(change) for change in changes]})


def decoded(data: bytes) -> tuple[Change, ...]:
    return tuple(from_json(fields) for fields in layout.decode(data)["changes"])
