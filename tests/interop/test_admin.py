"""Administration with the clients' own admin classes: topics, partitions, configurations, records."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import aiokafka.admin
import kafka.admin
import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from ottla.local.waiting import wait_for
from tests.interop.clients import CLIENTS, Confluent, Record, kafka_python_admin

CONFLUENT = Confluent()


def config_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(30)
    return found


def alter(admin: AdminClient, topic: str, name: str, value: str | None, operation: AlterConfigOpType) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


class TestConfluent:
    def test_a_topic_is_created_described_and_deleted(self, admin, fresh_name):
        name = fresh_name()
        admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
        described = wait_for(lambda: admin.list_topics(timeout=10).topics.get(name), "the new topic")
        assert sorted(described.partitions) == [0, 1, 2]
        admin.delete_topics([name])[name].result(30)
        wait_for(lambda: name not in admin.list_topics(timeout=10).topics, "the topic to be gone")

    def test_a_name_can_be_used_again_after_deletion_and_starts_empty(self, broker, admin, fresh_name):
        name = fresh_name()
        ids = []
        for _ in range(2):
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
            assert CONFLUENT.produce(broker.bootstrap, name, [Record(b"x")] * 2) == [0, 1]
            described = admin.describe_topics(TopicCollection([name]))[name].result(30)
            ids.append(str(described.topic_id))
            admin.delete_topics([name])[name].result(30)
            wait_for(lambda: name not in admin.list_topics(timeout=10).topics, "the topic to be gone")
        assert ids[0] != ids[1]

    def test_creating_twice_and_deleting_the_unknown_are_errors(self, admin, topic, fresh_name):
        with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        unknown = fresh_name()
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            admin.delete_topics([unknown])[unknown].result(30)

    def test_validate_only_creates_nothing(self, admin, fresh_name):
        name = fresh_name()
        admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(30)
        assert name not in admin.list_topics(timeout=10).topics

    def test_an_explicit_assignment_is_followed(self, admin, fresh_name):
        name = fresh_name()
        node = next(iter(admin.list_topics(timeout=10).brokers))
        wanted = NewTopic(name, 2, replica_assignment=[[node], [node]])
        admin.create_topics([wanted])[name].result(30)
        found = wait_for(lambda: admin.list_topics(timeout=10).topics.get(name), "the new topic")
        assert [partition.replicas for partition in found.partitions.values()] == [[node], [node]]

    def test_partitions_are_added_and_usable(self, broker, admin, topic):
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
        wait_for(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 4, "four partitions")
        records = [Record(b"x", partition=partition) for partition in range(4)]
        assert CONFLUENT.produce(broker.bootstrap, topic, records) == [0, 0, 0, 0]
        with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)

    def test_a_topics_configuration_is_described_altered_and_reset(self, admin, topic):
        before = config_of(admin, ResourceType.TOPIC, topic)
        assert before["retention.ms"].value == "604800000", "seven days"
        assert before["segment.bytes"].value == "1073741824"
        assert before["max.message.bytes"].value == "1048588"
        assert before["retention.ms"].is_default
        alter(admin, topic, "retention.ms", "3600000", AlterConfigOpType.SET)
        changed = config_of(admin, ResourceType.TOPIC, topic)["retention.ms"]
        assert (changed.value, changed.is_default) == ("3600000", False)
        alter(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
        assert config_of(admin, ResourceType.TOPIC, topic)["cleanup.policy"].value == "delete,compact"
        alter(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
        assert config_of(admin, ResourceType.TOPIC, topic)["cleanup.policy"].value == "delete"
        alter(admin, topic, "retention.ms", None, AlterConfigOpType.DELETE)
        assert config_of(admin, ResourceType.TOPIC, topic)["retention.ms"].value == "604800000"

    def test_a_changed_limit_is_in_force_at_once(self, broker, admin, topic):
        alter(admin, topic, "max.message.bytes", "1000", AlterConfigOpType.SET)

        def refused() -> bool:
            try:
                CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x" * 2_000)])
            except KafkaException as error:
                return "MSG_SIZE_TOO_LARGE" in str(error)
            return False

        assert wait_for(refused, "the new limit")

    @pytest.mark.parametrize(("name", "value"), [("retention.ms", "soon"), ("no.such.thing", "1")])
    def test_a_bad_configuration_is_refused(self, admin, topic, name, value):
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            alter(admin, topic, name, value, AlterConfigOpType.SET)

    def test_a_brokers_configuration_is_described(self, admin):
        node = str(next(iter(admin.list_topics(timeout=10).brokers)))
        found = config_of(admin, ResourceType.BROKER, node)
        assert found["log.retention.hours"].value == "168"
        assert found["auto.create.topics.enable"].value == "true"

    def test_records_are_deleted(self, broker, admin, topic):
        CONFLUENT.produce(broker.bootstrap, topic, [Record(str(i).encode()) for i in range(10)])
        partition = TopicPartition(topic, 0, 6)
        deleted = admin.delete_records([partition])[partition].result(30)
        assert deleted.low_watermark == 6
        assert CONFLUENT.bounds(broker.bootstrap, topic) == (6, 10)
        read = CONFLUENT.consume(broker.bootstrap, topic, 4)
        assert [record.value for record in read] == [b"6", b"7", b"8", b"9"]

    def test_offsets_are_listed(self, broker, admin, topic):
        stamps = [1_750_000_000_000, 1_750_000_000_900, 1_750_000_000_500]
        CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x", timestamp_ms=stamp) for stamp in stamps])
        specs = {
            OffsetSpec.earliest(): 0,
            OffsetSpec.latest(): 3,
            OffsetSpec.max_timestamp(): 1,
            OffsetSpec.for_timestamp(1_750_000_000_300): 1,
        }
        for spec, expected in specs.items():
            partition = TopicPartition(topic, 0)
            assert admin.list_offsets({partition: spec})[partition].result(30).offset == expected

    def test_the_cluster_is_described(self, broker, admin):
        described = admin.describe_cluster().result(30)
        assert [f"{node.host}:{node.port}" for node in described.nodes] == [broker.bootstrap]
        assert described.controller.id == described.nodes[0].id
        assert described.cluster_id

    def test_topics_are_described(self, admin, make_topic):
        name = make_topic(partitions=3)
        described = admin.describe_topics(TopicCollection([name]))[name].result(30)
        assert [partition.id for partition in described.partitions] == [0, 1, 2]
        assert not described.is_internal
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            admin.describe_topics(TopicCollection(["no-such"]))["no-such"].result(30)


class TestKafkaPython:
    @pytest.fixture
    def python_admin(self, broker) -> Iterator[Any]:
        with kafka_python_admin(broker.bootstrap) as client:
            yield client

    def test_topics_are_created_listed_described_and_deleted(self, python_admin, fresh_name):
        name = fresh_name()
        python_admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        python_admin.wait_for_topics([name])
        assert name in python_admin.list_topics()
        described = python_admin.describe_topics([name])[0]
        assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1]
        python_admin.delete_topics([name])
        wait_for(lambda: name not in python_admin.list_topics(), "the topic to be gone")

    def test_partitions_are_added(self, python_admin, topic):
        python_admin.create_partitions({topic: 3})

        def indexes() -> list[int]:
            return [each["partition_index"] for each in python_admin.describe_topics([topic])[0]["partitions"]]

        assert wait_for(lambda: indexes() == [0, 1, 2], "three partitions")

    def test_configurations_are_described_and_altered(self, python_admin, topic):
        kind = kafka.admin.ConfigResourceType.TOPIC
        python_admin.alter_configs([kafka.admin.ConfigResource(kind, topic, {"retention.ms": "1234567"})])
        found = python_admin.describe_configs([kafka.admin.ConfigResource(kind, topic)], config_filter="all")
        assert found["topic"][topic]["retention.ms"]["value"] == "1234567"

    def test_records_are_deleted(self, broker, python_admin, topic):
        CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x")] * 5)
        python_admin.delete_records({kafka.TopicPartition(topic, 0): 3})
        assert CONFLUENT.bounds(broker.bootstrap, topic) == (3, 5)

    def test_offsets_are_listed(self, broker, python_admin, topic):
        CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x")] * 5)
        partition = kafka.TopicPartition(topic, 0)
        found = python_admin.list_partition_offsets({partition: kafka.admin.OffsetSpec.LATEST})
        assert found[partition].offset == 5

    def test_the_cluster_and_its_log_directories_are_described(self, broker, python_admin, topic):
        cluster = python_admin.describe_cluster()
        assert [node["port"] for node in cluster["brokers"]] == [broker.port]
        CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x" * 1_000)] * 5)
        assert topic in repr(python_admin.describe_log_dirs())

    def test_topic_partitions_are_described_with_a_cursor(self, python_admin, make_topic):
        name = make_topic(partitions=5)
        described = python_admin.describe_topic_partitions([name], response_partition_limit=2)
        assert name in repr(described)


class TestAiokafka:
    def test_topics_configurations_and_records(self, broker, fresh_name):
        name = fresh_name()

        async def run() -> None:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
            await admin.start()
            try:
                created = await admin.create_topics([aiokafka.admin.NewTopic(name, 1, 1)])
                assert created.topic_errors[0][1] == 0
                assert name in await admin.list_topics()
                await admin.create_partitions({name: aiokafka.admin.NewPartitions(2)})
                described = await admin.describe_topics([name])
                assert len(described[0]["partitions"]) == 2
                kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
                resource = aiokafka.admin.config_resource.ConfigResource
                await admin.alter_configs([resource(kind, name, {"retention.ms": "7654321"})])
                configs = await admin.describe_configs([resource(kind, name)])
                assert "7654321" in repr(configs)
                cluster = await admin.describe_cluster()
                assert [node["port"] for node in cluster["brokers"]] == [broker.port]
                await admin.delete_topics([name])
            finally:
                await admin.close()

        asyncio.run(run())
        with pytest.raises(KafkaException):
            CLIENTS[0].bounds(broker.bootstrap, name)


def test_two_clients_agree_on_a_topics_id(admin, topic):
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert str(described.topic_id) != str(uuid.UUID(int=0))
