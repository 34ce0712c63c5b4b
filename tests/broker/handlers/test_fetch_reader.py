"""FetchReader against a simple model of Kafka's rules: limits, whole batches, named partitions, fair order.

The broker is a real one, asked over a real connection; only the records are appended without a client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.broker import Broker
from ottla.broker.handlers.fetch_reader import MISSES_MAX
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.wire.batch import batches
from ottla.wire.schema import fetch as wire
from tests.harness.in_process import DEADLINE_S, Client, brokers
from tests.replication.test_partition import batch

VERSION = 12
UNLIMITED = 1 << 24
BATCH_BYTES_MAX = 700


class Server:
    """One broker for all examples, each of which takes topics of its own."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner()
        self._context = brokers(directory, 1)
        self._names = (f"t{number}" for number in itertools.count())
        (self.broker,) = self.run(self._context.__aenter__())

    def run(self, act: Any) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(DEADLINE_S):
                return await act

        return self._runner.run(limited())

    def close(self) -> None:
        self.run(self._context.__aexit__(None, None, None))
        self._runner.close()

    async def topic(self, partitions: int, **config: str) -> str:
        name = next(self._names)
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await self.broker.cluster.create_topics([TopicSpec(name, partitions=partitions, configs=settings)])
        for index in range(partitions):
            while (found := self.broker.replicas.get(name, index)) is None or not found.leads:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("fetch"))
    yield server
    server.close()


def append(broker: Broker, topic: str, index: int, size: int) -> int:
    """A batch of `size` bytes, give or take those of its header."""
    leader = broker.replicas.get(topic, index)
    assert isinstance(leader, Partition)
    now_ms = broker.runtime.wall_ms()
    data = batch(b"x" * size, timestamp=now_ms)
    leader.append(data, ACKS_ALL, now_ms)
    return len(data)


class Reader:
    """The client's half: where it is in each partition, and the session it has."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.session_id = self.epoch = 0

    async def fetch(
        self, wanted: dict[int, tuple[int, int]], forgotten: list[int], bytes_max: int, epoch: int | None = None
    ) -> dict[int, wire.PartitionData]:
        """`wanted`: partition to offset and limit. What the answer says of each partition it names."""
        partitions = [
            wire.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=limit)
            for index, (offset, limit) in wanted.items()
        ]
        dropped = [wire.ForgottenTopic(topic=self.topic, partitions=forgotten)] if forgotten else []
        answer = await self.client.call(
            wire.FetchRequest(
                max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, session_id=self.session_id,
                session_epoch=self.epoch if epoch is None else epoch, forgotten_topics_data=dropped,
                topics=[wire.FetchTopic(topic=self.topic, partitions=partitions)] if partitions else [],
            ),
            wire.FetchResponse, VERSION,
        )  # fmt: skip
        assert answer.error_code == 0
        if epoch is None:
            self.session_id = answer.session_id
            self.epoch += 1
        named = [each for topic in answer.responses for each in topic.partitions]
        assert len({each.partition_index for each in named}) == len(named), "a partition is named twice"
        return {each.partition_index: each for each in named}


def sizes(records: bytes | None) -> list[tuple[int, int]]:
    """(next offset, size) of each batch, all of which are whole."""
    data = memoryview(records or b"")
    found = [(header.next_offset, header.size) for _, header in batches(data)]
    assert sum(size for _, size in found) == len(data), "the last batch is torn"
    return found


class Model:
    """Kafka's rules, over lists of batch sizes. A batch has one record: an offset is an index."""

    def __init__(self, partitions: int, index_interval: int) -> None:
        self.logs: list[list[int]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        # How much sooner than at the limit a slice may end: where the index knows a batch.
        self.slack = index_interval + BATCH_BYTES_MAX if index_interval else 0
        self.wanted: dict[int, tuple[int, int]] = {}
        self.queue: list[int] = []
        """Partitions that may have news, in the order in which they are looked at. One without news leaves, and comes
        back at the end with its next append."""
        self.reported: dict[int, tuple[int, int]] = {}

    def want(self, wanted: dict[int, tuple[int, int]], forgotten: list[int]) -> None:
        self.wanted.update(wanted)
        self.queue += [index for index in wanted if index not in self.queue]
        for index in forgotten:
            if index in self.wanted:
                del self.wanted[index]
                self.reported.pop(index, None)
                if index in self.queue:
                    self.queue.remove(index)

    def changed(self, index: int) -> None:
        if index in self.wanted and index not in self.queue:
            self.queue.append(index)

    def check(self, answer: dict[int, wire.PartitionData], bytes_max: int, full: bool) -> dict[int, int]:
        """Go over the queue as the broker does. Returns where the reader of each partition is afterwards."""
        room, first, misses = bytes_max, True, 0
        served: dict[int, int] = {}
        assert set(answer) <= set(self.queue), "one is named that has no news, or that nobody asked for"
        for index in list(self.queue):
            crowded = not full and not first and (not room or misses > MISSES_MAX)
            offset, limit = self.wanted[index]
            in_range = self.starts[index] <= offset <= len(self.logs[index])
            if crowded and not self.has_news(index) and (in_range or index not in answer):  # an error may come first
                assert index not in answer, "one whose turn had not come, and whose offsets have not moved, is named"
                continue
            if not in_range:
                assert answer[index].error_code == ErrorCode.offset_out_of_range
                assert not answer[index].records
                self.reported[index] = (-1, -1)
                continue
            ahead = self.logs[index][offset:]
            most = min(limit, room)
            fits = bool(ahead) and not crowded and (first or ahead[0] <= most)
            misses += bool(ahead) and not fits
            if fits:
                got = sizes(answer[index].records)
                assert [size for _, size in got] == ahead[: len(got)]
                taken = sum(size for _, size in got)
                assert got, "there was room"
                assert taken <= most or (first and len(got) == 1), "more than the limit"
                left = ahead[len(got) : len(got) + 1]
                assert not left or taken + left[0] > most - self.slack, "less than there was room for"
                served[index] = offset + len(got)
                room, first = max(room - taken, 0), False
                self.queue.remove(index)
                self.queue.append(index)
            self.check_named(index, answer, full=full, has_records=fits, passed_over=bool(ahead) and not fits)
        return served

    def offsets(self, index: int) -> tuple[int, int]:
        return len(self.logs[index]), self.starts[index]

    def has_news(self, index: int) -> bool:
        return self.reported.get(index) != self.offsets(index)

    def check_named(
        self, index: int, answer: dict[int, wire.PartitionData], *, full: bool, has_records: bool, passed_over: bool
    ) -> None:
        offsets = self.offsets(index)
        assert (index in answer) == (full or has_records or self.has_news(index)), f"partition {index}"
        if index not in answer:
            if not passed_over:
                self.queue.remove(index)
        else:
            named = answer[index]
            assert named.error_code == 0
            assert bool(named.records) == has_records
            assert (named.high_watermark, named.log_start_offset) == offsets
            self.reported[index] = offsets


LIMITS = st.one_of(st.integers(0, 900), st.sampled_from([0, 1, 3_000, 20_000, UNLIMITED]))


class Example:
    """Appends and fetches in any order, drawn as they are made."""

    def __init__(self, server: Server, data: st.DataObject) -> None:
        self.server = server
        self.data = data
        self.count = data.draw(st.integers(1, 8), "partitions")
        self.interval = data.draw(st.sampled_from([0, 100, 4096]), "index.interval.bytes")
        self.model = Model(self.count, self.interval)
        self.positions = [0] * self.count

    async def run(self) -> None:
        self.topic = await self.server.topic(self.count, index_interval_bytes=str(self.interval))
        async with Client.to(self.server.broker) as client:
            self.reader = Reader(client, self.topic)
            for act in self.data.draw(st.lists(st.sampled_from(ACTS), min_size=2, max_size=12), "acts"):
                await act(self)

    def some(self, what: str) -> list[int]:
        return self.data.draw(st.lists(st.integers(0, self.count - 1), unique=True), what)

    def limits(self, indexes: list[int]) -> dict[int, tuple[int, int]]:
        drawn = self.data.draw
        return {index: (self.positions[index], drawn(LIMITS, "max.partition.fetch.bytes")) for index in indexes}

    async def append(self) -> None:
        for index in self.some("appended to"):
            for size in self.data.draw(st.lists(st.integers(1, 600), max_size=6), "sizes"):
                self.model.logs[index].append(append(self.server.broker, self.topic, index, size))
                self.model.changed(index)

    async def delete_records(self) -> None:
        for index in self.some("deleted from"):
            before = self.data.draw(st.integers(0, len(self.model.logs[index])), "before")
            leader = self.server.broker.replicas.get(self.topic, index)
            assert leader is not None
            leader.delete_before(before)
            if before > self.model.starts[index]:
                self.model.starts[index] = before
                self.model.changed(index)

    async def seek(self) -> None:
        for index in self.some("sought in"):
            self.positions[index] = self.data.draw(st.integers(0, len(self.model.logs[index]) + 1), "to")

    async def fetch_alone(self) -> None:
        """A full fetch outside any session."""
        model, bytes_max = self.model, self.data.draw(LIMITS, "fetch.max.bytes")
        wanted = self.limits(self.some("fetched alone"))
        answer = await Reader(self.reader.client, self.topic).fetch(wanted, [], bytes_max, epoch=-1)
        alone = Model(self.count, self.interval)
        alone.logs, alone.starts = model.logs, model.starts
        alone.want(wanted, [])
        alone.check(answer, bytes_max, full=True)
        assert set(answer) == set(wanted)

    async def open_session(self) -> None:
        model, bytes_max = self.model, self.data.draw(LIMITS, "fetch.max.bytes")
        self.reader = Reader(self.reader.client, self.topic)
        wanted = self.limits(self.some("opened with"))
        model.wanted, model.queue, model.reported = {}, [], {}
        answer = await self.reader.fetch(wanted, [], bytes_max)
        assert set(answer) == set(wanted)
        model.want(wanted, [])
        self.advance(model.check(answer, bytes_max, full=True))

    async def fetch_on(self) -> None:
        """Goes on with the session; names what was read, as every client does, and whatever else it likes."""
        if not self.reader.epoch:
            return
        model, bytes_max = self.model, self.data.draw(LIMITS, "fetch.max.bytes")
        moved = [index for index, (offset, _) in model.wanted.items() if offset != self.positions[index]]
        forgotten = self.some("forgotten")
        named = dict.fromkeys([*moved, *self.some("named again")])
        wanted = self.limits([index for index in named if index not in forgotten])
        answer = await self.reader.fetch(wanted, forgotten, bytes_max)
        model.want(wanted, forgotten)
        self.advance(model.check(answer, bytes_max, full=False))

    def advance(self, served: dict[int, int]) -> None:
        for index, offset in served.items():
            self.positions[index] = offset


ACTS = [
    Example.append, Example.append, Example.fetch_on, Example.fetch_on, Example.fetch_on, Example.open_session,
    Example.fetch_alone, Example.delete_records, Example.seek,
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_answer_keeps_kafkas_rules(server: Server, data: st.DataObject) -> None:
    server.run(Example(server, data).run())


def test_a_response_without_room_names_every_partition_only_for_a_full_fetch(server: Server) -> None:
    async def test() -> None:
        topic = await server.topic(40)
        for index in range(40):
            append(server.broker, topic, index, 2_000)
        async with Client.to(server.broker) as client:
            wanted = dict.fromkeys(range(40), (0, UNLIMITED))
            alone = await Reader(client, topic).fetch(wanted, [], 5_000, epoch=-1)
            assert set(alone) == set(range(40))
            assert [index for index, each in alone.items() if each.records] == [0, 1]
            assert {(each.error_code, each.high_watermark) for each in alone.values()} == {(0, 1)}
            reader = Reader(client, topic)
            opened = await reader.fetch(wanted, [], 5_000)
            assert set(opened) == set(range(40))
            assert [index for index, each in opened.items() if each.records] == [0, 1]
            assert set(await reader.fetch({0: (1, UNLIMITED), 1: (1, UNLIMITED)}, [], 5_000)) == {2, 3}

    server.run(test())


def test_a_response_without_room_names_every_high_watermark_that_moved(server: Server) -> None:
    """A consumer whose lag seems to be 0 goes on without what it was not told of: Kafka Streams would join too soon."""

    async def test() -> None:
        topic = await server.topic(MISSES_MAX + 5)
        every = range(MISSES_MAX + 5)
        async with Client.to(server.broker) as client:
            reader = Reader(client, topic)
            await reader.fetch(dict.fromkeys(every, (0, UNLIMITED)), [], 5_000)
            for index in every:
                append(server.broker, topic, index, 2_000)
            answer = await reader.fetch({}, [], 3_000)
            assert [index for index, each in answer.items() if each.records] == [0]
            assert {index: each.high_watermark for index, each in answer.items()} == dict.fromkeys(every, 1)
            again = await reader.fetch({0: (1, UNLIMITED)}, [], 3_000)
            assert {index: bool(each.records) for index, each in again.items()} == {1: True}, "told twice"

    server.run(test())


def test_no_partition_of_a_thousand_starves(server: Server) -> None:
    """A partition that got records goes to the end: after n responses no partition is more than one response ahead."""
    count, per_answer, iterations = 1_000, 23, 3

    async def test() -> None:
        topic = await server.topic(count)
        size = 0
        for index in range(count):
            for _ in range(iterations + 2):
                size = append(server.broker, topic, index, 500)
        async with Client.to(server.broker) as client:
            reader = Reader(client, topic)
            positions = [0] * count
            moved = dict.fromkeys(range(count), (0, size))
            bytes_max = per_answer * size + size // 2
            for number in range(iterations * count // per_answer):
                answer = await reader.fetch(moved, [], bytes_max)
                served = [index for index, each in answer.items() if each.records]
                assert len(served) == per_answer, f"answer {number}"
                for index in served:
                    positions[index] = sizes(answer[index].records)[-1][0]
                moved = {index: (positions[index], size) for index in served}
                assert max(positions) - min(positions) <= 1, f"answer {number}: somebody was passed over"

    server.run(test())


def test_a_partition_with_a_large_batch_is_served_in_fair_order(server: Server) -> None:
    """One partition's batches never fit behind the others': it comes first some time, and then it gets one whole."""
    count, large, answers = 60, 50_000, 200

    async def test() -> None:
        topic = await server.topic(count)
        for index in range(count):
            for _ in range(answers):
                append(server.broker, topic, index, 100)
        for _ in range(answers):
            append(server.broker, topic, 7, large)
        async with Client.to(server.broker) as client:
            reader = Reader(client, topic)
            moved = {index: (answers if index == 7 else 0, UNLIMITED) for index in range(count)}
            got = dict.fromkeys(range(count), 0)
            for _ in range(answers):
                answer = await reader.fetch(moved, [], 2_000)
                moved = {}
                for index, each in answer.items():
                    if each.records:
                        got[index] += len(sizes(each.records))
                        moved[index] = (sizes(each.records)[-1][0], 200)
            assert got[7] >= 3
            assert min(got.values()) >= 3

    server.run(test())
