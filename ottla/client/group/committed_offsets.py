"""Committed offsets of a group: OffsetCommit and OffsetFetch at its coordinator.

A commit carries the member and its generation, or no member for a consumer that assigns partitions to itself. The
coordinator refuses a commit of an earlier generation: another member may own the partitions by then. What was committed
is durable in `__consumer_offsets`; a commit without an answer may have been done, and is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.client.core.find_coordinator import COORDINATOR_MOVED, find_coordinator
from ottla.client.core.requests import Node, code_of
from ottla.client.errors import ClientError, CommitFailed, Several, Unreachable, error_of
from ottla.client.values import GroupMetadata, OffsetAndMetadata, Offsets, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.wire.topic_partition import by_topic

if TYPE_CHECKING:
    from ottla.client.core.driver import Driver

TOPIC_NAMES_UNTIL: Final = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""
NO_OFFSET: Final = -1
NOT_A_MEMBER: Final = frozenset(
    {ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id,
     ErrorCode.fenced_member_epoch, ErrorCode.rebalance_in_progress}
)  # fmt: skip
"""The partitions are not assigned to this member any more, or the group is about to rebalance."""
AGAIN: Final = frozenset({ErrorCode.stale_member_epoch})
"""The member learns its next epoch with a heartbeat, and may try again then."""


_Answer = TypeVar("_Answer", OffsetCommitResponse, OffsetFetchResponse)
Refusal = Callable[[ErrorCode, GroupMetadata], object]


class GroupOffsets:
    """Of one group."""

    def __init__(self, driver: Driver, group_id: str, *, timeout_s: float, request_timeout_s: float) -> None:
        self._driver = driver
        self._group_id = group_id
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s
        self._coordinator: Node | None = None
        """Found once, and looked for again after it was lost."""

    async def commit(
        self, offsets: Offsets, member: Callable[[], GroupMetadata], refused: Refusal = lambda _, __: None
    ) -> None:
        """CommitFailed, Several, or another error, for offsets that could not be committed. `member` is called at every
        attempt."""
        if offsets:
            await self._driver.insist(lambda: self._commit(offsets, member(), refused), timeout_s=self._timeout_s)

    async def fetch(
        self,
        partitions: Collection[TopicPartition] | None,
        member: Callable[[], GroupMetadata] | None = None,
        *,
        stable: bool = True,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of those partitions that have one; None asks for all. Waits for transactions that are changing them, unless
        `stable` is false."""
        if partitions is not None and not partitions:
            return {}
        identity = member or (lambda: GroupMetadata(self._group_id))
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._driver.insist(lambda: self._fetch(partitions, identity(), stable), timeout_s=limit_s)

    async def _commit(self, offsets: Offsets, member: GroupMetadata, refused: Refusal) -> None:
        request = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[_committed(number, offsets[TopicPartition(topic, number)]) for number in numbers],
                )
                for topic, numbers in by_topic(offsets).items()
            ],
        )
        answer = await self._call(request, OffsetCommitResponse)
        errors: dict[object, ClientError] = {}
        for topic in answer.topics:
            for part in topic.partitions:
                code = code_of(part.error_code)
                if code in NOT_A_MEMBER or code in COORDINATOR_MOVED:
                    refused(code, member)
                self._note(code)
                error = _refusal(code, f"commit {topic.name}-{part.partition_index}")
                if error is not None:
                    errors[TopicPartition(topic.name, part.partition_index)] = error
        if errors:
            raise _failed(errors)

    async def _fetch(
        self, partitions: Collection[TopicPartition] | None, member: GroupMetadata, stable: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        group = OffsetFetchRequestGroup(
            group_id=self._group_id,
            member_id=member.member_id or None,
            member_epoch=member.generation_id if member.member_id else -1,
            topics=None,
        )
        request = OffsetFetchRequest(groups=[group], group_id=self._group_id, topics=None, require_stable=stable)
        if partitions is not None:
            grouped = by_topic(partitions).items()
            group.topics = [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in grouped]
            request.topics = [OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in grouped]
        answer = await self._call(request, OffsetFetchResponse)
        reported = answer.groups[0] if answer.groups else answer
        self._raise(code_of(reported.error_code), f"offsets of group {self._group_id}")
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in reported.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                self._raise(code_of(part.error_code), f"offset of {tp}")
                if part.committed_offset > NO_OFFSET:
                    found[tp] = OffsetAndMetadata(
                        part.committed_offset, part.metadata or "", part.committed_leader_epoch
                    )
        return found

    async def _call(self, request: OffsetCommitRequest | OffsetFetchRequest, answer: type[_Answer]) -> _Answer:
        try:
            if self._coordinator is None:
                self._coordinator = await find_coordinator(self._driver, self._group_id, self._request_timeout_s)
            to, timeout_s = self._coordinator, self._request_timeout_s
            return await self._driver.call(request, answer, to, timeout_s=timeout_s, version_max=TOPIC_NAMES_UNTIL)
        except Unreachable:
            self._coordinator = None
            raise

    def _note(self, code: ErrorCode) -> None:
        if code in COORDINATOR_MOVED:
            self._coordinator = None

    def _raise(self, code: ErrorCode, subject: str) -> None:
        self._note(code)
        error = _refusal(code, subject)
        if error is not None:
            raise error


def _refusal(code: ErrorCode, subject: str) -> ClientError | None:
    error = error_of(code, subject)
    if error is None:
        return None
    if code in NOT_A_MEMBER:
        return CommitFailed(str(error), code=code)
    error.retriable = error.retriable or code in AGAIN
    return error


def _failed(errors: Mapping[object, ClientError]) -> ClientError:
    """A member that is out of the group gets CommitFailed, however many partitions failed."""
    error = Several.of("commit", errors)
    not_a_member = next((each for each in errors.values() if isinstance(each, CommitFailed)), None)
    if not_a_member is None or not_a_member is error:
        return error
    failed = CommitFailed(str(error), code=not_a_member.code)
    failed.errors = error.errors
    return failed


def _committed(partition: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
