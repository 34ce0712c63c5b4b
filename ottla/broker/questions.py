"""What leaders ask coordinators before they take the first record of a transaction, put together: all that comes up in
one turn of the loop and is for one broker goes in one request (KIP-890).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coordinator.transactions import Codes
from ottla.errors import ErrorCode
from ottla.net.outbound import PeerLost
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

_Question = tuple[AddPartitionsToTxnTransaction, "asyncio.Future[Codes]"]


class Questions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[int, list[_Question]] = {}

    async def ask(self, broker_id: int, transaction: AddPartitionsToTxnTransaction) -> Codes:
        """What the coordinator says of each partition. PeerLost if it says nothing."""
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(broker_id, [])
        waiting.append((transaction, answer))
        if len(waiting) == 1:
            self._broker.runtime.call_soon(self._send, broker_id)
        return await answer

    def _send(self, broker_id: int) -> None:
        questions = self._waiting.pop(broker_id)
        self._broker.runtime.spawn(self._call(broker_id, questions), name=f"questions for broker {broker_id}")

    async def _call(self, broker_id: int, questions: list[_Question]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[transaction for transaction, _ in questions])
        try:
            response = await self._broker.peers.call(broker_id, request, AddPartitionsToTxnResponse)
        except PeerLost as lost:
            for _, answer in questions:
                if not answer.done():
                    answer.set_exception(lost)
            return
        results = response.results_by_transaction
        missing = ErrorCode(response.error_code) or ErrorCode.network_exception
        for number, (transaction, answer) in enumerate(questions):
            if not answer.done():
                answer.set_result(_codes(transaction, results[number] if number < len(results) else None, missing))


def _codes(
    transaction: AddPartitionsToTxnTransaction, result: AddPartitionsToTxnResult | None, missing: ErrorCode
) -> Codes:
    told = {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in ([] if result is None else result.topic_results)
        for each in topic.results_by_partition
    }
    places = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    return {place: told.get(place, missing) for place in places}
