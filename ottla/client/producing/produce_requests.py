"""Produce requests and their outcomes: producer settings, delivered batches, failed batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import Node, RequestSettings, Send
from ottla.client.errors import BadSetting, ClientError
from ottla.client.producing.batches import BATCHES_IN_FLIGHT_MAX, Batch, PartitionQueue
from ottla.client.values import RecordMetadata
from ottla.errors import ErrorCode
from ottla.wire.batch import CODECS
from ottla.wire.records import Record
from ottla.wire.schema.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.wire.tree import ZERO_UUID

NO_OFFSET: Final = -1
TOPIC_NAMES_UNTIL: Final = 12
"""The last version of Produce that names topics; later ones need their ids."""

DELIVERED: Final = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})
TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
DOUBTFUL: Final = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,  # also sent to delayed Produce requests when the leader stops leading
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
        ErrorCode.unknown_server_error,
    }
)
"""Refusals of a batch that may be in the log nevertheless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(RequestSettings):
    """Kafka's names and defaults."""

    acks: int = -1
    enable_idempotence: bool | None = None
    """None: yes, if acks is all."""
    batch_size: int = 16_384
    linger_ms: int = 5
    buffer_memory: int = 33_554_432
    max_request_size: int = 1_048_576
    max_in_flight_requests_per_connection: int = BATCHES_IN_FLIGHT_MAX
    compression_type: str = "none"
    compression_level: int | None = None
    delivery_timeout_ms: int = 120_000
    retries: int = 2**31 - 1
    transactional_id: str | None = None

    def __post_init__(self) -> None:
        if self.acks not in (-1, 0, 1):
            raise BadSetting(f"acks is {self.acks}; it can be 0, 1 or -1, which means all")
        if self.compression_type not in CODECS:
            raise BadSetting(f"there is no codec {self.compression_type!r}; there are {', '.join(CODECS)}")
        if self.idempotent and self.acks != -1:
            raise BadSetting("an idempotent producer needs acks=all")
        if self.transactional_id is not None and not self.idempotent:
            raise BadSetting("a transactional producer is idempotent")
        if not 1 <= self.max_in_flight_requests_per_connection <= (BATCHES_IN_FLIGHT_MAX if self.idempotent else 1000):
            raise BadSetting(f"an idempotent producer has 1 to {BATCHES_IN_FLIGHT_MAX} requests in flight")

    @property
    def idempotent(self) -> bool:
        return self.acks == -1 if self.enable_idempotence is None else self.enable_idempotence


class AppendResult(Enum):
    """What became of a record that was to be appended."""

    ACCEPTED = "accepted"
    FULL = "full"
    """Memory is used up: try again when something was delivered or has failed."""
    METADATA_MISSING = "unrouted"
    """The partitions of the topic are not known yet: try again when metadata was refreshed."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivered:
    """A batch is in the log, as safe as acks says."""

    topic: str
    partition: int
    base_offset: int
    log_append_time_ms: int
    records: list[Record]
    tokens: list[object]

    def results(self) -> Iterator[tuple[object, RecordMetadata]]:
        """Each record's token, and where it is."""
        topic, partition, stamped = self.topic, self.partition, self.log_append_time_ms
        offset, step = (self.base_offset, 1) if self.base_offset >= 0 else (NO_OFFSET, 0)
        for record, token in zip(self.records, self.tokens, strict=True):
            yield token, RecordMetadata(topic, partition, offset, record[1] if stamped < 0 else stamped)
            offset += step


@dataclass(frozen=True, slots=True, eq=False)
class Undelivered:
    """A batch was given up."""

    topic: str
    partition: int
    records: list[Record]
    tokens: list[object]
    error: ClientError
    details: Mapping[int, str] = field(default_factory=dict)
    """Errors of single records, by their index in the batch (KIP-467); the others failed with them."""


Load = list[tuple[PartitionQueue, Batch]]
"""What one request carries: at most one batch for each partition."""


def produce(
    broker: Node, load: Load, metadata: Metadata, settings: ProducerSettings, version_max: int | None = None
) -> Send:
    by_id = True
    topics: dict[str, TopicProduceData] = {}
    transactional = settings.transactional_id is not None
    for queue, batch in load:
        topic = topics.get(queue.topic)
        if topic is None:
            known = metadata.topic(queue.topic)
            topic_id = known.id if known is not None else ZERO_UUID
            by_id = by_id and topic_id != ZERO_UUID
            topic = topics[queue.topic] = TopicProduceData(name=queue.topic, topic_id=topic_id)
        data = batch.encoded(settings.compression_type, settings.compression_level, transactional)
        topic.partition_data.append(PartitionProduceData(index=queue.partition, records=data))
    request = ProduceRequest(
        transactional_id=settings.transactional_id,
        acks=settings.acks,
        timeout_ms=settings.request_timeout_ms,
        topic_data=list(topics.values()),
    )
    if not by_id:
        version_max = TOPIC_NAMES_UNTIL if version_max is None else min(version_max, TOPIC_NAMES_UNTIL)
    return Send(request, broker, settings.request_timeout_s, settings.acks != 0, version_max)


def flaw_of(queue: PartitionQueue, batch: Batch, settings: ProducerSettings) -> ClientError | None:
    """Why the batch cannot be encoded, or None. The encoded batch is kept for `produce`."""
    try:
        batch.encoded(settings.compression_type, settings.compression_level, settings.transactional_id is not None)
    except Exception as error:  # noqa: BLE001 (whatever is wrong with it must not hold up those behind it)
        message = f"{queue.topic}-{queue.partition}: not to be encoded: {type(error).__name__}: {error}"
        return ClientError(message, code=ErrorCode.invalid_record)
    return None


def too_large(size: int) -> ClientError:
    message = f"a record of {size} bytes is larger than max_request_size allows"
    return ClientError(message, code=ErrorCode.message_too_large)


def results_of(
    request: ProduceRequest, response: ProduceResponse
) -> dict[tuple[str | None, int], PartitionProduceResponse]:
    """The parts of an answer by topic and partition, whether it names topics or gives their ids."""
    names = {topic.topic_id: topic.name for topic in request.topic_data}
    return {
        (topic.name or names.get(topic.topic_id), result.index): result
        for topic in response.responses
        for result in topic.partition_responses
    }
