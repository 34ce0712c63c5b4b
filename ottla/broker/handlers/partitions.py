"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments; AlterPartition, for leaders only."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.forwarding import by_controller
from ottla.cluster.reassignments import in_progress
from ottla.cluster.requests import AlterPartitionResult, ElectionKind, InSyncProposal, PartitionResult, Reassignment
from ottla.errors import ErrorCode, Refused
from ottla.wire.apis import ALTER_PARTITION, ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS, LIST_PARTITION_REASSIGNMENTS
from ottla.wire.schema import elect_leaders as elect
from ottla.wire.schema.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from ottla.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@serves(ALTER_PARTITION)
async def alter_partition(context: Context, message: AlterPartitionRequest, request: Request) -> AlterPartitionResponse:
    request.session.check_is_broker(message.broker_id)
    proposals = [
        InSyncProposal(
            topic.topic_id,
            each.partition_index,
            each.leader_epoch,
            each.partition_epoch,
            [(state.broker_id, state.broker_epoch) for state in each.new_isr_with_epochs],
        )
        for topic in message.topics
        for each in topic.partitions
    ]
    results = await context.cluster.alter_partitions(message.broker_id, message.broker_epoch, proposals)
    topics: dict[bytes, list[AlterPartitionResponsePartitionData]] = {}
    for result in results:
        topics.setdefault(result.topic_id, []).append(_altered(result))
    return AlterPartitionResponse(
        topics=[AlterPartitionResponseTopicData(topic_id=topic_id, partitions=p) for topic_id, p in topics.items()]
    )


def _altered(result: AlterPartitionResult) -> AlterPartitionResponsePartitionData:
    answer = AlterPartitionResponsePartitionData(partition_index=result.partition, error_code=result.code)
    if result.state is not None:
        answer.leader_id = result.state.leader
        answer.leader_epoch = result.state.leader_epoch
        answer.isr = list(result.state.in_sync)
        answer.partition_epoch = result.state.partition_epoch
    return answer


@serves(ELECT_LEADERS)
@by_controller
async def elect_leaders(
    context: Context, message: elect.ElectLeadersRequest, request: Request
) -> elect.ElectLeadersResponse:
    try:
        kind = ElectionKind(message.election_type)
    except ValueError:
        raise Refused(ErrorCode.invalid_request, f"Unknown election type {message.election_type}") from None
    wanted = None
    if message.topic_partitions is not None:
        wanted = [(topic.topic, index) for topic in message.topic_partitions for index in topic.partitions]
    results = await context.cluster.elect_leaders(kind, wanted)
    return elect.ElectLeadersResponse(
        replica_election_results=[
            elect.ReplicaElectionResult(
                topic=name,
                partition_result=[
                    elect.PartitionResult(partition_id=each.partition, error_code=each.code, error_message=each.message)
                    for each in of_topic
                ],
            )
            for name, of_topic in _by_topic(results).items()
        ]
    )


@serves(ALTER_PARTITION_REASSIGNMENTS)
@by_controller
async def alter_partition_reassignments(
    context: Context, message: AlterPartitionReassignmentsRequest, request: Request
) -> AlterPartitionReassignmentsResponse:
    wanted = [
        Reassignment(topic.name, each.partition_index, each.replicas)
        for topic in message.topics
        for each in topic.partitions
    ]
    results = await context.cluster.alter_reassignments(
        wanted, factor_may_change=message.allow_replication_factor_change
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition, error_code=each.code, error_message=each.message
                    )
                    for each in of_topic
                ],
            )
            for name, of_topic in _by_topic(results).items()
        ],
    )


@serves(LIST_PARTITION_REASSIGNMENTS)
@by_controller
def list_partition_reassignments(
    context: Context, message: ListPartitionReassignmentsRequest, request: Request
) -> ListPartitionReassignmentsResponse:
    wanted = None
    if message.topics is not None:
        wanted = [(topic.name, index) for topic in message.topics for index in topic.partition_indexes]
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for name, index, partition in in_progress(context.image, wanted):
        topics.setdefault(name, []).append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[OngoingTopicReassignment(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def _by_topic(results: Iterable[PartitionResult]) -> dict[str, list[PartitionResult]]:
    topics: dict[str, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    return topics
