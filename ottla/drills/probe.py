"""Probe: single Produce and Fetch requests without retries, so that a drill sees errors that clients hide."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from ottla.client.admin import Admin, NewTopic
from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.errors import ClientError, TopicExists
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.local.cluster import LocalCluster
from ottla.local.snapshot import NO_BROKER, ClusterSnapshot, PartitionReplicas, snapshot_from
from ottla.wire.batch import HEADER_BYTES, batches, read_header
from ottla.wire.records import Record, build_batch, iterate
from ottla.wire.schema import fetch, list_offsets, produce
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)

ANSWER_SECONDS: Final = 5.0
FETCH_BYTES: Final = 1 << 20
RECORD_BYTES_MAX: Final = 1 << 24
LATEST: Final = -1
SESSIONLESS: Final = -1
CONSUMER: Final = -1


class Acknowledged(NamedTuple):
    """The offsets of a write, half-open."""

    base_offset: int
    end: int


class Probe:
    """A client that opens a connection for each request, and does not retry."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.answer_seconds = ANSWER_SECONDS
        """Timeout of a response; four fifths of it is the timeout of an acknowledgement."""
        self._topic_ids: dict[str, bytes] = {}

    async def snapshot(self) -> ClusterSnapshot:
        """The snapshot of the first broker that answers."""
        for broker_id in self.serving():
            try:
                return await self.snapshot_of(broker_id)
            except ClientError:
                continue
        return ClusterSnapshot()

    async def snapshot_of(self, broker_id: int) -> ClusterSnapshot:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = await self._call_broker(broker_id, request, MetadataResponse)
        self._topic_ids = {topic.name or "": topic.topic_id for topic in answer.topics}
        return snapshot_from(answer)

    async def registered_brokers(self) -> set[tuple[int, ...]]:
        """The registered brokers, as each serving broker reports them: one element if all agree."""
        return {(await self.snapshot_of(broker_id)).brokers for broker_id in self.serving()}

    def serving(self) -> list[int]:
        return [broker.id for broker in self._cluster.serving()]

    async def replicas(self, topic: str, partition: int = 0) -> PartitionReplicas:
        snapshot = await self.snapshot()
        return snapshot.partitions.get((topic, partition), PartitionReplicas(NO_BROKER, (), ()))

    async def create(
        self,
        topic: str,
        placed: Sequence[Sequence[int]] = (),
        *,
        partitions: int = -1,
        copies: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """`placed` names the brokers of each partition; otherwise the controller chooses them."""
        assignment = {index: list(brokers) for index, brokers in enumerate(placed)}
        async with Admin(self._cluster.bootstrap) as admin:
            with suppress(TopicExists):  # a retry after a lost answer
                await admin.create_topics([NewTopic(topic, partitions, copies, configs or {}, assignment)])

    async def reassign(self, placed: Mapping[TopicPartition, Sequence[int]]) -> None:
        async with Admin(self._cluster.bootstrap) as admin:
            await admin.reassign(placed)

    async def write(
        self, topic: str, values: Sequence[str], partition: int = 0, *, acks: int = -1
    ) -> Acknowledged | ErrorCode:
        """One batch to the leader, without idempotence or retry."""
        state = await self.replicas(topic, partition)
        if state.leader == NO_BROKER:
            return ErrorCode.leader_not_available
        return await self.write_to(state.leader, topic, values, partition, acks=acks)

    async def write_to(
        self, broker_id: int, topic: str, values: Sequence[str], partition: int = 0, *, acks: int = -1
    ) -> Acknowledged | ErrorCode:
        """One batch to this broker, leader or not. Needs the topic id from an earlier `snapshot`."""
        request = self._produce_request(topic, values, partition, acks)
        try:
            answer = await self._call_broker(broker_id, request, produce.ProduceResponse)
        except ClientError as error:
            return error.code
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            return ErrorCode(result.error_code)
        return Acknowledged(result.base_offset, result.base_offset + len(values))

    async def send(self, broker_id: int, topic: str, value: str, partition: int = 0) -> None:
        """One record with acks=0: the broker does not answer."""
        connection = await _open(self._cluster[broker_id].bootstrap)
        connection.send(self._produce_request(topic, [value], partition, acks=0), None)
        await connection.close()

    def _produce_request(self, topic: str, values: Sequence[str], partition: int, acks: int) -> produce.ProduceRequest:
        now = int(time.time() * 1000)
        batch = build_batch([Record(n, now, None, value.encode()) for n, value in enumerate(values)])
        data = produce.PartitionProduceData(index=partition, records=batch)
        return produce.ProduceRequest(
            acks=acks,
            timeout_ms=int(self.answer_seconds * 800),
            topic_data=[produce.TopicProduceData(topic_id=self._topic_ids[topic], name=topic, partition_data=[data])],
        )

    async def read(self, topic: str, partition: int = 0) -> list[str] | ErrorCode:
        """Every value up to the high watermark."""
        values: list[str] = []
        offset, end = 0, await self.end(topic, partition)
        while not isinstance(end, ErrorCode) and offset < end:
            state = await self.replicas(topic, partition)
            answer = await self._fetch_from(state.leader, topic, partition, offset)
            if isinstance(answer, ErrorCode):
                return answer
            fetched = bytes(answer.records or b"")
            values += _values(fetched, offset)
            offset = max([offset, *(header.next_offset for _, header in batches(fetched))])
        return end if isinstance(end, ErrorCode) else values

    async def preferred_replica(self, topic: str, rack: str, partition: int = 0) -> int | ErrorCode:
        """The preferred read replica for a consumer in this rack (KIP-392)."""
        state = await self.replicas(topic, partition)
        answer = await self._fetch_from(state.leader, topic, partition, 0, rack)
        return answer if isinstance(answer, ErrorCode) else answer.preferred_read_replica

    async def fetch_from(
        self, broker_id: int, topic: str, partition: int = 0, offset: int = 0
    ) -> list[str] | ErrorCode:
        """The values in the response of this broker to one Fetch."""
        answer = await self._fetch_from(broker_id, topic, partition, offset)
        if isinstance(answer, ErrorCode):
            return answer
        return _values(bytes(answer.records or b""), offset)

    async def end(self, topic: str, partition: int = 0) -> int | ErrorCode:
        """The high watermark, from the leader."""
        state = await self.replicas(topic, partition)
        if state.leader == NO_BROKER:
            return ErrorCode.leader_not_available
        wanted = list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        request = list_offsets.ListOffsetsRequest(
            replica_id=CONSUMER, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[wanted])]
        )
        try:
            answer = await self._call_broker(state.leader, request, list_offsets.ListOffsetsResponse)
        except ClientError as error:
            return error.code
        result = answer.topics[0].partitions[0]
        return ErrorCode(result.error_code) if result.error_code else result.offset

    async def _fetch_from(
        self, broker_id: int, topic: str, partition: int, offset: int, rack: str = ""
    ) -> fetch.PartitionData | ErrorCode:
        wanted = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = fetch.FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            session_epoch=SESSIONLESS,
            topics=[fetch.FetchTopic(topic_id=self._topic_ids[topic], topic=topic, partitions=[wanted])],
            rack_id=rack,
        )
        try:
            answer = await self._call_broker(broker_id, request, fetch.FetchResponse)
        except ClientError as error:
            return error.code
        if answer.error_code:
            return ErrorCode(answer.error_code)
        result = answer.responses[0].partitions[0]
        return ErrorCode(result.error_code) if result.error_code else result

    async def _call_broker(self, broker_id: int, request: Message, answer: type[R]) -> R:
        connection = await _open(self._cluster[broker_id].bootstrap)
        try:
            return await connection.call(request, answer, timeout_s=self.answer_seconds)
        finally:
            await connection.close()


async def _open(address: str) -> BrokerConnection:
    host, _, port = address.rpartition(":")
    return await BrokerConnection.open(host, int(port), client_id="ottla-drill")


def count_on_disk(cluster: LocalCluster, broker_id: int, topic: str, partition: int = 0) -> int:
    """Number of records in a broker's log, up to its last complete batch."""
    directory = cluster[broker_id].data / f"{topic}-{partition}"
    count = 0
    for segment in directory.glob("*.log"):
        with segment.open("rb") as file:
            at, size = 0, os.fstat(file.fileno()).st_size
            while at + HEADER_BYTES <= size:
                file.seek(at)
                header = read_header(file.read(HEADER_BYTES))
                at += header.size
                count += header.record_count if at <= size else 0
    return count


def values_on_disk(cluster: LocalCluster, broker_id: int, topic: str, partition: int = 0) -> list[str]:
    """Values in a broker's log, up to its last complete batch; the broker need not run."""
    directory = cluster[broker_id].data / f"{topic}-{partition}"
    return [value for segment in sorted(directory.glob("*.log")) for value in _values(segment.read_bytes())]


def _values(data: bytes, offset: int = 0) -> list[str]:
    """Values of all complete batches, from an offset on."""
    return [
        (record.value or b"").decode()
        for position, header in batches(data)
        for record in iterate(memoryview(data)[position : position + header.size], bytes_max=RECORD_BYTES_MAX)
        if record.offset >= offset
    ]
