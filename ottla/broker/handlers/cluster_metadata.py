"""Metadata, DescribeCluster, DescribeTopicPartitions, UnregisterBroker: answered from the image, so by every broker.

The addresses of brokers are those of the listener through which the client is connected.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from typing import Final

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response, serves
from ottla.cluster.controller import INTERNAL_TOPICS, unknown_topic_error
from ottla.cluster.image import NO_BROKER, BrokerRegistration, Endpoint, Image, PartitionState, TopicImage
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.wire import messages
from ottla.wire.acl import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from ottla.wire.apis import DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS, METADATA, UNREGISTER_BROKER
from ottla.wire.error_codes import ErrorCounts, counter_of
from ottla.wire.schema.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.schema.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.wire.tree import ZERO_UUID

BROKER_ENDPOINTS = 1

NOT_YET: Final = {
    ErrorCode.invalid_replication_factor: ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_controller: ErrorCode.leader_not_available,
    ErrorCode.request_timed_out: ErrorCode.leader_not_available,
}
"""Errors of automatic topic creation, and the errors that clients retry instead."""

_count_errors = counter_of(MetadataResponse)


@serves(METADATA)
def metadata(
    context: Context, message: MetadataRequest, request: Request
) -> Response | Coroutine[object, object, Response]:
    wanted = message.topics
    if wanted is None or (not wanted and request.version == 0):
        return _everything(context, message, request)
    if message.allow_auto_topic_creation and context.config.auto_create_topics_enable:
        missing = [topic.name for topic in wanted if topic.name and topic.name not in context.image.topics]
        if missing:
            return _create_first(context, message, request, missing)
    return _some(context, message, wanted, request, {})


def _everything(context: Context, message: MetadataRequest, request: Request) -> bytes:
    """All topics: encoded once for each image."""
    image = context.image
    asked = (message.include_topic_authorized_operations, message.include_cluster_authorized_operations)
    key = (request.version, request.session.listener_name, asked)
    kept = context.metadata_cache.get(key, image.version, context.runtime.now())
    if kept is None:
        view = _View(image, request)
        topics = [_topic(view, topic, asked[0]) for topic in image.topics.values()]
        response = _response(context, message, request, topics)
        errors: ErrorCounts = {}
        if _count_errors is not None:
            _count_errors(response, errors)
        kept = (messages.encode(response, request.version), errors)
        context.metadata_cache.put(key, kept)
    body, errors = kept
    for code, times in errors.items():
        request.count_error(code, times)
    return body


async def _create_first(
    context: Context, message: MetadataRequest, request: Request, missing: list[str]
) -> MetadataResponse:
    refused = await _auto_create(context, missing)
    assert message.topics is not None
    return _some(context, message, message.topics, request, refused)


async def _auto_create(context: Context, names: list[str]) -> dict[str, ErrorCode]:
    """Create topics that a client asked for. The errors of those that could not be created."""
    for coordinator in context.coordinators:
        if coordinator.topic in names:
            await coordinator.create_topic()  # with its own settings
    results = await context.topic_creation.create([TopicSpec(name) for name in dict.fromkeys(names)])
    codes = {result.name: result.code for result in results}
    return {
        name: NOT_YET.get(code, code)
        for name, code in codes.items()
        if code not in (ErrorCode.none, ErrorCode.topic_already_exists)
    }


def _some(
    context: Context,
    message: MetadataRequest,
    wanted: list[MetadataRequestTopic],
    request: Request,
    refused: dict[str, ErrorCode],
) -> MetadataResponse:
    image = context.image
    view = _View(image, request)
    topics = []
    for topic_id, name in {(each.topic_id, each.name or ""): None for each in wanted}:
        by_id = topic_id != ZERO_UUID
        topic = image.topic_by_id(topic_id) if by_id else image.topic(name)
        if topic is not None:
            topics.append(_topic(view, topic, message.include_topic_authorized_operations))
        elif by_id:
            topics.append(MetadataResponseTopic(error_code=ErrorCode.unknown_topic_id, topic_id=topic_id, name=None))
        else:
            code = refused.get(name) or unknown_topic_error(name)
            topics.append(MetadataResponseTopic(error_code=code, name=name))
    return _response(context, message, request, topics)


def _response(
    context: Context, message: MetadataRequest, request: Request, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    image = context.image
    named = (*image.brokers.values(), *context.metadata_cache.removed.named(context.runtime.now()))
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=each.id, host=endpoint.host, port=endpoint.port, rack=each.rack)
            for each, endpoint in with_endpoint(named, request.session.listener_name)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if message.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def reachable(image: Image, listener: str) -> Iterable[tuple[BrokerRegistration, Endpoint]]:
    """Brokers that have the listener of the client, with their address on it."""
    return with_endpoint(image.brokers.values(), listener)


def with_endpoint(
    brokers: Iterable[BrokerRegistration], listener: str
) -> Iterator[tuple[BrokerRegistration, Endpoint]]:
    for each in brokers:
        endpoint = each.endpoint(listener)
        if endpoint is not None:
            yield each, endpoint


class _View:
    """The cluster as it can be reached through the listener of the client."""

    __slots__ = ("_brokers", "_without", "reached")

    def __init__(self, image: Image, request: Request) -> None:
        self._brokers = image.brokers
        self.reached = {live.id for live, _ in reachable(image, request.session.listener_name)}
        # Before version 6 there is no error code for a missing listener.
        old = request.route.key == METADATA and request.version < 6
        self._without = ErrorCode.leader_not_available if old else ErrorCode.listener_not_found

    def leader(self, state: PartitionState) -> tuple[int, ErrorCode]:
        """The leader, if the client can reach it; otherwise none, and the error code."""
        if state.leader in self.reached:
            return state.leader, ErrorCode.none
        return NO_BROKER, self._without if state.leader in self._brokers else ErrorCode.leader_not_available

    def offline(self, state: PartitionState) -> list[int]:
        return [replica for replica in state.replicas if replica not in self.reached]


def _topic(view: _View, topic: TopicImage, operations: bool) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(view, index, state) for index, state in enumerate(topic.partitions)],
        topic_authorized_operations=TOPIC_OPERATIONS if operations else NOT_ASKED,
    )


def _partition(view: _View, index: int, state: PartitionState) -> MetadataResponsePartition:
    leader, code = view.leader(state)
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.in_sync),
        offline_replicas=view.offline(state),
    )


@serves(DESCRIBE_CLUSTER)
def describe_cluster(context: Context, message: DescribeClusterRequest, request: Request) -> DescribeClusterResponse:
    if message.endpoint_type != BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.unsupported_endpoint_type,
            error_message="Every broker may be the controller here: ask for broker endpoints",
            endpoint_type=message.endpoint_type,
        )
    image = context.image
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=live.id, host=endpoint.host, port=endpoint.port, rack=live.rack)
            for live, endpoint in reachable(image, request.session.listener_name)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if message.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


@serves(DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions(
    context: Context, message: DescribeTopicPartitionsRequest, request: Request
) -> DescribeTopicPartitionsResponse:
    """Like Metadata, in pages (KIP-966): topics by name, from the cursor on."""
    image = context.image
    view = _View(image, request)
    names = sorted({each.name for each in message.topics} if message.topics else image.topics)
    first = 0
    if message.cursor is not None:
        names = [name for name in names if name >= message.cursor.topic_name]
        first = message.cursor.partition_index
        if first < 0:
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribeTopicPartitionsResponseTopic(
                        error_code=ErrorCode.invalid_request, name=message.cursor.topic_name
                    )
                ]
            )
        first = first if names and names[0] == message.cursor.topic_name else 0
    left = max(1, min(message.response_partition_limit, context.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse(next_cursor=None)
    for name in names:
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
            break
        topic = image.topic(name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(error_code=unknown_topic_error(name), name=name)
            )
            continue
        shown = list(enumerate(topic.partitions))[first : first + left]
        response.topics.append(_described(view, topic, shown))
        left -= len(shown)
        if first + len(shown) < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=first + len(shown)
            )
            break
        first = 0
    return response


def _described(
    view: _View, topic: TopicImage, shown: list[tuple[int, PartitionState]]
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index, state in shown:
        leader, code = view.leader(state)
        # The partition waits for its last leader when no other replica is eligible.
        waited_for = leader == NO_BROKER and not state.eligible and state.last_leader != NO_BROKER
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=code,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.in_sync),
                eligible_leader_replicas=list(state.eligible),
                last_known_elr=[state.last_leader] if waited_for else [],
                offline_replicas=view.offline(state),
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


@serves(UNREGISTER_BROKER)
async def unregister_broker(
    context: Context, message: UnregisterBrokerRequest, request: Request
) -> UnregisterBrokerResponse:
    """A registration ends with its broker's session, so there is never one to be removed; a live broker stays."""
    await context.cluster.catch_up()  # the broker may have registered, or gone, a moment ago
    if message.broker_id in context.image.brokers:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.invalid_request,
            error_message=f"Broker {message.broker_id} is alive. Stop it: its registration ends with it.",
        )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.broker_id_not_registered,
        error_message=f"Broker ID {message.broker_id} is not currently registered",
    )
