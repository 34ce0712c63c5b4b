"""TxnOffsetCommit: offsets that are committed with a producer's transaction (KIP-447)."""

from __future__ import annotations

from collections.abc import Coroutine

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.handlers.replies import refusal_of, respond
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Decision, ProducerIdAndEpoch, Reply, ReplyTo
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.transaction_verification import Verification, VerificationMode
from ottla.errors import ErrorCode, Refused
from ottla.net.server import Pending
from ottla.replication.partition import Partition
from ottla.wire.apis import TXN_OFFSET_COMMIT
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

Answer = TxnOffsetCommitResponse | Pending | Coroutine[object, object, TxnOffsetCommitResponse]

ABORTABLE_FROM = 4
"""From this version on the producer knows TRANSACTION_ABORTABLE."""
ADDS_FROM = 5
"""From this version on the producer uses version 2 of the transaction protocol."""

_ANSWERED_AS = {ErrorCode.not_enough_replicas: ErrorCode.coordinator_load_in_progress}
"""Errors that clients of this API retry."""


@serves(TXN_OFFSET_COMMIT)
def commit(context: Context, message: TxnOffsetCommitRequest, request: Request) -> Answer:
    try:
        partition = _partition(context, message)
        producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
        mode = VerificationMode.of(request.version, abortable_from=ABORTABLE_FROM, adds_from=ADDS_FROM)
        verification = Verification(context.verifier, message.transactional_id, producer, [partition], mode)
    except Refused as refused:
        return _shaped(request, message, refused)
    if verification.needed and not verification.verify_at_once():
        return _verify_first(context, request, message, partition, verification)
    promise = _ask(context, message, partition, verification)
    return respond(promise, request, lambda reply: _shaped(request, message, reply))


async def _verify_first(
    context: Context,
    request: Request,
    message: TxnOffsetCommitRequest,
    partition: Partition,
    verification: Verification,
) -> TxnOffsetCommitResponse:
    await verification.verify()
    return _shaped(request, message, await _ask(context, message, partition, verification).answered())


def _ask(
    context: Context, message: TxnOffsetCommitRequest, partition: Partition, verification: Verification
) -> Promise:
    return context.groups.ask(
        message.group_id,
        lambda groups, to, now, now_ms: _decide(message, partition, verification, groups, to, now, now_ms),
    )


def _shaped(request: Request, message: TxnOffsetCommitRequest, reply: Reply) -> TxnOffsetCommitResponse:
    if isinstance(reply, Refused):
        return refusal_of(TxnOffsetCommitResponse, message, request, _ANSWERED_AS.get(reply.code, reply.code))
    assert isinstance(reply, OffsetCommitResponse)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=each.error_code)
                    for each in topic.partitions
                ],
            )
            for topic in reply.topics
        ]
    )


def _partition(context: Context, message: TxnOffsetCommitRequest) -> Partition:
    """The partition of the group in `__consumer_offsets`, which becomes part of the transaction."""
    if not message.transactional_id:
        raise Refused(ErrorCode.invalid_request)
    groups = context.groups
    index = groups.partition_of(message.group_id)
    partition = None if index is None else context.replicas.get(groups.topic, index)
    if partition is None or not partition.leads:
        raise Refused(ErrorCode.not_coordinator)
    return partition


def _decide(
    message: TxnOffsetCommitRequest,
    partition: Partition,
    verification: Verification,
    groups: GroupMachine,
    reply_to: ReplyTo,
    now: float,
    now_ms: int,
) -> Decision:
    """The guard is checked in the same step in which the offsets are appended."""
    producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
    partition.transactions.check_within(*producer, verification.guard(partition))
    return groups.commit_in_transaction(_as_offset_commit(message), producer, reply_to, now, now_ms)


def _as_offset_commit(message: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """The same offsets as an OffsetCommit."""
    return OffsetCommitRequest(
        group_id=message.group_id,
        generation_id_or_member_epoch=message.generation_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        committed_metadata=each.committed_metadata,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ],
    )
