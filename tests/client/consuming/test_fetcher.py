"""The consumer's machine: by scenarios, and against a cluster that misbehaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.consuming.fetch_requests import SHORT_WAIT_MS
from ottla.client.consuming.fetcher import Fetcher
from ottla.client.consuming.subscription_state import ConsumerSettings, Position, PositionError, RecordsDamaged
from ottla.client.core.metadata import Metadata
from ottla.client.errors import BadSetting, ClientError
from ottla.client.values import COMMITTED, EARLIEST, LATEST, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.batch import CODECS
from ottla.wire.records import Record, build_batch, iterate
from ottla.wire.schema.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.wire.tree import Message
from tests.client.core_scenarios import Scenario, options, partition_named, scenarios, topic_id
from tests.client.model_cluster import MODERN, OLD, ModelClient, ModelCluster, ModelPartition

SEEDS = st.integers(0, 2**32)
TIMES = {"earliest": EARLIEST, "latest": LATEST, "none": None}


class ConsumerScenario(Scenario):
    """Offsets follow an @. `fetch 1 t0@5 s2/1 -t1` goes to broker 1, is the request 1 of session 2, forgets t1;
    without the s it opens a session. `soon`: it wants to be answered soon, whether there is something or not. `t0@5/9`:
    nine bytes at most, not as many as the settings allow."""

    def __init__(self) -> None:
        super().__init__()
        self.machine: Fetcher

    def machines(self) -> list:
        return [self.metadata, self.machine] if hasattr(self, "machine") else [self.metadata]

    def do_consumer(self, *words: str) -> None:
        named = options(words)
        reset = named.get("reset", "earliest")
        self.machine = Fetcher(
            self.metadata,
            ConsumerSettings(
                auto_offset_reset=TIMES[reset] if reset in TIMES else int(reset),
                isolation_level=COMMITTED if "committed" in words else 0,
                max_partition_fetch_bytes=int(named.get("bytes", "1000")),
                buffered_bytes_max=int(named.get("buffered", "100000")),
                client_rack=named.get("rack", ""),
            ),
        )

    @staticmethod
    def where(word: str) -> tuple[TopicPartition, Position | None]:
        name, _, position = word.partition("@")
        offset, _, epoch = position.partition("e")
        return TopicPartition(*partition_named(name)), Position(int(offset), int(epoch or -1)) if position else None

    def do_assign(self, *words: str) -> None:
        positions = dict(map(self.where, words))
        self.machine.assign(positions, {at: position for at, position in positions.items() if position is not None})

    def do_seek(self, word: str) -> None:
        at, position = self.where(word)
        assert position is not None
        self.machine.seek(at, *position)

    def do_range(self, word: str, until: str) -> None:
        """Go there, and read no further than that."""
        at, position = self.where(word)
        assert position is not None
        self.machine.seek(at, *position, until=int(until))

    def do_limit(self, *words: str) -> None:
        self.machine.limit({self.where(word)[0]: int(until) for word, until in options(words).items()})

    def do_abandon(self, *nodes: str) -> None:
        """These brokers are to be disconnected; what was out to them fails."""
        assert [str(broker.node_id) for broker in self.machine.abandon()] == list(nodes)
        for node in nodes:
            machine, send = self.take(FetchRequest, node)
            machine.failed(send, self.now)

    def do_seek_to(self, word: str, time: str) -> None:
        self.machine.seek_to(TopicPartition(*partition_named(word)), TIMES[time] or 0 if time in TIMES else int(time))

    def do_pause(self, word: str) -> None:
        self.machine.pause([TopicPartition(*partition_named(word))])

    def do_resume(self, word: str) -> None:
        self.machine.resume([TopicPartition(*partition_named(word))])

    def do_position(self, word: str) -> None:
        at, position = self.where(word)
        found = self.machine.position(at)
        assert (found and found.offset) == (position and position.offset)

    def do_lag(self, word: str, lag: str) -> None:
        assert self.machine.lag(TopicPartition(*partition_named(word))) == (None if lag == "unknown" else int(lag))

    def do_take(self, count: str = "100") -> None:
        for at, records in self.machine.take(int(count)).items():
            self.shown.append(f"{at.topic}{at.partition}:{','.join((r.value or b'').decode() for r in records)}")

    def do_take_raises(self, name: str, *words: str) -> None:
        with pytest.raises(ClientError) as caught:
            self.machine.take(100)
        assert type(caught.value).__name__ == name
        if words:
            assert isinstance(caught.value, PositionError)
            assert f"@{caught.value.offset}" == words[0]

    def do_listed(self, *words: str) -> None:
        """An answer to ListOffsets: `t0=5e2 t1=not_leader_or_follower`."""
        machine, send = self.take(ListOffsetsRequest)
        topics = []
        for word, value in options(words).items():
            name, partition = partition_named(word)
            offset, _, epoch = value.partition("e")
            result = ListOffsetsPartitionResponse(partition_index=partition)
            if offset.lstrip("-").isdecimal():
                result.offset, result.leader_epoch = int(offset), int(epoch or 0)
            else:
                result.error_code = ErrorCode[value]
            topics.append(ListOffsetsTopicResponse(name=name, partitions=[result]))
        machine.answered(send, ListOffsetsResponse(topics=topics), self.now)

    def do_ended(self, *words: str) -> None:
        """An answer to OffsetForLeaderEpoch: `t0=5e2`, or an error."""
        machine, send = self.take(OffsetForLeaderEpochRequest)
        topics = []
        for word, value in options(words).items():
            name, partition = partition_named(word)
            offset, _, epoch = value.partition("e")
            result = EpochEndOffset(partition=partition)
            if offset.lstrip("-").isdecimal():
                result.end_offset, result.leader_epoch = int(offset), int(epoch or 0)
            else:
                result.error_code = ErrorCode[value]
            topics.append(OffsetForLeaderTopicResult(topic=name, partitions=[result]))
        machine.answered(send, OffsetForLeaderEpochResponse(topics=topics), self.now)

    def do_not_understood(self) -> None:
        machine, send = self.take(OffsetForLeaderEpochRequest)
        machine.failed(send, self.now, ErrorCode.unsupported_version)

    def do_fetched(self, node: str, *words: str) -> None:
        """An answer to Fetch: `t0@5=a,b hw=9 session=2 epoch=3`, or `t0=an_error`; `near=2` names a nearer replica."""
        machine, send = self.take(FetchRequest, node)
        named = options(words)
        high_watermark = int(named.pop("hw", "10"))
        near, epoch = int(named.pop("near", "-1")), int(named.pop("epoch", "0"))
        response = FetchResponse(session_id=int(named.pop("session", "0")))
        if "error" in named:
            response.error_code = ErrorCode[named.pop("error")]
        hint = named.pop("hint", "")
        for word, value in named.items():
            at, position = self.where(word)
            part = PartitionData(
                partition_index=at.partition,
                high_watermark=high_watermark,
                last_stable_offset=high_watermark,
                preferred_read_replica=near,
            )
            if position is not None:
                records = [Record(position.offset + n, 1, None, v.encode()) for n, v in enumerate(value.split(","))]
                part.records = build_batch(records, leader_epoch=epoch)
            elif value:
                part.error_code = ErrorCode[value]
                if hint:
                    leader, leader_epoch = map(int, hint.split("@"))
                    part.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=leader_epoch)
            response.responses.append(FetchableTopicResponse(topic_id=topic_id(at.topic), partitions=[part]))
        machine.answered(send, response, self.now)

    def request(self, node: int, request: Message) -> str:
        words: list[str] = []
        if isinstance(request, ListOffsetsRequest):
            names = {value: name for name, value in TIMES.items()}
            for topic in request.topics:
                words += [
                    f"{topic.name}{part.partition_index}:{names.get(part.timestamp, part.timestamp)}"
                    for part in topic.partitions
                ]
            return f"list {node} {' '.join(words)}"
        if isinstance(request, OffsetForLeaderEpochRequest):
            for ended in request.topics:
                words += [f"{ended.topic}{end.partition}e{end.leader_epoch}" for end in ended.partitions]
            return f"end {node} {' '.join(words)}"
        assert isinstance(request, FetchRequest)
        for fetched in request.topics:
            for wanted in fetched.partitions:
                limit = wanted.partition_max_bytes
                size = "" if limit == self.machine.settings.max_partition_fetch_bytes else f"/{limit}"
                words.append(f"{fetched.topic}{wanted.partition}@{wanted.fetch_offset}{size}")
        if request.session_id:
            words.append(f"s{request.session_id}/{request.session_epoch}")
        for gone in request.forgotten_topics_data:
            words += [f"-{gone.topic}{partition}" for partition in gone.partitions]
        if request.max_wait_ms == SHORT_WAIT_MS:
            words.append("soon")
        return f"fetch {node} {' '.join(words)}"


@pytest.mark.parametrize("lines", scenarios("client_consumer.txt"))
def test_scenario(lines):
    ConsumerScenario().run(lines)


class Run:
    """A consumer on a cluster with faults chosen by the seed, while records are written."""

    def __init__(self, seed: int, consumer: ConsumerSettings, *, partitions: int = 3, trouble: float = 0.15) -> None:
        self.chance = Random(seed)
        self.cluster = ModelCluster(3, {"t": partitions}, self.chance, trouble=trouble)
        self.cluster.hints = self.chance.random() < 0.5
        self.cluster.ids_known = self.chance.random() < 0.8
        for node in self.cluster.nodes:
            if self.chance.random() < 0.3:
                self.cluster.versions[node] = OLD
        self.metadata = Metadata([("a", 1), ("b", 2)])
        self.machine = Fetcher(self.metadata, consumer)
        self.client = ModelClient(self.cluster, self.metadata, self.machine)
        self.partitions = [TopicPartition("t", index) for index in range(partitions)]
        self.taken: dict[TopicPartition, list[Record]] = {partition: [] for partition in self.partitions}
        self.number = 0

    def partition(self, topic_partition: TopicPartition) -> ModelPartition:
        return self.cluster.topics[topic_partition.topic][topic_partition.partition]

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
        for partition, records in self.machine.take(self.chance.randrange(1, 30)).items():
            self.taken[partition] += records

    def run(self, iterations: int) -> None:
        self.client.pump()
        for _ in range(iterations):
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
        positions = [
            (self.machine.position(partition), self.partition(partition).log_end) for partition in self.partitions
        ]
        return all(position is not None and position.offset == end for position, end in positions)

    def log(self, partition: TopicPartition) -> list[Record]:
        return [
            record
            for header, data in self.partition(partition).log
            if not header.is_control
            for record in iterate(data, bytes_max=1 << 20)
        ]


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, sessions=st.booleans(), bytes_max=st.sampled_from([1, 200, 1 << 20]))
def test_every_record_is_read_once_and_in_order_under_any_faults(seed, sessions, bytes_max):
    consumer = ConsumerSettings(
        auto_offset_reset=EARLIEST, fetch_sessions=sessions, max_partition_fetch_bytes=bytes_max
    )
    run = Run(seed, consumer)
    run.machine.assign(run.partitions)
    run.run(12)
    for partition in run.partitions:
        assert run.taken[partition] == run.log(partition)
        assert run.machine.lag(partition) == 0


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_after_a_seek_nothing_is_shown_but_what_stands_from_there_on(seed):
    run = Run(seed, ConsumerSettings(auto_offset_reset=EARLIEST, max_partition_fetch_bytes=200), trouble=0.05)
    run.machine.assign(run.partitions)
    run.client.pump()
    since = dict.fromkeys(run.partitions, (0, 0))
    for _ in range(15):
        run.write_some()
        run.client.run_for(run.chance.random() * 0.2)
        partition = run.chance.choice(run.partitions)
        what = run.chance.randrange(4)
        if what == 0 and run.machine.position(partition) is not None:
            offset = run.chance.randrange(run.partition(partition).high_watermark + 1)
            run.machine.seek(partition, offset)
            since[partition] = (offset, len(run.taken[partition]))
        elif what == 1:
            run.machine.pause([partition])
        elif what == 2:
            run.machine.resume(run.partitions)
        paused = {partition: len(run.taken[partition]) for partition in run.machine.paused()}
        run.take()
        assert all(len(run.taken[partition]) == count for partition, count in paused.items())
        for at in run.partitions:
            check_from(run, at, *since[at])
    run.machine.resume(run.partitions)
    run.settle()
    for partition in run.partitions:
        offset, taken = since[partition]
        assert run.taken[partition][taken:] == [record for record in run.log(partition) if record.offset >= offset]


def check_from(run: Run, partition: TopicPartition, offset: int, taken: int) -> None:
    shown = run.taken[partition][taken:]
    assert shown == [record for record in run.log(partition) if record.offset >= offset][: len(shown)]


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_a_reader_of_committed_records_sees_no_aborted_one_from_wherever_it_begins(seed):
    run = Run(seed, ConsumerSettings(isolation_level=COMMITTED, max_partition_fetch_bytes=300), partitions=1, trouble=0)
    (topic_partition,) = run.partitions
    partition = run.partition(topic_partition)
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
    run.machine.assign([topic_partition], {topic_partition: Position(start)})
    run.settle()
    visible = sorted((record for record in committed if record.offset >= start), key=lambda record: record.offset)
    assert run.taken[topic_partition] == visible


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
    (topic_partition,) = run.partitions
    partition = run.partition(topic_partition)
    for value in (b"one", b"two", b"three"):
        append(partition, [value])
    partition.high_watermark = 3
    header, data = partition.log[1]
    partition.log[1] = (header, data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    run.machine.assign([topic_partition])
    return run, topic_partition


def test_damaged_records_are_not_shown_and_those_before_them_are():
    run, partition = damaged_run()
    run.client.run_for(1)
    assert [record.value for record in run.machine.take(10)[partition]] == [b"one"]
    with pytest.raises(RecordsDamaged) as caught:
        run.machine.take(10)
    assert (caught.value.partition, caught.value.offset) == (partition, 1)


def test_a_batch_damaged_on_the_network_is_fetched_again_and_one_damaged_in_the_log_can_be_skipped():
    run, partition = damaged_run()
    run.client.run_for(1)
    run.machine.take(10)
    with pytest.raises(RecordsDamaged):
        run.machine.take(10)
    run.machine.seek(partition, 2)
    run.client.run_for(1)
    assert [record.value for record in run.machine.take(10)[partition]] == [b"three"]
    run.machine.seek(partition, 1)
    header, data = run.partition(partition).log[1]
    run.partition(partition).log[1] = (header, data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    run.client.run_for(1)
    assert [record.value for record in run.machine.take(10)[partition]] == [b"two", b"three"]


def test_a_consumer_of_many_partitions_names_them_once():
    run = Run(3, ConsumerSettings(auto_offset_reset=EARLIEST), partitions=60, trouble=0)
    named: list[int] = []
    send = run.client.send

    def watch(machine, action):
        if isinstance(action.request, FetchRequest):
            named.append(sum(len(topic.partitions) for topic in action.request.topics))
        send(machine, action)

    run.client.send = watch  # type: ignore[method-assign]
    run.cluster.versions = dict.fromkeys(run.cluster.nodes, MODERN)
    run.machine.assign(run.partitions)
    run.client.run_for(2)
    assert sum(named[:3]) == 60
    assert sum(named[3:]) == 0
    assert len(named) > 20


@pytest.mark.parametrize("wrong", [{"auto_offset_reset": -3}, {"isolation_level": 2}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(BadSetting):
        ConsumerSettings(**wrong)


def test_a_partition_that_is_not_assigned_has_no_position():
    machine = Fetcher(Metadata([("a", 1)]))
    with pytest.raises(ClientError, match="t-0 is not assigned"):
        machine.position(TopicPartition("t", 0))
