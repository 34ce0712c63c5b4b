"""Requests to the controller, their results, and the rules that it applies. Plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.cluster.changes import Change
from ottla.cluster.model import NO_EPOCH, Endpoint, PartitionState
from ottla.errors import ErrorCode

R = TypeVar("R")

UNSET: Final = -1
ZERO_ID: Final = bytes(16)


class RegistrationRequest(NamedTuple):
    """A broker's own data. `clean_epoch` and `clean_since` are from the marker of its last clean shutdown (-1: there
    was none): the broker epoch under which it stopped, and the oldest one since which every stop was clean.
    `damaged`: partitions (topic id as text, number) for which that is not true."""

    id: int
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    clean_epoch: int = NO_EPOCH
    clean_since: int = NO_EPOCH
    damaged: tuple[tuple[str, int], ...] = ()


class TopicSpec(NamedTuple):
    """A topic to create: either counts (unset: the broker's default), or the replicas of each partition by number."""

    name: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = {}


class PartitionsSpec(NamedTuple):
    """A topic and its new number of partitions; `assignments`: the replicas of each new one, if given."""

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
    """AlterPartition of one partition: `in_sync` are replicas with the broker epoch under which each has caught up. The
    epochs are those that the leader knows."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: Sequence[tuple[int, int]]


class AlterPartitionResult(NamedTuple):
    """The state of the partition now, or the error."""

    topic_id: bytes
    partition: int
    code: ErrorCode = ErrorCode.none
    state: PartitionState | None = None


class ElectionKind(IntEnum):
    """Kafka's numbers, as in ElectLeaders."""

    preferred = 0
    unclean = 1


class Reassignment(NamedTuple):
    """The target replicas of a partition; None cancels its reassignment."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


class PartitionResult(NamedTuple):
    topic: str
    partition: int
    code: ErrorCode = ErrorCode.none
    message: str | None = None


class ControllerDecision(NamedTuple, Generic[R]):
    """The changes to commit, and one result for each item of the request, both in order."""

    changes: list[Change]
    results: list[R]


class Rules(NamedTuple):
    """The broker settings that the controller applies. The checks raise Refused(invalid_config)."""

    partitions: int = 1
    replication_factor: int = 1
    check_topic: Callable[[Mapping[str, str | None]], None] = lambda configs: None
    check_broker: Callable[[int | None, Mapping[str, str | None]], None] = lambda broker, configs: None
    topic_list: Callable[[str], str | None] = lambda name: None
    """The default of a topic setting that is a list; None when it is not one."""
    broker_list: Callable[[str], str | None] = lambda name: None
    check_group: Callable[[Mapping[str, str | None]], None] = lambda configs: None
    min_in_sync: Callable[[Mapping[str, str]], int] = lambda configs: 1
    """min.insync.replicas of a topic with these configs."""
    min_in_sync_started: int | None = None
    """min.insync.replicas as this broker was started with it; None: not known."""
    unclean: Callable[[Mapping[str, str]], bool] = lambda configs: False
    """unclean.leader.election.enable of a topic with these configs."""
    balance: bool = True
    """auto.leader.rebalance.enable"""
    balance_seconds: float = 300
    imbalance_percent: int = 10
