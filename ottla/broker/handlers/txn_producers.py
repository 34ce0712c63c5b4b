"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn; DescribeTransactions, ListTransactions.

The transaction coordinator of the transactional id decides. Old versions have one error code for a fenced producer,
INVALID_PRODUCER_EPOCH; newer ones have PRODUCER_FENCED (KIP-588).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.handlers.replies import overlapping, respond
from ottla.coordinator.coordinator_service import Interleaved, Promise
from ottla.coordinator.decision import ProducerIdAndEpoch, Reply
from ottla.coordinator.regex import compile_regex
from ottla.coordinator.transaction_machine import NEEDS_PRODUCER_ID, Codes, TransactionMachine
from ottla.coordinator.transaction_records import TransactionState, TransactionValue
from ottla.coordinator.transaction_steps import EPOCH_BUMPS_FROM
from ottla.errors import ErrorCode, Fault, Refused
from ottla.net.server import Pending
from ottla.wire.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)
from ottla.wire.schema import describe_transactions, list_transactions
from ottla.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from ottla.wire.schema.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.topic_partition import TopicPartition, by_topic

log = logging.getLogger("ottla.broker")

BUMPS_FROM = 5
"""From this version on EndTxn raises the epoch: version 2 of the transaction protocol."""
BETWEEN_BROKERS_FROM = 4
"""From this version on AddPartitionsToTxn is sent by partition leaders."""
_FENCED_FROM = 2
_FENCED_FROM_INIT = 4


def _known_to(code: ErrorCode, version: int, fenced_from: int = _FENCED_FROM) -> ErrorCode:
    old = code == ErrorCode.producer_fenced and version < fenced_from
    return ErrorCode.invalid_producer_epoch if old else code


@serves(INIT_PRODUCER_ID)
async def init_producer_id(
    context: Context, message: InitProducerIdRequest, request: Request
) -> InitProducerIdResponse:
    if message.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if message.transactional_id is not None:
        return await _init_transactional(context, message, request)
    try:
        producer_id = await context.producer_ids.take()
    except Fault as fault:
        # The error that Kafka answers while it has no block of ids: clients retry.
        log.warning("no producer ids: %s", fault)
        return InitProducerIdResponse(error_code=ErrorCode.coordinator_load_in_progress)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    context: Context, message: InitProducerIdRequest, request: Request
) -> InitProducerIdResponse:
    has_one = message.producer_id >= 0 and message.producer_epoch >= 0
    expected = ProducerIdAndEpoch(message.producer_id, message.producer_epoch) if has_one else None
    reply = await _init(context, message, expected, None).answered()
    if reply is NEEDS_PRODUCER_ID:
        reply = await _init(context, message, expected, await context.producer_ids.take()).answered()
    if isinstance(reply, Refused):
        code = _known_to(reply.code, request.version, _FENCED_FROM_INIT)
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    assert isinstance(reply, ProducerIdAndEpoch)
    return InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.epoch)


def _init(
    context: Context, message: InitProducerIdRequest, expected: ProducerIdAndEpoch | None, spare_id: int | None
) -> Promise:
    transactional_id = message.transactional_id
    assert transactional_id is not None
    return context.transactions.ask(
        transactional_id,
        lambda machine, to, now, now_ms: machine.init(
            transactional_id, message.transaction_timeout_ms, expected, to, now_ms, spare_id=spare_id
        ),
    )


# Adding.


@serves(ADD_PARTITIONS_TO_TXN)
def add_partitions(
    context: Context, message: AddPartitionsToTxnRequest, request: Request
) -> AddPartitionsToTxnResponse | Pending:
    if request.version >= BETWEEN_BROKERS_FROM:
        return overlapping(context, request, _add_for_leaders(context, message))
    topics = message.v3_and_below_topics
    producer = ProducerIdAndEpoch(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)

    def shaped(reply: Reply) -> AddPartitionsToTxnResponse:
        codes = _codes(topics, reply)
        codes = {partition: _known_to(code, request.version) for partition, code in codes.items()}
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(topics, codes))

    promise = _add(context, message.v3_and_below_transactional_id, producer, topics)
    return respond(promise, request, shaped)


async def _add_for_leaders(context: Context, message: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Transaction verification: requests of partition leaders."""
    asked = []
    for each in message.transactions:
        producer = ProducerIdAndEpoch(each.producer_id, each.producer_epoch)
        if each.verify_only:
            asked.append(_verify(context, each.transactional_id, producer, each.topics))
        else:
            asked.append(_add(context, each.transactional_id, producer, each.topics, version=EPOCH_BUMPS_FROM))
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=_by_topic(each.topics, _codes(each.topics, await promise.answered())),
            )
            for each, promise in zip(message.transactions, asked, strict=True)
        ]
    )


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _add(
    context: Context,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: list[AddPartitionsToTxnTopic],
    *,
    version: int = 0,
) -> Promise:
    """All partitions or none: if one does not exist, none is added."""
    partitions = _partitions(topics)
    unknown = {partition for partition in partitions if context.image.partition(*partition) is None}
    if unknown:
        promise = Promise(context.delayed)
        promise.answer(
            {
                partition: ErrorCode.unknown_topic_or_partition
                if partition in unknown
                else ErrorCode.operation_not_attempted
                for partition in partitions
            }
        )
        return promise
    return context.transactions.ask(
        transactional_id,
        lambda machine, to, now, now_ms: machine.add(
            transactional_id, producer, partitions, to, now_ms, version=version
        ),
    )


def _verify(
    context: Context, transactional_id: str, producer: ProducerIdAndEpoch, topics: list[AddPartitionsToTxnTopic]
) -> Promise:
    partitions = _partitions(topics)
    return context.transactions.ask(
        transactional_id, lambda machine, to, now, now_ms: machine.verify(transactional_id, producer, partitions, to)
    )


def _codes(topics: list[AddPartitionsToTxnTopic], reply: Reply) -> Codes:
    if isinstance(reply, Refused):
        return dict.fromkeys(_partitions(topics), reply.code)
    assert isinstance(reply, dict)
    return reply


def _by_topic(topics: list[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[TopicPartition(topic.name, index)]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


@serves(ADD_OFFSETS_TO_TXN)
def add_offsets(
    context: Context, message: AddOffsetsToTxnRequest, request: Request
) -> AddOffsetsToTxnResponse | Pending | Coroutine[object, object, AddOffsetsToTxnResponse]:
    """Adds the partition of the group in `__consumer_offsets` to the transaction."""
    groups = context.groups

    def shaped(reply: Reply) -> AddOffsetsToTxnResponse:
        if isinstance(reply, Refused):
            return AddOffsetsToTxnResponse(error_code=_known_to(reply.code, request.version))
        assert isinstance(reply, dict)
        (code,) = reply.values()
        return AddOffsetsToTxnResponse(error_code=_known_to(code, request.version))

    def ask(index: int) -> Promise:
        partition = AddPartitionsToTxnTopic(name=groups.topic, partitions=[index])
        producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
        return _add(context, message.transactional_id, producer, [partition])

    async def create_topic_first() -> AddOffsetsToTxnResponse:
        await groups.create_topic()
        index = groups.partition_of(message.group_id)
        if index is None:
            return AddOffsetsToTxnResponse(error_code=ErrorCode.coordinator_not_available)
        return shaped(await ask(index).answered())

    index = groups.partition_of(message.group_id)
    return create_topic_first() if index is None else respond(ask(index), request, shaped)


# Ending.


@serves(END_TXN)
def end(
    context: Context, message: EndTxnRequest, request: Request
) -> EndTxnResponse | Pending | Coroutine[object, object, EndTxnResponse]:
    def shaped(reply: Reply) -> EndTxnResponse:
        if reply is NEEDS_PRODUCER_ID:
            return EndTxnResponse(error_code=ErrorCode.concurrent_transactions)  # the producer retries
        if isinstance(reply, Refused):
            return EndTxnResponse(error_code=_known_to(reply.code, request.version))
        assert isinstance(reply, ProducerIdAndEpoch)
        return EndTxnResponse(producer_id=reply.producer_id, producer_epoch=reply.epoch)

    promise = _end(context, message, request.version, None)
    if promise.reply is not NEEDS_PRODUCER_ID:
        return respond(promise, request, shaped)

    async def with_new_id() -> EndTxnResponse:
        spare_id = await context.producer_ids.take()
        return shaped(await _end(context, message, request.version, spare_id).answered())

    return with_new_id()


def _end(context: Context, message: EndTxnRequest, version: int, spare_id: int | None) -> Promise:
    producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
    return context.transactions.ask(
        message.transactional_id,
        lambda machine, to, now, now_ms: machine.end(
            message.transactional_id,
            producer,
            to,
            now_ms,
            committed=message.committed,
            bumps=version >= BUMPS_FROM,
            spare_id=spare_id,
        ),
    )


# Describing.


@serves(DESCRIBE_TRANSACTIONS)
async def describe(
    context: Context, message: describe_transactions.DescribeTransactionsRequest, request: Request
) -> describe_transactions.DescribeTransactionsResponse:
    found = [await _describe(context, each) async for each in Interleaved(message.transactional_ids)]
    return describe_transactions.DescribeTransactionsResponse(transaction_states=found)


async def _describe(context: Context, transactional_id: str) -> describe_transactions.TransactionState:
    try:
        value = await context.transactions.look(
            transactional_id, lambda machine: machine.get(transactional_id) or False
        )
    except Refused as refused:
        return describe_transactions.TransactionState(error_code=refused.code, transactional_id=transactional_id)
    if not isinstance(value, TransactionValue):
        return describe_transactions.TransactionState(
            error_code=ErrorCode.transactional_id_not_found, transactional_id=transactional_id
        )
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=value.state.label,
        transaction_timeout_ms=value.timeout_ms,
        transaction_start_time_ms=value.started_ms,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        topics=[
            describe_transactions.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(value.partitions).items()
        ],
    )


@serves(LIST_TRANSACTIONS)
async def list_all(
    context: Context, message: list_transactions.ListTransactionsRequest, request: Request
) -> list_transactions.ListTransactionsResponse:
    labels = {state.label: state for state in TransactionState}
    wanted = {labels[name] for name in message.state_filters if name in labels}
    unknown = [name for name in message.state_filters if name not in labels]
    if message.state_filters and not wanted:
        return list_transactions.ListTransactionsResponse(unknown_state_filters=unknown)
    chooses = _chooser(message, wanted, context.runtime.wall_ms())

    def chosen(machine: TransactionMachine) -> list[list_transactions.TransactionState]:
        return [
            list_transactions.TransactionState(
                transactional_id=transactional_id, producer_id=value.producer_id, transaction_state=value.state.label
            )
            for transactional_id, value in machine.items()
            if chooses(transactional_id, value)
        ]

    found = await context.transactions.look_at_all(chosen)
    return list_transactions.ListTransactionsResponse(
        unknown_state_filters=unknown, transaction_states=[each for some in found for each in some]
    )


def _chooser(
    message: list_transactions.ListTransactionsRequest, states: set[TransactionState], now_ms: int
) -> Callable[[str, TransactionValue], bool]:
    pattern = compile_regex(message.transactional_id_pattern) if message.transactional_id_pattern else None
    producer_ids = set(message.producer_id_filters)

    def chooses(transactional_id: str, value: TransactionValue) -> bool:
        if states and value.state not in states:
            return False
        if producer_ids and value.producer_id not in producer_ids:
            return False
        lasts_ms = now_ms - value.started_ms if value.started_ms >= 0 else -1
        if message.duration_filter >= 0 and lasts_ms < message.duration_filter:
            return False
        return pattern is None or pattern.fullmatch(transactional_id.encode()) is not None

    return chooses
