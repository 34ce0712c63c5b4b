"""kill -9 of the broker while groups use it: acknowledged commits survive, and groups continue."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from ottla.local.waiting import wait_for
from tests.conftest import StartBroker
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Closed, Connection
from tests.interop.clients import Confluent, Record
from tests.interop.member import NO_ERROR, RawMember

QUICK = ("--set", "group.initial.rebalance.delay.ms=300")
LOADING, NOT_AVAILABLE, ILLEGAL_GENERATION, REBALANCING = 14, 15, 22, 27
KILLS = 4


def make_topic(broker: WatchedBroker, name: str, partitions: int = 1) -> None:
    with Connection(broker) as connection:
        answer = connection.call(
            "create_topics",
            5,
            topics=[{"name": name, "num_partitions": partitions, "replication_factor": 1}],
            timeout=10_000,
        )
        assert answer["topics"][0]["error_code"] == NO_ERROR
        found = connection.call("find_coordinator", 3, key="any", key_type=0)
        assert found["error_code"] == NO_ERROR


def fetched(broker: WatchedBroker, group_id: str, topic: str) -> tuple[int, str | None]:
    """Offset and note, as soon as the coordinator has loaded them."""

    def fetch() -> dict[str, Any] | None:
        with Connection(broker) as connection:
            topics = [{"name": topic, "partition_indexes": [0]}]
            answer = connection.call("offset_fetch", 7, group_id=group_id, topics=topics, require_stable=False)
        if answer["error_code"] == LOADING:
            return None
        assert answer["error_code"] == NO_ERROR
        partition: dict[str, Any] = answer["topics"][0]["partitions"][0]
        assert partition["error_code"] == NO_ERROR
        return partition

    committed = wait_for(fetch, f"the offsets of {group_id}")
    return committed["committed_offset"], committed["metadata"]


def test_no_acknowledged_commit_is_lost(start_broker: StartBroker):
    """Several groups commit as fast as they can; each remembers the last commit that was acknowledged."""
    broker = start_broker(*QUICK)
    make_topic(broker, "t")
    groups = [f"group-{number}" for number in range(6)]
    acknowledged = dict.fromkeys(groups, -1)
    for _ in range(KILLS):
        enough = threading.Semaphore(0)

        def commit(group_id: str, enough: threading.Semaphore = enough) -> None:
            member = RawMember(broker, group_id)
            try:
                for offset in itertools.count(acknowledged[group_id] + 1):
                    assert member.commit("t", offset) == NO_ERROR
                    acknowledged[group_id] = offset
                    enough.release()
            except (Closed, OSError):
                pass
            finally:
                member.close()

        threads = [threading.Thread(target=commit, args=(group_id,)) for group_id in groups]
        for thread in threads:
            thread.start()
        for _ in range(300):
            assert enough.acquire(timeout=20)
        broker.kill()
        for thread in threads:
            thread.join(20)
        broker.start()
        for group_id in groups:
            offset, note = fetched(broker, group_id, "t")
            # The one that was under way may have made it, or not.
            assert acknowledged[group_id] <= offset <= acknowledged[group_id] + 1
            assert note == f"note {offset}"


@pytest.fixture
def make_members() -> Iterator[Callable[[WatchedBroker, int], list[RawMember]]]:
    made: list[RawMember] = []

    def make(broker: WatchedBroker, count: int) -> list[RawMember]:
        members = [RawMember(broker, "g") for _ in range(count)]
        made.extend(members)
        return members

    yield make
    for member in made:
        member.close()


def test_a_stable_group_survives_a_killed_coordinator_without_rebalance(start_broker: StartBroker, make_members):
    broker = start_broker(*QUICK)
    make_topic(broker, "t")
    leader, follower, third = make_members(broker, 3)
    members = [leader, follower]
    settle(members)
    broker.kill()
    broker.start()
    for member in members:
        member.reconnect()
        assert wait_until_loaded(member.heartbeat) == NO_ERROR
        assert member.sync() == (NO_ERROR, member.member_id.encode())
        assert member.commit("t", 5) == NO_ERROR
    third.reconnect()
    third.send_join()
    assert wait_for(lambda: leader.heartbeat() == REBALANCING, "the rebalance")
    settle([leader, follower, third], joined=[third])
    assert leader.generation_id == 2
    assert leader.leave() == NO_ERROR


@pytest.mark.parametrize("step", ["some have joined", "all have joined", "some have synced"])
def test_a_rebalance_interrupted_by_a_kill_starts_again(start_broker: StartBroker, make_members, step: str):
    broker = start_broker(*QUICK)
    make_topic(broker, "t")
    members = make_members(broker, 3)
    settle(members[:2])
    assert members[0].commit("t", 7) == NO_ERROR
    members[2].send_join()
    members[0].send_join()
    if step != "some have joined":
        members[1].send_join()
        for member in members:
            assert member.joined() == NO_ERROR
        if step == "some have synced":
            next(member for member in members if not member.leads).send_sync()
    broker.kill()
    broker.start()
    assert fetched(broker, "g", "t")[0] == 7
    # The generation that was settled is in force again, and who was no member then is none now.
    for member in members:
        member.reconnect()
    members[2].member_id = ""
    assert {member.heartbeat() for member in members[:2]} <= {NO_ERROR, ILLEGAL_GENERATION}
    settle(members)
    assert members[0].commit("t", 8) == NO_ERROR
    assert fetched(broker, "g", "t")[0] == 8


def settle(members: list[RawMember], joined: list[RawMember] | None = None) -> None:
    """All members join (except those with a pending JoinGroup) and sync, and each gets its own id as assignment."""
    for member in sorted(members, key=lambda member: member.member_id):  # who is new first: then all must rejoin
        if member not in (joined or []):
            member.send_join()
    for member in members:
        assert member.joined() == NO_ERROR
    for member in members:
        member.send_sync()
    for member in members:
        assert member.synced() == (NO_ERROR, member.member_id.encode())


def wait_until_loaded(act: Callable[[], int]) -> int:
    code = wait_for(lambda: None if (code := act()) == LOADING else (code,), "the coordinator to load")
    return code[0]


@pytest.mark.broker_may_log("__consumer_offsets-[01] cannot be loaded: .*the batch at offset 0 is damaged")
def test_groups_of_a_damaged_offsets_partition_are_refused_and_the_others_served(start_broker: StartBroker):
    """One bit, while the broker was stopped: what cannot be read is not guessed."""
    broker = start_broker(*QUICK, "--set", "offsets.topic.num.partitions=2")
    make_topic(broker, "t")
    groups = ("even", "odd")
    for number, group_id in enumerate(groups):
        member = RawMember(broker, group_id)
        assert member.commit("t", number) == NO_ERROR
        member.close()
    assert broker.stop() == 0
    logs = sorted(broker.data.glob("__consumer_offsets-*/*.log"))
    assert len(logs) == 2, "the two groups live in two partitions"
    flip_last_bit(logs[0])
    broker.start()
    codes = {group_id: code_of_fetch(broker, group_id) for group_id in groups}
    assert sorted(codes.values()) == [NO_ERROR, NOT_AVAILABLE]
    with Connection(broker) as connection:
        assert connection.call("list_groups", 4, states_filter=[])["error_code"] == NOT_AVAILABLE


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def code_of_fetch(broker: WatchedBroker, group_id: str) -> int:
    def fetch() -> tuple[int] | None:
        with Connection(broker) as connection:
            answer = connection.call("offset_fetch", 7, group_id=group_id, topics=None, require_stable=False)
        return None if answer["error_code"] == LOADING else (answer["error_code"],)

    return wait_for(fetch, f"an answer for {group_id}")[0]


def test_consumers_read_everything_though_the_broker_is_killed_again_and_again(start_broker: StartBroker):
    """Three real consumers commit what they have read; the broker is killed while they join, read and commit."""
    broker = start_broker(*QUICK)
    make_topic(broker, "t", partitions=6)
    total = 600
    written = [Record(value=b"%d" % number, partition=number % 6) for number in range(total)]
    Confluent().produce(broker.bootstrap, "t", written[: total // 2])
    seen: dict[tuple[int, int], bytes] = {}
    stop = threading.Event()

    def consume() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.subscribe(["t"])
        try:
            while not stop.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    position = message.partition(), message.offset()
                    assert seen.setdefault(position, message.value()) == message.value()
                elif message is None:
                    with contextlib.suppress(confluent_kafka.KafkaException):  # nothing to commit, or no coordinator
                        consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for kill in range(KILLS):
            count = len(seen)
            wait_for(lambda: len(seen) > count or kill == 0, "somebody to read", 60)  # noqa: B023
            broker.kill()
            broker.start()
            if kill == 1:
                Confluent().produce(broker.bootstrap, "t", written[total // 2 :])
            elif kill == 2:
                break
        wait_for(lambda: len(seen) == total, f"all {total} records", 90)
        wait_for(lambda: sum(fetched_all(broker, "g", "t", 6)) == total, "all offsets", 60)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert sorted(seen.values(), key=int) == [record.value for record in written]
    assert fetched_all(broker, "g", "t", 6) == [total // 6] * 6


def fetched_all(broker: WatchedBroker, group_id: str, topic: str, partitions: int) -> list[int]:
    with Connection(broker) as connection:
        topics = [{"name": topic, "partition_indexes": list(range(partitions))}]
        answer = connection.call("offset_fetch", 7, group_id=group_id, topics=topics, require_stable=False)
        assert answer["error_code"] in (NO_ERROR, LOADING)
        return [max(each["committed_offset"], 0) for each in answer["topics"][0]["partitions"]]
