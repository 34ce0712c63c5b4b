"""kill -9 of the broker in every state of a transaction: it commits or aborts as a whole, and nothing is seen twice."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.coordinator import log_batch
from ottla.coordinator.transaction_records import (
    TransactionKey,
    TransactionState,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from ottla.local.waiting import wait_for
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.runtime.disk import RealDisk
from ottla.wire import marker as markers
from ottla.wire.marker import Marker
from ottla.wire.records import iterate
from tests.behaviour.test_transaction_protocol import NONE, Raw
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Closed, Connection
from tests.harness.topics import create_topic
from tests.interop.clients import Confluent
from tests.interop.transactional import read, read_until

BROKER_ARGUMENTS = ("--set", "transaction.state.log.num.partitions=1", "--set", "offsets.topic.num.partitions=1")
STATE_LOG = "__transaction_state-0"


@pytest.fixture
def broker(own_broker: WatchedBroker) -> WatchedBroker:
    with Connection(own_broker) as connection:
        for key_type in (0, 1):
            connection.call("find_coordinator", 3, key="any", key_type=key_type)
    return own_broker


@pytest.fixture
def topic(broker: WatchedBroker, fresh_name: Callable[[], str]) -> str:
    return create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), fresh_name(), 2)


@pytest.fixture
def producer(broker: WatchedBroker) -> Iterator[Raw]:
    producer = Raw(Connection(broker))
    assert producer.init() == NONE
    yield producer
    producer.connection.socket.close()


def restarted(broker: WatchedBroker, producer: Raw) -> None:
    broker.kill()
    started(broker, producer)


def started(broker: WatchedBroker, producer: Raw) -> None:
    broker.start()
    producer.connection.socket.close()
    producer.connection = Connection(broker)
    listed = lambda: producer.connection.call("list_transactions", 0)["error_code"]  # noqa: E731
    wait_for(lambda: listed() == NONE, "the coordinator to load")


def forge(broker: WatchedBroker, directory: str, change: Callable[[PartitionLog], None]) -> None:
    """Change a log while no broker runs on it: as one left it that died a moment later than it did."""
    path = str(broker.data / directory)
    log = PartitionLog.open(RealDisk(), path, LogConfig(), now_ms=0)
    change(log)
    log.sync()


def prepared(transactional_id: str, state: TransactionState) -> Callable[[PartitionLog], None]:
    def change(log: PartitionLog) -> None:
        piece = log.read(0, 1 << 20, limit=log.log_end)
        assert piece is not None
        data, newest = bytes(piece.load()), None
        position = 0
        while position < len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            for record in iterate(data[position : position + size], bytes_max=1 << 20):
                assert record.key is not None
                if decode_key(record.key) == TransactionKey(transactional_id):
                    assert record.value is not None
                    newest = decode_value(None, record.value)
            position += size
        assert isinstance(newest, TransactionValue)
        assert newest.state is TransactionState.ONGOING
        value = newest._replace(state=state, producer_epoch=newest.producer_epoch + 1)
        batch, header = log_batch.build([(encode_key(TransactionKey(transactional_id)), encode_value(value))], 0)
        log.append(memoryview(batch), header, leader_epoch=log.latest_epoch, now_ms=0)

    return change


def marked(producer: Raw, *, committed: bool) -> Callable[[PartitionLog], None]:
    def change(log: PartitionLog) -> None:
        batch, header = markers.build(producer.producer_id, producer.epoch + 1, Marker(committed, 0), 0)
        log.append(memoryview(batch), header, leader_epoch=log.latest_epoch, now_ms=0)

    return change


def test_the_producer_id_is_kept_over_a_kill(broker: WatchedBroker, producer: Raw):
    producer_id, epoch = producer.producer_id, producer.epoch
    restarted(broker, producer)
    assert producer.init() == NONE
    assert (producer.producer_id, producer.epoch) == (producer_id, epoch + 1)


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_continues_after_a_kill(broker: WatchedBroker, producer: Raw, topic: str, committed: bool):
    assert producer.send(topic, b"before") == NONE
    restarted(broker, producer)
    assert producer.state() == "Ongoing"
    assert read(broker.bootstrap, topic) == []
    assert producer.send(topic, b"after") == NONE
    assert producer.send(topic, b"elsewhere", partition=1) == NONE
    assert producer.end(committed=committed) == NONE
    read_until(broker.bootstrap, topic, [b"before", b"after"] if committed else [])
    read_until(broker.bootstrap, topic, [b"elsewhere"] if committed else [], partition=1)


@pytest.mark.parametrize("marked_already", [0, 1, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_is_completed_after_a_kill(
    broker: WatchedBroker, producer: Raw, topic: str, committed: bool, marked_already: int
):
    for partition in range(2):
        assert producer.send(topic, b"%d" % partition, partition=partition) == NONE
    broker.kill()
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    forge(broker, STATE_LOG, prepared(producer.id, state))
    for partition in range(marked_already):
        forge(broker, f"{topic}-{partition}", marked(producer, committed=committed))
    started(broker, producer)
    producer.settled()
    assert producer.state() == ("CompleteCommit" if committed else "CompleteAbort")
    for partition in range(2):
        read_until(broker.bootstrap, topic, [b"%d" % partition] if committed else [], partition=partition)
        assert Confluent().bounds(broker.bootstrap, topic, partition) == (0, 2)  # one record, one marker


def test_offsets_of_a_prepared_transaction_are_committed_after_a_kill(broker: WatchedBroker, producer: Raw, topic: str):
    assert producer.commit_offset("g", topic, 42) == NONE
    broker.kill()
    forge(broker, STATE_LOG, prepared(producer.id, TransactionState.PREPARE_COMMIT))
    started(broker, producer)
    producer.settled()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = ConsumerGroupTopicPartitions("g", [TopicPartition(topic, 0)])
    found = admin.list_consumer_group_offsets([asked], require_stable=True)["g"].result(10)
    assert found.topic_partitions[0].offset == 42


@pytest.mark.parametrize("committed", [True, False])
def test_an_acknowledged_end_txn_survives_a_kill(broker: WatchedBroker, producer: Raw, topic: str, committed: bool):
    expected = []
    for number in range(4):
        assert producer.send(topic, b"%d" % number) == NONE
        assert producer.end(committed=committed) == NONE
        expected += [b"%d" % number] if committed else []
        restarted(broker, producer)
        producer.settled()
        read_until(broker.bootstrap, topic, expected)


def test_a_transaction_whose_producer_died_with_the_broker_is_aborted_in_time(
    broker: WatchedBroker, producer: Raw, topic: str
):
    assert producer.init(timeout_ms=2000) == NONE
    assert producer.send(topic, b"orphan") == NONE
    restarted(broker, producer)
    wait_for(lambda: producer.state() == "CompleteAbort", "the timeout")
    assert read(broker.bootstrap, topic) == []


class Copier(threading.Thread):
    """Copies numbers to a partition, some in each transaction together with how far it has come; begins again whenever
    something goes wrong. Now and then it aborts."""

    def __init__(
        self, broker: WatchedBroker, source: str, target: str, partition: int, count: int, *, second: bool
    ) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.source = source
        self.target = target
        self.group = f"copy to {target}"
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
                with contextlib.suppress(Closed, OSError, Trouble), Connection(self.broker) as connection:
                    self._copy(connection)
        except BaseException as failure:
            self.failed = failure
            raise

    def _copy(self, connection: Connection) -> None:
        for key_type in (0, 1):
            right(connection.call("find_coordinator", 3, key=self.group, key_type=key_type)["error_code"])
        producer = Raw(connection, f"{self.group}-{self.partition}")
        right(producer.init())
        while self.copied < self.count:
            offset = self._committed(connection)
            self.copied = offset
            end = min(offset + self.random.randint(1, 12), self.count)
            for number in range(offset, end):
                if not self.second:
                    right(*producer.add(self.target, self.partition))
                version = 12 if self.second else 9
                right(producer.send(self.target, b"%d" % number, partition=self.partition, version=version))
            if not self.second:
                right(self._add_offsets(producer))
            version = 5 if self.second else 3
            right(producer.commit_offset(self.group, self.source, end, version=version, partition=self.partition))
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
        partition = answer["topics"][0]["partitions"][0]
        right(partition["error_code"])
        return max(int(partition["committed_offset"]), 0)


class Trouble(Exception):
    """Something went wrong, as it may: from the start."""


def right(*codes: int) -> None:
    for code in codes:
        if code != NONE:
            raise Trouble(code)


def _has_copied(copiers: list[Copier], count: int) -> bool:
    return sum(copier.copied for copier in copiers) > count


@pytest.mark.parametrize(
    "second", [pytest.param(False, id="first version", marks=pytest.mark.long), pytest.param(True, id="second version")]
)
def test_a_transactional_copy_is_exact_though_the_broker_is_killed_again_and_again(
    broker: WatchedBroker, fresh_name: Callable[[], str], second: bool
):
    count, partitions = 250, 3
    source, target = fresh_name(), fresh_name()
    for name in (source, target):
        create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), name, partitions)
    copiers = [Copier(broker, source, target, partition, count, second=second) for partition in range(partitions)]
    for copier in copiers:
        copier.start()
    try:
        for kill in range(4):
            wait_for(partial(_has_copied, copiers, kill * 120), "some copies", 60)
            broker.kill()
            broker.start()
        for copier in copiers:
            copier.join(60)
        assert [copier.failed for copier in copiers] == [None] * partitions
        expected = [b"%d" % number for number in range(count)]
        for partition in range(partitions):
            read_until(broker.bootstrap, target, expected, partition=partition)
    finally:
        for copier in copiers:
            copier.stopped.set()
