"""`ottla configs`, `elect`, `reassign`, `transactions`, `bench`, and what `topics` has beyond the basics."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from ottla.blocking import Producer
from ottla.cli.cluster import too_few_in_sync
from ottla.cli.planning import Traffic, plan
from ottla.cli.spreading import spread
from ottla.client.admin.topic_admin import Partition, Topic
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.local.waiting import wait_for
from tests.cli.commands import Ottla


def test_settings_are_shown_changed_and_returned_to_their_defaults(ottla, topic):
    assert ottla("configs", "describe", "topic", topic) == "everything is at its default; --all shows it\n"
    ottla("configs", "set", "topic", topic, "retention.ms=1000", "cleanup.policy=compact")
    entries = {each["name"]: each for each in ottla.json("configs", "describe", "topic", topic)}
    assert entries["retention.ms"] == {
        "name": "retention.ms", "value": "1000", "source": "topic", "read_only": False, "sensitive": False,
        "no_effect": False,
    }  # fmt: skip
    assert ["cleanup.policy", "compact", "topic"] in [
        line.split() for line in ottla("configs", "describe", "topic", topic).splitlines()
    ]
    ottla("configs", "unset", "topic", topic, "retention.ms", "cleanup.policy")
    assert ottla.json("configs", "describe", "topic", topic) == []
    assert len(ottla.json("configs", "describe", "topic", topic, "--all")) > 20


def test_a_broker_and_all_brokers_have_settings(ottla):
    assert any(each["name"] == "broker.id" for each in ottla.json("configs", "describe", "broker", "1", "--all"))
    assert isinstance(ottla.json("configs", "describe", "broker", "all"), list)
    assert "there is no broker 77" in ottla("configs", "describe", "broker", "77", status=1)
    ottla("configs", "set", "broker", "all", "log.retention.ms=86400000")
    ottla("configs", "unset", "broker", "all", "log.retention.ms")
    assert "error: broker all: " in ottla("configs", "set", "broker", "all", "broker.id=7", status=1)


def test_wrong_settings_are_refused(ottla, topic):
    assert "retention.ms" in ottla("configs", "set", "topic", topic, "retention.ms=x", status=1)
    assert "`ottla configs set`" in ottla("configs", "unset", "topic", topic, "retention.ms=5", status=2)
    assert "`ottla topics list`" in ottla("configs", "describe", "topic", "no-such-topic", status=1)


def test_a_setting_without_effect_is_taken_and_shown_as_such(ottla):
    ottla("configs", "set", "broker", "all", "num.io.threads=16")
    shown = [line for line in ottla("configs", "describe", "broker", "all").splitlines() if "num.io.threads" in line]
    assert [line.split(maxsplit=2) for line in shown] == [
        ["num.io.threads", "16", "all brokers, dynamic; has no effect"]
    ]
    (row,) = (each for each in ottla.json("configs", "describe", "broker", "1") if each["name"] == "num.io.threads")
    assert (row["value"], row["no_effect"]) == ("16", True)
    ottla("configs", "unset", "broker", "all", "num.io.threads")
    assert "num.io.threads" not in ottla("configs", "describe", "broker", "all")
    assert "does not speak TLS" in ottla("configs", "set", "broker", "1", "ssl.keystore.location=/k", status=1)


def test_a_group_has_settings_of_its_own(ottla):
    assert ottla("configs", "describe", "group", "kitchen") == "everything is at its default; --all shows it\n"
    ottla("configs", "set", "group", "kitchen", "consumer.session.timeout.ms=50000")
    (row,) = ottla.json("configs", "describe", "group", "kitchen")
    assert (row["name"], row["value"], row["source"]) == ("consumer.session.timeout.ms", "50000", "group")
    assert "45000" in ottla("configs", "set", "group", "kitchen", "consumer.session.timeout.ms=5", status=1)
    ottla("configs", "unset", "group", "kitchen", "consumer.session.timeout.ms")
    assert ottla.json("configs", "describe", "group", "kitchen") == []


def test_the_level_of_a_logger_is_changed(ottla):
    ottla("configs", "set", "logger", "1", "ottla.cluster.view=DEBUG")
    (row,) = (each for each in ottla.json("configs", "describe", "logger", "1") if each["name"] == "ottla.cluster.view")
    assert (row["value"], row["source"]) == ("DEBUG", "logger")
    ottla("configs", "unset", "logger", "1", "ottla.cluster.view")
    assert "does not exist" in ottla("configs", "set", "logger", "1", "no.such=DEBUG", status=1)


def test_a_topic_is_altered(ottla, topic):
    told = ottla("topics", "alter", topic, "--partitions", "5", "--config", "retention.ms=7")
    assert told == f"altered topic {topic}\n"
    [described] = ottla.json("topics", "describe", topic)
    assert (len(described["partitions"]), described["configs"]) == (5, {"retention.ms": "7"})
    ottla("topics", "alter", topic, "--delete-config", "retention.ms")
    assert ottla.json("topics", "describe", topic)[0]["configs"] == {}
    assert "nothing to change" in ottla("topics", "alter", topic, status=2)
    ottla("topics", "alter", topic, "--partitions", "2", status=1)


def test_only_partitions_in_trouble_are_shown_if_that_is_wanted(ottla, topic):
    assert ottla.json("topics", "describe", topic, "--under-replicated") == []
    assert ottla("topics", "describe", "--unavailable") == ""


def test_a_plan_has_room_for_writers_and_readers():
    needs = plan(Traffic(20_000, 500, 3000, 10_000_000, 2.0, 3, 3, 24))
    assert (needs.for_writing, needs.for_reading, needs.partitions, needs.consumers) == (2, 14, 15, 7)
    assert needs.disk_bytes_per_broker == 20_000 * 2 * 500 * 86_400
    assert plan(Traffic(1, 1, 1000, 1000, 1.0, 1, 1, 1)).partitions == 1


def test_a_plan_is_explained():
    told = Ottla("127.0.0.1:1")("topics", "plan", "--rate", "20000", "--record-size", "500B", "--consumer-rate", "3000")
    assert told.startswith("partitions   15\n")
    assert "ottla topics create NAME --partitions 15 --replication-factor 3" in told
    assert Ottla("127.0.0.1:1").json("topics", "plan", "--rate", "10")["partitions"] == 3
    Ottla("127.0.0.1:1")("topics", "plan", "--rate", "10", "--brokers", "1", status=2)


def test_partitions_are_spread_evenly_and_stay_where_they_can():
    now = {TopicPartition("t", n): (1, 2) for n in range(6)}
    moves = spread(now, [1, 2, 3], None)
    held = [broker for replicas in moves.values() for broker in replicas]
    assert [held.count(broker) for broker in (1, 2, 3)] == [4, 4, 4]
    assert [[replicas[0] for replicas in moves.values()].count(broker) for broker in (1, 2, 3)] == [2, 2, 2]
    assert all(len(set(replicas)) == 2 for replicas in moves.values())
    stayed = sum(broker in (1, 2) for broker in held)
    assert stayed == 8, "only what has to move is moved"
    assert spread(moves, [1, 2, 3], None) == moves
    assert all(set(replicas) == {2, 3} for replicas in spread(now, [2, 3], None).values())
    with pytest.raises(ValueError, match="3 replicas need as many brokers"):
        spread(now, [1, 2], 3)


def test_moves_and_elections_with_nothing_to_do_say_so(ottla, topic):
    moved = ottla.json("reassign", "start", "--move", f"{topic}-0=1")
    assert moved == {"moving": [{"topic": topic, "partition": 0, "replicas": [1]}]}
    assert ottla.json("reassign", "status") == []
    assert ottla.json("elect", topic) == {"elected": []}
    assert ottla("elect", f"{topic}-1") == "nothing was to be done\n"


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
def test_misuse_ends_with_status_2(ottla, arguments):
    ottla(*arguments, status=2)


def test_a_topic_or_partition_that_is_not_there_is_named_at_once(ottla, topic):
    assert "topic nosuch: there is no such topic" in ottla("elect", "nosuch", status=1)
    assert "`ottla topics list`" in ottla("elect", "no-such-topic", status=1)
    assert f"{topic}-9" in ottla("elect", f"{topic}-9", status=1)
    has_three = f"topic {topic} has no partition 9; it has 3"
    assert has_three in ottla("transactions", "producers", f"{topic}-9", status=1)
    assert "`ottla topics list`" in ottla("transactions", "producers", "nosuch-0", status=1)
    assert has_three in ottla("produce", topic, "-p", "9", given="never sent\n", status=1)


def test_a_plan_that_is_none_is_refused(ottla, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("{}")
    assert "is no plan" in ottla("reassign", "start", str(file), status=2)


def test_a_transaction_is_seen_and_ended_from_outside(ottla, topic):
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
        assert "shut out the producer" in ottla("transactions", "abort", name)
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


def test_a_cluster_is_measured(ottla, topic):
    written = ottla.json("bench", "produce", topic, "-n", "500", "-s", "50B", "-X", "linger.ms=0")
    assert (written["records"], written["bytes"]) == (500, 25_000)
    assert written["latency_ms"]["p50"] <= written["latency_ms"]["max"]
    assert ottla.json("bench", "consume", topic, "-n", "500")["bytes"] == 25_000
    assert ottla.json("bench", "consume", topic, "-n", "400", "--arrow")["records"] >= 400
    assert ottla.json("bench", "latency", topic, "-n", "5")["records"] == 5
    assert "5 records, 500 B in" in ottla("bench", "produce", topic, "-n", "5", "--rate", "1000")


def test_an_empty_topic_cannot_be_read_for_speed(ottla, topic):
    assert f"`ottla bench produce {topic}` fills it" in ottla("bench", "consume", topic, status=1)


def test_tls_where_none_is_expected_is_recognised():
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


def test_json_is_json_everywhere(ottla, topic):
    for arguments in (["topics", "list"], ["groups", "list"], ["reassign", "status"], ["transactions", "list"]):
        assert isinstance(json.loads(ottla(*arguments, "--json")), list)


def test_brokers_that_are_missing_are_named_together():
    topic = Topic("orders", bytes(16), False, (Partition(0, 1, 0, (1, 2, 3), (1,)),))
    told = too_few_in_sync(topic, 2)
    assert told is not None
    assert told.hint is not None
    assert told.hint.startswith("Start brokers 2 and 3 again, or wait until they have caught up; ")


@pytest.mark.ottla(brokers=2)
def test_a_partition_that_nobody_leads_or_with_too_few_in_sync_is_named_with_what_to_do(ottla_cluster):
    topic = ottla_cluster.create_topic(replication_factor=1)
    safe = ottla_cluster.create_topic(replication_factor=2, config={"min.insync.replicas": 2})
    lost = ottla_cluster.kill_leader(topic)
    ottla = Ottla(ottla_cluster.bootstrap_servers)
    wait_for(lambda: "none" in ottla("topics", "describe", topic), f"the loss of broker {lost}")
    quickly = ["-X", "delivery.timeout.ms=2000", "-X", "request.timeout.ms=1000"]
    for command in (["consume", topic, "-e"], ["produce", topic, *quickly], ["bench", "produce", topic, *quickly]):
        told = ottla(*command, given="x\n", status=75)
        assert f"{topic}-0 has no leader now" in told
        assert "`ottla topics describe` shows which brokers have its replicas" in told
    for command in (["produce", safe, *quickly], ["bench", "produce", safe, *quickly]):
        told = ottla(*command, given="x\n", status=75)
        assert f"{safe}-0 has 1 of 2 replicas in sync, fewer than min.insync.replicas=2" in told
        assert f"Start broker {lost} again" in told
        assert "busy or paused" not in told
