"""Commands that talk to a cluster: how they fail, and their hints."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from ottla.cli.target import too_few_in_sync
from ottla.client.admin.topic_admin import Partition, TopicDescription
from ottla.local.waiting import wait_for
from tests.cli.commands import Ottla


@pytest.mark.parametrize(
    "arguments",
    [
        ["reassign", "start"],
        ["reassign", "start", "--move", "nonsense=1"],
        ["reassign", "start", "--move", "orders-0=one"],
        ["elect", "--unclean"],
        ["transactions", "producers", "orders"],
        ["configs", "describe", "planet", "earth"],
    ],
)
def test_wrong_usage_ends_with_status_2(ottla, arguments):
    ottla(*arguments, status=2)


def test_a_missing_topic_or_partition_is_named(ottla, topic):
    assert "topic nosuch: there is no such topic" in ottla("elect", "nosuch", status=1)
    assert "`ottla topics list`" in ottla("elect", "no-such-topic", status=1)
    assert f"{topic}-9" in ottla("elect", f"{topic}-9", status=1)
    has_three = f"topic {topic} has no partition 9; it has 3"
    assert has_three in ottla("transactions", "producers", f"{topic}-9", status=1)
    assert "`ottla topics list`" in ottla("transactions", "producers", "nosuch-0", status=1)
    assert has_three in ottla("produce", topic, "-p", "9", given="never sent\n", status=1)


def test_a_port_with_tls_is_recognised():
    """A port that speaks TLS answers a plain request with an alert."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(bytes.fromhex("15030300020246"))  # a fatal alert: protocol version
            connection.settimeout(5)
            try:
                connection.recv(1000)
            except OSError:
                pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        result = Ottla(f"127.0.0.1:{listener.getsockname()[1]}").run("topics", "list")
    finally:
        thread.join()
        listener.close()
    assert result.exit_code == 1
    assert "does not speak Kafka's protocol" in result.output
    assert "without TLS?" in result.output


def test_lists_are_printed_as_json(ottla, topic):
    for arguments in (["topics", "list"], ["groups", "list"], ["reassign", "status"], ["transactions", "list"]):
        assert isinstance(json.loads(ottla(*arguments, "--json")), list)


def test_the_hint_names_all_missing_brokers():
    topic = TopicDescription("orders", bytes(16), False, (Partition(0, 1, 0, (1, 2, 3), (1,)),))
    output = too_few_in_sync(topic, 2)
    assert output is not None
    assert output.hint is not None
    assert output.hint.startswith("Start brokers 2 and 3 again, or wait until they have caught up; ")


@pytest.mark.ottla(brokers=2)
def test_an_offline_partition_or_one_below_min_isr_is_named_with_a_hint(ottla_cluster):
    topic = ottla_cluster.create_topic(replication_factor=1)
    safe = ottla_cluster.create_topic(replication_factor=2, config={"min.insync.replicas": 2})
    lost = ottla_cluster.kill_leader(topic)
    ottla = Ottla(ottla_cluster.bootstrap_servers)
    wait_for(lambda: "none" in ottla("topics", "describe", topic), f"the loss of broker {lost}")
    quickly = ["-X", "delivery.timeout.ms=2000", "-X", "request.timeout.ms=1000"]
    for command in (["consume", topic, "-e"], ["produce", topic, *quickly], ["bench", "produce", topic, *quickly]):
        output = ottla(*command, given="x\n", status=75)
        assert f"{topic}-0 has no leader now" in output
        assert "`ottla topics describe` shows which brokers have its replicas" in output
    for command in (["produce", safe, *quickly], ["bench", "produce", safe, *quickly]):
        output = ottla(*command, given="x\n", status=75)
        assert f"{safe}-0 has 1 of 2 replicas in sync, fewer than min.insync.replicas=2" in output
        assert f"Start broker {lost} again" in output
        assert "busy or paused" not in output


def test_an_unreachable_cluster_ends_with_status_75():
    for command in (["consume", "t"], ["produce", "t"], ["groups", "list"], ["bench", "produce", "t"]):
        result = Ottla("127.0.0.1:1").run(*command, given="x\n")
        assert result.exit_code == 75, result.output
        assert "cannot connect to 127.0.0.1:1: Connection refused" in result.output
        assert "-b HOST:PORT" in result.output
