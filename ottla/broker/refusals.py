"""How each API says no to all that was asked: some have one place for an error, others one for every item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.errors import ErrorCode
from ottla.wire import apis, messages
from ottla.wire.schema import alter_configs, incremental_alter_configs
from ottla.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.wire.schema.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.schema.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.wire.tree import ZERO_UUID, Message


def refusal(message: Message, code: ErrorCode, text: str | None = None) -> Message | None:
    """The answer to `message` that refuses all of it; None when the API has no place to say so."""
    by_item = _BY_ITEM.get(message.API_KEY)
    if by_item is not None:
        return by_item(message, code, text)
    response = messages.message_class(message.API_KEY, "response")()
    if not hasattr(response, "error_code"):
        return None
    setattr(response, "error_code", int(code))  # noqa: B010
    if hasattr(response, "error_message"):
        setattr(response, "error_message", text)  # noqa: B010
    return response


def _create_topics(message: CreateTopicsRequest, code: ErrorCode, text: str | None) -> Message:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=code, error_message=text, configs=None)
            for topic in message.topics
        ]
    )


def _delete_topics(message: DeleteTopicsRequest, code: ErrorCode, text: str | None) -> Message:
    asked: list[tuple[str | None, bytes]] = [(name, ZERO_UUID) for name in message.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in message.topics]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=text)
            for name, topic_id in asked
        ]
    )


def _create_partitions(message: CreatePartitionsRequest, code: ErrorCode, text: str | None) -> Message:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=text)
            for topic in message.topics
        ]
    )


def _alter_configs(message: alter_configs.AlterConfigsRequest, code: ErrorCode, text: str | None) -> Message:
    return alter_configs.AlterConfigsResponse(
        responses=[
            alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in message.resources
        ]
    )


def _incremental_alter_configs(
    message: incremental_alter_configs.IncrementalAlterConfigsRequest, code: ErrorCode, text: str | None
) -> Message:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in message.resources
        ]
    )


def _write_txn_markers(message: WriteTxnMarkersRequest, code: ErrorCode, text: str | None) -> Message:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in message.markers
        ]
    )


_BY_ITEM: Final[dict[int, Callable[[Any, ErrorCode, str | None], Message]]] = {
    apis.CREATE_TOPICS: _create_topics,
    apis.DELETE_TOPICS: _delete_topics,
    apis.CREATE_PARTITIONS: _create_partitions,
    apis.ALTER_CONFIGS: _alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    apis.WRITE_TXN_MARKERS: _write_txn_markers,
}
