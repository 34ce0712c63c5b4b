"""The producer's machine: by scenarios, and against a cluster that misbehaves."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.core.metadata import Metadata
from ottla.client.errors import ClientError
from ottla.client.producing.batches import ProducerIdAndEpoch
from ottla.client.producing.partitioners import partitioner_of
from ottla.client.producing.produce_requests import AppendResult, Delivered, ProducerSettings, Undelivered
from ottla.client.producing.sender import Sender
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.batch import read_header
from ottla.wire.records import iterate
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.schema.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.tree import Message
from tests.client.core_scenarios import Scenario, options, partition_named, scenarios
from tests.client.model_cluster import OLD, ModelClient, ModelCluster


class ProducerScenario(Scenario):
    """Values are single words; `ok` and `refuse` answer the oldest request to a broker."""

    def __init__(self) -> None:
        super().__init__()
        self.machine: Sender
        self.mark = 0
        self.log_ends: dict[tuple[str, int], int] = {}

    def machines(self) -> list:
        return [self.metadata, self.machine] if hasattr(self, "machine") else [self.metadata]

    def do_producer(self, *words: str) -> None:
        named = options(words)
        producer = ProducerSettings(
            acks=int(named.get("acks", "-1")),
            linger_ms=int(named.get("linger", "5")),
            batch_size=int(named.get("batch", "1000")),
            buffer_memory=int(named.get("memory", "1000000")),
            max_request_size=int(named.get("request", "1000000")),
            delivery_timeout_ms=int(named.get("delivery", "120000")),
            retries=int(named.get("retries", "1000")),
            transactional_id="x" if "transactional" in words else None,
        )
        self.machine = Sender(self.metadata, partitioner_of("round_robin"), producer)
        if "identity" in named:
            self.machine.identify(ProducerIdAndEpoch(int(named["identity"]), int(named.get("epoch", "0"))))

    def add(self, word: str, value: str) -> AppendResult:
        topic, partition = partition_named(word)
        return self.machine.append(topic, value.encode(), self.now, timestamp_ms=1, partition=partition, token=value)

    def do_append(self, word: str, *values: str) -> None:
        assert all(self.add(word, value) is AppendResult.ACCEPTED for value in values)

    def do_append_broken(self, word: str, value: str) -> None:
        """A record that no bytes can be made of."""
        topic, partition = partition_named(word)
        wrong: Any = 1.5
        verdict = self.machine.append(topic, b"v", self.now, timestamp_ms=wrong, partition=partition, token=value)
        assert verdict is AppendResult.ACCEPTED

    def do_full(self, word: str, value: str) -> None:
        assert self.add(word, value) is AppendResult.FULL

    def do_unrouted(self, word: str, value: str) -> None:
        assert self.add(word, value) is AppendResult.METADATA_MISSING

    def do_append_raises(self, word: str, value: str) -> None:
        with pytest.raises(ClientError):
            self.add(word, value)

    def do_flush(self) -> None:
        self.mark = self.machine.flush()

    def do_flushed(self, answer: str) -> None:
        assert self.machine.flushed(self.mark) == (answer == "yes")

    def do_identified(self) -> None:
        machine, send = self.take(InitProducerIdRequest)
        machine.answered(send, InitProducerIdResponse(producer_id=8, producer_epoch=0), self.now)

    def do_refuse_identity(self, code: str) -> None:
        machine, send = self.take(InitProducerIdRequest)
        machine.answered(send, InitProducerIdResponse(error_code=ErrorCode[code]), self.now)

    def do_identify(self, producer_id: str, *words: str) -> None:
        self.machine.identify(ProducerIdAndEpoch(int(producer_id), int(options(words).get("epoch", "0"))))

    def do_admit(self, word: str) -> None:
        self.machine.admit([TopicPartition(*partition_named(word))])

    def do_not_admitted(self, word: str) -> None:
        assert self.machine.not_admitted() == [TopicPartition(*partition_named(word))]

    def do_abort(self) -> None:
        self.machine.abort(ClientError("aborted", code=ErrorCode.operation_not_attempted))

    def do_ok(self, node: str) -> None:
        self.answer(node, ErrorCode.none, {})

    def do_ok_but_untold(self, node: str) -> None:
        self.answer(node, ErrorCode.none, {})
        assert not self.machine.flushed(self.mark), "whoever flushes would go before the outcome is told"

    def do_refuse(self, node: str, code: str, *words: str) -> None:
        self.answer(node, ErrorCode[code], options(words))

    def answer(self, node: str, code: ErrorCode, named: dict[str, str]) -> None:
        machine, send = self.take(ProduceRequest, node)
        topics = []
        for topic in send.request.topic_data:
            results = []
            for part in topic.partition_data:
                result = PartitionProduceResponse(index=part.index, error_code=code, base_offset=-1)
                if "hint" in named:
                    leader, epoch = map(int, named["hint"].split("@"))
                    result.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                if not code:
                    result.base_offset = self.log_ends.get((topic.name, part.index), 0)
                    self.log_ends[topic.name, part.index] = result.base_offset + read_header(part.records).record_count
                results.append(result)
            topics.append(TopicProduceResponse(topic_id=topic.topic_id, partition_responses=results))
        machine.answered(send, ProduceResponse(responses=topics), self.now)

    def request(self, node: int, request: Message) -> str:
        if isinstance(request, InitProducerIdRequest):
            return "identify"
        assert isinstance(request, ProduceRequest)
        parts = [
            f"{topic.name}{part.index}:{self.batch(part.records or b'')}"
            for topic in request.topic_data
            for part in topic.partition_data
        ]
        return f"produce {node} {' '.join(parts)}"

    @staticmethod
    def batch(data: bytes) -> str:
        header = read_header(data)
        text = ",".join((record.value or b"").decode() for record in iterate(data, bytes_max=1 << 20))
        if header.base_sequence >= 0:
            text += f"#{header.base_sequence}" + (f"e{header.producer_epoch}" if header.producer_epoch else "")
        return text

    def outcome(self, action: object) -> str:
        assert isinstance(action, Delivered | Undelivered)
        where = f"{action.topic}{action.partition}:{','.join(map(str, action.tokens))}"
        if isinstance(action, Delivered):
            return f"delivered {where}@{action.base_offset}"
        return f"failed {where} {action.error.code.name}"


@pytest.mark.parametrize("lines", scenarios("client_producer.txt"))
def test_scenario(lines):
    ProducerScenario().run(lines)


SEEDS = st.integers(0, 2**32)
FOR_EVER_MS = 3_600_000


class Run:
    """A producer of numbered values on a cluster that the seed makes misbehave."""

    def __init__(self, seed: int, producer: ProducerSettings, *, nodes: int = 3, partitions: int = 3) -> None:
        self.chance = Random(seed)
        self.cluster = ModelCluster(nodes, {"t": partitions}, self.chance, trouble=0.2)
        self.cluster.hints = self.chance.random() < 0.5
        self.cluster.ids_known = self.chance.random() < 0.8
        for node in self.cluster.nodes:
            if self.chance.random() < 0.3:
                self.cluster.versions[node] = OLD
        self.metadata = Metadata([("a", 1), ("b", 2)])
        self.machine = Sender(self.metadata, partitioner_of("round_robin"), producer)
        self.client = ModelClient(self.cluster, self.metadata, self.machine)
        self.appended: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        self.number = 0

    def append_some(self) -> None:
        for _ in range(self.chance.randrange(1, 40)):
            partition = self.chance.choice(list(self.appended))
            value = b"%d" % self.number + b"." * self.chance.randrange(20)
            verdict = self.machine.append(
                "t", value, self.client.now, timestamp_ms=1, partition=partition, token=(partition, value)
            )
            if verdict is AppendResult.ACCEPTED:
                self.number += 1
                self.appended[partition].append(value)

    def misbehave(self, *, unclean: bool = False) -> None:
        for partition in self.cluster.topics["t"]:
            if self.chance.random() < 0.3:
                if unclean and partition.log and self.chance.random() < 0.3:
                    partition.high_watermark = self.chance.choice(partition.log)[0].base_offset
                partition.elect(self.chance.choice(self.cluster.nodes), lose=self.chance.random() < 0.5)
        if self.chance.random() < 0.3:
            self.client.cut(self.chance.choice(self.cluster.nodes))

    def run(self, iterations: int, *, unclean: bool = False) -> None:
        self.client.pump()
        for _ in range(iterations):
            self.append_some()
            self.client.run_for(self.chance.random() * 0.2)
            self.misbehave(unclean=unclean)
        self.cluster.trouble = 0.0
        mark = self.machine.flush()
        self.client.run_until(lambda: self.machine.flushed(mark))

    def check_offsets(self) -> None:
        token: Any
        for batch in self.client.delivered:
            partition = self.cluster.topics[batch.topic][batch.partition]
            if batch.base_offset >= 0:
                for token, where in batch.results():
                    assert self.value_at(partition, where.offset) == token[1]

    @staticmethod
    def value_at(partition, offset):
        for header, data in partition.log:
            if header.base_offset <= offset < header.next_offset:
                return next(r.value for r in iterate(data, bytes_max=1 << 20) if r.offset == offset)
        return None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), codec=st.sampled_from(["none", "gzip", "lz4"]), size=st.sampled_from([100, 300, 2000])
)
def test_every_record_is_in_the_log_once_and_in_order_under_any_faults(seed, codec, size):
    run = Run(seed, ProducerSettings(batch_size=size, compression_type=codec, delivery_timeout_ms=FOR_EVER_MS))
    run.run(12)
    assert not run.client.undelivered
    for index, appended in run.appended.items():
        assert run.cluster.values("t", index) == appended
    run.check_offsets()
    assert run.machine.buffered_bytes == 0


def in_order(values: list[bytes], appended: list[bytes]) -> bool:
    """Whether each value is one of those appended, none twice, in their order."""
    indexes = [appended.index(value) for value in values]
    return all(before < after for before, after in pairwise(indexes))


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, timeout_ms=st.sampled_from([150, 400, 1000]))
def test_a_batch_that_timed_out_is_not_written_twice_and_delays_no_other(seed, timeout_ms):
    run = Run(seed, ProducerSettings(batch_size=200, delivery_timeout_ms=timeout_ms, retry_backoff_max_ms=200))
    run.run(12)
    delivered: set[Any] = {token for batch in run.client.delivered for token in batch.tokens}
    given_up: set[Any] = {token for batch in run.client.undelivered for token in batch.tokens}
    assert not delivered & given_up
    for index, appended in run.appended.items():
        values = run.cluster.values("t", index)
        assert in_order(values, appended)
        assert {value for value in appended if (index, value) in delivered} <= set(values)
        assert len([token for token in delivered | given_up if token[0] == index]) == len(appended)
    run.check_offsets()
    assert run.machine.buffered_bytes == 0


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_a_cluster_that_loses_acknowledged_records_gets_the_rest_once_and_in_order(seed):
    run = Run(seed, ProducerSettings(batch_size=200, delivery_timeout_ms=FOR_EVER_MS))
    run.run(12, unclean=True)
    assert not run.client.undelivered
    for index, appended in run.appended.items():
        assert in_order(run.cluster.values("t", index), appended)
    before = {index: len(appended) for index, appended in run.appended.items()}
    run.run(1)
    for index, appended in run.appended.items():
        later = appended[before[index] :]
        assert run.cluster.values("t", index)[len(run.cluster.values("t", index)) - len(later) :] == later


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_batches_that_are_too_large_are_split_and_stay_in_order(seed):
    run = Run(seed, ProducerSettings(batch_size=2000, delivery_timeout_ms=FOR_EVER_MS))
    run.cluster.bytes_max = 200
    run.run(8)
    assert not run.client.undelivered
    for index, appended in run.appended.items():
        assert run.cluster.values("t", index) == appended
    run.check_offsets()


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_without_idempotence_records_may_be_duplicated_but_keep_their_order(seed):
    run = Run(seed, ProducerSettings(acks=1, batch_size=200, delivery_timeout_ms=FOR_EVER_MS))
    run.run(10)
    assert not run.client.undelivered
    for index, appended in run.appended.items():
        values = run.cluster.values("t", index)
        assert list(dict.fromkeys(values)) == appended


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_a_limit_that_changes_under_way_doubles_nothing(seed):
    run = Run(seed, ProducerSettings(batch_size=2000, delivery_timeout_ms=FOR_EVER_MS))
    for limit in (200, 5000) * 4:
        run.cluster.bytes_max = limit
        run.append_some()
        run.client.run_for(run.chance.random() * 0.2)
        run.misbehave()
    run.run(1)
    given_up = {token for batch in run.client.undelivered for token in batch.tokens}
    for index, appended in run.appended.items():
        values = run.cluster.values("t", index)
        assert in_order(values, appended)
        assert {value for value in appended if (index, value) not in given_up} <= set(values)


def test_record_metadata_has_offset_and_timestamp():
    scenario = ProducerScenario()
    scenario.do_cluster("t0=1")
    scenario.do_producer("acks=1", "linger=0")
    scenario.do_append("t0", "a", "b")
    scenario.decide()
    machine, send = scenario.take(ProduceRequest)
    result = PartitionProduceResponse(index=0, base_offset=5, log_append_time_ms=99)
    answer = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[result])])
    machine.answered(send, answer, scenario.now)
    (delivered,) = machine.decide(scenario.now)
    assert dict(delivered.results()) == {"a": ("t", 0, 5, 99), "b": ("t", 0, 6, 99)}
