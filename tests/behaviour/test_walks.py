"""The walks of docs/ARCHITECTURE.md: real requests go through their functions. Spark: tests/spark/test_walk.py."""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.local.processes import State
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.wire import messages
from ottla.wire.frame import framed, parse_response_header, request_header
from ottla.wire.records import Record, build_batch
from ottla.wire.schema import (
    end_txn,
    fetch,
    find_coordinator,
    init_producer_id,
    join_group,
    offset_commit,
    produce,
    sync_group,
)
from ottla.wire.tree import Message
from tests.harness import walks
from tests.harness.brokers import WatchedBroker
from tests.harness.call_trace import Function, Trace, traced
from tests.harness.in_process import Client, brokers, run

FILES_MAX, FUNCTIONS_MAX = 12, 30
"""Crossed by one request: what is read together stands together."""
RUNS = 5
"""Of these the one with the fewest calls counts: something else may be due in the others."""


def batch(broker: Broker, **producer: int | bool) -> bytes:
    return build_batch([Record(0, broker.runtime.wall_ms(), b"key", b"value", ())], **producer)  # type: ignore[arg-type]


class Plain:
    """A client that runs none of Ottla's code while it is traced."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @staticmethod
    def frame(request: Message, version: int) -> bytes:
        return framed(request_header(request.API_KEY, version, 1, "walk"), messages.encode(request, version))

    def send(self, frame: bytes) -> None:
        self._client.send(frame)

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self._client._reader.readexactly(4))
        return await self._client._reader.readexactly(size)


async def topic(cluster: list[Broker], replicas: int) -> Broker:
    """A topic `t` of one partition. Its leader."""
    await cluster[0].cluster.create_topics([TopicSpec("t", partitions=1, replication_factor=replicas)])

    def leaders() -> list[Broker]:
        hosted = [(broker, broker.replicas.get("t", 0)) for broker in cluster]
        return [broker for broker, partition in hosted if partition is not None and partition.leads]

    await until(leaders)
    return leaders()[0]


def shortest(traces: list[Trace]) -> Trace:
    return min(traces, key=lambda trace: len(trace.calls))


async def produce_walk(directory: Path) -> Trace:
    """acks=all, one batch for one partition of three replicas, an idempotent producer that is known."""
    traces = []
    async with brokers(directory, 3) as cluster:
        leader = await topic(cluster, 3)
        async with Client.to(leader) as connected:
            client = Plain(connected)
            for sequence in range(10 + RUNS):
                records = batch(leader, producer_id=7, producer_epoch=0, base_sequence=sequence)
                data = produce.PartitionProduceData(index=0, records=records)
                topics = [produce.TopicProduceData(name="t", partition_data=[data])]
                frame = client.frame(produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), 12)
                await asyncio.sleep(0.02)  # until the requests of the followers wait
                with traced() as trace:
                    client.send(frame)
                    await client.answer()
                traces.append(trace)
    return shortest(traces[-RUNS:])


async def fetch_walk(directory: Path) -> Trace:
    """A consumer in a session, at the end of the log, and a record that comes while it waits."""
    traces = []
    async with brokers(directory, 1) as (broker,):
        await topic([broker], 1)
        partition = broker.replicas.get("t", 0)
        assert isinstance(partition, Partition)
        async with Client.to(broker) as connected:
            client, session_id = Plain(connected), 0
            for number in range(2 + RUNS):
                wanted = [fetch.FetchPartition(partition=0, fetch_offset=number, partition_max_bytes=1 << 20)]
                topics = [fetch.FetchTopic(topic="t", partitions=wanted)]
                request = fetch.FetchRequest(
                    max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20, session_id=session_id, session_epoch=number,
                    topics=topics,
                )  # fmt: skip
                if number == 0:
                    partition.append(memoryview(bytearray(batch(broker))), ACKS_ALL, broker.runtime.wall_ms())
                    session_id = (await connected.call(request, fetch.FetchResponse, 12)).session_id
                    continue
                frame, records = client.frame(request, 12), memoryview(bytearray(batch(broker)))
                with traced() as trace:
                    client.send(frame)
                    await asyncio.sleep(0.02)
                    partition.append(records, ACKS_ALL, broker.runtime.wall_ms())
                    await client.answer()
                traces.append(trace)
    return shortest(traces[-RUNS:])


async def coordinator(client: Client, key: str, key_type: int) -> None:
    """Ask until it is there."""
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    while (await client.call(request, find_coordinator.FindCoordinatorResponse, 4)).coordinators[0].error_code:
        continue


async def group_walk(directory: Path) -> Trace:
    """The only member of a classic group joins, and commits an offset."""
    traces = []
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.replication.factor": "1"}
    async with brokers(directory, 1, **settings) as (broker,):
        await topic([broker], 1)
        async with Client.to(broker) as connected:
            client = Plain(connected)
            await coordinator(connected, "g", 0)
            for number in range(RUNS):
                group = f"g{number}"
                protocols = [join_group.JoinGroupRequestProtocol(name="range", metadata=b"")]
                joins = join_group.JoinGroupRequest(
                    group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="consumer",
                    protocols=protocols,
                )  # fmt: skip
                reported = await connected.call(joins, join_group.JoinGroupResponse, 9)
                while reported.error_code != ErrorCode.member_id_required:  # until the coordinator is loaded
                    reported = await connected.call(joins, join_group.JoinGroupResponse, 9)
                joins.member_id = member = reported.member_id
                syncs = sync_group.SyncGroupRequest(
                    group_id=group, generation_id=1, member_id=member, protocol_type="consumer", protocol_name="range",
                    assignments=[sync_group.SyncGroupRequestAssignment(member_id=member, assignment=b"a")],
                )  # fmt: skip
                committed = [offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
                commits = offset_commit.OffsetCommitRequest(
                    group_id=group, generation_id_or_member_epoch=1, member_id=member,
                    topics=[offset_commit.OffsetCommitRequestTopic(name="t", partitions=committed)],
                )  # fmt: skip
                frames = [client.frame(joins, 9), client.frame(syncs, 5), client.frame(commits, 9)]
                with traced() as trace:
                    for frame in frames:
                        client.send(frame)
                        answer = await client.answer()
                traces.append(trace)
                _, pos = parse_response_header(memoryview(answer), offset_commit.OffsetCommitRequest.API_KEY, 9)
                done = messages.decode(offset_commit.OffsetCommitResponse, 9, memoryview(answer), pos)
                assert done.topics[0].partitions[0].error_code == 0
    return shortest(traces)


async def transaction_walk(directory: Path) -> Trace:
    """A transaction that wrote to one partition is committed."""
    traces = []
    settings = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    async with brokers(directory, 1, **settings) as (broker,):
        await topic([broker], 1)
        partition = broker.replicas.get("t", 0)
        assert isinstance(partition, Partition)
        async with Client.to(broker) as connected:
            client = Plain(connected)
            await coordinator(connected, "x", 1)
            for number in range(RUNS):
                name = f"x{number}"
                begins = init_producer_id.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=30_000)
                producer = await connected.call(begins, init_producer_id.InitProducerIdResponse, 5)
                while producer.error_code:
                    producer = await connected.call(begins, init_producer_id.InitProducerIdResponse, 5)
                records = batch(
                    broker, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
                    transactional=True,
                )  # fmt: skip
                data = produce.PartitionProduceData(index=0, records=records)
                topics = [produce.TopicProduceData(name="t", partition_data=[data])]
                writes = produce.ProduceRequest(transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=topics)
                written = await connected.call(writes, produce.ProduceResponse, 12)
                assert written.responses[0].partition_responses[0].error_code == 0
                ends = end_txn.EndTxnRequest(
                    transactional_id=name, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                    committed=True,
                )  # fmt: skip
                frame = client.frame(ends, 5)
                with traced() as trace:
                    client.send(frame)
                    await client.answer()
                    await until(lambda: partition.last_stable == partition.log_end)
                    await asyncio.sleep(0.02)  # until CompleteCommit is written
                traces.append(trace)
    return shortest(traces)


async def failover_walk(directory: Path) -> Trace:
    """Broker 3 leads, and is a process of its own: it is killed. Broker 1 is the controller, broker 2 leads next."""
    async with brokers(directory, 2) as (first, second):
        store = f"embedded:{directory}/store.db"
        killed = WatchedBroker(directory / "killed", "--store", store, "--id", "3", broker_id=3)
        killed.launch()
        try:
            await until(lambda: killed.state is State.READY and 3 in first.image.brokers and 3 in second.image.brokers)
            await first.cluster.create_topics([TopicSpec("t", assignments=[(0, (3, 2, 1))])])

            def replica(broker: Broker) -> Partition | None:
                return broker.replicas.get("t", 0)

            def followed() -> bool:
                """Whether both fetch from broker 3, and are in sync."""
                found = [replica(first), replica(second)]
                return all(each is not None and each.leader_id == 3 and len(each.in_sync) == 3 for each in found)

            await until(followed)
            reconciles = Function("cluster/controller_loop.py", "ControllerLoop._reconcile")
            busy = True
            while busy:  # until the controller has done all that the new topic asks for
                with traced() as trace:
                    await asyncio.sleep(0.3)
                busy = reconciles in trace.calls

            def fetched() -> bool:
                """Whether broker 2 leads, and broker 1 has fetched from it."""
                led = replica(second)
                return led is not None and led.leads and led.leader.followers[1].heard

            with traced() as trace:
                killed.kill()
                await until(fetched)
            return trace
        finally:
            killed.kill()


PRODUCE, FAILOVER = "Produce, acks=all, three replicas", "Leader failover"
WALKS = {
    PRODUCE: produce_walk,
    "Fetch": fetch_walk,
    "JoinGroup and OffsetCommit": group_walk,
    FAILOVER: failover_walk,
    "Transaction commit": transaction_walk,
}


@pytest.mark.parametrize("title", WALKS)
def test_a_request_goes_through_the_functions_that_its_walk_names(title, tmp_path):
    async def test() -> None:
        walks.check(title, await WALKS[title](tmp_path))

    run(test)


@pytest.mark.parametrize("title", [title for title in WALKS if title != FAILOVER])
def test_a_request_crosses_as_many_files_and_functions_as_its_walk_says(title, tmp_path):
    """In a failover other work of the brokers goes on, so what it crosses varies."""
    section = walks.PAGE.read_text().partition(f"### {title}\n")[2].partition("\n### ")[0]
    [(files, functions)] = re.findall(r"Crosses (\d+) files and (\d+) functions", section)

    async def test() -> None:
        crossed = (await WALKS[title](tmp_path)).crossed
        assert (len({each.file for each in crossed}), len(crossed)) == (int(files), int(functions)), list(crossed)
        if title == PRODUCE:
            assert set(crossed) == set(walks.walks(walks.PAGE.read_text())[title])

    run(test)
    assert int(files) <= FILES_MAX
    assert int(functions) <= FUNCTIONS_MAX


def made_up(*names: str) -> list[Function]:
    return [Function("net/connection.py", name) for name in names]


def test_a_walk_with_two_steps_swapped_is_noticed():
    trace = Trace()
    trace.calls = made_up("a", "b", "c", "a", "b")
    assert walks.problem(made_up("a", "b", "c", "b"), trace) is None
    assert str(walks.problem(made_up("b", "a", "c"), trace)).startswith("a (net/connection.py) is called before b")
    assert walks.problem(made_up("a", "c", "b", "c"), trace) is not None
    assert walks.problem(made_up("a", "b", "c", "c"), trace) is not None


def test_a_walk_with_an_uncalled_or_missing_function_is_detected():
    trace = Trace()
    trace.calls = made_up("Connection.close")
    assert walks.problem(made_up("Connection.close", "Connection.abort"), trace) is not None
    assert walks.missing(made_up("Connection.close", "Connection.abort")) == []
    assert walks.missing(made_up("Connection.gone")) == ["ottla/net/connection.py has no Connection.gone"]
    assert walks.missing([Function("net/gone.py", "close")]) == ["ottla/net/gone.py has no close"]


def test_a_step_that_names_no_function_is_noticed():
    with pytest.raises(AssertionError, match="a step names a file"):
        walks.walks("### Fetch\n\n1. `net/connection.py`: reads\n")
