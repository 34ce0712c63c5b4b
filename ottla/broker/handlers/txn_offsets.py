"""TxnOffsetCommit: offsets that count when a producer's transaction is committed (KIP-447)."""

from __future__ import annotations

from collections.abc import Coroutine

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.handlers.replies import respond
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Decision, Producer, Reply, ReplyTo
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.transaction_steps import Identity
from ottla.coordinator.transaction_verification import Manner, Verification
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
"""From this version on the producer knows errors that mean: abort."""
ADDS_FROM = 5
"""From this version on the producer speaks the second version of the protocol."""

_TOLD_AS = {ErrorCode.not_enough_replicas: ErrorCode.coordinator_load_in_progress}
"""What those who commit offsets try again after."""


@serves(TXN_OFFSET_COMMIT)
def commit(context: Context, message: TxnOffsetCommitRequest, request: Request) -> Answer:
    try:
        partition = _partition(context, message)
        speaker = Identity(message.producer_id, message.producer_epoch)
        manner = _manner(request.version)
        verification = Verification(context.verifier, message.transactional_id, speaker, [partition], manner)
    except Refused as refused:
        return _shaped(message, refused)
    if verification.needed and not verification.verify_at_once():
        return _verify_first(context, message, partition, verification)
    promise = _ask(context, message, partition, verification)
    return respond(promise, request, lambda reply: _shaped(message, reply))


def _manner(version: int) -> Manner:
    if version >= ADDS_FROM:
        return Manner.ADD
    return Manner.ASK_ABORTABLE if version >= ABORTABLE_FROM else Manner.ASK


async def _verify_first(
    context: Context, message: TxnOffsetCommitRequest, partition: Partition, verification: Verification
) -> TxnOffsetCommitResponse:
    await verification.verify()
    return _shaped(message, await _ask(context, message, partition, verification).answered())


def _ask(
    context: Context, message: TxnOffsetCommitRequest, partition: Partition, verification: Verification
) -> Promise:
    return context.groups.ask(
        message.group_id,
        lambda groups, to, now, now_ms: _decide(message, partition, verification, groups, to, now, now_ms),
    )


def _shaped(message: TxnOffsetCommitRequest, reply: Reply) -> TxnOffsetCommitResponse:
    if isinstance(reply, Refused):
        return _refused(message, _TOLD_AS.get(reply.code, reply.code))
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
    """Where the group's offsets are kept: what becomes part of the transaction."""
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
    """The guard is shown in the same breath in which the offsets are appended."""
    producer = Producer(message.producer_id, message.producer_epoch)
    partition.transactions.check_within(producer.id, producer.epoch, verification.guard(partition))
    return groups.commit_in_transaction(_plain(message), producer, reply_to, now, now_ms)


def _plain(message: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """What is committed, in the words of a commit outside a transaction."""
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


def _refused(message: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """There is no place to say it but at every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
