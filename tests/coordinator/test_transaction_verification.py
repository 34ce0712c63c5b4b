"""AddPartitionsToTxn batching: one request for each loop iteration, with one result for each transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.coordinator.transaction_machine import Codes
from ottla.coordinator.transaction_verification import AddPartitionsBatcher
from ottla.errors import ErrorCode
from ottla.net.outbound import OutboundConnection, PeerLost
from ottla.runtime.real import RealRuntime
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)


class Peers:
    """Every partition but the first of a topic is part of its transaction. Broker 9 is away."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[str]]] = []

    async def open(self, broker_id: int) -> OutboundConnection:
        raise AssertionError("it goes over shared connections")

    async def ask_controller(self, message: Any, answer: Any, *, timeout_s: float = 0.0) -> Any:
        raise AssertionError("the controller knows of no transactions")

    async def call(self, broker_id: int, message: Any, answer: Any, *, timeout_s: float = 0.0) -> Any:
        assert isinstance(message, AddPartitionsToTxnRequest)
        self.asked.append((broker_id, [each.transactional_id for each in message.transactions]))
        if broker_id == 9:
            raise PeerLost("away")
        await asyncio.sleep(0)
        return AddPartitionsToTxnResponse(results_by_transaction=[_result(each) for each in message.transactions])


def _result(asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=ErrorCode.none if index else ErrorCode.transaction_abortable,
                    )
                    for index in topic.partitions
                ],
            )
            for topic in asked.topics
        ],
    )


def transaction(transactional_id: str, *partitions: int) -> AddPartitionsToTxnTransaction:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=list(partitions))]
    return AddPartitionsToTxnTransaction(transactional_id=transactional_id, topics=topics)


def test_transactions_of_one_loop_iteration_share_one_request_to_each_broker():
    async def scenario() -> tuple[list[Codes | BaseException], list[tuple[int, list[str]]]]:
        peers = Peers()
        batcher = AddPartitionsBatcher(RealRuntime(), peers)
        reported = await asyncio.gather(
            batcher.send(2, transaction("x", 0, 1)),
            batcher.send(2, transaction("y", 2)),
            batcher.send(2, transaction("x", 3)),
            batcher.send(3, transaction("z", 1)),
            batcher.send(9, transaction("z", 2)),
            return_exceptions=True,
        )
        await batcher.send(2, transaction("x", 4))
        return list(reported), peers.asked

    reported, asked = asyncio.run(scenario())
    assert reported[:4] == [
        {("t", 0): ErrorCode.transaction_abortable, ("t", 1): ErrorCode.none},
        {("t", 2): ErrorCode.none},
        {("t", 3): ErrorCode.none},
        {("t", 1): ErrorCode.none},
    ]
    assert isinstance(reported[4], PeerLost)
    assert asked == [(2, ["x", "y", "x"]), (3, ["z"]), (9, ["z"]), (2, ["x"])]


def test_a_cancelled_caller_does_not_affect_others():
    async def scenario() -> Codes:
        loop = asyncio.get_running_loop()
        batcher = AddPartitionsBatcher(RealRuntime(), Peers())
        gone = loop.create_task(batcher.send(2, transaction("x", 1)))
        stays = loop.create_task(batcher.send(2, transaction("y", 1)))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays

    assert asyncio.run(scenario()) == {("t", 1): ErrorCode.none}
