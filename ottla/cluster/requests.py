"""What a controller can be asked, what it answers, and by which rules it judges. Plain values, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.cluster.changes import Change
from ottla.cluster.model import NO_EPOCH, Endpoint, Partition
from ottla.errors import ErrorCode

R = TypeVar("R")

UNSET: Final = -1
ZERO_ID: Final = bytes(16)


class BrokerRegistration(NamedTuple):
    """What a broker says of itself. `clean_epoch` and `clean_since` are what the mark of its last clean stop said (-1:
    there was none): the registration under which it stopped, and the oldest since which every stop was clean.
    `damaged`: partitions (topic id as text, number) of which that does not hold."""

    id: int
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    clean_epoch: int = NO_EPOCH
    clean_since: int = NO_EPOCH
    damaged: tuple[tuple[str, int], ...] = ()


class TopicSpec(NamedTuple):
    """A topic to create. Either counts (unset: the broker's default) or the replicas of each partition by number."""

    name: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = {}


class PartitionsSpec(NamedTuple):
    """A topic to grow to so many partitions; `assignments` are the replicas of each new one, if given."""

    name: str
    partitions: int
    assignments: Sequence[Sequence[int]] | None = None


class ConfigOp(IntEnum):
    """Kafka's numbers, as in IncrementalAlterConfigs."""

    set = 0
    delete = 1
    append = 2
    subtract = 3


class ConfigEdit(NamedTuple):
    name: str
    value: str | None
    op: int = ConfigOp.set


class ConfigAlteration(NamedTuple):
    """Edits of the configs of one topic, group or broker (None: all brokers). `replace` drops what is not mentioned."""

    resource: str | int | None
    edits: Sequence[ConfigEdit]
    replace: bool = False


class TopicResult(NamedTuple):
    name: str
    topic_id: bytes = ZERO_ID
    code: ErrorCode = ErrorCode.none
    message: str | None = None
    partitions: int = UNSET
    replication_factor: int = UNSET
    configs: Mapping[str, str] = {}


class ConfigResult(NamedTuple):
    resource: str | int | None
    code: ErrorCode = ErrorCode.none
    message: str | None = None


class InSyncProposal(NamedTuple):
    """What a leader asks the controller to make of its partition: `in_sync` are replicas with the registration under
    which each has caught up. The epochs are those that the leader knows."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: Sequence[tuple[int, int]]


class AlterPartitionResult(NamedTuple):
    """The partition as it is now, or why it was not changed."""

    topic_id: bytes
    partition: int
    code: ErrorCode = ErrorCode.none
    state: Partition | None = None


class ElectionKind(IntEnum):
    """Kafka's numbers, as in ElectLeaders."""

    preferred = 0
    unclean = 1


class Reassignment(NamedTuple):
    """Where a partition's replicas shall be; None calls off the reassignment that is under way."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


class PartitionResult(NamedTuple):
    topic: str
    partition: int
    code: ErrorCode = ErrorCode.none
    message: str | None = None


class Decision(NamedTuple, Generic[R]):
    """What is to be changed, in order, and one result for each thing that was asked, in order."""

    changes: list[Change]
    results: list[R]


def _accept(configs: Mapping[str, str | None]) -> None: ...


def _accept_for(broker: int | None, configs: Mapping[str, str | None]) -> None: ...


def _no_list(name: str) -> str | None:
    return None


def _one(configs: Mapping[str, str]) -> int:
    return 1


def _never(configs: Mapping[str, str]) -> bool:
    return False


class Rules(NamedTuple):
    """What the broker's settings say. The checks raise Refused(invalid_config)."""

    partitions: int = 1
    replication_factor: int = 1
    check_topic: Callable[[Mapping[str, str | None]], None] = _accept
    check_broker: Callable[[int | None, Mapping[str, str | None]], None] = _accept_for
    topic_list: Callable[[str], str | None] = _no_list
    """The default of a topic setting that is a list; None when it is not one."""
    broker_list: Callable[[str], str | None] = _no_list
    check_group: Callable[[Mapping[str, str | None]], None] = _accept
    group_list: Callable[[str], str | None] = _no_list
    min_in_sync: Callable[[Mapping[str, str]], int] = _one
    """min.insync.replicas of a topic with these configs."""
    min_in_sync_started: int | None = None
    """min.insync.replicas as this broker was started with it; None where nobody says so."""
    unclean: Callable[[Mapping[str, str]], bool] = _never
    """unclean.leader.election.enable of a topic with these configs."""
    balance: bool = True
    """Whether leadership goes back to the preferred replicas by itself."""
    balance_seconds: float = 300
    imbalance_percent: int = 10
