"""A cluster in one object, for the client's machines: brokers that lose leadership, answer late, fail and repeat.

Partitions have one log each, of which everything below the high watermark is on all replicas; what is above may be
lost when another broker takes over. Requests and answers go through the real codecs, in versions drawn for each
broker. Requests to a broker are handled in order, one connection after another; when a connection breaks, what was on
its way may be lost, or arrive after all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from ottla.client.consuming.fetcher import Fetcher
from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import Send
from ottla.client.producing.accumulator import Action
from ottla.client.producing.produce_requests import Delivered, Undelivered
from ottla.client.producing.sender import Sender
from ottla.errors import ErrorCode, Refused
from ottla.log.producers import Producers
from ottla.wire.batch import BatchHeader, check_produced, read_header, stamp
from ottla.wire.messages import decode, encode
from ottla.wire.records import iterate
from ottla.wire.schema import fetch, list_offsets, metadata, offset_for_leader_epoch, produce
from ottla.wire.schema.fetch import FetchRequest, FetchResponse
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.schema.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.schema.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from ottla.wire.schema.produce import ProduceRequest, ProduceResponse
from ottla.wire.tree import ZERO_UUID, Message

Kind = type[Message]
ANSWERS: dict[Kind, Kind] = {
    MetadataRequest: MetadataResponse,
    ProduceRequest: ProduceResponse,
    FetchRequest: FetchResponse,
    ListOffsetsRequest: ListOffsetsResponse,
    OffsetForLeaderEpochRequest: OffsetForLeaderEpochResponse,
    InitProducerIdRequest: InitProducerIdResponse,
}
MODERN: dict[Kind, int] = {
    MetadataRequest: 13,
    ProduceRequest: 13,
    FetchRequest: 18,
    ListOffsetsRequest: 11,
    OffsetForLeaderEpochRequest: 4,
    InitProducerIdRequest: 5,
}
OLD: dict[Kind, int] = {**MODERN, MetadataRequest: 7, ProduceRequest: 7, FetchRequest: 11, ListOffsetsRequest: 5}


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


@dataclass
class ModelPartition:
    leader: int
    epoch: int = 0
    log: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    producers: Producers = field(default_factory=lambda: Producers(1000))
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first offset, offset of the marker."""

    @property
    def log_end(self) -> int:
        return self.log[-1][0].next_offset if self.log else 0

    def append(self, data: bytes) -> int:
        base = self.log_end
        batch = bytearray(data)
        stamp(batch, base, self.epoch)
        header = read_header(batch)
        self.log.append((header, bytes(batch)))
        if header.producer_id >= 0:
            self.producers.record(header, base, 0)
        return base

    def elect(self, node: int, *, lose: bool) -> None:
        """Another leader, which has all that is below the high watermark, and perhaps the rest."""
        if lose:
            self.truncate(self.high_watermark)
        self.high_watermark = self.log_end
        self.leader = node
        self.epoch += 1
        self.epochs.append((self.epoch, self.log_end))

    def truncate(self, end: int) -> None:
        self.log = [(header, data) for header, data in self.log if header.next_offset <= end]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start <= self.log_end]
        self.producers.clear()
        for header, _ in self.log:
            if header.producer_id >= 0:
                self.producers.record(header, header.base_offset, 0)

    def end_of_epoch(self, wanted: int) -> tuple[int, int]:
        known = [(epoch, start) for epoch, start in self.epochs if epoch <= wanted]
        later = [start for epoch, start in self.epochs if epoch > wanted]
        return (known[-1][0], later[0] if later else self.log_end) if known else (-1, -1)

    def read(self, offset: int, bytes_max: int) -> bytes:
        found = bytearray()
        for header, data in self.log:
            if header.next_offset <= offset or header.next_offset > self.high_watermark:
                continue
            if found and len(found) + len(data) > bytes_max:
                break
            found += data
        return bytes(found)


class ModelCluster:
    """The brokers. What goes wrong inside them is drawn from `chance` as often as `trouble` says."""

    def __init__(self, nodes: int, partitions: dict[str, int], chance: Random, *, trouble: float = 0.0) -> None:
        self.nodes = list(range(1, nodes + 1))
        self.chance = chance
        self.trouble = trouble
        self.hints = True
        self.bytes_max = 1 << 20
        self.versions = dict.fromkeys(self.nodes, MODERN)
        self.ids_known = True
        self.topics = {
            name: [ModelPartition(self.nodes[index % nodes]) for index in range(size)]
            for name, size in partitions.items()
        }
        self.producer_ids = count(1000)
        self.session_ids = count(1)
        self.sessions: dict[tuple[int, int], dict] = {}
        self.answers: dict[Kind, Callable[[int, Any], Message]] = {
            MetadataRequest: self.metadata,
            ProduceRequest: self.produce,
            FetchRequest: self.fetch_all,
            ListOffsetsRequest: self.list_offsets,
            OffsetForLeaderEpochRequest: self.end_of_epoch,
            InitProducerIdRequest: self.init_producer_id,
        }

    def version(self, node: int, send: Send) -> int:
        version = self.versions[node if node > 0 else self.nodes[-node - 1]][type(send.request)]
        return version if send.version_max is None else min(version, send.version_max)

    def handle(self, node: int, kind: Kind, version: int, body: bytes) -> bytes:
        request = decode(kind, version, body)
        real = node if node > 0 else self.nodes[-node - 1]
        return encode(self.answers[kind](real, request), version)

    def unlucky(self, share: float = 1.0) -> bool:
        return self.chance.random() < self.trouble * share

    def name(self, name: str, id: bytes) -> str:
        return name or next((known for known in self.topics if topic_id(known) == id), "")

    def find(self, node: int, topic: str, index: int, epoch: int = -1) -> ModelPartition:
        partitions = self.topics.get(topic, [])
        if not 0 <= index < len(partitions):
            raise Refused(ErrorCode.unknown_topic_or_partition)
        partition = partitions[index]
        if partition.leader != node:
            raise Refused(ErrorCode.not_leader_or_follower)
        if epoch >= 0 and epoch != partition.epoch:
            raise Refused(ErrorCode.fenced_leader_epoch if epoch < partition.epoch else ErrorCode.unknown_leader_epoch)
        return partition

    def metadata(self, node: int, request: MetadataRequest) -> MetadataResponse:
        wanted = self.topics if request.topics is None else [topic.name or "" for topic in request.topics]
        topics = []
        for name in wanted:
            topic = metadata.MetadataResponseTopic(name=name)
            topics.append(topic)
            if name not in self.topics:
                topic.error_code = ErrorCode.unknown_topic_or_partition
                continue
            topic.topic_id = topic_id(name) if self.ids_known else ZERO_UUID
            stale = self.unlucky(0.5)  # a broker that has not heard of the last election
            for index, partition in enumerate(self.topics[name]):
                leader, epoch = partition.leader, partition.epoch
                if stale and epoch:
                    leader, epoch = self.chance.choice(self.nodes), epoch - 1
                topic.partitions.append(
                    metadata.MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=epoch)
                )
        brokers = [metadata.MetadataResponseBroker(node_id=id, host=f"h{id}", port=id) for id in self.nodes]
        return MetadataResponse(brokers=brokers, topics=topics, controller_id=self.nodes[0], cluster_id="c")

    def init_producer_id(self, node: int, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if self.unlucky():
            return InitProducerIdResponse(error_code=ErrorCode.coordinator_load_in_progress)
        return InitProducerIdResponse(producer_id=next(self.producer_ids), producer_epoch=0)

    def produce(self, node: int, request: ProduceRequest) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            name = self.name(topic.name, topic.topic_id)
            results = []
            for part in topic.partition_data:
                result = produce.PartitionProduceResponse(index=part.index, base_offset=-1)
                results.append(result)
                try:
                    result.base_offset = self.append(node, name, part.index, part.records or b"")
                except Refused as refused:
                    result.error_code = refused.code
                    if refused.code is ErrorCode.not_leader_or_follower and self.hints:
                        partition = self.topics[name][part.index]
                        result.current_leader = produce.LeaderIdAndEpoch(
                            leader_id=partition.leader, leader_epoch=partition.epoch
                        )
            topics.append(
                produce.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)
            )
        return ProduceResponse(responses=topics)

    def append(self, node: int, name: str, index: int, data: bytes) -> int:
        partition = self.find(node, name, index)
        header = check_produced(memoryview(data))
        if len(data) > self.bytes_max:
            raise Refused(ErrorCode.message_too_large)
        if self.unlucky(0.5):
            raise Refused(ErrorCode.not_enough_replicas)
        duplicate = partition.producers.check(header) if header.producer_id >= 0 else None
        base = partition.append(data) if duplicate is None else duplicate.base_offset
        if self.unlucky():
            raise Refused(self.chance.choice([ErrorCode.not_enough_replicas_after_append, ErrorCode.request_timed_out]))
        partition.high_watermark = partition.log_end
        return base

    def fetch_all(self, node: int, request: FetchRequest) -> FetchResponse:
        named = {
            (self.name(topic.topic, topic.topic_id), part.partition): (topic, part)
            for topic in request.topics
            for part in topic.partitions
        }
        session_id = 0
        news_only = False
        if request.session_epoch > 0:
            session = self.sessions.get((node, request.session_id))
            if session is None or self.unlucky(0.3):
                self.sessions.pop((node, request.session_id), None)
                return FetchResponse(error_code=ErrorCode.fetch_session_id_not_found)
            if session["epoch"] != request.session_epoch:
                return FetchResponse(error_code=ErrorCode.invalid_fetch_session_epoch)
            session["epoch"] += 1
            session["wanted"].update(named)
            for gone in request.forgotten_topics_data:
                for index in gone.partitions:
                    session["wanted"].pop((self.name(gone.topic, gone.topic_id), index))
            named, session_id, news_only = session["wanted"], request.session_id, True
        elif request.session_epoch == 0:
            self.sessions.pop((node, request.session_id), None)
            if not self.unlucky():
                session_id = next(self.session_ids)
                self.sessions[node, session_id] = {"epoch": 1, "wanted": named}
        responses = []
        for (name, _), (topic, part) in named.items():
            data = self.fetch_one(node, name, part)
            if data.records or data.error_code or not news_only:
                responses.append(
                    fetch.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])
                )
        return FetchResponse(session_id=session_id, responses=responses)

    def fetch_one(self, node: int, name: str, wanted: fetch.FetchPartition) -> fetch.PartitionData:
        data = fetch.PartitionData(partition_index=wanted.partition)
        try:
            partition = self.find(node, name, wanted.partition, wanted.current_leader_epoch)
            if not partition.log_start <= wanted.fetch_offset <= partition.log_end:
                raise Refused(ErrorCode.offset_out_of_range)
            if self.unlucky(0.5):
                raise Refused(ErrorCode.kafka_storage_error)
            data.high_watermark = data.last_stable_offset = partition.high_watermark
            data.log_start_offset = partition.log_start
            data.records = partition.read(wanted.fetch_offset, wanted.partition_max_bytes)
            data.aborted_transactions = [
                fetch.AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first, marker in partition.aborted
                if marker >= wanted.fetch_offset
            ]
        except Refused as refused:
            data.error_code = refused.code
            data.high_watermark = -1
        return data

    def list_offsets(self, node: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            results = []
            for wanted in topic.partitions:
                result = list_offsets.ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
                results.append(result)
                try:
                    epoch = wanted.current_leader_epoch
                    partition = self.find(node, topic.name, wanted.partition_index, epoch)
                    earliest = wanted.timestamp == -2
                    result.offset = partition.log_start if earliest else partition.high_watermark
                    result.leader_epoch = 0 if earliest else partition.epoch
                except Refused as refused:
                    result.error_code = refused.code
            topics.append(list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=results))
        return ListOffsetsResponse(topics=topics)

    def end_of_epoch(self, node: int, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            results = []
            for wanted in topic.partitions:
                result = offset_for_leader_epoch.EpochEndOffset(partition=wanted.partition)
                results.append(result)
                try:
                    partition = self.find(node, topic.topic, wanted.partition, wanted.current_leader_epoch)
                    result.leader_epoch, result.end_offset = partition.end_of_epoch(wanted.leader_epoch)
                except Refused as refused:
                    result.error_code = refused.code
            topics.append(offset_for_leader_epoch.OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
        return OffsetForLeaderEpochResponse(topics=topics)

    def values(self, topic: str, index: int) -> list[bytes]:
        """What the log holds, for the eyes of tests."""
        partition = self.topics[topic][index]
        return [
            record.value or b""
            for header, data in partition.log
            if not header.is_control
            for record in iterate(data, bytes_max=1 << 24)
        ]


Machine = Metadata | Sender | Fetcher


class Wire:
    """One connection: requests are handled in order, and answered in order."""

    def __init__(self) -> None:
        self.outstanding: list[tuple[Machine, Send]] = []
        self.arrives = 0.0
        self.answers = 0.0
        self.broken = False


class ModelClient:
    """Machines, wired to a cluster on a virtual clock."""

    def __init__(self, cluster: ModelCluster, metadata: Metadata, *machines: Sender | Fetcher) -> None:
        self.cluster = cluster
        self.machines: tuple[Machine, ...] = (metadata, *machines)
        self.now = 0.0
        self.delivered: list[Delivered] = []
        self.undelivered: list[Undelivered] = []
        self.requests: dict[Kind, int] = {}
        self._wires: dict[int, Wire] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    # Time.

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def run_until(self, done: Callable[[], bool], limit_s: float = 3600.0) -> None:
        end = self.now + limit_s
        self.pump()
        while not done():
            assert self.now < end, "the machines make no progress"
            deadlines = [deadline for machine in self.machines if (deadline := machine.deadline) is not None]
            next_event = self._events[0][0] if self._events else None
            times = deadlines + ([next_event] if next_event is not None else [])
            assert times, "nothing will ever happen again"
            when = max(self.now, min(times))
            if next_event is None or when < next_event:
                assert when > self.now or any(d <= self.now for d in deadlines)
                self.now = max(when, self.now + 1e-6)
            else:
                self.now = max(self.now, next_event)
                heapq.heappop(self._events)[2]()
            self.pump()

    def run_for(self, seconds: float) -> None:
        over: list[bool] = []
        self.at(self.now + seconds, lambda: over.append(True))
        self.run_until(lambda: bool(over), seconds + 1)

    def pump(self) -> None:
        """Let the machines decide until they have nothing more to say."""
        for _ in range(1000):
            said = False
            for machine in self.machines:
                for action in machine.decide(self.now):
                    said = True
                    self.do(machine, action)
            if not said:
                return
        raise AssertionError("the machines talk without end")

    def do(self, machine: Machine, action: Action) -> None:
        if isinstance(action, Delivered):
            self.delivered.append(action)
        elif isinstance(action, Undelivered):
            self.undelivered.append(action)
        else:
            self.send(machine, action)

    # The network.

    def send(self, machine: Machine, send: Send) -> None:
        chance = self.cluster.chance
        node = send.to.node_id
        kind = type(send.request)
        self.requests[kind] = self.requests.get(kind, 0) + 1
        wire = self._wires.get(node)
        if wire is None:
            wire = self._wires[node] = Wire()
        if self.cluster.unlucky(0.3):
            self.at(self.now + chance.random() * 0.05, lambda: self.cut(node))
        if send.awaited:
            wire.outstanding.append((machine, send))
        version = self.cluster.version(node, send)
        body = encode(send.request, version)
        wire.arrives = max(wire.arrives, self.now + 0.001 + chance.random() * 0.01)
        self.at(wire.arrives, lambda: self.arrive(wire, machine, send, version, body))

    def arrive(self, wire: Wire, machine: Machine, send: Send, version: int, body: bytes) -> None:
        if wire.broken and self.cluster.chance.random() < 0.5:
            return  # lost on its way; or else it comes although nobody waits for the answer
        kind = type(send.request)
        answer = self.cluster.handle(send.to.node_id, kind, version, body)
        if not send.awaited:
            return
        delayed = 0.1 if kind is FetchRequest else 0.0
        wire.answers = max(wire.answers, self.now + 0.001 + delayed + self.cluster.chance.random() * 0.01)
        self.at(wire.answers, lambda: self.answer(wire, machine, send, version, answer))

    def answer(self, wire: Wire, machine: Machine, send: Send, version: int, answer: bytes) -> None:
        if wire.broken:
            return
        assert wire.outstanding.pop(0) == (machine, send), "answers come in order"
        machine.answered(send, decode(ANSWERS[type(send.request)], version, answer), self.now)

    def cut(self, node: int) -> None:
        """Break the connection to this broker."""
        wire = self._wires.pop(node, None)
        if wire is not None:
            wire.broken = True
            for machine, send in wire.outstanding:
                machine.failed(send, self.now)
