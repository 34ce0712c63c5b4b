"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Coroutine

from ottla.broker.context import Context
from ottla.broker.dispatch import RawHandler, Request, Response, serves, serves_fast
from ottla.broker.handlers.replies import expect, refusal_of, respond
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Reply
from ottla.errors import ErrorCode, Refused
from ottla.net.server import Pending
from ottla.wire import offset_commit
from ottla.wire.apis import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from ottla.wire.schema.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.wire.schema.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

Answer = Response | Pending | Coroutine[object, object, Response]


@serves_fast(OFFSET_COMMIT)
def fast_commit(context: Context) -> RawHandler:
    """The fast path: nearly all commits go from their frame to the log without a message tree."""
    groups = context.groups

    def handle(request: Request, frame: memoryview, pos: int) -> bytes | Pending | None:
        version = request.version
        commit = offset_commit.decode(frame, pos, version)
        if commit is None:
            return None

        def shaped(reply: Reply) -> bytes:
            codes = [reply.code] * len(commit.topics) if isinstance(reply, Refused) else reply
            assert isinstance(codes, list)
            for code in codes:
                if code:
                    request.count_error(code)
            return offset_commit.encode(version, commit.topics, codes)

        promise = groups.ask(
            commit.group_id,
            lambda machine, to, now, now_ms: machine.commit_fast(commit, version, to, now, now_ms),
            current=False,
        )
        answer = respond(promise, request, shaped)
        return request.frame(answer) if isinstance(answer, bytes) else answer

    return handle


@serves(OFFSET_COMMIT)
def commit(context: Context, message: OffsetCommitRequest, request: Request) -> Answer:
    promise = context.groups.ask(
        message.group_id,
        lambda groups, to, now, now_ms: groups.commit_offsets(message, request.version, to, now, now_ms),
        current=False,
    )
    shaped = expect(
        OffsetCommitResponse, lambda refused: refusal_of(OffsetCommitResponse, message, request, refused.code)
    )
    return respond(promise, request, shaped)


@serves(OFFSET_FETCH)
def fetch(context: Context, message: OffsetFetchRequest, request: Request) -> Answer:
    """For one group (before version 8), or for several."""
    if message.groups:
        asked = [_fetch(context, group, message.require_stable) for group in message.groups]
        if all(promise.reply is not None for promise in asked):
            return _groups(message, [promise.reply for promise in asked])
        return _groups_later(message, asked)
    topics = None
    if message.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in message.topics
        ]
    group = OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)
    return respond(_fetch(context, group, message.require_stable), request, lambda reply: _one_group(group, reply))


def _fetch(context: Context, group: OffsetFetchRequestGroup, stable: bool) -> Promise:
    return context.groups.ask(
        group.group_id, lambda groups, to, now, now_ms: groups.fetch_offsets(group, to, stable=stable)
    )


async def _groups_later(message: OffsetFetchRequest, asked: list[Promise]) -> OffsetFetchResponse:
    return _groups(message, [await promise.answered() for promise in asked])


def _groups(message: OffsetFetchRequest, replies: list[Reply]) -> OffsetFetchResponse:
    groups = []
    for group, reply in zip(message.groups, replies, strict=True):
        if isinstance(reply, Refused):
            reply = OffsetFetchResponseGroup(group_id=group.group_id, error_code=reply.code)
        assert isinstance(reply, OffsetFetchResponseGroup)
        groups.append(reply)
    return OffsetFetchResponse(groups=groups)


def _one_group(group: OffsetFetchRequestGroup, reply: Reply) -> OffsetFetchResponse:
    """The response before version 8, which has one group."""
    if isinstance(reply, Refused):
        return _one_refused(group, reply.code)
    assert isinstance(reply, OffsetFetchResponseGroup)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in reply.topics
        ]
    )


def _one_refused(group: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponse:
    """The error code for the whole response, and for each partition: version 1 has no other."""
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in group.topics or []
        ],
    )


@serves(OFFSET_DELETE)
def delete(context: Context, message: OffsetDeleteRequest, request: Request) -> Answer:
    promise = context.groups.ask(message.group_id, lambda groups, to, now, now_ms: groups.delete_offsets(message, to))
    return respond(promise, request, _deleted)


_deleted = expect(OffsetDeleteResponse, lambda refused: OffsetDeleteResponse(error_code=refused.code))
