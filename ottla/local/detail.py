"""Cluster details beyond metadata: offsets from partition leaders, eligible leader replicas, and consumer groups from
their coordinators. They are requested like any client requests them; a broker that does not answer is left out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from ottla.client.errors import ClientError
from ottla.errors import BadFrame
from ottla.local.snapshot import NOBODY, ClusterSnapshot
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
"""Over how long the rate of writing is measured."""
PARTITIONS_MAX: Final = 2000
"""More are not asked for in one look."""
GROUPS_MAX: Final = 20
NEXT_GENERATION: Final = "consumer"


class Offsets(NamedTuple):
    """Of one partition, as its leader has them; UNKNOWN where it did not tell."""

    start: int = UNKNOWN
    high_watermark: int = UNKNOWN
    end: int = UNKNOWN


class GroupMember(NamedTuple):
    client_id: str
    partitions: tuple[Partition, ...]


class Group(NamedTuple):
    name: str
    state: str
    coordinator: int
    members: tuple[GroupMember, ...] = ()
    committed: Mapping[Partition, int] = {}

    def partitions(self) -> list[Partition]:
        """All that it has committed or reads now."""
        return sorted({*self.committed, *(each for member in self.members for each in member.partitions)})

    def lag(self, partition: Partition, offsets: Mapping[Partition, Offsets]) -> int:
        """Records between what is committed and the high watermark; UNKNOWN while nobody leads."""
        known = offsets.get(partition, Offsets())
        if known.high_watermark == UNKNOWN:
            return UNKNOWN
        return max(0, known.high_watermark - self.committed.get(partition, known.start))


class Detail(NamedTuple):
    offsets: Mapping[Partition, Offsets] = {}
    eligible: Mapping[Partition, tuple[int, ...]] = {}
    """Eligible leader replicas of partitions that have some."""
    groups: tuple[Group, ...] = ()
    rates: Mapping[Partition, float] = {}
    """Records written in a second."""


class Asker:
    """Asks brokers, each over the connection that `call` has to it."""

    def __init__(self, call: Callable[[int, Message, type[Message]], Awaitable[Message]]) -> None:
        self._call = call
        self._history: deque[tuple[float, Mapping[Partition, Offsets]]] = deque()
        self._eligible: Mapping[Partition, tuple[int, ...]] = {}
        """As last told: with no broker alive nobody can be asked, and it stays as it was."""

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
            told = await self._ask_eligible(brokers[0], short) if short else {}
            self._eligible = self._eligible if told is None else told
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
            told = await self._call(broker_id, request, answer)
        except (ClientError, TimeoutError):
            return None
        assert isinstance(told, answer)
        return told

    # Offsets.

    async def _offsets(self, leader: int, epochs: Mapping[Partition, int]) -> dict[Partition, Offsets]:
        """`epochs`: the leader epoch of each partition, which its log end is asked with."""
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
        """The log end: where the leader's own epoch ends, so far."""
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
        """None when it does not answer."""
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

    async def _groups(self, broker_id: int, topic_ids: Mapping[bytes, str]) -> list[Group]:
        """Those that this broker coordinates."""
        listed = await self._ask(broker_id, ListGroupsRequest(), ListGroupsResponse)
        found = []
        for each in (listed.groups if listed else [])[:GROUPS_MAX]:
            newer = each.group_type.lower() == NEXT_GENERATION
            members = await (self._consumer_members if newer else self._classic_members)(broker_id, each.group_id)
            committed = await self._committed(broker_id, each.group_id, topic_ids)
            found.append(Group(each.group_id, each.group_state, broker_id, members, committed))
        return found

    async def _classic_members(self, broker_id: int, group: str) -> tuple[GroupMember, ...]:
        answer = await self._ask(broker_id, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse)
        found = []
        for each in answer.groups[0].members if answer and answer.groups else ():
            try:
                held = decode_assignment(each.member_assignment)
            except BadFrame:
                held = ()
            found.append(GroupMember(each.client_id, tuple(sorted(held))))
        return tuple(sorted(found))

    async def _consumer_members(self, broker_id: int, group: str) -> tuple[GroupMember, ...]:
        answer = await self._ask(
            broker_id, ConsumerGroupDescribeRequest(group_ids=[group]), ConsumerGroupDescribeResponse
        )
        return tuple(
            sorted(
                GroupMember(
                    each.client_id,
                    tuple(
                        sorted(
                            (t.topic_name, index) for t in each.assignment.topic_partitions for index in t.partitions
                        )
                    ),
                )
                for each in (answer.groups[0].members if answer and answer.groups else ())
            )
        )

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


def without_the_dead(snapshot: ClusterSnapshot, alive: Iterable[int]) -> ClusterSnapshot:
    """A broker whose process has ended leads nothing and controls nothing, whatever the others have heard of it yet."""
    living = set(alive)
    return snapshot._replace(
        controller=snapshot.controller if snapshot.controller in living else NOBODY,
        partitions={
            key: state if state.leader in living else state._replace(leader=NOBODY)
            for key, state in snapshot.partitions.items()
        },
    )
