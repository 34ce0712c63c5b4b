"""Admin API of the cluster: brokers, reassignments, leader elections, log directories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.client.admin.admin_base import AdminBase, raise_if, raise_some
from ottla.client.core.requests import Node
from ottla.client.errors import ClientError, error_of
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.schema.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult
from ottla.wire.schema.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from ottla.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from ottla.wire.topic_partition import by_topic

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller: int
    brokers: tuple[Node, ...]


class Reassignment(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReplicaOnDisk(NamedTuple):
    size: int
    lag: int
    """How far it is behind its leader, in records."""


class LogDir(NamedTuple):
    path: str
    total_bytes: int
    usable_bytes: int
    error: ClientError | None
    replicas: Mapping[TopicPartition, ReplicaOnDisk]


class ClusterAdmin(AdminBase):
    async def describe_cluster(self) -> ClusterDescription:
        answer = await self._call(DescribeClusterRequest(), DescribeClusterResponse)
        raise_if(error_of(answer.error_code, "cluster", answer.error_message))
        brokers = sorted(Node(each.broker_id, each.host, each.port, each.rack) for each in answer.brokers)
        return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(brokers))

    async def reassign(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Move partitions to these brokers, the preferred leader first; None ends a move that is under way. Returns
        when the cluster has begun; `list_reassignments` shows what is left."""
        topics: dict[str, ReassignableTopic] = {}
        for topic, number in sorted(replicas):
            wanted = replicas[TopicPartition(topic, number)]
            moved = ReassignablePartition(partition_index=number, replicas=None if wanted is None else list(wanted))
            topics.setdefault(topic, ReassignableTopic(name=topic)).partitions.append(moved)
        request = AlterPartitionReassignmentsRequest(timeout_ms=self._request_timeout_ms, topics=list(topics.values()))
        answer = await self._at_controller(request, AlterPartitionReassignmentsResponse, lambda a: (a.error_code,))
        raise_if(error_of(answer.error_code, "reassign", answer.error_message))
        errors = {}
        for reported in answer.responses:
            for part in reported.partitions:
                tp = TopicPartition(reported.name, part.partition_index)
                errors[tp] = error_of(part.error_code, str(tp), part.error_message)
        raise_some("reassign", errors)

    async def list_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way: of these partitions, or all."""
        topics = None
        if partitions is not None:
            grouped = by_topic(partitions).items()
            topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=each) for name, each in grouped]
        request = ListPartitionReassignmentsRequest(timeout_ms=self._request_timeout_ms, topics=topics)
        answer = await self._at_controller(request, ListPartitionReassignmentsResponse, lambda a: (a.error_code,))
        raise_if(error_of(answer.error_code, "reassignments", answer.error_message))
        return {
            TopicPartition(topic.name, part.partition_index): Reassignment(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in answer.topics
            for part in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None = None, *, unclean: bool = False
    ) -> set[TopicPartition]:
        """Let the preferred replica lead, or (unclean) any that is alive, at the price of records. Those that got a new
        leader; where nothing was to be done is no error."""
        topics = None
        if partitions is not None:
            topics = [TopicPartitions(topic=name, partitions=each) for name, each in by_topic(partitions).items()]
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=topics,
            timeout_ms=self._request_timeout_ms,
        )
        answer = await self._at_controller(request, ElectLeadersResponse, lambda a: (a.error_code,))
        raise_if(error_of(answer.error_code, "elect leaders"))
        elected: set[TopicPartition] = set()
        errors: dict[TopicPartition, ClientError | None] = {}
        for topic in answer.replica_election_results:
            for part in topic.partition_result:
                tp = TopicPartition(topic.topic, part.partition_id)
                if part.error_code == ErrorCode.none:
                    elected.add(tp)
                elif part.error_code != ErrorCode.election_not_needed:
                    errors[tp] = error_of(part.error_code, str(tp), part.error_message)
        raise_some("elect leaders", errors, dict.fromkeys(elected))
        return elected

    async def log_dirs(self, brokers: Collection[int] | None = None) -> dict[int, list[LogDir]]:
        """What each broker has on its disks."""
        known = await self._brokers()
        found: dict[int, list[LogDir]] = {}
        errors: dict[int, ClientError | None] = {}
        for broker_id in sorted(known) if brokers is None else brokers:
            broker = known.get(broker_id)
            if broker is None:
                errors[broker_id] = ClientError(f"there is no broker {broker_id}", code=ErrorCode.broker_not_available)
                continue
            answer = await self._call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, broker)
            errors[broker_id] = error_of(answer.error_code, f"broker {broker_id}")
            found[broker_id] = [_log_dir(each) for each in answer.results]
        raise_some("log dirs", errors, found)
        return found


def _log_dir(reported: DescribeLogDirsResult) -> LogDir:
    replicas = {
        TopicPartition(topic.name, part.partition_index): ReplicaOnDisk(part.partition_size, part.offset_lag)
        for topic in reported.topics
        for part in topic.partitions
    }
    error = error_of(reported.error_code, reported.log_dir)
    return LogDir(reported.log_dir, reported.total_bytes, reported.usable_bytes, error, replicas)
