"""`ottla transactions`: describe, fence, and abort hanging transactions with the cluster's store."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.blocking import Admin, Consumer, Producer
from ottla.client.errors import ClientError
from tests.cli.commands import Ottla
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Connection, batch, produce_fields

TRANSACTIONAL = 0x10


@pytest.fixture
def broker(tmp_path: Path):
    """WriteTxnMarkers as from an old producer whose request came too late: it is not checked."""
    broker = WatchedBroker(tmp_path / "broker", "--set", "transaction.partition.verification.enable=false").start()
    yield broker
    broker.close()


def leave_hanging(broker: WatchedBroker, topic: str) -> int:
    """The producer whose transaction is open in the topic, while its coordinator knows of none."""
    with Producer(broker.bootstrap, transactional_id="late") as producer, producer.transaction():
        producer.send(topic, b"in time")
    with Admin(broker.bootstrap) as admin:
        [known] = admin.list_transactions()
        epoch = admin.describe_transactions(["late"])["late"].producer_epoch
    data = batch(
        [b"late"],
        attributes=TRANSACTIONAL,
        producer_id=known.producer_id,
        producer_epoch=epoch,
        base_sequence=0,
    )
    with Connection(broker) as connection:
        answer = connection.call("produce", 9, **produce_fields(topic, data) | {"transactional_id": "late"})
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    return known.producer_id


def committed(broker: WatchedBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        topic, bootstrap_servers=broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    with consumer:
        return [consumer.getone().value for _ in range(count)]


def test_a_transaction_that_no_coordinator_knows_is_found_and_aborted(broker):
    ottla = Ottla(broker.bootstrap)
    ottla("topics", "create", "orders")
    producer_id = leave_hanging(broker, "orders")
    [found] = ottla.json("transactions", "hanging", "--open-for", "0")
    assert (found["partition"], found["producer_id"]) == ("orders-0", producer_id)
    assert str(producer_id) in ottla("transactions", "hanging", "orders", "--open-for", "0")
    with Producer(broker.bootstrap) as producer:
        producer.send_and_wait("orders", b"behind it")

    named = ("--partition", "orders-0", "--producer", str(producer_id))
    wrong = ottla("transactions", "abort", *named, "--store", f"embedded:{broker.data}/elsewhere.db", status=1)
    assert "there is no store" in wrong
    assert not (broker.data / "elsewhere.db").exists()
    said = ottla("transactions", "abort", *named, "--store", f"embedded:{broker.data}/store.db")
    assert f"aborted the transaction that producer {producer_id} began in orders-0" in said
    assert committed(broker, "orders", 2) == [b"in time", b"behind it"]
    assert ottla.json("transactions", "hanging", "--open-for", "0") == []
    again = ottla("transactions", "abort", *named, "--store", f"embedded:{broker.data}/store.db", status=1)
    assert f"producer {producer_id} has no hanging transaction in orders-0" in again


def test_a_transaction_that_its_coordinator_knows_is_not_hanging(broker):
    ottla = Ottla(broker.bootstrap)
    ottla("topics", "create", "orders")
    with Producer(broker.bootstrap, transactional_id="slow") as producer:
        producer.begin_transaction()
        producer.send_and_wait("orders", b"not yet")
        assert ottla.json("transactions", "hanging", "--open-for", "0") == []
        [active] = ottla.json("transactions", "producers", "orders-0")
        named = ("--partition", "orders-0", "--producer", str(active["producer_id"]))
        said = ottla("transactions", "abort", *named, "--store", f"embedded:{broker.data}/store.db", status=1)
        assert "abort one by its transactional id" in said
        producer.commit_transaction()
    assert committed(broker, "orders", 1) == [b"not yet"]


def test_an_id_or_a_partition_must_be_named():
    ottla = Ottla("localhost:1")  # nobody is asked
    ottla("transactions", "abort", status=2)
    ottla("transactions", "abort", "--partition", "orders-0", status=2)
    ottla("transactions", "abort", "late", "--partition", "orders-0", "--producer", "1", status=2)


def test_a_transaction_is_described_and_its_producer_fenced(ottla, topic):
    name = f"txn-{topic}"
    producer = Producer(ottla.bootstrap, transactional_id=name)
    producer.start()
    try:
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0).result(timeout=20)
        listed = {each["transactional_id"]: each["state"] for each in ottla.json("transactions", "list")}
        assert listed[name] == "Ongoing"
        [described] = ottla.json("transactions", "describe", name)
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert name in ottla("transactions", "describe", name)
        [active] = ottla.json("transactions", "producers", f"{topic}-0")
        assert active["transaction_start"] == 0
        assert "fenced the producer" in ottla("transactions", "abort", name)
        assert [each["state"] for each in ottla.json("transactions", "describe", name)] != ["Ongoing"]
        with pytest.raises(ClientError):
            producer.commit_transaction()
    finally:
        try:
            producer.stop()
        except ClientError:
            pass  # it was fenced
    assert "`ottla transactions list`" in ottla("transactions", "abort", "nobody", status=1)
    assert "there is no state" in ottla("transactions", "list", "--state", "Wrong", status=1)
