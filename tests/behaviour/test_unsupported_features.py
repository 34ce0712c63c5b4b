"""What clients hear of features that are not there: SCRAM users, quotas, several log directories."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.conftest import EXTERNAL
from tests.harness.raw import Connection
from tests.interop.clients import kafka_python_admin

NONE, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION, INVALID_REQUEST = 0, 3, 35, 42
SECURITY_DISABLED, LOG_DIR_NOT_FOUND, RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE = 54, 57, 91, 92
BROKER_ID_NOT_REGISTERED = 102

ours_only = pytest.mark.skipif(bool(EXTERNAL), reason="Apache Kafka has the feature")


@pytest.fixture
def connection(broker):
    with Connection(broker) as connection:
        yield connection


class TestScramUsers:
    def test_describe_user_scram_credentials_is_empty(self, connection):
        no_users: list[list[dict[str, str]] | None] = [None, []]
        for users in no_users:
            answer = connection.call("describe_user_scram_credentials", 0, users=users)
            assert (answer["error_code"], answer["error_message"], answer["results"]) == (NONE, None, [])

    def test_each_user_that_was_named_is_not_found(self, connection):
        users = [{"name": "alice"}, {"name": "bob"}]
        answer = connection.call("describe_user_scram_credentials", 0, users=users)
        assert answer["error_code"] == NONE
        found = [(each["user"], each["error_code"], each["credential_infos"]) for each in answer["results"]]
        assert sorted(found) == [("alice", RESOURCE_NOT_FOUND, []), ("bob", RESOURCE_NOT_FOUND, [])]
        assert "alice" in answer["results"][0]["error_message"]

    def test_a_user_that_was_named_twice_is_refused_and_the_others_are_answered(self, connection):
        users = [{"name": name} for name in ("bob", "alice", "bob")]
        answer = connection.call("describe_user_scram_credentials", 0, users=users)
        found = sorted((each["user"], each["error_code"]) for each in answer["results"])
        assert found == [("alice", RESOURCE_NOT_FOUND), ("bob", DUPLICATE_RESOURCE)]

    @ours_only
    def test_scram_credentials_cannot_be_altered(self, connection):
        upsertions = [{"name": "bob", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}]
        deletions = [{"name": "alice", "mechanism": 1}]
        answer = connection.call("alter_user_scram_credentials", 0, deletions=deletions, upsertions=upsertions)
        refused = [(each["user"], each["error_code"]) for each in answer["results"]]
        assert refused == [("alice", SECURITY_DISABLED), ("bob", SECURITY_DISABLED)]
        assert all("no SCRAM users" in each["error_message"] for each in answer["results"])

    def test_confluent_kafka(self, broker):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert admin.describe_user_scram_credentials().result(30) == {}
        (bob,) = admin.describe_user_scram_credentials(["bob"]).values()
        with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
            bob.result(30)

    def test_kafka_python(self, broker):
        with kafka_python_admin(broker.bootstrap) as admin:
            assert not admin.describe_user_scram_credentials()


class TestClientQuotas:
    def test_describe_client_quotas_is_empty(self, connection):
        for version in (0, 1):
            for components in ([], [{"entity_type": "user", "match_type": 2, "match": None}]):
                answer = connection.call("describe_client_quotas", version, components=components, strict=True)
                assert (answer["error_code"], answer["error_message"], answer["entries"]) == (NONE, None, [])

    @pytest.mark.parametrize(
        "components",
        [
            [{"entity_type": "", "match_type": 0, "match": "x"}],
            [{"entity_type": "user", "match_type": 1, "match": None}] * 2,
            [{"entity_type": "user", "match_type": 7, "match": None}],
            [{"entity_type": "user", "match_type": 0, "match": None}],
            [{"entity_type": "user", "match_type": 1, "match": "x"}],
            [{"entity_type": kind, "match_type": 2, "match": None} for kind in ("ip", "user")],
        ],
        ids=["no type", "twice", "unknown match", "no name", "default with a name", "ip and user"],
    )
    def test_an_invalid_filter_is_refused(self, connection, components):
        answer = connection.call("describe_client_quotas", 1, components=components, strict=False)
        assert answer["error_code"] == INVALID_REQUEST
        assert answer["entries"] is None

    @pytest.mark.parametrize(("match_type", "match"), [(0, "x"), (2, None), (7, None)])
    def test_an_unknown_entity_type_is_refused(self, connection, match_type, match):
        components = [{"entity_type": "foo", "match_type": match_type, "match": match}]
        answer = connection.call("describe_client_quotas", 1, components=components, strict=False)
        assert (answer["error_code"], answer["entries"]) == (UNSUPPORTED_VERSION, None)
        assert "foo" in answer["error_message"]

    @ours_only
    @pytest.mark.parametrize("validate_only", [True, False])
    def test_client_quotas_cannot_be_set(self, connection, validate_only):
        def entry(name: str | None) -> dict[str, Any]:
            entity = [{"entity_type": "user", "entity_name": name}]
            return {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}

        entries = [entry("alice"), entry(None)]
        answer = connection.call("alter_client_quotas", 1, entries=entries, validate_only=validate_only)
        assert [each["error_code"] for each in answer["entries"]] == [UNSUPPORTED_VERSION] * 2
        assert [each["entity"] for each in answer["entries"]] == [each["entity"] for each in entries]
        assert all("no client quotas" in each["error_message"] for each in answer["entries"])


class TestLogDirectories:
    def test_there_is_no_other_directory_to_move_a_replica_to(self, connection, topic):
        described = connection.call("describe_log_dirs", 5, topics=None)["results"]
        here = described[0]["log_dir"]
        assert [each["is_cordoned"] for each in described] == [False]

        def moved(path: str, name: str, index: int) -> int:
            dirs = [{"path": path, "topics": [{"name": name, "partitions": [index]}]}]
            (result,) = connection.call("alter_replica_log_dirs", 2, dirs=dirs)["results"]
            assert result["topic_name"] == name
            (partition,) = result["partitions"]
            assert partition["partition_index"] == index
            return int(partition["error_code"])

        assert moved("/nowhere", topic, 0) == LOG_DIR_NOT_FOUND
        assert moved(here, topic, 0) == NONE
        assert moved(here, topic, 7) == UNKNOWN_TOPIC_OR_PARTITION
        assert moved(here, "unheard-of", 0) == UNKNOWN_TOPIC_OR_PARTITION


class TestUnregisterBroker:
    def test_a_broker_that_is_not_registered(self, connection):
        answer = connection.call("unregister_broker", 0, broker_id=4711)
        assert answer["error_code"] == BROKER_ID_NOT_REGISTERED
        assert "4711" in answer["error_message"]

    @ours_only
    def test_a_live_broker_stays(self, connection):
        def brokers() -> list[int]:
            described = connection.call("describe_cluster", 1, endpoint_type=1)
            return [each["broker_id"] for each in described["brokers"]]

        before = brokers()
        answer = connection.call("unregister_broker", 0, broker_id=before[0])
        assert answer["error_code"] == INVALID_REQUEST
        assert "alive" in answer["error_message"]
        assert brokers() == before
