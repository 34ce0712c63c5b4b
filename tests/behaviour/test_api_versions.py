"""Which versions are advertised, and that every advertised version is really spoken, from the lowest on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import EXTERNAL, Served
from tests.harness.raw import Connection, batch, fetch_fields, header_v1, produce_fields

UNSUPPORTED_VERSION = 35

# The ranges of Apache Kafka 4.3 for what is built; Produce says 0 and means 3.
SERVED = {
    "produce": (0, 0, 13),
    "fetch": (1, 4, 18),
    "list_offsets": (2, 1, 11),
    "metadata": (3, 0, 13),
    "api_versions": (18, 0, 4),
    "create_topics": (19, 2, 7),
    "delete_topics": (20, 1, 6),
    "delete_records": (21, 0, 2),
    "init_producer_id": (22, 0, 5),
    "offset_for_leader_epoch": (23, 2, 4),
    "describe_configs": (32, 1, 4),
    "alter_configs": (33, 0, 2),
    "alter_replica_log_dirs": (34, 1, 2),
    "describe_log_dirs": (35, 1, 5),
    "create_partitions": (37, 0, 3),
    "create_delegation_token": (38, 1, 3),
    "renew_delegation_token": (39, 1, 2),
    "expire_delegation_token": (40, 1, 2),
    "describe_delegation_token": (41, 1, 3),
    "incremental_alter_configs": (44, 0, 1),
    "describe_client_quotas": (48, 0, 1),
    "alter_client_quotas": (49, 0, 1),
    "describe_user_scram_credentials": (50, 0, 0),
    "describe_cluster": (60, 0, 2),
    "unregister_broker": (64, 0, 0),
    "list_config_resources": (74, 0, 1),
    "describe_topic_partitions": (75, 0, 0),
}
PRODUCE_ACCEPTED_MIN = 3
REFUSED = {"describe_delegation_token", "unregister_broker"}
"""Answered with an error, by Apache Kafka as well where nothing is set up for them."""
NEGATIVE_TIMES = {"create_delegation_token", "renew_delegation_token", "expire_delegation_token"}
"""Their refusals say -1 for a time, as those of Apache Kafka do, and kio reads no such time: see `tests/broker`."""
BETWEEN_BROKERS = {4, 5, 6, 7, 27, 56, 58, 67}

SPOKEN = [
    (api, version)
    for api, (_, low, high) in SERVED.items()
    if api not in NEGATIVE_TIMES
    for version in range(PRODUCE_ACCEPTED_MIN if api == "produce" else low, high + 1)
]


def request_fields(api: str, topic: str, topic_id: Any) -> dict[str, Any]:
    """A sensible request, in the words of every version at once."""
    resource = {"resource_type": 2, "resource_name": topic}
    offsets = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    epochs = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    fields: dict[str, dict[str, Any]] = {
        "produce": produce_fields(topic, batch()),
        "fetch": fetch_fields(topic, topic_id=topic_id),
        "list_offsets": {"replica_id": -1, "topics": [{"name": topic, "partitions": [offsets]}]},
        "metadata": {"topics": [{"name": topic}], "allow_auto_topic_creation": True},
        "api_versions": {"client_software_name": "raw", "client_software_version": "1"},
        "create_topics": {
            "topics": [{"name": topic + "-new", "num_partitions": 1, "replication_factor": 1}],
            "timeout": 10_000,
        },
        "delete_topics": {
            "topic_names": [topic],
            "topics": [{"name": topic, "topic_id": None}],
            "timeout": 10_000,
        },
        "delete_records": {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 10_000,
        },
        "init_producer_id": {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "offset_for_leader_epoch": {
            "replica_id": -2,
            "topics": [{"topic": topic, "partitions": [epochs]}],
        },
        "describe_configs": {"resources": [{**resource, "configuration_keys": None}]},
        "alter_configs": {"resources": [{**resource, "configs": [{"name": "retention.ms", "value": "1000"}]}]},
        "alter_replica_log_dirs": {"dirs": []},
        "describe_log_dirs": {"topics": None},
        "describe_delegation_token": {"owners": None},
        "describe_client_quotas": {"components": [], "strict": False},
        "alter_client_quotas": {"entries": [], "validate_only": True},
        "describe_user_scram_credentials": {"users": None},
        "unregister_broker": {"broker_id": 4711},
        "list_config_resources": {"resource_types": []},
        "create_partitions": {
            "topics": [{"name": topic, "count": 2, "assignments": None}],
            "timeout": 10_000,
        },
        "incremental_alter_configs": {
            "resources": [{**resource, "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]}]
        },
        "describe_cluster": {"endpoint_type": 1},
        "describe_topic_partitions": {"topics": [{"name": topic}], "response_partition_limit": 100},
    }
    if api == "produce":
        fields["produce"]["topic_data"][0]["topic_id"] = topic_id
    return fields[api]


def error_codes(answer: Any) -> list[int]:
    """Every error code anywhere in an answer."""
    if isinstance(answer, dict):
        own = [answer["error_code"]] if "error_code" in answer else []
        return own + [code for value in answer.values() for code in error_codes(value)]
    if isinstance(answer, list):
        return [code for item in answer for code in error_codes(item)]
    return []


def error_messages(answer: Any) -> list[str | None]:
    """Every error message anywhere in an answer."""
    if isinstance(answer, dict):
        own = [answer["error_message"]] if "error_message" in answer else []
        return own + [text for value in answer.values() for text in error_messages(value)]
    if isinstance(answer, list):
        return [text for item in answer for text in error_messages(item)]
    return []


def advertised(broker: Served) -> dict[int, tuple[int, int]]:
    with Connection(broker) as connection:
        answer = connection.call("api_versions", 3, client_software_name="raw", client_software_version="1")
    return {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}


def topic_id_of(connection: Connection, topic: str) -> Any:
    answer = connection.call("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return answer["topics"][0]["topic_id"]


def test_the_advertised_ranges_are_those_of_kafka(broker):
    ranges = advertised(broker)
    for api, (key, low, high) in SERVED.items():
        assert ranges.get(key) == (low, high), api


@pytest.mark.skipif(bool(EXTERNAL), reason="a controller of Apache Kafka advertises some of them")
def test_apis_between_brokers_are_not_advertised_to_clients(broker):
    assert BETWEEN_BROKERS.isdisjoint(advertised(broker))


@pytest.mark.parametrize(("api", "version"), SPOKEN, ids=lambda part: f"v{part}" if isinstance(part, int) else part)
def test_every_advertised_version_is_served(broker, topic, api, version):
    with Connection(broker) as connection:
        topic_id = topic_id_of(connection, topic)
        answer = connection.call(api, version, **request_fields(api, topic, topic_id))
    assert api in REFUSED or set(error_codes(answer)) <= {0}, answer
    assert answer.get("throttle_time", 0) == 0
    if api not in REFUSED:
        assert set(error_messages(answer)) <= {None}, "where nothing went wrong, nothing is said"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_versions_below_3_are_advertised_and_refused(broker, topic, version):
    with Connection(broker) as connection:
        body = b"\xff\xff\x00\x00\x27\x10" + b"\0\0\0\0"
        connection.send_frame(header_v1(0, version) + body)
        connection.assert_closed()


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker, version):
    with Connection(broker) as connection:
        connection.send_frame(header_v1(18, version, correlation_id=7) + b"\0\4raw\2" + b"1\0")
        answer = connection.receive_response("api_versions", 0, correlation_id=7)
        assert answer["error_code"] == UNSUPPORTED_VERSION
        own = [each for each in answer["api_keys"] if each["api_key"] == 18]
        assert [(each["min_version"], each["max_version"]) for each in own] == [(0, 4)]
        # The connection goes on with a version both sides know.
        assert connection.call("api_versions", 0)["error_code"] == 0


@pytest.mark.parametrize(("api_key", "version"), [(3, 99), (1, 3), (19, 1), (2, 0), (999, 0), (-1, 0), (4, 0), (3, -1)])
def test_an_unknown_key_or_version_closes_the_connection(broker, api_key, version):
    with Connection(broker) as connection:
        connection.send_frame(header_v1(api_key, version) + b"\0" * 64)
        connection.assert_closed()


def test_an_invalid_client_software_name_is_refused(broker):
    with Connection(broker) as connection:
        answer = connection.call("api_versions", 3, client_software_name="not a name!", client_software_version="1")
        assert answer["error_code"] == 42  # INVALID_REQUEST, KIP-511


def test_topic_ids_are_stable_and_not_zero(broker, topic):
    with Connection(broker) as connection:
        first = topic_id_of(connection, topic)
        assert first is not None
        assert first.int != 0
        assert topic_id_of(connection, topic) == first
        by_id = connection.call("metadata", 12, topics=[{"name": None, "topic_id": first}])
        assert by_id["topics"][0]["name"] == topic


def test_produce_with_acks_0_has_no_response(broker, topic):
    with Connection(broker) as connection:
        connection.send_request("produce", 9, produce_fields(topic, batch(), acks=0))
        correlation_id = connection.send_request("api_versions", 0, {})
        assert connection.receive_response("api_versions", 0, correlation_id)["error_code"] == 0


def test_trailing_bytes_of_a_request_are_ignored(broker):
    """librdkafka's request for the metadata of all topics has some, and Apache Kafka does not mind."""
    with Connection(broker) as connection:
        connection.send_frame(header_v1(18, 0) + b"left over")
        connection.receive_frame()
        assert connection.call("api_versions", 0)["error_code"] == 0


def test_sasl_and_acl_requests_are_refused_where_security_is_not_configured(broker):
    acl = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    with Connection(broker) as connection:
        assert connection.call("sasl_handshake", 1, mechanism="PLAIN")["error_code"] == 34  # ILLEGAL_SASL_STATE
        assert connection.call("describe_acls", 3, **acl)["error_code"] == 54  # SECURITY_DISABLED
