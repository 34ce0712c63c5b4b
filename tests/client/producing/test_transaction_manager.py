"""The transactional producer's machine: by scenarios."""

from __future__ import annotations

import pytest

from ottla.client.core.requests import ANY_NODE, Send
from ottla.client.errors import ClientError
from ottla.client.producing.partitioners import partitioner_of
from ottla.client.producing.produce_requests import AppendResult, Delivered, ProducerSettings, Undelivered
from ottla.client.producing.sender import Sender
from ottla.client.producing.transaction_manager import CallDone, CallFailed, TransactionManager, TransactionSettings
from ottla.client.values import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.batch import read_header
from ottla.wire.records import iterate
from ottla.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ottla.wire.schema.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.schema.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.schema.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.wire.tree import Message
from tests.client.core_scenarios import Scenario, options, partition_named, scenarios

KINDS = {
    "find": FindCoordinatorRequest,
    "init": InitProducerIdRequest,
    "add": AddPartitionsToTxnRequest,
    "add-offsets": AddOffsetsToTxnRequest,
    "offsets": TxnOffsetCommitRequest,
    "end": EndTxnRequest,
    "produce": ProduceRequest,
}


class TransactionScenario(Scenario):
    """Requests are shown as `find x`, `init x 5:0`, `add t0,t1`, `produce 1 t0:a#0@5:0`, `offsets g t0=7`, `end abort`.

    `ok KIND` answers the oldest of that kind, `refuse KIND CODE` refuses it, `lose NODE` breaks the connection.
    """

    machine: Sender
    transactions: TransactionManager

    def machines(self) -> list:
        return [self.metadata, self.transactions, self.machine] if hasattr(self, "machine") else [self.metadata]

    def do_producer(self, *words: str) -> None:
        settings = ProducerSettings(
            linger_ms=0, transactional_id="x", delivery_timeout_ms=int(options(words).get("delivery", "120000"))
        )
        self.machine = Sender(self.metadata, partitioner_of("round_robin"), settings)
        self.transactions = TransactionManager(self.machine, self.metadata, TransactionSettings(transactional_id="x"))
        self.transactions.agree(2 if "second" in words else 1)

    # What the user does.

    def do_init(self) -> None:
        self.transactions.init("init")

    def do_begin(self) -> None:
        self.transactions.begin()

    def do_append(self, word: str, *values: str) -> None:
        topic, partition = partition_named(word)
        for value in values:
            verdict = self.machine.append(
                topic, value.encode(), self.now, timestamp_ms=1, partition=partition, token=value
            )
            assert verdict is AppendResult.ACCEPTED

    def do_offsets(self, group: str, *words: str) -> None:
        offsets = {
            TopicPartition(*partition_named(word)): OffsetAndMetadata(int(at)) for word, at in options(words).items()
        }
        self.transactions.send_offsets(offsets, GroupMetadata(group, 3, "m"), "offsets")

    def do_commit(self) -> None:
        self.transactions.commit("commit")

    def do_abort(self) -> None:
        self.transactions.abort("abort")

    def do_cannot(self, word: str, code: str) -> None:
        with pytest.raises(ClientError) as refused:
            getattr(self, f"do_{word}")()
        assert refused.value.code == ErrorCode[code]

    def do_ready(self, *words: str) -> None:
        """Everything up to the first transaction."""
        self.do_cluster("brokers=1,2", "t0=1", "t1=1", "u0=2")
        self.do_producer(*words)
        self.do_init()
        for answer in (("find", "1"), ("init", "5:0")):
            self.decide()
            self.do_ok(*answer)
        self.decide()
        self.shown = []

    # What comes back.

    def do_ok(self, kind: str, *words: str) -> None:
        machine, send = self.take(KINDS[kind])
        machine.answered(send, self._answer(send.request, 0, words), self.now)

    def do_refuse(self, kind: str, code: str) -> None:
        machine, send = self.take(KINDS[kind])
        machine.answered(send, self._answer(send.request, ErrorCode[code], ()), self.now)

    def do_lose(self, node: str) -> None:
        lost = [entry for entry in self.in_flight if entry[1].to.node_id == int(node)]
        self.in_flight = [entry for entry in self.in_flight if entry not in lost]
        for machine, send in lost:
            machine.failed(send, self.now)  # type: ignore[attr-defined]

    def _answer(self, request: Message, code: int, words: tuple[str, ...]) -> Message:
        identity = [int(part) for part in words[0].split(":")] if words and ":" in words[0] else [-1, -1]
        match request:
            case FindCoordinatorRequest():
                node = int(words[0]) if words else -1
                found = Coordinator(key=request.key, node_id=node, host=f"h{node}", port=node, error_code=code)
                return FindCoordinatorResponse(coordinators=[found])
            case InitProducerIdRequest():
                return InitProducerIdResponse(error_code=code, producer_id=identity[0], producer_epoch=identity[1])
            case AddPartitionsToTxnRequest():
                return AddPartitionsToTxnResponse(
                    results_by_topic_v3_and_below=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                                for index in topic.partitions
                            ],
                        )
                        for topic in request.v3_and_below_topics
                    ]
                )
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                return TxnOffsetCommitResponse(
                    topics=[
                        TxnOffsetCommitResponseTopic(
                            name=topic.name,
                            partitions=[
                                TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                                for each in topic.partitions
                            ],
                        )
                        for topic in request.topics
                    ]
                )
            case EndTxnRequest():
                return EndTxnResponse(error_code=code, producer_id=identity[0], producer_epoch=identity[1])
            case ProduceRequest():
                return ProduceResponse(
                    responses=[
                        TopicProduceResponse(
                            name=topic.name,
                            topic_id=topic.topic_id,
                            partition_responses=[
                                PartitionProduceResponse(index=each.index, error_code=code, base_offset=0)
                                for each in topic.partition_data
                            ],
                        )
                        for topic in request.topic_data
                    ]
                )
        raise AssertionError(request)

    # How it is shown.

    def show(self, send: Send) -> None:
        request = send.request
        if send.version_max is not None and not isinstance(request, ProduceRequest):
            assert not hasattr(self, "transactions") or self.transactions.version < 2
        match request:
            case FindCoordinatorRequest():
                assert send.to is ANY_NODE
                self.shown.append(f"find {request.key}" + (" group" if request.key_type == 0 else ""))
            case InitProducerIdRequest():
                known = f" {request.producer_id}:{request.producer_epoch}" if request.producer_id >= 0 else ""
                self.shown.append(f"init {request.transactional_id}{known}")
            case AddPartitionsToTxnRequest():
                partitions = [f"{t.name}{index}" for t in request.v3_and_below_topics for index in t.partitions]
                self.shown.append(f"add {','.join(partitions)}")
            case AddOffsetsToTxnRequest():
                self.shown.append(f"add-offsets {request.group_id}")
            case TxnOffsetCommitRequest():
                each = [
                    f"{t.name}{p.partition_index}={p.committed_offset}" for t in request.topics for p in t.partitions
                ]
                self.shown.append(f"offsets {request.group_id} {' '.join(each)}")
            case EndTxnRequest():
                end = "commit" if request.committed else "abort"
                self.shown.append(f"end {end} {request.producer_id}:{request.producer_epoch}")
            case ProduceRequest():
                assert (send.version_max is None) == (self.transactions.version >= 2)
                self.shown.append(f"produce {send.to.node_id} {_batches(request)}")
            case _:
                super().show(send)

    def outcome(self, action: object) -> str:
        match action:
            case CallDone():
                return f"done {action.token}"
            case CallFailed():
                return f"failed {action.token} {action.error.code.name}"
            case Delivered():
                return f"delivered {','.join(map(str, action.tokens))}"
            case Undelivered():
                return f"undelivered {','.join(map(str, action.tokens))}"
        raise AssertionError(action)


def _batches(request: ProduceRequest) -> str:
    assert request.transactional_id == "x"
    shown = []
    for topic in request.topic_data:
        for each in topic.partition_data:
            data = each.records
            assert data is not None
            header = read_header(data)
            assert header.is_transactional
            values = ",".join((record.value or b"").decode() for record in iterate(data, bytes_max=10_000))
            identity = f"{header.producer_id}:{header.producer_epoch}"
            shown.append(f"{topic.name}{each.index}:{values}#{header.base_sequence}@{identity}")
    return " ".join(shown)


@pytest.mark.parametrize("lines", scenarios("client_transactions.txt"))
def test_a_transactional_producer(lines: list[str]):
    TransactionScenario().run(lines)
