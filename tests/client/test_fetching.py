"""The consumer's machine: by scenarios, and against a cluster that misbehaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.embedded import TopicPartition
from ottla.client.fetching import Fetcher
from ottla.client.positions import COMMITTED, EARLIEST, ConsumerSettings, Position, RecordsDamaged
from ottla.client.routing import Routing
from ottla.wire.batch import CODECS
from ottla.wire.records import Record, build_batch, iterate
from ottla.wire.schema.fetch import FetchRequest
from tests.client.model_cluster import OLD, ModelClient, ModelCluster, ModelPartition

SEEDS = st.integers(0, 2**32)


class Run:
    """A consumer on a cluster that the seed makes misbehave, while somebody writes."""

    def __init__(self, seed: int, consumer: ConsumerSettings, *, partitions: int = 3, trouble: float = 0.15) -> None:
        self.chance = Random(seed)
        self.cluster = ModelCluster(3, {"t": partitions}, self.chance, trouble=trouble)
        self.cluster.hints = self.chance.random() < 0.5
        self.cluster.ids_known = self.chance.random() < 0.8
        for node in self.cluster.nodes:
            if self.chance.random() < 0.3:
                self.cluster.versions[node] = OLD
        self.routing = Routing([("a", 1), ("b", 2)])
        self.machine = Fetcher(self.routing, consumer)
        self.client = ModelClient(self.cluster, self.routing, self.machine)
        self.places = [TopicPartition("t", index) for index in range(partitions)]
        self.taken: dict[TopicPartition, list[Record]] = {place: [] for place in self.places}
        self.number = 0

    def partition(self, place: TopicPartition) -> ModelPartition:
        return self.cluster.topics[place.topic][place.partition]

    def write_some(self) -> None:
        for partition in self.cluster.topics["t"]:
            for _ in range(self.chance.randrange(4)):
                values = [b"%d" % (self.number + at) for at in range(self.chance.randrange(1, 6))]
                self.number += len(values)
                records = [Record(offset=at, timestamp=1, value=value) for at, value in enumerate(values)]
                partition.append(build_batch(records, codec=self.chance.choice(CODECS)))
            if self.chance.random() < 0.8:
                partition.high_watermark = partition.log_end

    def misbehave(self) -> None:
        for partition in self.cluster.topics["t"]:
            if self.chance.random() < 0.2:
                partition.elect(self.chance.choice(self.cluster.nodes), lose=self.chance.random() < 0.5)
        if self.chance.random() < 0.2:
            self.client.cut(self.chance.choice(self.cluster.nodes))

    def take(self) -> None:
        for place, records in self.machine.take(self.chance.randrange(1, 30)).items():
            self.taken[place] += records

    def run(self, rounds: int) -> None:
        self.client.pump()
        for _ in range(rounds):
            self.write_some()
            self.client.run_for(self.chance.random() * 0.3)
            self.take()
            self.misbehave()
        self.settle()

    def settle(self) -> None:
        """No more trouble, until everything has been read."""
        self.cluster.trouble = 0.0
        for partition in self.cluster.topics["t"]:
            partition.high_watermark = partition.log_end
        self.client.run_until(self.all_read)

    def all_read(self) -> bool:
        self.take()
        positions = [(self.machine.position(place), self.partition(place).log_end) for place in self.places]
        return all(position is not None and position.offset == end for position, end in positions)

    def log(self, place: TopicPartition) -> list[Record]:
        return [
            record
            for header, data in self.partition(place).log
            if not header.is_control
            for record in iterate(data, bytes_max=1 << 20)
        ]


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, sessions=st.booleans(), bytes_max=st.sampled_from([1, 200, 1 << 20]))
def test_whatever_happens_every_record_is_read_once_and_in_order(seed, sessions, bytes_max):
    consumer = ConsumerSettings(
        auto_offset_reset=EARLIEST, fetch_sessions=sessions, max_partition_fetch_bytes=bytes_max
    )
    run = Run(seed, consumer)
    run.machine.assign(run.places)
    run.run(12)
    for place in run.places:
        assert run.taken[place] == run.log(place)
        assert run.machine.lag(place) == 0


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_after_a_seek_nothing_is_shown_but_what_stands_from_there_on(seed):
    run = Run(seed, ConsumerSettings(auto_offset_reset=EARLIEST, max_partition_fetch_bytes=200), trouble=0.05)
    run.machine.assign(run.places)
    run.client.pump()
    since = {place: (0, 0) for place in run.places}
    for _ in range(15):
        run.write_some()
        run.client.run_for(run.chance.random() * 0.2)
        place = run.chance.choice(run.places)
        what = run.chance.randrange(4)
        if what == 0 and run.machine.position(place) is not None:
            offset = run.chance.randrange(run.partition(place).high_watermark + 1)
            run.machine.seek(place, offset)
            since[place] = (offset, len(run.taken[place]))
        elif what == 1:
            run.machine.pause([place])
        elif what == 2:
            run.machine.resume(run.places)
        paused = {place: len(run.taken[place]) for place in run.machine.paused()}
        run.take()
        assert all(len(run.taken[place]) == count for place, count in paused.items())
        for at in run.places:
            check_from(run, at, *since[at])
    run.machine.resume(run.places)
    run.settle()
    for place in run.places:
        offset, taken = since[place]
        assert run.taken[place][taken:] == [record for record in run.log(place) if record.offset >= offset]


def check_from(run: Run, place: TopicPartition, offset: int, taken: int) -> None:
    shown = run.taken[place][taken:]
    assert shown == [record for record in run.log(place) if record.offset >= offset][: len(shown)]


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_a_reader_of_committed_records_sees_no_aborted_one_from_wherever_it_begins(seed):
    run = Run(seed, ConsumerSettings(isolation_level=COMMITTED, max_partition_fetch_bytes=300), partitions=1, trouble=0)
    (place,) = run.places
    partition = run.partition(place)
    committed: list[Record] = []
    open_since: dict[int, tuple[int, list[Record]]] = {}
    for _ in range(run.chance.randrange(40)):
        producer_id = run.chance.randrange(4)
        if producer_id == 3:
            committed += append(partition, [b"plain"])
        elif producer_id in open_since and run.chance.random() < 0.4:
            first, records = open_since.pop(producer_id)
            commit = run.chance.random() < 0.5
            marker = Record(timestamp=1, key=bytes([0, 0, 0, commit]), value=bytes(6))
            append(partition, [], marker=marker, producer_id=producer_id)
            if commit:
                committed += records
            else:
                partition.aborted.append((producer_id, first, partition.log_end - 1))
        else:
            first, records = open_since.setdefault(producer_id, (partition.log_end, []))
            values = [b"%d" % run.chance.randrange(100) for _ in range(run.chance.randrange(1, 4))]
            records += append(partition, values, producer_id=producer_id)
    for producer_id, (first, _) in open_since.items():  # those that stay open are never shown
        append(partition, [], marker=Record(key=bytes(4), value=bytes(6)), producer_id=producer_id)
        partition.aborted.append((producer_id, first, partition.log_end - 1))
    start = run.chance.randrange(partition.log_end + 1)
    run.machine.assign([place], {place: Position(start)})
    run.settle()
    visible = sorted((record for record in committed if record.offset >= start), key=lambda record: record.offset)
    assert run.taken[place] == visible


def append(
    partition: ModelPartition, values: list[bytes], *, marker: Record | None = None, producer_id: int = -1
) -> list[Record]:
    base = partition.log_end
    records = [marker] if marker else [Record(at, 1, None, value) for at, value in enumerate(values)]
    data = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 0,
        transactional=producer_id >= 0,
        control=marker is not None,
    )
    partition.append(data)
    return [record._replace(offset=base + record.offset) for record in records]


def damaged_run() -> tuple[Run, TopicPartition]:
    run = Run(1, ConsumerSettings(auto_offset_reset=EARLIEST), partitions=1, trouble=0)
    (place,) = run.places
    partition = run.partition(place)
    for value in (b"one", b"two", b"three"):
        append(partition, [value])
    partition.high_watermark = 3
    header, data = partition.log[1]
    partition.log[1] = (header, data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    run.machine.assign([place])
    return run, place


def test_damaged_records_are_not_shown_and_those_before_them_are():
    run, place = damaged_run()
    run.client.run_for(1)
    assert [record.value for record in run.machine.take(10)[place]] == [b"one"]
    with pytest.raises(RecordsDamaged) as caught:
        run.machine.take(10)
    assert (caught.value.partition, caught.value.offset) == (place, 1)


def test_damage_on_the_way_heals_by_fetching_again_and_damage_in_the_log_can_be_skipped():
    run, place = damaged_run()
    run.client.run_for(1)
    run.machine.take(10)
    with pytest.raises(RecordsDamaged):
        run.machine.take(10)
    run.machine.seek(place, 2)
    run.client.run_for(1)
    assert [record.value for record in run.machine.take(10)[place]] == [b"three"]
    run.machine.seek(place, 1)
    header, data = run.partition(place).log[1]
    run.partition(place).log[1] = (header, data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    run.client.run_for(1)
    assert [record.value for record in run.machine.take(10)[place]] == [b"two", b"three"]


def test_a_consumer_of_many_partitions_names_them_once():
    run = Run(3, ConsumerSettings(auto_offset_reset=EARLIEST), partitions=60, trouble=0)
    named: list[int] = []
    send = run.client.send

    def watch(machine, action):
        if isinstance(action.request, FetchRequest):
            named.append(sum(len(topic.partitions) for topic in action.request.topics))
        send(machine, action)

    run.client.send = watch  # type: ignore[method-assign]
    run.cluster.versions = dict.fromkeys(run.cluster.nodes, next(iter(ModelCluster(1, {}, Random()).versions.values())))
    run.machine.assign(run.places)
    run.client.run_for(2)
    assert sum(named[:3]) == 60
    assert sum(named[3:]) == 0
    assert len(named) > 20
