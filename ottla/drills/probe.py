"""Probe: single requests without retries, so that a drill sees the error that a producer would hide."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.errors import ErrorCode
from ottla.local.cluster import LocalCluster
from ottla.local.snapshot import NOBODY, ClusterSnapshot, Replicas, snapshot_from
from ottla.wire.batch import HEADER_BYTES, batches, read_header
from ottla.wire.records import Record, build_batch, iterate
from ottla.wire.schema import alter_partition_reassignments as reassign
from ottla.wire.schema import create_topics as create
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
CONTROLLER_SECONDS: Final = 10.0
ASK_AGAIN: Final = (ErrorCode.not_controller, ErrorCode.request_timed_out)


class Acknowledged(NamedTuple):
    """The offsets a write was given, half-open."""

    base_offset: int
    end: int


class Probe:
    """A client without patience, and without a memory of connections that brokers lost meanwhile."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.answer_seconds = ANSWER_SECONDS
        """How long a broker has for an answer, and four fifths of it for an acknowledgement."""
        self._topic_ids: dict[str, bytes] = {}

    async def snapshot(self) -> ClusterSnapshot:
        """The cluster as the first broker that answers tells it."""
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

    async def everybody_knows(self) -> set[tuple[int, ...]]:
        """The registered brokers, as each broker that serves has them: one answer when all agree."""
        return {(await self.snapshot_of(broker_id)).brokers for broker_id in self.serving()}

    def serving(self) -> list[int]:
        return [broker.id for broker in self._cluster.serving()]

    async def replicas(self, topic: str, partition: int = 0) -> Replicas:
        snapshot = await self.snapshot()
        return snapshot.partitions.get((topic, partition), Replicas(NOBODY, (), ()))

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
        assignments = [
            create.CreatableReplicaAssignment(partition_index=index, broker_ids=list(each))
            for index, each in enumerate(placed)
        ]
        request = create.CreateTopicsRequest(
            topics=[
                create.CreatableTopic(
                    name=topic,
                    num_partitions=partitions,
                    replication_factor=copies,
                    assignments=assignments,
                    configs=[create.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
                )
            ],
            timeout_ms=int(ANSWER_SECONDS * 1000),
        )
        answer = await self.ask_controller(
            request, create.CreateTopicsResponse, lambda answer: answer.topics[0].error_code
        )
        result = answer.topics[0]
        if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise ClientError(f"topic {topic}: {result.error_message or result.error_code}")

    async def reassign(self, placed: Mapping[tuple[str, int], Sequence[int]]) -> None:
        topics: dict[str, list[reassign.ReassignablePartition]] = {}
        for (topic, index), brokers in placed.items():
            wanted = reassign.ReassignablePartition(partition_index=index, replicas=list(brokers))
            topics.setdefault(topic, []).append(wanted)
        request = reassign.AlterPartitionReassignmentsRequest(
            timeout_ms=int(ANSWER_SECONDS * 1000),
            topics=[reassign.ReassignableTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        answer = await self.ask_controller(
            request, reassign.AlterPartitionReassignmentsResponse, lambda answer: answer.error_code
        )
        codes = [answer.error_code, *(each.error_code for topic in answer.responses for each in topic.partitions)]
        if any(codes):
            raise ClientError(f"the reassignment was refused: {ErrorCode(max(codes)).name}")

    async def ask_controller(self, request: Message, answer: type[R], code_of: Callable[[R], int]) -> R:
        """Ask whoever is the controller, and again while controllers or the store change: so it may be done twice."""
        deadline = time.monotonic() + CONTROLLER_SECONDS
        while True:
            controller = (await self.snapshot()).controller
            try:
                if controller in self.serving():
                    told = await self._call_broker(controller, request, answer)
                    if code_of(told) not in ASK_AGAIN or time.monotonic() > deadline:
                        return told
            except ClientError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise ClientError("there is no controller")
            await asyncio.sleep(0.05)

    async def write(
        self, topic: str, values: Sequence[str], partition: int = 0, *, acks: int = -1
    ) -> Acknowledged | ErrorCode:
        """One batch to the leader, without idempotence or retry."""
        state = await self.replicas(topic, partition)
        if state.leader == NOBODY:
            return ErrorCode.leader_not_available
        return await self.write_to(state.leader, topic, values, partition, acks=acks)

    async def write_to(
        self, broker_id: int, topic: str, values: Sequence[str], partition: int = 0, *, acks: int = -1
    ) -> Acknowledged | ErrorCode:
        """One batch to this broker, whether it leads or not. Metadata must have been read before, for the topic id."""
        now = int(time.time() * 1000)
        batch = build_batch([Record(n, now, None, value.encode()) for n, value in enumerate(values)])
        data = produce.PartitionProduceData(index=partition, records=batch)
        request = produce.ProduceRequest(
            acks=acks,
            timeout_ms=int(self.answer_seconds * 800),
            topic_data=[produce.TopicProduceData(topic_id=self._topic_ids[topic], name=topic, partition_data=[data])],
        )
        try:
            answer = await self._call_broker(broker_id, request, produce.ProduceResponse)
        except ClientError as error:
            return error.code
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            return ErrorCode(result.error_code)
        return Acknowledged(result.base_offset, result.base_offset + len(values))

    async def send(self, broker_id: int, topic: str, value: str, partition: int = 0) -> None:
        """One record with acks=0: the broker does not answer, and nobody is told what becomes of it."""
        batch = build_batch([Record(0, int(time.time() * 1000), None, value.encode())])
        data = produce.PartitionProduceData(index=partition, records=batch)
        request = produce.ProduceRequest(
            acks=0,
            topic_data=[produce.TopicProduceData(topic_id=self._topic_ids[topic], name=topic, partition_data=[data])],
        )
        connection = await _open(self._cluster[broker_id].bootstrap)
        connection.send(request, None)
        await connection.close()

    async def read(self, topic: str, partition: int = 0) -> list[str] | ErrorCode:
        """Every value that a consumer may see, from the first on."""
        values: list[str] = []
        offset, end = 0, await self.end(topic, partition)
        while not isinstance(end, ErrorCode) and offset < end:
            fetched = await self._fetch(topic, partition, offset)
            if isinstance(fetched, ErrorCode):
                return fetched
            values += _values(fetched, offset)
            offset = max([offset, *(header.next_offset for _, header in batches(fetched))])
        return end if isinstance(end, ErrorCode) else values

    async def preferred_replica(self, topic: str, rack: str, partition: int = 0) -> int | ErrorCode:
        """Which broker the leader names to a consumer in this rack (KIP-392)."""
        state = await self.replicas(topic, partition)
        answer = await self._fetch_from(state.leader, topic, partition, 0, rack)
        return answer if isinstance(answer, ErrorCode) else answer.preferred_read_replica

    async def fetch_from(
        self, broker_id: int, topic: str, partition: int = 0, offset: int = 0
    ) -> list[str] | ErrorCode:
        """The values that one Fetch of this broker returns."""
        answer = await self._fetch_from(broker_id, topic, partition, offset)
        if isinstance(answer, ErrorCode):
            return answer
        return _values(bytes(answer.records or b""), offset)

    async def end(self, topic: str, partition: int = 0) -> int | ErrorCode:
        """The high watermark, from the leader."""
        state = await self.replicas(topic, partition)
        if state.leader == NOBODY:
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

    async def _fetch(self, topic: str, partition: int, offset: int) -> bytes | ErrorCode:
        state = await self.replicas(topic, partition)
        answer = await self._fetch_from(state.leader, topic, partition, offset)
        return answer if isinstance(answer, ErrorCode) else bytes(answer.records or b"")

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
    """How many records a broker's own log holds, up to its last whole batch."""
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
    """What a broker's own log holds, up to its last whole batch, whether or not the broker runs."""
    directory = cluster[broker_id].data / f"{topic}-{partition}"
    return [value for segment in sorted(directory.glob("*.log")) for value in _values(segment.read_bytes())]


def _values(data: bytes, offset: int = 0) -> list[str]:
    """Of all whole batches, from an offset on."""
    return [
        (record.value or b"").decode()
        for position, header in batches(data)
        for record in iterate(memoryview(data)[position : position + header.size], bytes_max=RECORD_BYTES_MAX)
        if record.offset >= offset
    ]
