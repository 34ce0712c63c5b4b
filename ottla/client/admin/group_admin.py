"""Admin API of consumer groups: list, describe, lag, change and delete offsets. Sent to group coordinators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from ottla.client.admin.admin_base import AdminBase, raise_some, remember
from ottla.client.core.find_coordinator import find_coordinator
from ottla.client.core.list_offsets import list_offsets
from ottla.client.core.requests import Node
from ottla.client.errors import ClientError, NotUnderstood, error_of
from ottla.client.group.committed_offsets import GroupOffsets
from ottla.client.values import EARLIEST, LATEST, GroupMetadata, OffsetAndMetadata, TopicPartition, offsets_given
from ottla.errors import BadFrame, ErrorCode
from ottla.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from ottla.wire.schema import consumer_group_describe, describe_groups
from ottla.wire.schema.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from ottla.wire.schema.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.wire.schema.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

T = TypeVar("T")

DEAD = "Dead"
"""The state that a classic group has that does not exist."""


class GroupListing(NamedTuple):
    group_id: str
    state: str
    kind: str
    """The protocol its members speak: `classic`, `consumer`; empty where a broker does not tell."""
    protocol_type: str


class Member(NamedTuple):
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]
    epoch: int | None = None
    """Of the consumer protocol (KIP-848), as are the next two."""
    target: tuple[TopicPartition, ...] | None = None
    """What it is to have once everybody has given up what they are to give up."""
    upgraded: bool | None = None
    """Whether it speaks the consumer protocol in a group of that kind; None where a broker does not tell."""


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    kind: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None


class PartitionLag(NamedTuple):
    committed: int
    """-1: nothing is."""
    end: int
    lag: int
    """What is left to read; all records there are, when nothing is committed."""


class GroupAdmin(AdminBase):
    async def list_groups(self) -> list[GroupListing]:
        """Of all brokers, each of which knows those that it coordinates."""
        groups: set[GroupListing] = set()
        errors: dict[int, ClientError | None] = {}
        for broker in (await self._brokers()).values():
            answer = await self._call(ListGroupsRequest(), ListGroupsResponse, broker)
            errors[broker.node_id] = error_of(answer.error_code, f"groups of broker {broker.node_id}")
            groups |= {
                GroupListing(each.group_id, each.group_state, each.group_type.lower(), each.protocol_type)
                for each in answer.groups
            }
        raise_some("list groups", errors, dict.fromkeys(groups))
        return sorted(groups)

    async def describe_groups(self, names: Collection[str]) -> dict[str, GroupDescription]:
        described: dict[str, GroupDescription] = {}
        errors: dict[str, ClientError | None] = {}
        for name in names:
            try:
                described[name] = await self._with_coordinator(name, self._described)
            except ClientError as error:
                errors[name] = error
        raise_some("describe groups", errors, described)
        return described

    async def delete_groups(self, names: Collection[str]) -> None:
        """Groups without members, and all their offsets."""

        async def delete(name: str, coordinator: Node) -> None:
            answer = await self._driver.call(
                DeleteGroupsRequest(groups_names=[name]),
                DeleteGroupsResponse,
                coordinator,
                timeout_s=self._request_timeout_s,
            )
            for result in answer.results:
                _raise(result.error_code, name)

        errors: dict[str, ClientError | None] = {}
        for name in names:
            try:
                await self._with_coordinator(name, delete)
                errors[name] = None
            except ClientError as error:
                errors[name] = error
        raise_some("delete groups", errors)

    async def group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed: of these partitions, or of all. Where a transaction is about to change it: what
        comes of that, or (`stable=False`) what there was before."""
        return await self._offsets(group_id).fetch(partitions, stable=stable)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | tuple[int, str] | int]
    ) -> None:
        """Let a group that has no members now go on from here."""
        await self._offsets(group_id).commit(offsets_given(offsets), lambda: GroupMetadata(group_id))

    async def delete_group_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Let a group that does not read these partitions forget them."""
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for topic, number in partitions:
            wanted = topics.setdefault(topic, OffsetDeleteRequestTopic(name=topic))
            wanted.partitions.append(OffsetDeleteRequestPartition(partition_index=number))

        async def delete(name: str, coordinator: Node) -> OffsetDeleteResponse:
            request = OffsetDeleteRequest(group_id=name, topics=list(topics.values()))
            answer = await self._driver.call(
                request, OffsetDeleteResponse, coordinator, timeout_s=self._request_timeout_s
            )
            _raise(answer.error_code, name)
            return answer

        answer = await self._with_coordinator(group_id, delete)
        raise_some(
            "delete offsets",
            {
                TopicPartition(topic.name, part.partition_index): error_of(
                    part.error_code, f"{topic.name}-{part.partition_index}"
                )
                for topic in answer.topics
                for part in topic.partitions
            },
        )

    async def group_lag(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        """How far the group is behind, in every partition of the topics that it has committed for or is reading now:
        a partition that nobody has committed for has all its records ahead."""
        committed = await self.group_offsets(group_id)
        described = await self._with_coordinator(group_id, self._described)
        assigned = {each.topic for member in described.members for each in member.partitions}
        topics = await self._metadata(sorted({each.topic for each in committed} | assigned))
        partitions = sorted(
            TopicPartition(topic.name or "", part.partition_index)
            for topic in topics.topics
            if not topic.error_code
            for part in topic.partitions
        )
        ends = await self._offsets_at(partitions, LATEST)
        begins = await self._offsets_at([each for each in partitions if each not in committed], EARLIEST)
        lags: dict[TopicPartition, PartitionLag] = {}
        for each in partitions:
            at = committed[each].offset if each in committed else -1
            lags[each] = PartitionLag(at, ends[each], max(0, ends[each] - (at if at >= 0 else begins.get(each, 0))))
        return lags

    async def _offsets_at(self, partitions: Collection[TopicPartition], time: int) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        found = await list_offsets(
            self._driver,
            dict.fromkeys(partitions, time),
            timeout_s=self._timeout_s,
            request_timeout_s=self._request_timeout_s,
        )
        return {each: at.offset for each, at in found.items()}

    # Coordinators.

    def _offsets(self, group_id: str) -> GroupOffsets:
        """With the coordinator that it was last found at."""
        offsets = self._groups.get(group_id) or GroupOffsets(
            self._driver, group_id, timeout_s=self._timeout_s, request_timeout_s=self._request_timeout_s
        )
        remember(self._groups, group_id, offsets)
        return offsets

    async def _with_coordinator(self, group_id: str, work: Callable[[str, Node], Awaitable[T]]) -> T:
        async def attempt() -> T:
            return await work(group_id, await find_coordinator(self._driver, group_id, self._request_timeout_s))

        return await self._driver.insist(attempt, timeout_s=self._timeout_s)

    async def _described(self, name: str, coordinator: Node) -> GroupDescription:
        """Under either protocol: whoever is asked about a group of the other kind says that there is none."""
        try:
            newer = await self._driver.call(
                ConsumerGroupDescribeRequest(group_ids=[name]),
                ConsumerGroupDescribeResponse,
                coordinator,
                timeout_s=self._request_timeout_s,
            )
            group = newer.groups[0]
            if group.error_code == ErrorCode.none:
                return _consumer_group(group, coordinator)
            if group.error_code != ErrorCode.group_id_not_found:
                _raise(group.error_code, name, group.error_message)
        except NotUnderstood:
            pass  # a broker from before
        answer = await self._driver.call(
            DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse, coordinator, timeout_s=self._request_timeout_s
        )
        classic = answer.groups[0]
        _raise(classic.error_code, name, classic.error_message)
        if classic.group_state == DEAD:
            _raise(ErrorCode.group_id_not_found, name, "there is no such group")
        return _classic_group(classic, coordinator)


def _raise(code: int, group: str, message: str | None = None) -> None:
    error = error_of(code, f"group {group}", message)
    if error is not None:
        raise error


def _consumer_group(group: consumer_group_describe.DescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(
        Member(
            each.member_id,
            each.client_id,
            each.client_host,
            each.instance_id,
            _partitions(each.assignment),
            each.member_epoch,
            _partitions(each.target_assignment),
            None if each.member_type < 0 else each.member_type > 0,
        )
        for each in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, "consumer", group.assignor_name, coordinator.node_id, members,
        group.group_epoch, group.assignment_epoch,
    )  # fmt: skip


def _partitions(assignment: consumer_group_describe.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    )


def _classic_group(group: describe_groups.DescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(
        Member(
            each.member_id,
            each.client_id,
            each.client_host,
            each.group_instance_id,
            _assigned(each.member_assignment) if group.protocol_type == PROTOCOL_TYPE else (),
        )
        for each in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, "classic", group.protocol_data, coordinator.node_id, members
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """What a member was told, in its own words: another client may have other ones."""
    try:
        return decode_assignment(data)
    except BadFrame:
        return ()
