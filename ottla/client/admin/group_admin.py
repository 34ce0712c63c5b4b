"""Admin API of consumer groups: list, describe, lag, change and delete offsets. Sent to group coordinators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.client.admin.admin_base import AdminBase, for_each, raise_some, remember
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

DEAD = "Dead"
"""The state that a classic group has that does not exist."""


class GroupListing(NamedTuple):
    group_id: str
    state: str
    kind: str
    """The protocol of its members: `classic`, `consumer`; empty where the broker does not report it."""
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
    """The target assignment: the partitions of this member after all members have revoked theirs."""
    upgraded: bool | None = None
    """Whether it uses the consumer protocol in a group of that kind; None where the broker does not report it."""


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
    """The number of unread records; all records of the partition if nothing is committed."""


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
        return await for_each("describe groups", names, self._describe_group)

    async def delete_groups(self, names: Collection[str]) -> None:
        """Groups without members, and all their offsets."""

        async def delete(name: str, coordinator: Node) -> None:
            answer = await self._once(DeleteGroupsRequest(groups_names=[name]), DeleteGroupsResponse, coordinator)
            for result in answer.results:
                _raise(result.error_code, name)

        await for_each("delete groups", names, lambda name: self._at_coordinator(name, delete))

    async def group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Committed offsets of the group: of these partitions, or of all. If a transaction is about to change an
        offset, wait for its result, or (`stable=False`) return the offset before it."""
        return await self._offsets(group_id).fetch(partitions, stable=stable)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | tuple[int, str] | int]
    ) -> None:
        """Set the committed offsets of a group without members."""
        await self._offsets(group_id).commit(offsets_given(offsets), lambda: GroupMetadata(group_id))

    async def delete_group_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Let a group that does not read these partitions forget them."""
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for topic, number in partitions:
            wanted = topics.setdefault(topic, OffsetDeleteRequestTopic(name=topic))
            wanted.partitions.append(OffsetDeleteRequestPartition(partition_index=number))

        async def delete(name: str, coordinator: Node) -> OffsetDeleteResponse:
            request = OffsetDeleteRequest(group_id=name, topics=list(topics.values()))
            answer = await self._once(request, OffsetDeleteResponse, coordinator)
            _raise(answer.error_code, name)
            return answer

        answer = await self._at_coordinator(group_id, delete)
        codes = {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }
        raise_some("delete offsets", {tp: error_of(code, str(tp)) for tp, code in codes.items()})

    async def group_lag(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        """The lag of the group in every partition of the topics that it has committed for or reads now. In a partition
        without a committed offset the lag is all its records."""
        committed = await self.group_offsets(group_id)
        described = await self._describe_group(group_id)
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
        found = await self._list_offsets(dict.fromkeys(partitions, time)) if partitions else {}
        return {each: at.offset for each, at in found.items()}

    # Coordinators.

    def _offsets(self, group_id: str) -> GroupOffsets:
        """With the coordinator that it was last found at."""
        offsets = self._groups.get(group_id) or GroupOffsets(
            self._driver, group_id, timeout_s=self._timeout_s, request_timeout_s=self._request_timeout_s
        )
        remember(self._groups, group_id, offsets)
        return offsets

    async def _describe_group(self, group_id: str) -> GroupDescription:
        return await self._at_coordinator(group_id, self._described)

    async def _described(self, name: str, coordinator: Node) -> GroupDescription:
        """Describe a group of either protocol: the request for the other kind answers that the group does not exist."""
        try:
            request = ConsumerGroupDescribeRequest(group_ids=[name])
            group = (await self._once(request, ConsumerGroupDescribeResponse, coordinator)).groups[0]
            if group.error_code == ErrorCode.none:
                return _consumer_group(group, coordinator)
            if group.error_code != ErrorCode.group_id_not_found:
                _raise(group.error_code, name, group.error_message)
        except NotUnderstood:
            pass  # a broker from before
        answer = await self._once(DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse, coordinator)
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
    """The assignment of a member; empty if another kind of client encoded it in a form of its own."""
    try:
        return decode_assignment(data)
    except BadFrame:
        return ()
