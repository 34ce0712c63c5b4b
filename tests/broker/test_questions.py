"""Questions of leaders to coordinators: one request for all of one turn, each with its own answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.questions import Questions
from ottla.coordinator.transactions import Codes
from ottla.errors import ErrorCode
from ottla.net.outbound import PeerLost
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

    async def call(
        self, broker_id: int, request: AddPartitionsToTxnRequest, answer: type
    ) -> AddPartitionsToTxnResponse:
        self.asked.append((broker_id, [each.transactional_id for each in request.transactions]))
        if broker_id == 9:
            raise PeerLost("away")
        await asyncio.sleep(0)
        return AddPartitionsToTxnResponse(results_by_transaction=[_result(each) for each in request.transactions])


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


def question(transactional_id: str, *partitions: int) -> AddPartitionsToTxnTransaction:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=list(partitions))]
    return AddPartitionsToTxnTransaction(transactional_id=transactional_id, topics=topics)


def test_what_comes_up_in_one_turn_is_one_request_for_each_broker():
    async def scenario() -> tuple[list[Codes | BaseException], list[tuple[int, list[str]]]]:
        loop, peers = asyncio.get_running_loop(), Peers()
        runtime = SimpleNamespace(call_soon=loop.call_soon, spawn=lambda work, name: loop.create_task(work))
        broker: Any = SimpleNamespace(runtime=runtime, peers=peers)
        questions = Questions(broker)
        told = await asyncio.gather(
            questions.ask(2, question("x", 0, 1)),
            questions.ask(2, question("y", 2)),
            questions.ask(2, question("x", 3)),
            questions.ask(3, question("z", 1)),
            questions.ask(9, question("z", 2)),
            return_exceptions=True,
        )
        await questions.ask(2, question("x", 4))
        return list(told), peers.asked

    told, asked = asyncio.run(scenario())
    assert told[:4] == [
        {("t", 0): ErrorCode.transaction_abortable, ("t", 1): ErrorCode.none},
        {("t", 2): ErrorCode.none},
        {("t", 3): ErrorCode.none},
        {("t", 1): ErrorCode.none},
    ]
    assert isinstance(told[4], PeerLost)
    assert asked == [(2, ["x", "y", "x"]), (3, ["z"]), (9, ["z"]), (2, ["x"])]


def test_one_that_has_stopped_waiting_keeps_no_other_from_its_answer():
    async def scenario() -> Codes:
        loop = asyncio.get_running_loop()
        runtime = SimpleNamespace(call_soon=loop.call_soon, spawn=lambda work, name: loop.create_task(work))
        broker: Any = SimpleNamespace(runtime=runtime, peers=Peers())
        questions = Questions(broker)
        gone = loop.create_task(questions.ask(2, question("x", 1)))
        stays = loop.create_task(questions.ask(2, question("y", 1)))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays

    assert asyncio.run(scenario()) == {("t", 1): ErrorCode.none}
