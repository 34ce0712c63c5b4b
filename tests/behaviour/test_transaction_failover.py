"""Transactions over three brokers: coordinator, leaders and group coordinator are different ones, and die."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from ottla.local.processes import BrokerProcess
from ottla.local.waiting import wait_for
from tests.behaviour.test_transaction_protocol import NONE, Raw
from tests.harness.cluster import Brokers
from tests.harness.raw import Closed, Connection
from tests.interop.transactional import ConfluentTransactional, read, read_until

FEW = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.num.partitions": "3",
}
GROUP, TRANSACTION = 0, 1


class Trouble(Exception):
    """Something went wrong, as it may: from the start."""


def right(*codes: int) -> None:
    for code in codes:
        if code != NONE:
            raise Trouble(code)


@pytest.fixture(scope="module")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("brokers"), **FEW)
    yield made
    made.close()


def topic(brokers: Brokers, partitions: int = 3) -> str:
    made = brokers.topic(partitions=partitions, min_insync_replicas="2")
    for index in range(partitions):
        wait_for(partial(_is_in_sync, brokers, made, index), "three in sync")
    return made


def _is_in_sync(brokers: Brokers, name: str, index: int) -> bool:
    return len(brokers.partition(name, index).isrs) == 3


class Lines:
    """Connections of one client to the brokers it needs."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._open: dict[int, Connection] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open.values():
            connection.socket.close()

    def to(self, node_id: int) -> Connection:
        if node_id < 0:
            raise Trouble("nobody")
        if node_id not in self._open:
            self._open[node_id] = Connection(self._brokers[node_id], timeout_s=8)
        return self._open[node_id]

    def anybody(self) -> Connection:
        alive = [number for number, broker in self._brokers.brokers.items() if broker.running]
        return self.to(random.choice(alive))

    def coordinator(self, key: str, key_type: int) -> Connection:
        found = self.anybody().call("find_coordinator", 3, key=key, key_type=key_type)
        right(found["error_code"])
        return self.to(found["node_id"])

    def leader(self, topic: str, partition: int) -> Connection:
        answer = self.anybody().call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
        led_by = {each["partition_index"]: each["leader_id"] for each in answer["topics"][0]["partitions"]}
        return self.to(led_by.get(partition, -1))  # -1: a broker that has not heard of the topic yet


def test_a_transaction_over_many_brokers_is_seen_whole(brokers: Brokers):
    name = topic(brokers, 6)
    assert len({brokers.partition(name, index).leader for index in range(6)}) == 3
    producer = ConfluentTransactional(brokers.bootstrap, "whole")
    try:
        for number, committed in enumerate((True, False, True)):
            producer.begin()
            for partition in range(6):
                producer.send(name, b"%d" % number, partition=partition)
            producer.commit() if committed else producer.abort()
        for partition in range(6):
            read_until(brokers.bootstrap, name, [b"0", b"2"], partition=partition)
    finally:
        producer.close()


def test_a_transaction_continues_after_its_coordinator_was_killed(brokers: Brokers):
    """Whichever broker takes over: it goes on, is committed, and its markers reach all leaders."""
    name = topic(brokers)
    producer = ConfluentTransactional(brokers.bootstrap, "continued")
    try:
        for number in range(3):
            producer.begin()
            for partition in range(3):
                producer.send(name, b"%d" % number, partition=partition)
            with Lines(brokers) as lines:
                found = lines.anybody().call("find_coordinator", 3, key="continued", key_type=TRANSACTION)["node_id"]
            brokers[found].kill()
            producer.commit()
            for partition in range(3):
                expected = [b"%d" % each for each in range(number + 1)]
                read_until(brokers.bootstrap, name, expected, partition=partition)
            brokers[found].start()
            brokers.in_sync(name, 3)
            brokers.in_sync("__transaction_state", 3)
    finally:
        producer.close()


class Copier(threading.Thread):
    """Copies numbers to a partition, some in each transaction together with how far it has come."""

    def __init__(self, brokers: Brokers, source: str, target: str, partition: int, count: int, *, second: bool) -> None:
        super().__init__(daemon=True)
        self.brokers = brokers
        self.source = source
        self.target = target
        self.group = f"copy to {target}"
        self.transactional_id = f"{self.group}-{partition}"
        self.partition = partition
        self.count = count
        self.second = second
        self.copied = 0
        self.failed: BaseException | None = None
        self.stopped = threading.Event()
        self.random = random.Random(partition)

    def run(self) -> None:
        try:
            while self.copied < self.count and not self.stopped.is_set():
                with contextlib.suppress(Closed, OSError, Trouble), Lines(self.brokers) as lines:
                    self._copy(lines)
        except BaseException as failure:
            self.failed = failure
            raise

    def _copy(self, lines: Lines) -> None:
        coordinator = lines.coordinator(self.transactional_id, TRANSACTION)
        group = lines.coordinator(self.group, GROUP)
        leader = lines.leader(self.target, self.partition)
        producer = Raw(coordinator, self.transactional_id)
        right(producer.init())
        while self.copied < self.count and not self.stopped.is_set():
            offset = self._committed(group)
            self.copied = offset
            end = min(offset + self.random.randint(1, 12), self.count)
            if not self.second:
                right(*producer.add(self.target, self.partition), self._add_offsets(producer))
            producer.connection = leader
            for number in range(offset, end):
                version = 12 if self.second else 9
                right(producer.send(self.target, b"%d" % number, partition=self.partition, version=version))
            producer.connection = group
            version = 5 if self.second else 3
            right(producer.commit_offset(self.group, self.source, end, version=version, partition=self.partition))
            producer.connection = coordinator
            right(producer.end(committed=self.random.random() < 0.8, version=version))

    def _add_offsets(self, producer: Raw) -> int:
        answer = producer.connection.call(
            "add_offsets_to_txn",
            3,
            transactional_id=producer.id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=self.group,
        )
        return int(answer["error_code"])

    def _committed(self, connection: Connection) -> int:
        topics = [{"name": self.source, "partition_indexes": [self.partition]}]
        answer = connection.call("offset_fetch", 7, group_id=self.group, topics=topics, require_stable=True)
        right(answer["error_code"])
        partition: dict[str, Any] = answer["topics"][0]["partitions"][0]
        right(partition["error_code"])
        return max(int(partition["committed_offset"]), 0)


def _has_copied(copiers: list[Copier], count: int) -> bool:
    return sum(copier.copied for copier in copiers) > count


def killed(brokers: Brokers, number: int) -> BrokerProcess:
    broker = brokers[number]
    broker.kill()
    return broker


@pytest.mark.parametrize("second", [False, True], ids=["first version", "second version"])
def test_a_transactional_copy_is_exact_while_brokers_are_killed_one_after_another(brokers: Brokers, second: bool):
    count, partitions = 200, 3
    source, target = topic(brokers, partitions), topic(brokers, partitions)
    copiers = [Copier(brokers, source, target, partition, count, second=second) for partition in range(partitions)]
    for copier in copiers:
        copier.start()
    try:
        for index in range(3):
            wait_for(partial(_has_copied, copiers, index * 120), "some copies", 90)
            killed(brokers, index + 1).start()
            brokers.in_sync(target, 3)
            brokers.in_sync("__transaction_state", 3)
        for copier in copiers:
            copier.join(90)
        assert [copier.failed for copier in copiers] == [None] * partitions
        expected = [b"%d" % number for number in range(count)]
        for partition in range(partitions):
            read_until(brokers.bootstrap, target, expected, partition=partition)
            assert read(brokers.bootstrap, target, partition) == expected
    finally:
        for copier in copiers:
            copier.stopped.set()
