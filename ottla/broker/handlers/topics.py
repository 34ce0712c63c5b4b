"""CreateTopics, DeleteTopics, CreatePartitions: run by the controller, answered when this broker has the change."""

from __future__ import annotations

from collections import Counter

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.forwarding import by_controller
from ottla.cluster.requests import PartitionsSpec, TopicResult, TopicSpec
from ottla.config.describe import describe_topic
from ottla.errors import ErrorCode
from ottla.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from ottla.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.schema.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from ottla.wire.tree import ZERO_UUID


def _duplicates(names: list[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


_DUPLICATE = "the request names this topic more than once"


@serves(CREATE_TOPICS)
@by_controller
async def create_topics(context: Context, message: CreateTopicsRequest, request: Request) -> CreateTopicsResponse:
    duplicates = _duplicates([topic.name for topic in message.topics])
    wanted = [topic for topic in message.topics if topic.name not in duplicates]
    specs = [_spec(topic) for topic in wanted]
    results = await context.cluster.create_topics(specs, validate_only=message.validate_only)
    answers = [_created(context, result) for result in results]
    answers += [
        CreatableTopicResult(name=name, error_code=ErrorCode.invalid_request, error_message=_DUPLICATE)
        for name in sorted(duplicates)
    ]
    return CreateTopicsResponse(topics=answers)


def _spec(topic: CreatableTopic) -> TopicSpec:
    return TopicSpec(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs={each.name: each.value for each in topic.configs},
    )


def _created(context: Context, result: TopicResult) -> CreatableTopicResult:
    if result.code:
        return CreatableTopicResult(
            name=result.name, error_code=result.code, error_message=result.message, configs=None
        )
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=[
            CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=row.read_only,
                config_source=row.source,
                is_sensitive=row.sensitive,
            )
            for row in describe_topic(result.configs, context.config)
        ],
    )


@serves(DELETE_TOPICS)
@by_controller
async def delete_topics(context: Context, message: DeleteTopicsRequest, request: Request) -> DeleteTopicsResponse:
    if not context.config.delete_topic_enable:
        code, why = ErrorCode.topic_deletion_disabled, "delete.topic.enable is false"
        names = [(name, ZERO_UUID) for name in message.topic_names]
        names += [(topic.name or "", topic.topic_id) for topic in message.topics]
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=why)
                for name, topic_id in names
            ]
        )
    wanted, refused = _to_delete(context, message)
    results = await context.cluster.delete_topics(wanted)
    answers = [
        DeletableTopicResult(
            name=result.name or (None if isinstance(asked, bytes) else asked),
            topic_id=result.topic_id,
            error_code=result.code,
            error_message=result.message,
        )
        for asked, result in zip(wanted, results, strict=True)
    ]
    return DeleteTopicsResponse(responses=answers + refused)


def _to_delete(context: Context, message: DeleteTopicsRequest) -> tuple[list[str | bytes], list[DeletableTopicResult]]:
    """The topics by name or id, and the refusals of ambiguous ones."""
    refused: list[DeletableTopicResult] = []

    def refuse(name: str | None, topic_id: bytes, why: str) -> None:
        code = ErrorCode.invalid_request
        refused.append(DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=why))

    asked: list[str | bytes] = [*message.topic_names]
    for topic in message.topics:
        if topic.name is None and topic.topic_id == ZERO_UUID:
            refuse(None, ZERO_UUID, "Neither topic name nor id were specified.")
        elif topic.name is not None and topic.topic_id != ZERO_UUID:
            refuse(topic.name, topic.topic_id, "You may not specify both topic name and topic id.")
        else:
            asked.append(topic.topic_id if topic.name is None else topic.name)
    times = Counter(asked)
    wanted: list[str | bytes] = []
    for ref, count in times.items():
        if isinstance(ref, bytes):
            if count > 1:
                refuse(None, ref, "Duplicate topic id.")
                continue
        elif count > 1:
            refuse(ref, ZERO_UUID, "Duplicate topic name.")
            continue
        elif (named := context.image.topic(ref)) is not None and named.id in times:
            refuse(ref, ZERO_UUID, "The provided topic name maps to an ID that was already supplied.")
            continue
        wanted.append(ref)
    return wanted, refused


@serves(CREATE_PARTITIONS)
@by_controller
async def create_partitions(
    context: Context, message: CreatePartitionsRequest, request: Request
) -> CreatePartitionsResponse:
    duplicates = _duplicates([topic.name for topic in message.topics])
    specs = [
        PartitionsSpec(
            topic.name,
            topic.count,
            None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
        )
        for topic in message.topics
        if topic.name not in duplicates
    ]
    results = await context.cluster.create_partitions(specs, validate_only=message.validate_only)
    answers = [
        CreatePartitionsTopicResult(name=result.name, error_code=result.code, error_message=result.message)
        for result in results
    ]
    answers += [
        CreatePartitionsTopicResult(name=name, error_code=ErrorCode.invalid_request, error_message=_DUPLICATE)
        for name in sorted(duplicates)
    ]
    return CreatePartitionsResponse(results=answers)
