"""Broker processes: states, ports, and that they end with their parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from ottla.cluster.ensemble import HOST
from ottla.errors import Fault
from ottla.local.cluster import LocalCluster, settings_for
from ottla.local.processes import State
from ottla.local.waiting import wait_for


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster(tmp_path, 2)
    yield made
    made.kill()


def alive(pid):
    """A zombie process does not count."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_states_of_a_broker_process(cluster):
    broker = cluster[1]
    seen = [broker.state]
    broker.launch()
    seen.append(broker.state)
    wait_for(broker.check_start, "the broker to serve")
    seen.append(broker.state)
    broker.pause()
    seen.append(broker.state)
    broker.resume()
    seen.append(broker.state)
    broker.kill()
    seen.append(broker.state)
    assert broker.pid == 0
    port = broker.port
    broker.start()
    assert broker.port == port > 0
    broker.stop()
    seen.append(broker.state)
    assert seen == [
        State.IDLE,
        State.STARTING,
        State.READY,
        State.PAUSED,
        State.READY,
        State.KILLED,
        State.STOPPED,
    ]


def test_a_paused_broker_can_be_stopped(cluster):
    broker = cluster[1]
    broker.start()
    broker.pause()
    broker.stop()
    assert broker.state is State.STOPPED


def test_a_broker_that_cannot_start_shows_its_log_and_all_are_killed(tmp_path):
    cluster = LocalCluster(tmp_path, 2, settings={"num.partitions": "none"})
    with pytest.raises(Fault, match=r"(?s)broker 1 ended during its start.*num\.partitions"):
        cluster.start()
    assert [broker.running for broker in cluster.brokers.values()] == [False, False]


def test_a_port_in_use_is_replaced(tmp_path):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with LocalCluster(tmp_path, 1, port=port) as cluster:
            cluster.start()
            assert cluster.replaced_ports == {1: port}
            assert cluster[1].port not in (0, port)


def test_a_broker_that_does_not_exist_is_named(cluster):
    with pytest.raises(Fault, match="there is no broker 3: the brokers are 1, 2"):
        cluster[3]


@pytest.mark.parametrize(("brokers", "copies", "needed"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (9, 3, 2)])
def test_internal_topics_have_as_many_replicas_as_possible(brokers, copies, needed):
    settings = settings_for(brokers)
    assert settings["offsets.topic.replication.factor"] == str(copies)
    assert settings["min.insync.replicas"] == str(needed)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the kernel's word on the death of a parent")
@pytest.mark.parametrize("paused", [False, True])
def test_brokers_end_with_a_parent_that_is_killed(tmp_path, paused):
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from ottla.local.cluster import LocalCluster
        cluster = LocalCluster(Path({str(tmp_path)!r}), 2)
        cluster.start()
        if {paused}:
            cluster[2].pause()
        print(*(broker.pid for broker in cluster.brokers.values()), flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    try:
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
        wait_for(lambda: not any(map(alive, pids)), "the brokers to end")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
