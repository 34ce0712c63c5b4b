"""ListOffsets: where partitions begin and end, and offsets by timestamp. Sent to each leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.client.core.requests import CONSUMER, STALE_METADATA, Node, code_of
from ottla.client.errors import ClientError, Several, error_of
from ottla.client.values import UNCOMMITTED, OffsetAndTimestamp, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from ottla.client.core.driver import Driver

Answers = dict[TopicPartition, OffsetAndTimestamp]


async def list_offsets(
    driver: Driver,
    times: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    request_timeout_s: float,
    isolation_level: int = UNCOMMITTED,
) -> Answers:
    """The first record not older than each time, in ms; EARLIEST and LATEST are times too. Several for what failed."""
    found: Answers = {}
    deadline = driver.runtime.now() + timeout_s

    async def round_() -> None:
        errors: dict[object, ClientError] = {}
        asked = await _by_leader(driver, {tp: at for tp, at in times.items() if tp not in found}, deadline)
        for broker, wanted in asked.items():
            epochs = ((tp, driver.metadata.leader(*tp).epoch, at) for tp, at in wanted.items())
            request = offsets_request(epochs, isolation_level)
            answer = await driver.call(request, ListOffsetsResponse, broker, timeout_s=request_timeout_s)
            for topic in answer.topics:
                for part in topic.partitions:
                    tp = TopicPartition(topic.name, part.partition_index)
                    code = code_of(part.error_code)
                    if code in STALE_METADATA:
                        driver.metadata.refresh()
                    error = error_of(code, str(tp))
                    if error is None:
                        found[tp] = OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
                    else:
                        error.retriable = error.retriable or code in STALE_METADATA
                        errors[tp] = error
        if errors:
            raise Several.of("offsets", errors)

    await driver.insist(round_, timeout_s=timeout_s)
    return {tp: found[tp] for tp in times if tp in found}


async def _by_leader(
    driver: Driver, times: Mapping[TopicPartition, int], deadline: float
) -> dict[Node, dict[TopicPartition, int]]:
    """A retriable ClientError, if a partition has no leader now."""
    asked: dict[Node, dict[TopicPartition, int]] = {}
    for tp, at in times.items():
        topic = await driver.topic(tp.topic, deadline)
        if tp.partition not in topic.leaders:
            # It may have been added just now, and the broker that answered Metadata does not know it yet.
            driver.metadata.refresh()
            driver.wake()
            raise ClientError(
                f"topic {tp.topic} has no partition {tp.partition}",
                code=ErrorCode.unknown_topic_or_partition,
                retriable=True,
            )
        broker = driver.metadata.leading_broker(*tp, driver.runtime.now())
        if broker is None:
            driver.metadata.refresh()
            driver.wake()
            raise ClientError(f"{tp} has no leader now", code=ErrorCode.leader_not_available, retriable=True)
        asked.setdefault(broker, {})[tp] = at
    return asked


def offsets_request(
    wanted: Iterable[tuple[TopicPartition, int, int]], isolation_level: int, timeout_ms: int = 0
) -> ListOffsetsRequest:
    """Of each partition, under its leader epoch, the offset at a time."""
    topics: dict[str, ListOffsetsTopic] = {}
    for (topic, partition), epoch, at in wanted:
        asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=at)
        topics.setdefault(topic, ListOffsetsTopic(name=topic)).partitions.append(asked)
    return ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=isolation_level, topics=list(topics.values()), timeout_ms=timeout_ms
    )
