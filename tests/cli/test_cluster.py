"""`ottla cluster`, with all brokers and with one missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ottla.cli.cluster import BrokerStatus, ClusterStatus, _named, _print
from ottla.client.admin import LogDir
from ottla.client.core.requests import Node
from ottla.client.values import TopicPartition
from ottla.local.waiting import wait_for
from tests.cli.commands import Ottla


@pytest.mark.ottla(brokers=2, config={"broker.rack": "cellar"})
def test_brokers_disks_and_partitions_in_trouble_are_shown(ottla_cluster):
    ottla_cluster.create_topic("orders", partitions=2, replication_factor=2).produce([b"x"] * 10)
    ottla_cluster.create_topic("safe", replication_factor=2, config={"min.insync.replicas": 2})
    whole = Ottla(ottla_cluster.bootstrap_servers).json("cluster")
    assert [(each["id"], each["rack"]) for each in whole["brokers"]] == [(1, "cellar"), (2, "cellar")]
    assert whole["controller"] in (1, 2)
    assert sum(each["leaders"] for each in whole["brokers"]) >= 2
    assert all(log_dir["total_bytes"] > log_dir["usable_bytes"] > 0 for log_dir in whole["brokers"][0]["log_dirs"])
    assert all(each["version"] for each in whole["brokers"])
    assert all(each["scrub"]["damaged_partitions"] == 0 <= each["scrub"]["progress"] for each in whole["brokers"])
    assert (whole["under_replicated"], whole["offline"], whole["missing"]) == ([], [], [])

    ottla_cluster.kill(2)
    left = Ottla(ottla_cluster.bootstrap_servers)
    wait_for(lambda: left.json("cluster")["missing"] == [2], "the broker to be missed", 30)
    wait_for(lambda: "under min ISR     1: safe-0\n" in left("cluster"), "the topic that refuses writes", 30)
    assert left.json("cluster")["under_min_in_sync"] == [{"topic": "safe", "partition": 0}]
    shown = left("cluster")
    assert "orders-0, orders-1" in shown
    assert "missing brokers   2" in shown


def test_a_full_disk_is_flagged(capsys):
    dirs = [LogDir("/data", 1000, 0, None, {})]
    broker = BrokerStatus(Node(1, "here", 9092), None, 0, 0, 0, dirs, {})
    _print(ClusterStatus("c", 1, [broker], [], 0, 0, [], [], []))
    assert "broker 1: /data: 0 B of 1.0 kB are free: free some space" in capsys.readouterr().out
    _print(ClusterStatus("c", 1, [broker._replace(dirs=[dirs[0]._replace(usable_bytes=500)])], [], 0, 0, [], [], []))
    assert "make room" not in capsys.readouterr().out


def test_partitions_of_internal_topics_are_named_last():
    internal = [TopicPartition("__consumer_offsets", number) for number in range(50)]
    assert "51: orders-1, __consumer_offsets-0, " in _named([*internal, TopicPartition("orders", 1)])


@pytest.mark.ottla(brokers=2)
def test_a_move_without_progress_names_the_broker_to_start(ottla_cluster):
    ottla_cluster.create_topic("orders", partitions=2, replication_factor=1).produce([b"x"] * 10)
    ottla = Ottla(ottla_cluster.bootstrap_servers)
    parts = ottla.json("topics", "describe", "orders")[0]["partitions"]
    (partition,) = [f"orders-{part['partition']}" for part in parts if part["leader"] == 2]
    ottla_cluster.kill(2)
    wait_for(lambda: ottla.json("cluster")["offline"], "the partition to be without a leader", 30)
    command = [sys.executable, "-m", "ottla", "reassign", "start", "--move", f"{partition}=1", "--wait", "--quiet"]
    moving = subprocess.Popen(
        [*command, "-b", ottla.bootstrap], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert moving.stderr is not None
        why = f"{partition} has no leader to copy from; start broker 2"
        assert moving.stderr.readline() == f"ottla: still trying: {why}\n"
        assert ottla("reassign", "status").splitlines()[-1] == why
        assert ottla.json("reassign", "status")[0]["why"] == why.partition(" ")[2]
        ottla_cluster.restart(2)
        output, _ = moving.communicate(timeout=60)
        assert (moving.returncode, output) == (0, f"moved {partition} to 1\n")
    finally:
        moving.kill()
        moving.wait()
