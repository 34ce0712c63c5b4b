"""Cluster details beyond metadata: offsets from partition leaders, eligible leader replicas, and consumer groups from
their coordinators. A broker that does not answer is left out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from ottla.client.errors import ClientError
from ottla.errors import BadFrame
from ottla.local.snapshot import ClusterSnapshot
from ottla.wire.consumer_protocol import decode_assignment
from ottla.wire.schema import list_offsets, offset_for_leader_epoch
from ottla.wire.schema.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from ottla.wire.schema.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.wire.schema.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)
Partition = tuple[str, int]

EARLIEST: Final = -2
LATEST: Final = -1
CONSUMER: Final = -1
UNKNOWN: Final = -1
NO_EPOCH: Final = -1
RATE_SECONDS: Final = 2.0
"""Interval over which the write rate is measured."""
PARTITIONS_MAX: Final = 2000
"""Partitions in one poll."""
GROUPS_MAX: Final = 20
NEXT_GENERATION: Final = "consumer"


class Offsets(NamedTuple):
    """Offsets of one partition from its leader; UNKNOWN if it did not answer."""

    start: int = UNKNOWN
    high_watermark: int = UNKNOWN
    end: int = UNKNOWN


class MemberDetail(NamedTuple):
    client_id: str
    partitions: tuple[Partition, ...]


class GroupDetail(NamedTuple):
    name: str
    state: str
    coordinator: int
    members: tuple[MemberDetail, ...] = ()
    committed: Mapping[Partition, int] = {}

    def partitions(self) -> list[Partition]:
        """Partitions with a committed offset or a member."""
        return sorted({*self.committed, *(each for member in self.members for each in member.partitions)})

    def lag(self, partition: Partition, offsets: Mapping[Partition, Offsets]) -> int:
        """Records between the committed offset and the high watermark; UNKNOWN without a leader."""
        known = offsets.get(partition, Offsets())
        if known.high_watermark == UNKNOWN:
            return UNKNOWN
        return max(0, known.high_watermark - self.committed.get(partition, known.start))


class Detail(NamedTuple):
    offsets: Mapping[Partition, Offsets] = {}
    eligible: Mapping[Partition, tuple[int, ...]] = {}
    """Eligible leader replicas of partitions that have some."""
    groups: tuple[GroupDetail, ...] = ()
    rates: Mapping[Partition, float] = {}
    """Records written per second."""


class DetailRequests:
    """Sends the requests through `call`, which has a connection to each broker."""

    def __init__(self, call: Callable[[int, Message, type[Message]], Awaitable[Message]]) -> None:
        self._call = call
        self._history: deque[tuple[float, Mapping[Partition, Offsets]]] = deque()
        self._eligible: Mapping[Partition, tuple[int, ...]] = {}
        """From the last answer: it is kept while no broker is alive."""

    async def look(self, snapshot: ClusterSnapshot, serving: Iterable[int], now: float) -> Detail:
        brokers = list(serving)
        shown = [key for key in snapshot.partitions if key[0] not in snapshot.internal][:PARTITIONS_MAX]
        by_leader: dict[int, list[Partition]] = {}
        for key in shown:
            if (leader := snapshot.partitions[key].leader) in brokers:
                by_leader.setdefault(leader, []).append(key)
        answers = await asyncio.gather(
            *(
                self._offsets(leader, {key: snapshot.partitions[key].leader_epoch for key in keys})
                for leader, keys in by_leader.items()
            )
        )
        offsets = {key: each for answer in answers for key, each in answer.items()}
        short = sorted(
            {key[0] for key in shown if len(snapshot.partitions[key].in_sync) < len(snapshot.partitions[key].replicas)}
        )
        if brokers:
            eligible = await self._ask_eligible(brokers[0], short) if short else {}
            self._eligible = self._eligible if eligible is None else eligible
        groups = await asyncio.gather(*(self._groups(each, snapshot.topic_ids) for each in brokers))
        found = {group.name: group for answer in groups for group in answer}
        return Detail(offsets, self._eligible, tuple(sorted(found.values())), self._rates(offsets, now))

    def _rates(self, offsets: Mapping[Partition, Offsets], now: float) -> dict[Partition, float]:
        self._history.append((now, offsets))
        while len(self._history) > 1 and now - self._history[0][0] > RATE_SECONDS:
            self._history.popleft()
        then, before = self._history[0]
        return {
            key: max(0, each.end - before[key].end) / (now - then)
            for key, each in offsets.items()
            if now > then and key in before and UNKNOWN not in (each.end, before[key].end)
        }

    async def _ask(self, broker_id: int, request: Message, answer: type[R]) -> R | None:
        try:
            response = await self._call(broker_id, request, answer)
        except (ClientError, TimeoutError):
            return None
        assert isinstance(response, answer)
        return response

    # Offsets.

    async def _offsets(self, leader: int, epochs: Mapping[Partition, int]) -> dict[Partition, Offsets]:
        """`epochs`: the leader epoch of each partition, which OffsetForLeaderEpoch needs."""
        keys = list(epochs)
        starts, highs, ends = await asyncio.gather(
            self._listed(leader, keys, EARLIEST), self._listed(leader, keys, LATEST), self._ends(leader, epochs)
        )
        return {key: Offsets(starts.get(key, UNKNOWN), highs.get(key, UNKNOWN), ends.get(key, UNKNOWN)) for key in keys}

    async def _listed(self, leader: int, keys: list[Partition], time: int) -> dict[Partition, int]:
        topics: dict[str, list[list_offsets.ListOffsetsPartition]] = {}
        for topic, index in keys:
            wanted = list_offsets.ListOffsetsPartition(partition_index=index, timestamp=time)
            topics.setdefault(topic, []).append(wanted)
        request = list_offsets.ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=[list_offsets.ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        answer = await self._ask(leader, request, list_offsets.ListOffsetsResponse)
        return {
            (topic.name, each.partition_index): each.offset
            for topic in (answer.topics if answer else ())
            for each in topic.partitions
            if not each.error_code
        }

    async def _ends(self, leader: int, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        """Log end offsets: the end of the leader's current epoch."""
        topics: dict[str, list[offset_for_leader_epoch.OffsetForLeaderPartition]] = {}
        for (topic, index), epoch in epochs.items():
            wanted = offset_for_leader_epoch.OffsetForLeaderPartition(
                partition=index, current_leader_epoch=NO_EPOCH, leader_epoch=epoch
            )
            topics.setdefault(topic, []).append(wanted)
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            replica_id=CONSUMER,
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(topic=name, partitions=each)
                for name, each in topics.items()
            ],
        )
        answer = await self._ask(leader, request, offset_for_leader_epoch.OffsetForLeaderEpochResponse)
        return {
            (topic.topic, each.partition): each.end_offset
            for topic in (answer.topics if answer else ())
            for each in topic.partitions
            if not each.error_code
        }

    async def _ask_eligible(self, broker_id: int, topics: list[str]) -> dict[Partition, tuple[int, ...]] | None:
        """None if the broker does not answer."""
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in topics], response_partition_limit=PARTITIONS_MAX
        )
        answer = await self._ask(broker_id, request, DescribeTopicPartitionsResponse)
        if answer is None:
            return None
        return {
            (topic.name or "", each.partition_index): tuple(each.eligible_leader_replicas)
            for topic in answer.topics
            for each in topic.partitions
            if each.eligible_leader_replicas
        }

    # Groups.

    async def _groups(self, broker_id: int, topic_ids: Mapping[bytes, str]) -> list[GroupDetail]:
        """Groups that this broker coordinates."""
        listed = await self._ask(broker_id, ListGroupsRequest(), ListGroupsResponse)
        found = []
        for each in (listed.groups if listed else [])[:GROUPS_MAX]:
            newer = each.group_type.lower() == NEXT_GENERATION
            members = await (self._consumer_members if newer else self._classic_members)(broker_id, each.group_id)
            committed = await self._committed(broker_id, each.group_id, topic_ids)
            found.append(GroupDetail(each.group_id, each.group_state, broker_id, members, committed))
        return found

    async def _classic_members(self, broker_id: int, group: str) -> tuple[MemberDetail, ...]:
        answer = await self._ask(broker_id, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse)
        found = []
        for each in answer.groups[0].members if answer and answer.groups else ():
            try:
                held = decode_assignment(each.member_assignment)
            except BadFrame:
                held = ()
            found.append(MemberDetail(each.client_id, tuple(sorted(held))))
        return tuple(sorted(found))

    async def _consumer_members(self, broker_id: int, group: str) -> tuple[MemberDetail, ...]:
        answer = await self._ask(
            broker_id, ConsumerGroupDescribeRequest(group_ids=[group]), ConsumerGroupDescribeResponse
        )
        found = []
        for each in answer.groups[0].members if answer and answer.groups else ():
            held = (
                (topic.topic_name, index) for topic in each.assignment.topic_partitions for index in topic.partitions
            )
            found.append(MemberDetail(each.client_id, tuple(sorted(held))))
        return tuple(sorted(found))

    async def _committed(self, broker_id: int, group: str, topic_ids: Mapping[bytes, str]) -> dict[Partition, int]:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], group_id=group, topics=None
        )
        answer = await self._ask(broker_id, request, OffsetFetchResponse)
        return {
            (topic.name or topic_ids.get(topic.topic_id, ""), each.partition_index): each.committed_offset
            for one in (answer.groups if answer else ())
            for topic in one.topics
            for each in topic.partitions
            if not each.error_code and each.committed_offset >= 0
        }
