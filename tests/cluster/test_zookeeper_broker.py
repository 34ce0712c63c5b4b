"""A broker on ZooKeeper: real clients, restarts, kill -9, an unavailable ensemble, and the contents of znodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ottla.errors import Fault
from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.harness.zookeeper import ensemble

pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'ottla[zookeeper]'")

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kazoo.client import KazooClient

ALONE = ("--set", "offsets.topic.replication.factor=1")


def on(url, session_ms=6_000):
    """The arguments of a lone broker on this store."""
    return ("--store", url, "--set", f"zookeeper.session.timeout.ms={session_ms}", *ALONE)


@pytest.fixture
def znodes(zookeeper_url):
    """Reads a node below the store's chroot as any ZooKeeper client would."""
    servers, _, chroot = zookeeper_url.removeprefix("zookeeper:").partition("/")
    client = KazooClient(servers)
    client.start()
    yield lambda path: client.get(f"/{chroot}{path}")
    client.stop()
    client.close()


def produce(bootstrap, values, topic="orders"):
    outcomes = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 20_000})
    for value in values:
        producer.produce(topic, value.encode(), on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(30) == 0
    assert outcomes == [None] * len(values)


def consumed(bootstrap, count, topic="orders"):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        values: list[str] = []
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            values += [message.value().decode() for message in consumer.consume(count, 0.5) if not message.error()]
        return values
    finally:
        consumer.close()


def test_a_broker_on_zookeeper_has_the_layout_of_kafka_and_survives_a_restart(start_broker, zookeeper_url, znodes):
    broker = start_broker(*on(zookeeper_url))
    produce(broker.bootstrap, ["a", "b"])
    assert consumed(broker.bootstrap, 2) == ["a", "b"]

    def payload(path):
        return json.loads(znodes(path)[0])

    registered, stat = znodes("/brokers/ids/1")
    assert stat.ephemeralOwner != 0
    clients, brokers = json.loads(registered)["endpoints"]
    assert clients == f"PLAINTEXT://{broker.bootstrap}"
    assert brokers.startswith("REPLICATION://127.0.0.1:")
    assert payload("/controller")["brokerid"] == 1
    assert znodes("/controller_epoch")[0] == b"1"
    assert len(payload("/cluster/id")["id"]) == 22
    topic = payload("/brokers/topics/orders")
    assert (topic["version"], topic["partitions"]) == (3, {"0": [1]})
    state = payload("/brokers/topics/orders/partitions/0/state")
    assert (state["leader"], state["isr"], state["leader_epoch"], state["version"]) == (1, [1], 0, 1)
    assert payload("/config/topics/orders") == {"version": 1, "config": {}}
    assert broker.stop() == 0
    client = KazooClient(zookeeper_url.removeprefix("zookeeper:"))
    client.start()
    assert client.get_children("/brokers/ids") == []
    client.stop()
    client.close()
    broker.start()
    produce(broker.bootstrap, ["c"])
    assert consumed(broker.bootstrap, 3) == ["a", "b", "c"]
    assert znodes("/controller_epoch")[0] == b"2"


@pytest.mark.broker_may_log("not stopped cleanly|recover")
def test_a_killed_broker_serves_again_before_its_old_session_would_have_expired(start_broker, zookeeper_url, znodes):
    broker = start_broker(*on(zookeeper_url, 30_000))
    produce(broker.bootstrap, ["a"])
    epoch = json.loads(znodes("/brokers/ids/1")[0])["epoch"]
    broker.kill()
    begin = time.monotonic()
    broker.start()
    produce(broker.bootstrap, ["b"])
    assert consumed(broker.bootstrap, 2) == ["a", "b"]
    assert time.monotonic() - begin < 15
    assert json.loads(znodes("/brokers/ids/1")[0])["epoch"] > epoch


@pytest.mark.broker_may_log("ZooKeeper|cannot follow the change log|controller:|create_topics")
def test_creating_a_topic_while_zookeeper_is_unavailable_is_a_retriable_error(start_broker, tmp_path):
    zookeeper = ensemble(tmp_path / "zookeeper")
    try:
        broker = start_broker(*on(f"zookeeper:{zookeeper.connect}/ottla"))
        zookeeper.servers[0].kill()
        wait_for(lambda: "disconnected from ZooKeeper" in broker.log_text(), "the broker to notice")
        create = [sys.executable, "-m", "ottla", "topics", "create", "orders", "-b", broker.bootstrap]
        done = subprocess.run(create, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "Then try again" in done.stderr) == (os.EX_TEMPFAIL, True), done.stderr
        assert "did not answer: whether this was done is not known. Start ZooKeeper again" in done.stderr
        zookeeper.start()
        wait_for(
            lambda: subprocess.run(create, capture_output=True, timeout=60, check=False).returncode == 0,
            "the topic to be made",
            30,
        )
    finally:
        zookeeper.stop()


@pytest.mark.broker_may_log("ZooKeeper|cannot follow the change log|controller:")
def test_clients_are_served_while_zookeeper_is_unavailable(start_broker, tmp_path):
    zookeeper = ensemble(tmp_path / "zookeeper")
    try:
        broker = start_broker(*on(f"zookeeper:{zookeeper.connect}/ottla"))
        produce(broker.bootstrap, ["a"])
        assert consumed(broker.bootstrap, 1) == ["a"]  # and the offsets topic is made, which it cannot be meanwhile
        zookeeper.servers[0].kill()
        wait_for(lambda: "disconnected from ZooKeeper" in broker.log_text(), "the broker to notice")
        produce(broker.bootstrap, [f"away {n}" for n in range(50)])
        assert len(consumed(broker.bootstrap, 51)) == 51
        zookeeper.start()
        wait_for(lambda: "connected to ZooKeeper" in broker.log_text(), "the broker to come back", 30)
        produce(broker.bootstrap, ["made after"], "another")
        assert consumed(broker.bootstrap, 1, "another") == ["made after"]
        assert broker.stop() == 0
    finally:
        zookeeper.stop()


@pytest.mark.broker_may_log("has hung|session with|disconnected from|controller|cannot follow the change log")
def test_a_broker_paused_for_longer_than_its_session_registers_again(start_broker, zookeeper_url, znodes):
    broker = start_broker(*on(zookeeper_url, 1_500))
    produce(broker.bootstrap, ["a"])
    epoch = json.loads(znodes("/brokers/ids/1")[0])["epoch"]
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: gone(znodes, "/brokers/ids/1"), "ZooKeeper to give up on the broker")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    wait_for(lambda: not gone(znodes, "/brokers/ids/1"), "the broker to register again")
    assert json.loads(znodes("/brokers/ids/1")[0])["epoch"] > epoch
    wait_for(lambda: not gone(znodes, "/controller"), "a controller")
    produce(broker.bootstrap, ["b"])
    assert consumed(broker.bootstrap, 2) == ["a", "b"]


def gone(znodes, path):
    from kazoo.exceptions import NoNodeError

    try:
        znodes(path)
    except NoNodeError:
        return True
    return False


def test_a_broker_without_kazoo_reports_what_to_install(tmp_path):
    script = "import sys; sys.modules['kazoo'] = None; from ottla.cli.main import main; main()"
    command = [sys.executable, "-c", script, "serve", "--data", str(tmp_path), "--store", "zookeeper:localhost:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "pip install 'ottla[zookeeper]'" in done.stderr


def test_a_broker_without_zookeeper_reports_that_and_ends(tmp_path):
    broker = WatchedBroker(tmp_path, "--store", "zookeeper:127.0.0.1:1", "--set", "zookeeper.connection.timeout.ms=500")
    with pytest.raises(Fault, match=r"no ZooKeeper answers at 127\.0\.0\.1:1"):
        broker.start()
