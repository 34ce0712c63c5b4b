"""Transactions frame by frame: transaction.version 2, and requests that no client library sends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.local.waiting import wait_for
from tests.conftest import Served
from tests.harness.raw import Connection, batch, fetch_fields
from tests.interop.transactional import read, read_until

TRANSACTIONAL, CONTROL = 0x10, 0x20
NONE, INVALID_EPOCH, INVALID_STATE, CONCURRENT, INVALID_RECORD = 0, 47, 48, 51, 87
UNKNOWN_PARTITION, UNAUTHORIZED, INVALID_REQUEST, NOT_ATTEMPTED = 3, 31, 42, 55
INVALID_MAPPING, INVALID_TIMEOUT, FENCED, UNSTABLE, NOT_FOUND, ABORTABLE = 49, 50, 90, 88, 105, 120


@pytest.fixture
def connection(broker: Served) -> Iterator[Connection]:
    with Connection(broker) as connection:
        connection.call("find_coordinator", 3, key="any", key_type=1)
        connection.call("find_coordinator", 3, key="any", key_type=0)
        yield connection


class Raw:
    """A producer that sends what it is told, right or wrong."""

    def __init__(self, connection: Connection, transactional_id: str | None = None) -> None:
        self.connection = connection
        self.id = transactional_id or f"raw-{uuid.uuid4().hex[:8]}"
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, *, timeout_ms: int = 60_000, again: bool = False, version: int = 4) -> int:
        def done() -> dict[str, Any] | None:
            answer = self.connection.call(
                "init_producer_id",
                version,
                transactional_id=self.id,
                transaction_timeout=timeout_ms,
                producer_id=self.producer_id if again else -1,
                producer_epoch=self.epoch if again else -1,
            )
            return None if answer["error_code"] == CONCURRENT else answer

        answer = wait_for(done, "a producer id")
        if answer["error_code"] == NONE:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        return answer["error_code"]

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        answer = self.connection.call(
            "add_partitions_to_txn",
            version,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": partitions}],
        )
        results = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
        return [result["partition_error_code"] for result in results]

    def send(self, topic: str, value: bytes = b"v", *, partition: int = 0, version: int = 12, **lies: Any) -> int:
        """The error code. Version 12 and above speaks the second version of the protocol."""
        sequence = self.sequences.get((topic, partition), 0)
        data = batch(
            [value],
            **{
                "attributes": TRANSACTIONAL,
                "producer_id": self.producer_id,
                "producer_epoch": self.epoch,
                "base_sequence": sequence,
                **lies,
            },
        )
        answer = self.connection.call(
            "produce",
            version,
            transactional_id=self.id,
            acks=-1,
            timeout=10_000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": data}]}],
        )
        code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
        if code == NONE:
            self.sequences[topic, partition] = sequence + 1
        return code

    def end(self, *, committed: bool, version: int = 5, epoch: int | None = None, takes: bool = True) -> int:
        answer = self.connection.call(
            "end_txn",
            version,
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=committed,
        )
        if answer["error_code"] == NONE and version >= 5 and takes:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        return answer["error_code"]

    def commit_offset(self, group: str, topic: str, offset: int, *, version: int = 5, partition: int = 0) -> int:
        topic_partition = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
        answer = self.connection.call(
            "txn_offset_commit",
            version,
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=-1,
            topics=[{"name": topic, "partitions": [topic_partition]}],
        )
        return answer["topics"][0]["partitions"][0]["error_code"]

    def state(self) -> str:
        answer = self.connection.call("describe_transactions", 0, transactional_ids=[self.id])
        found = answer["transaction_states"][0]
        return str(found["transaction_state"]) if found["error_code"] == NONE else str(found["error_code"])

    def settled(self) -> None:
        """All markers are written."""
        wait_for(lambda: self.state().startswith("Complete"), "the end of the transaction")


@pytest.fixture
def producer(connection: Connection) -> Raw:
    producer = Raw(connection)
    assert producer.init() == NONE
    return producer


def test_the_second_version_of_the_protocol_is_announced(connection: Connection):
    answer = connection.call("api_versions", 4, client_software_name="raw", client_software_version="1")
    features = {each["name"]: each["max_version_level"] for each in answer["finalized_features"]}
    assert features["transaction.version"] == 2
    assert answer["finalized_features_epoch"] >= 0


def test_a_transaction_of_the_second_version_adds_its_partitions_by_writing(broker: Served, producer: Raw, topic: str):
    epoch = producer.epoch
    assert producer.send(topic, b"1") == NONE
    assert producer.send(topic, b"2") == NONE
    assert producer.state() == "Ongoing"
    assert producer.end(committed=True) == NONE
    assert producer.epoch == epoch + 1
    assert producer.send(topic, b"no") == NONE
    assert producer.end(committed=False) == NONE
    assert producer.epoch == epoch + 2
    assert producer.send(topic, b"3") == NONE
    assert producer.end(committed=True) == NONE
    read_until(broker.bootstrap, topic, [b"1", b"2", b"3"])


def test_a_delayed_end_does_not_end_the_next_transaction(broker: Served, producer: Raw, topic: str):
    old = producer.epoch
    producer.send(topic, b"1")
    assert producer.end(committed=True) == NONE
    producer.settled()
    assert producer.end(committed=True, epoch=old, takes=False) == NONE  # a repetition
    assert producer.send(topic, b"2") == NONE
    assert producer.end(committed=True, epoch=old) == FENCED
    assert producer.end(committed=False, epoch=old) == FENCED
    assert producer.state() == "Ongoing"
    assert producer.end(committed=False) == NONE
    read_until(broker.bootstrap, topic, [b"1"])


def test_a_delayed_record_does_not_enter_the_next_transaction_nor_hang(broker: Served, producer: Raw, topic: str):
    producer.send(topic, b"1")
    old = producer.epoch
    assert producer.end(committed=True) == NONE
    producer.settled()
    assert producer.send(topic, b"late", producer_epoch=old, base_sequence=1) == INVALID_EPOCH
    assert read(broker.bootstrap, topic) == [b"1"]


def test_a_record_of_the_first_version_needs_its_partition_added(broker: Served, producer: Raw, topic: str):
    for version, code in ((9, INVALID_STATE), (10, INVALID_STATE), (11, ABORTABLE)):
        assert producer.send(topic, version=version) == code
    assert producer.add(topic, 0) == [NONE]
    assert producer.send(topic, b"1", version=9) == NONE
    assert producer.end(committed=True, version=3) == NONE
    producer.settled()
    assert producer.send(topic, b"hangs", version=9) == INVALID_STATE
    assert read(broker.bootstrap, topic) == [b"1"]
    assert read(broker.bootstrap, topic, committed=False) == [b"1"]


def test_an_abort_without_records_bumps_the_producer_epoch(producer: Raw):
    epoch = producer.epoch
    assert producer.end(committed=False) == NONE
    assert producer.epoch == epoch + 1
    producer.settled()
    assert producer.end(committed=True) == INVALID_STATE


def test_a_producer_recovers_with_the_identity_it_has(producer: Raw, topic: str):
    producer.send(topic)
    producer_id, epoch = producer.producer_id, producer.epoch
    assert producer.init(again=True) == NONE
    assert (producer.producer_id, producer.epoch) == (producer_id, epoch + 1)
    zombie = Raw(producer.connection, producer.id)
    zombie.producer_id, zombie.epoch = producer_id, epoch
    assert producer.init() == NONE
    assert zombie.init(again=True) == FENCED
    assert zombie.init(again=True, version=3) == INVALID_EPOCH
    assert zombie.send(topic) == INVALID_EPOCH
    assert zombie.add(topic, 0) == [FENCED]
    assert zombie.add(topic, 0, version=1) == [INVALID_EPOCH]
    assert zombie.end(committed=True, version=3) == FENCED
    assert zombie.end(committed=True, version=1) == INVALID_EPOCH


def test_add_partitions_to_txn_with_an_unknown_partition_adds_none(producer: Raw, topic: str):
    assert producer.add(topic, 0, 7) == [NOT_ATTEMPTED, UNKNOWN_PARTITION]
    listed = producer.connection.call("list_transactions", 0, producer_id_filters=[producer.producer_id])
    assert [each["transaction_state"] for each in listed["transaction_states"]] == ["Empty"]


def test_unknown_producers_and_invalid_timeouts_are_refused(connection: Connection, topic: str):
    unknown = Raw(connection)
    unknown.producer_id, unknown.epoch = 999_999, 0
    assert unknown.add(topic, 0) == [INVALID_MAPPING]
    assert unknown.end(committed=True) == INVALID_MAPPING
    assert unknown.send(topic) == INVALID_MAPPING
    assert unknown.state() == str(NOT_FOUND)
    assert unknown.init(timeout_ms=0) == INVALID_TIMEOUT
    assert unknown.init(timeout_ms=900_001) == INVALID_TIMEOUT
    empty = Raw(connection)
    empty.id = ""
    assert empty.init() == INVALID_REQUEST


def test_a_control_batch_or_a_plain_one_inside_a_transaction_is_refused(producer: Raw, topic: str):
    assert producer.send(topic, attributes=TRANSACTIONAL | CONTROL) == INVALID_RECORD
    assert producer.send(topic) == NONE
    assert producer.send(topic, attributes=0) == INVALID_STATE
    assert producer.end(committed=True) == NONE


def test_inter_broker_transaction_requests_are_refused_to_clients(connection: Connection, producer: Raw, topic: str):
    producer.send(topic)
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": True,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 1000,
    }
    answer = connection.call("write_txn_markers", 1, markers=[marker])
    assert answer["markers"][0]["topics"][0]["partitions"][0]["error_code"] == UNAUTHORIZED
    answer = connection.call(
        "add_partitions_to_txn", 5, transactions=[{"transactional_id": producer.id, "verify_only": True}]
    )
    assert answer["error_code"] == UNAUTHORIZED
    assert producer.state() == "Ongoing"


def test_fetch_answers_have_aborted_transactions_and_the_last_stable_offset(
    connection: Connection, producer: Raw, topic: str
):
    producer.send(topic, b"no")
    aborted_id = producer.producer_id
    producer.end(committed=False)
    producer.settled()
    producer.send(topic, b"open")
    fields = fetch_fields(topic, isolation_level=1)
    found = connection.call("fetch", 11, **fields)["responses"][0]["partitions"][0]
    assert (found["high_watermark"], found["last_stable_offset"]) == (3, 2)
    assert found["aborted_transactions"] == [{"producer_id": aborted_id, "first_offset": 0}]
    fields = fetch_fields(topic, isolation_level=0)
    found = connection.call("fetch", 11, **fields)["responses"][0]["partitions"][0]
    assert not found["aborted_transactions"]


def test_offsets_of_the_second_version_are_added_by_committing_them(connection: Connection, producer: Raw, topic: str):
    group = f"group-{producer.id}"

    def committed(*, stable: bool) -> tuple[int, int]:
        answer = connection.call(
            "offset_fetch",
            7,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [0]}],
            require_stable=stable,
        )
        partition = answer["topics"][0]["partitions"][0]
        return partition["committed_offset"], partition["error_code"]

    assert producer.commit_offset(group, topic, 5) == NONE
    assert committed(stable=False) == (-1, NONE)
    assert committed(stable=True) == (-1, UNSTABLE)
    assert producer.end(committed=False) == NONE
    producer.settled()
    assert committed(stable=True) == (-1, NONE)
    assert producer.commit_offset(group, topic, 6) == NONE
    assert producer.end(committed=True) == NONE
    producer.settled()
    assert committed(stable=True) == (6, NONE)
    old = Raw(connection, producer.id)
    old.producer_id, old.epoch = producer.producer_id, producer.epoch - 1
    assert old.commit_offset(group, topic, 9) == INVALID_EPOCH
    assert old.commit_offset(group, topic, 9, version=3) == INVALID_EPOCH
    assert producer.commit_offset(group, topic, 9, version=3) == INVALID_STATE
    assert committed(stable=True) == (6, NONE)


def test_administrators_see_transactions_and_producers(connection: Connection, producer: Raw, topic: str):
    producer.send(topic)
    answer = connection.call("describe_transactions", 0, transactional_ids=[producer.id])
    found = answer["transaction_states"][0]
    assert found["transaction_state"] == "Ongoing"
    assert (found["producer_id"], found["producer_epoch"]) == (producer.producer_id, producer.epoch)
    assert found["topics"] == [{"topic": topic, "partitions": [0]}]
    listed = connection.call(
        "list_transactions",
        2,
        state_filters=["Ongoing", "Nonsense"],
        producer_id_filters=[producer.producer_id],
        duration_filter=-1,
        transactional_id_pattern="raw-.*",
    )
    assert listed["unknown_state_filters"] == ["Nonsense"]
    assert [each["transactional_id"] for each in listed["transaction_states"]] == [producer.id]
    answer = connection.call("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0, 9]}])
    here, nowhere = answer["topics"][0]["partitions"]
    (state,) = here["active_producers"]
    assert (state["producer_id"], state["current_txn_start_offset"], state["last_sequence"]) == (
        producer.producer_id, 0, 0,
    )  # fmt: skip
    assert nowhere["error_code"] == UNKNOWN_PARTITION
    assert producer.end(committed=True) == NONE
