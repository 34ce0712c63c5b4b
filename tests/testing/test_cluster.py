"""Test cluster of three broker processes: kill, pause, network partitions, faults, reassignment."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.blocking import Admin, Producer
from ottla.cli.main import cli
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.local.waiting import wait_for
from ottla.testing import Cluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("clusters")
    tempdir, tempfile.tempdir = tempfile.tempdir, str(directory)
    threads = set(threading.enumerate())
    try:
        with Cluster() as cluster:
            yield cluster
    finally:
        tempfile.tempdir = tempdir
    left = set(threading.enumerate()) - threads
    assert not [each for each in left if not each.name.startswith(("ottla-offload", "ottla-store"))]
    assert [*directory.iterdir()] == []
    assert all(not process.running for process in cluster._local.brokers.values())


@pytest.fixture
def healthy(cluster):
    """All brokers up and all replicas in sync, before and after each test."""
    yield cluster
    cluster.heal_network()
    for broker in cluster.brokers:
        if broker not in cluster.alive:
            cluster.restart(broker)
        cluster.resume(broker)
    with Admin(cluster.bootstrap_servers) as admin:
        wait_for(
            lambda: all(
                len(partition.in_sync) == len(partition.replicas)
                for topic in admin.list_topics()
                for partition in topic.partitions
            ),
            "every replica in sync",
            30,
        )


def ottla(cluster, *arguments):
    done = CliRunner(env={"OTTLA_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}).invoke(
        cli, arguments, prog_name="ottla", catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_a_leader_is_killed_and_nothing_is_lost(healthy):
    topic = healthy.create_topic("killed", partitions=3)
    topic.produce([f"before {n}" for n in range(30)], partitioner="round_robin")
    dead = healthy.kill_leader(topic, 1)
    assert dead not in healthy.alive
    topic.produce([f"after {n}" for n in range(30)], partitioner="round_robin")
    assert healthy.leader(topic, 1) != dead
    values = {record.value.decode() for record in topic.consume(60, timeout=30)}
    assert values == {f"{when} {n}" for when in ("before", "after") for n in range(30)}
    healthy.restart(dead)
    assert dead in healthy.alive


def test_a_paused_broker_is_replaced(healthy):
    topic = healthy.create_topic("paused")
    leader = healthy.leader(topic)
    with healthy.paused(leader):
        topic.produce(b"without it", request_timeout_ms=1000, socket_connection_setup_timeout_ms=1000)
        others = [broker for broker in healthy.brokers if broker != leader]
        wait_for(lambda: healthy.leader(topic) in others, "another leader", 30)
    assert [record.value for record in topic.consume(1, timeout=30)] == [b"without it"]


def test_a_leader_that_is_cut_off_acknowledges_nothing(healthy):
    topic = healthy.create_topic("cut")
    leader = healthy.leader(topic)
    others = [broker for broker in healthy.brokers if broker != leader]
    with (
        healthy.partition_network([leader], others),
        Producer(healthy.bootstrap_servers, delivery_timeout_ms=1500, request_timeout_ms=1000) as producer,
    ):
        sent = producer.send(topic, b"alone")
        with pytest.raises(ClientError):
            sent.result(timeout=20)
    topic.produce(b"together")
    assert b"together" in [record.value for record in topic.consume(1, timeout=30)] + [
        record.value for record in topic.consume(2, timeout=30)
    ]


def test_clients_can_be_cut_off_too(healthy):
    topic = healthy.create_topic("unreachable")
    leader = healthy.leader(topic)
    reachable = [broker for broker in healthy.brokers if broker != leader]
    with (
        healthy.partition_network(clients=reachable),
        Producer(
            healthy.bootstrap_servers,
            delivery_timeout_ms=1500,
            request_timeout_ms=1000,
            socket_connection_setup_timeout_ms=1000,
        ) as producer,
    ):
        sent = producer.send(topic, b"x")
        with pytest.raises(ClientError):
            sent.result(timeout=20)


def test_faults_are_injected_in_the_proxies(healthy):
    topic = healthy.create_topic("faulty")
    refused = healthy.inject("Produce", error="not_leader_or_follower", times=2)
    cut = healthy.inject("Fetch", error="disconnect")
    began = time.monotonic()
    healthy.inject("FindCoordinator", delay_ms=200)
    topic.produce([b"a", b"b"])
    assert [record.value for record in topic.consume(2, group="g", timeout=30)] == [b"a", b"b"]
    assert refused.hits == 2
    assert cut.hits == 1
    assert time.monotonic() - began >= 0.2


def test_partitions_are_moved_from_the_command_line(healthy):
    topic = healthy.create_topic("moved", partitions=3, replication_factor=1)
    topic.produce([f"{n}" for n in range(9)], partitioner="round_robin")
    plan = ottla(healthy, "reassign", "plan", "--topic", topic, "--replication-factor", "2")
    wanted = {each["partition"]: each["replicas"] for each in json.loads(plan)["partitions"]}
    assert sorted(broker for replicas in wanted.values() for broker in replicas) == [1, 1, 2, 2, 3, 3]
    assert sorted(replicas[0] for replicas in wanted.values()) == [1, 2, 3]
    file = Path(tempfile.gettempdir()) / "plan.json"
    file.write_text(plan)
    output = ottla(healthy, "reassign", "start", str(file), "--wait")
    file.unlink()
    assert output.count("moved ") == 3
    [described] = json.loads(ottla(healthy, "topics", "describe", topic, "--json"))
    assert {each["partition"]: each["replicas"] for each in described["partitions"]} == wanted
    assert ottla(healthy, "reassign", "status") == "nothing is moving\n"
    assert ottla(healthy, "reassign", "cancel") == "nothing is moving\n"
    assert len(topic.consume(9)) == 9


def test_a_move_is_cancelled_and_leaders_are_elected(healthy):
    topic = healthy.create_topic("undecided", replication_factor=2)
    [partition] = json.loads(ottla(healthy, "topics", "describe", topic, "--json"))[0]["partitions"]
    first, second = partition["replicas"]
    ottla(healthy, "reassign", "start", "--move", f"{topic}-0={second},{first}", "--wait")
    with Admin(healthy.bootstrap_servers) as admin:
        assert admin.list_reassignments([TopicPartition(topic, 0)]) == {}
    ottla(healthy, "elect", topic)
    wait_for(lambda: healthy.leader(topic) == second, "the preferred leader")
    other = next(broker for broker in healthy.brokers if broker not in (first, second))
    with healthy.partition_network([other]):  # so it cannot catch up
        ottla(healthy, "reassign", "start", "--move", f"{topic}-0={other}")
        assert f"{topic}-0" in ottla(healthy, "reassign", "status")
        assert f"{topic}-0 stays where it was" in ottla(healthy, "reassign", "cancel")
    assert ottla(healthy, "reassign", "status") == "nothing is moving\n"
