"""The producer's machine: by scenarios, and against a cluster that misbehaves."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.accumulator import Accumulator
from ottla.client.deliveries import ProducerSettings, Verdict
from ottla.client.partitioners import partitioner_of
from ottla.client.routing import Routing
from ottla.errors import ErrorCode
from ottla.wire.records import iterate
from tests.client.model_cluster import OLD, ModelClient, ModelCluster


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
        self.routing = Routing([("a", 1), ("b", 2)])
        self.machine = Accumulator(self.routing, partitioner_of("round_robin"), producer)
        self.client = ModelClient(self.cluster, self.routing, self.machine)
        self.appended: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        self.number = 0

    def append_some(self) -> None:
        for _ in range(self.chance.randrange(1, 40)):
            partition = self.chance.choice(list(self.appended))
            value = b"%d" % self.number + b"." * self.chance.randrange(20)
            verdict = self.machine.append(
                "t", value, self.client.now, timestamp_ms=1, partition=partition, token=(partition, value)
            )
            if verdict is Verdict.ACCEPTED:
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

    def run(self, rounds: int, *, unclean: bool = False) -> None:
        self.client.pump()
        for _ in range(rounds):
            self.append_some()
            self.client.run_for(self.chance.random() * 0.2)
            self.misbehave(unclean=unclean)
        self.cluster.trouble = 0.0
        mark = self.machine.flush()
        self.client.run_until(lambda: self.machine.flushed(mark))

    def check_offsets(self) -> None:
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
def test_whatever_happens_every_record_is_in_the_log_once_and_in_order(seed, codec, size):
    run = Run(seed, ProducerSettings(batch_size=size, compression_type=codec, delivery_timeout_ms=FOR_EVER_MS))
    run.run(12)
    assert not run.client.undelivered
    for index, appended in run.appended.items():
        assert run.cluster.values("t", index) == appended
    run.check_offsets()
    assert run.machine.buffered_bytes == 0


def in_order(values: list[bytes], appended: list[bytes]) -> bool:
    """Whether each value is one of those appended, none twice, in their order."""
    places = [appended.index(value) for value in values]
    return all(before < after for before, after in zip(places, places[1:], strict=False))


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, timeout_ms=st.sampled_from([150, 400, 1000]))
def test_what_is_given_up_is_never_written_twice_and_holds_up_nothing(seed, timeout_ms):
    run = Run(seed, ProducerSettings(batch_size=200, delivery_timeout_ms=timeout_ms, retry_backoff_max_ms=200))
    run.run(12)
    delivered = {token for batch in run.client.delivered for token in batch.tokens}
    given_up = {token for batch in run.client.undelivered for token in batch.tokens}
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
def test_without_numbers_records_may_be_doubled_but_none_is_overtaken_by_a_later_one(seed):
    run = Run(seed, ProducerSettings(acks=1, batch_size=200, delivery_timeout_ms=FOR_EVER_MS))
    run.run(10)
    assert not run.client.undelivered
    for index, appended in run.appended.items():
        values = run.cluster.values("t", index)
        assert list(dict.fromkeys(values)) == appended
