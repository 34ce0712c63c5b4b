"""Three broker processes on one store: whichever a client talks to, it is answered as by one cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.admin
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.errors import ErrorCode
from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Connection
from tests.interop.clients import kafka_python_admin

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own")

TOPIC, BROKER = 2, 4
SET = 0
TIMEOUT_MS = 20_000
SETTINGS = (
    "--set", "offsets.topic.replication.factor=3",
    "--set", "offsets.topic.num.partitions=6",
    "--set", "default.replication.factor=2",
    "--set", "num.partitions=3",
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "auto.leader.rebalance.enable=false",
)  # fmt: skip


class Brokers:
    """Brokers 1, 2 and 3, each in a rack of its own; the first to start is controller."""

    def __init__(self, directory: Path) -> None:
        self.all = [
            WatchedBroker(
                directory / f"broker-{number}",
                "--id", str(number), "--store", f"embedded:{directory}/store.db",
                "--set", f"broker.rack=rack-{number}", *SETTINGS,
            )
            for number in (1, 2, 3)
        ]  # fmt: skip

    def start(self) -> Brokers:
        self.all[0].start()
        for broker in self.all[1:]:
            broker.launch()
        for broker in self.all:
            broker.wait_until_ready()
        for broker in self.all:
            wait_for(lambda: len(cluster_of(broker)["brokers"]) == 3, "three brokers")  # noqa: B023
        return self

    def __getitem__(self, number: int) -> WatchedBroker:
        return self.all[number - 1]

    def close(self) -> None:
        for broker in self.all:
            broker.close()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """For tests that leave all brokers alive."""
    started = Brokers(tmp_path_factory.mktemp("brokers"))
    try:
        yield started.start()
    finally:
        started.close()
    stopped = "have no leader, broker [23] led"  # a topic with one replica, seen by a broker that stops later
    complaints = [line for broker in started.all for line in broker.complaints(allowed=[stopped])]
    assert not complaints, "a broker logged:\n" + "\n".join(complaints)


@pytest.fixture
def mortals(tmp_path: Path) -> Iterator[Brokers]:
    """Brokers that may be killed."""
    started = Brokers(tmp_path)
    try:
        yield started.start()
    finally:
        started.close()


def call(broker: WatchedBroker, api: str, version: int, **fields: Any) -> dict[str, Any]:
    with Connection(broker, timeout_s=40) as connection:
        return connection.call(api, version, **fields)


def cluster_of(broker: WatchedBroker) -> dict[str, Any]:
    return call(broker, "describe_cluster", 1, endpoint_type=1)


def topic_of(broker: WatchedBroker, name: str) -> dict[str, Any]:
    """A topic as this broker tells it, without making it."""
    wanted = [{"name": name, "topic_id": None}]
    answer = call(broker, "metadata", 12, topics=wanted, allow_auto_topic_creation=False)
    topic: dict[str, Any] = answer["topics"][0]
    topic["partitions"].sort(key=lambda each: each["partition_index"])
    return topic


def create(broker: WatchedBroker, name: str, partitions: int = 1, replicas: int = 1, **options: Any) -> int:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "assignments": []}
    placed = options.pop("assignments", None)
    if placed is not None:
        rows = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(placed)]
        topic |= {"num_partitions": -1, "replication_factor": -1, "assignments": rows}
    version = options.pop("version", 7)
    answer = call(broker, "create_topics", version, topics=[topic], timeout=TIMEOUT_MS, **options)
    code: int = answer["topics"][0]["error_code"]
    return code


def config_of(broker: WatchedBroker, kind: int, name: str, key: str) -> tuple[int, str | None]:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": [key]}]
    (result,) = call(broker, "describe_configs", 4, resources=resources)["results"]
    return result["error_code"], next((row["value"] for row in result["configs"]), None)


@pytest.mark.parametrize("number", [1, 2, 3])
class TestWhatOnlyTheControllerCanDo:
    """Asked of each broker, and seen there as soon as it is answered."""

    @pytest.mark.parametrize("version", [2, 4, 5, 7])
    def test_topics_are_created(self, brokers, number, version, fresh_name):
        name = fresh_name()
        assert create(brokers[number], name, 2, 3, version=version) == 0
        topic = topic_of(brokers[number], name)
        assert topic["error_code"] == 0
        assert [len(each["replica_nodes"]) for each in topic["partitions"]] == [3, 3]
        assert create(brokers[number], name, version=version) == ErrorCode.topic_already_exists

    def test_create_topics_with_validate_only(self, brokers, number, fresh_name):
        name = fresh_name()
        assert create(brokers[number], name, 1, 3, validate_only=True) == 0
        assert create(brokers[number], name, 1, 4, validate_only=True) == ErrorCode.invalid_replication_factor
        assert topic_of(brokers[number], name)["error_code"] == ErrorCode.unknown_topic_or_partition

    def test_partitions_are_added_and_topics_deleted(self, brokers, number, fresh_name):
        name = fresh_name()
        assert create(brokers[number], name) == 0
        more = [{"name": name, "count": 4, "assignments": None}]
        answer = call(brokers[number], "create_partitions", 3, topics=more, timeout=TIMEOUT_MS)
        assert answer["results"][0]["error_code"] == 0
        assert len(topic_of(brokers[number], name)["partitions"]) == 4
        gone = [{"name": name, "topic_id": None}]
        answer = call(brokers[number], "delete_topics", 6, topics=gone, timeout=TIMEOUT_MS)
        assert (answer["responses"][0]["name"], answer["responses"][0]["error_code"]) == (name, 0)
        assert topic_of(brokers[number], name)["error_code"] == ErrorCode.unknown_topic_or_partition
        answer = call(brokers[number], "delete_topics", 4, topic_names=[name], timeout=TIMEOUT_MS)
        assert answer["responses"][0]["error_code"] == ErrorCode.unknown_topic_or_partition

    def test_configurations_are_altered(self, brokers, number, fresh_name):
        name = fresh_name()
        assert create(brokers[number], name) == 0
        change = {"name": "max.message.bytes", "config_operation": SET, "value": "4711"}
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": [change]}
        answer = call(brokers[number], "incremental_alter_configs", 1, resources=[resource])
        assert answer["responses"][0]["error_code"] == 0
        assert config_of(brokers[number], TOPIC, name, "max.message.bytes") == (0, "4711")
        whole = {"resource_type": TOPIC, "resource_name": name, "configs": [{"name": "retention.ms", "value": "9999"}]}
        answer = call(brokers[number], "alter_configs", 2, resources=[whole])
        assert answer["responses"][0]["error_code"] == 0
        assert config_of(brokers[number], TOPIC, name, "retention.ms") == (0, "9999")
        assert config_of(brokers[number], TOPIC, name, "max.message.bytes") != (0, "4711")

    def test_a_broker_configuration_is_altered_through_another_broker(self, brokers, number):
        other = number % 3 + 1
        value = str(1_000_000 + number)
        change = {"name": "message.max.bytes", "config_operation": SET, "value": value}
        resource = {"resource_type": BROKER, "resource_name": str(other), "configs": [change]}
        answer = call(brokers[number], "incremental_alter_configs", 1, resources=[resource])
        assert answer["responses"][0]["error_code"] == 0
        read = lambda: config_of(brokers[other], BROKER, str(other), "message.max.bytes")  # noqa: E731
        wait_for(lambda: read() == (0, value), "the setting to arrive")
        refused, _ = config_of(brokers[number], BROKER, str(other), "message.max.bytes")
        assert refused == ErrorCode.invalid_request  # as Kafka says it: that broker knows best

    def test_leaders_are_elected_and_replicas_reassigned(self, brokers, number, fresh_name):
        name = fresh_name()
        assert create(brokers[number], name, assignments=[[1, 2]]) == 0
        wanted = [{"topic": name, "partitions": [0]}]
        answer = call(brokers[number], "elect_leaders", 2, topic_partitions=wanted, timeout=TIMEOUT_MS)
        result = answer["replica_election_results"][0]["partition_result"][0]
        assert (answer["error_code"], result["error_code"]) == (0, ErrorCode.election_not_needed)
        moved = [{"name": name, "partitions": [{"partition_index": 0, "replicas": [2, 3]}]}]
        answer = call(brokers[number], "alter_partition_reassignments", 0, topics=moved, timeout=TIMEOUT_MS)
        assert answer["responses"][0]["partitions"][0]["error_code"] == 0

        def arrived() -> bool:
            listed = call(brokers[number], "list_partition_reassignments", 0, topics=None, timeout=TIMEOUT_MS)
            going_on = [topic for topic in listed["topics"] if topic["name"] == name]
            replicas = topic_of(brokers[number], name)["partitions"][0]["replica_nodes"]
            return not going_on and sorted(replicas) == [2, 3]

        wait_for(arrived, "the replicas to move")


class TestRealClients:
    @pytest.mark.parametrize("number", [2, 3])
    def test_confluents_admin_is_served_through_any_broker(self, brokers, number, fresh_name):
        admin = AdminClient({"bootstrap.servers": brokers[number].bootstrap})
        name = fresh_name()
        admin.create_topics([NewTopic(name, 3, 3)])[name].result(30)
        seen = lambda: admin.list_topics(name, timeout=10).topics[name].partitions  # noqa: E731
        wait_for(lambda: len(seen()) == 3, "the topic, wherever it asks")
        admin.delete_topics([name])[name].result(30)
        wait_for(lambda: name not in admin.list_topics(timeout=10).topics, "the topic to go")

    @pytest.mark.parametrize("number", [2, 3])
    def test_kafka_pythons_admin_is_served_through_any_broker(self, brokers, number, fresh_name):
        name = fresh_name()
        with kafka_python_admin(brokers[number].bootstrap) as admin:
            admin.create_topics([kafka.admin.NewTopic(name, 3, 3)])
            wait_for(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3, "the topic, wherever it asks")
            admin.delete_topics([name])
            wait_for(lambda: name not in admin.list_topics(), "the topic to go")

    @pytest.mark.parametrize("number", [2, 3])
    def test_a_topic_is_made_on_first_use_and_a_group_reads_it(self, brokers, number, fresh_name):
        name = fresh_name()
        bootstrap = {"bootstrap.servers": brokers[number].bootstrap}
        producer = Producer({**bootstrap, "acks": "all", "allow.auto.create.topics": True})
        errors: list[object] = []
        for value in range(30):
            producer.produce(name, str(value).encode(), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        assert errors == [None] * 30
        topic = topic_of(brokers[number], name)
        assert [len(each["replica_nodes"]) for each in topic["partitions"]] == [2, 2, 2]
        consumer = Consumer({**bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
        consumer.subscribe([name])
        read: set[int] = set()

        def all_read() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                read.add(int(message.value()))
            return read == set(range(30))

        try:
            wait_for(all_read, "what was produced", 30)
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()


class TestMetadataOfAllBrokers:
    def test_all_brokers_return_the_same_metadata(self, brokers):
        reported = [cluster_of(broker) for broker in brokers.all]
        assert {each["controller_id"] for each in reported} == {1}
        assert len({each["cluster_id"] for each in reported}) == 1
        for each in reported:
            rows = sorted((row["broker_id"], row["host"], row["port"], row["rack"]) for row in each["brokers"])
            assert rows == [(n, brokers[n].host, brokers[n].port, f"rack-{n}") for n in (1, 2, 3)]
        metadata = [call(broker, "metadata", 12, topics=[]) for broker in brokers.all]
        assert {each["controller_id"] for each in metadata} == {1}
        assert all({row["rack"] for row in each["brokers"]} == {"rack-1", "rack-2", "rack-3"} for each in metadata)

    def test_all_brokers_return_the_same_coordinator(self, brokers):
        wait_for(lambda: nodes_of(coordinators(brokers[1])) == {1, 2, 3}, "coordinators on all brokers")
        found = coordinators(brokers[1])
        for broker in (brokers[2], brokers[3]):
            wait_for(lambda: coordinators(broker) == found, "all to know the same")  # noqa: B023
        assert all(port == brokers[node].port for node, port, _ in found.values())

    def test_metadata_has_the_addresses_of_the_listener_asked(self, tmp_path):
        listeners = "listeners=PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0"
        started = [
            WatchedBroker(
                tmp_path / f"broker-{number}",
                "--id", str(number), "--store", f"embedded:{tmp_path}/store.db", "--set", listeners,
                "--set", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
                port=None,
            )
            for number in (1, 2)
        ]  # fmt: skip
        try:
            for broker in started:
                broker.start()
            wait_for(lambda: len(cluster_of(started[0])["brokers"]) == 2, "two brokers")
            outside, inside = zip(*(ports_of(broker) for broker in started), strict=True)
            for broker, ports in ((started[0], outside), (started[1], outside)):
                assert tuple(row["port"] for row in by_id(cluster_of(broker))) == ports
            started[0].port = inside[0]
            assert tuple(row["port"] for row in by_id(cluster_of(started[0]))) == inside
        finally:
            for broker in started:
                broker.close()


def coordinators(broker: WatchedBroker) -> dict[str, tuple[int, int, int]]:
    """Node, port and error for some groups, as this broker tells them."""
    keys = [f"group-{number}" for number in range(20)]
    answers = call(broker, "find_coordinator", 4, coordinator_keys=keys)["coordinators"]
    return {each["key"]: (each["node_id"], each["port"], each["error_code"]) for each in answers}


def nodes_of(found: dict[str, tuple[int, int, int]]) -> set[int]:
    return {node for node, _, _ in found.values()}


def by_id(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(cluster["brokers"], key=lambda row: int(row["broker_id"]))


def ports_of(broker: WatchedBroker) -> tuple[int, int]:
    """From the line that says it is ready."""
    first, second = broker.printed().decode().split(" ready on ")[1].strip().split(", ")
    return int(first.rpartition(":")[2]), int(second.rpartition(":")[2])


class TestWhenABrokerIsGone:
    def test_metadata_after_a_broker_died_has_new_leaders_and_offline_replicas(self, mortals, fresh_name):
        alone, shared = fresh_name(), fresh_name()
        assert create(mortals[1], alone, assignments=[[3]]) == 0
        assert create(mortals[1], shared, assignments=[[3, 2]]) == 0
        mortals[3].kill()

        def settled(number: int) -> bool:
            both = topic_of(mortals[number], alone)["partitions"] + topic_of(mortals[number], shared)["partitions"]
            if len(both) < 2:
                return False
            one, two = both
            return (
                (one["error_code"], one["leader_id"]) == (ErrorCode.leader_not_available, -1)
                and (one["isr_nodes"], one["offline_replicas"]) == ([3], [3])
                and (two["error_code"], two["leader_id"], two["isr_nodes"]) == (0, 2, [2])
                and two["offline_replicas"] == [3]
            )

        for number in (1, 2):
            wait_for(lambda: settled(number), f"broker {number} to know")  # noqa: B023
            assert [row["broker_id"] for row in by_id(cluster_of(mortals[number]))] == [1, 2]
        wanted = {"topics": [{"name": alone}], "response_partition_limit": 10, "cursor": None}
        described = call(mortals[1], "describe_topic_partitions", 0, **wanted)["topics"][0]["partitions"][0]
        assert (described["error_code"], described["leader_id"]) == (ErrorCode.leader_not_available, -1)

    def test_a_controller_request_waits_for_the_next_controller(self, mortals, fresh_name):
        mortals[1].kill()
        name = fresh_name()
        assert create(mortals[3], name, 2, 2) == 0
        assert topic_of(mortals[3], name)["error_code"] == 0
        controller = cluster_of(mortals[3])["controller_id"]
        assert controller in (2, 3)
        wait_for(lambda: cluster_of(mortals[2])["controller_id"] == controller, "one controller")

    def test_a_restarted_controller_does_not_take_the_role_back(self, mortals, fresh_name):
        mortals[1].kill()
        wait_for(lambda: cluster_of(mortals[3])["controller_id"] in (2, 3), "another controller")
        mortals[1].start()
        wait_for(lambda: len(cluster_of(mortals[1])["brokers"]) == 3, "three brokers")
        assert create(mortals[1], fresh_name(), 3, 3) == 0

    def test_groups_of_the_dead_controller_get_another_coordinator(self, mortals):
        wait_for(lambda: nodes_of(coordinators(mortals[1])) == {1, 2, 3}, "coordinators on all brokers")
        mortals[3].kill()
        wait_for(lambda: nodes_of(coordinators(mortals[1])) == {1, 2}, "others to take over")
        wait_for(lambda: coordinators(mortals[2]) == coordinators(mortals[1]), "both to know the same")

    def test_groups_of_a_leaderless_offsets_partition_have_no_coordinator(self, tmp_path):
        arguments = (
            "--store", f"embedded:{tmp_path}/store.db",
            "--set", "offsets.topic.num.partitions=2", "--set", "offsets.topic.replication.factor=1",
        )  # fmt: skip
        one, two = (WatchedBroker(tmp_path / number, "--id", number, *arguments) for number in ("1", "2"))
        try:
            one.start()
            two.start()
            wait_for(lambda: len(cluster_of(one)["brokers"]) == 2, "two brokers")
            wait_for(lambda: nodes_of(coordinators(one)) == {1, 2}, "coordinators on both brokers")
            before = coordinators(one)
            two.kill()
            unavailable = (-1, -1, int(ErrorCode.coordinator_not_available))
            after = {key: unavailable if reported[0] == 2 else reported for key, reported in before.items()}
            wait_for(lambda: coordinators(one) == after, "broker 2 to be missed")
        finally:
            one.close()
            two.close()
