"""Configurations beside those of topics and brokers: of single groups, and the levels of a broker's loggers."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from ottla.config.inert_settings import has_no_effect
from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.raw import Connection
from tests.interop.clients import kafka_python_admin

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
NONE, UNSUPPORTED_VERSION, INVALID_CONFIG, INVALID_REQUEST = 0, 35, 40, 42
OF_GROUP, DEFAULT = 8, 5

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"


@pytest.fixture
def connection(broker):
    with Connection(broker) as connection:
        yield connection


def resource(kind: int, name: str, *edits: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in edits]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def alter(connection: Connection, *resources: dict[str, Any], validate_only: bool = False) -> list[tuple[int, str]]:
    answer = connection.call("incremental_alter_configs", 1, resources=list(resources), validate_only=validate_only)
    return [(each["error_code"], each["error_message"] or "") for each in answer["responses"]]


def described(connection: Connection, kind: int, name: str) -> dict[str, dict[str, Any]]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    fields = {"resources": [asked], "include_synonyms": True, "include_documentation": True}
    (result,) = connection.call("describe_configs", 4, **fields)["results"]
    assert result["error_code"] == NONE, result
    return {each["name"]: each for each in result["configs"]}


def listed(connection: Connection, *kinds: int) -> set[tuple[int, str]]:
    answer = connection.call("list_config_resources", 1, resource_types=list(kinds))
    assert answer["error_code"] == NONE
    return {(each["resource_type"], each["resource_name"]) for each in answer["config_resources"]}


def me(connection: Connection) -> str:
    return str(connection.call("describe_cluster", 1, endpoint_type=1)["brokers"][0]["broker_id"])


class TestGroups:
    def test_group_configs_are_set_described_listed_and_removed(self, connection, fresh_name):
        group = fresh_name()
        before = described(connection, GROUP, group)
        assert before[SESSION]["value"] == "45000"
        assert before[SESSION]["config_source"] == DEFAULT
        assert alter(connection, resource(GROUP, group, (SESSION, SET, "50000"))) == [(NONE, "")]
        after = described(connection, GROUP, group)
        assert (after[SESSION]["value"], after[SESSION]["config_source"]) == ("50000", OF_GROUP)
        synonyms = [(each["name"], each["value"], each["source"]) for each in after[SESSION]["synonyms"]]
        assert synonyms == [(SESSION, "50000", OF_GROUP), (f"group.{SESSION}", "45000", DEFAULT)]
        assert after[SESSION]["documentation"]
        assert after[HEARTBEAT]["config_source"] == DEFAULT
        assert (GROUP, group) in listed(connection, GROUP)
        assert described(connection, GROUP, fresh_name())[SESSION]["value"] == "45000", "of no other group"
        assert alter(connection, resource(GROUP, group, (SESSION, DELETE, None))) == [(NONE, "")]
        assert described(connection, GROUP, group)[SESSION]["config_source"] == DEFAULT
        assert (GROUP, group) not in listed(connection, GROUP)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            (SESSION, "1000", "45000"),
            (SESSION, "3600000", "60000"),
            (HEARTBEAT, "1", "5000"),
            (HEARTBEAT, "soon", "soon"),
            (ASSIGNMENT, "-1", "-1"),
            (ASSIGNMENT, "soon", "soon"),
            ("no.such.setting", "1", "no.such.setting"),
            ("retention.ms", "1", "retention.ms"),
        ],
    )
    def test_group_configs_outside_the_brokers_limits_are_refused(self, connection, fresh_name, name, value, said):
        group = fresh_name()
        ((code, message),) = alter(connection, resource(GROUP, group, (name, SET, value)))
        assert code == INVALID_CONFIG
        assert said in message
        assert described(connection, GROUP, group)[SESSION]["config_source"] == DEFAULT

    def test_the_interval_of_assignments_is_stored_and_shown(self, connection, fresh_name):
        group = fresh_name()
        assert alter(connection, resource(GROUP, group, (ASSIGNMENT, SET, "1500"))) == [(NONE, "")]
        shown = described(connection, GROUP, group)
        assert (shown[ASSIGNMENT]["value"], shown[ASSIGNMENT]["config_source"]) == ("1500", OF_GROUP)
        if not EXTERNAL:
            assert has_no_effect(shown[ASSIGNMENT]["documentation"])
        assert shown[SESSION]["config_source"] == DEFAULT, "it is about nothing else"
        assert alter(connection, resource(GROUP, group, (ASSIGNMENT, DELETE, None))) == [(NONE, "")]
        assert (GROUP, group) not in listed(connection, GROUP)

    def test_there_are_no_default_group_configs(self, connection):
        ((code, _),) = alter(connection, resource(GROUP, "", (SESSION, SET, "50000")))
        assert code == INVALID_REQUEST

    def test_validate_only_changes_nothing(self, connection, fresh_name):
        group = fresh_name()
        assert alter(connection, resource(GROUP, group, (SESSION, SET, "50000")), validate_only=True) == [(NONE, "")]
        assert (GROUP, group) not in listed(connection, GROUP)

    def test_members_get_the_heartbeat_interval_of_their_group(self, connection, fresh_name, topic):
        group = fresh_name()

        def interval(epoch: int, member: str) -> Any:
            connection.call("find_coordinator", 1, key=group, key_type=0)
            answer = connection.call(
                "consumer_group_heartbeat", 1, group_id=group, member_id=member, member_epoch=epoch,
                rebalance_timeout=60_000, subscribed_topic_names=[topic], topic_partitions=[],
            )  # fmt: skip
            return answer["error_code"], answer["heartbeat_interval"]

        wait_for(lambda: interval(0, "member-of-a-group-1234") == (NONE, 5000), "the coordinator")
        assert alter(connection, resource(GROUP, group, (HEARTBEAT, SET, "7000"))) == [(NONE, "")]
        assert interval(0, "member-of-a-group-1234") == (NONE, 7000)

    def test_kafka_python(self, broker, fresh_name):
        group = fresh_name()
        with kafka_python_admin(broker.bootstrap) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs={SESSION: "50000"})])
            shown = admin.describe_configs([ConfigResource(ConfigResourceType.GROUP, group)])
        assert "50000" in repr(shown)


class TestListing:
    def test_list_config_resources_returns_every_type(self, connection, topic):
        broker = me(connection)
        everything = listed(connection)
        assert {(TOPIC, topic), (BROKER, broker), (BROKER_LOGGER, broker)} <= everything
        assert everything == listed(connection, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
        assert {kind for kind, _ in listed(connection, TOPIC)} == {TOPIC}
        assert listed(connection, CLIENT_METRICS) == set()

    def test_the_oldest_version_asks_for_client_metrics(self, connection):
        answer = connection.call("list_config_resources", 0)
        assert (answer["error_code"], answer["config_resources"]) == (NONE, [])

    def test_an_unknown_resource_type_is_refused(self, connection):
        answer = connection.call("list_config_resources", 1, resource_types=[TOPIC, 3])
        assert (answer["error_code"], answer["config_resources"]) == (UNSUPPORTED_VERSION, [])

    def test_kafka_python(self, broker, topic):
        with kafka_python_admin(broker.bootstrap) as admin:
            assert topic in repr(admin.list_config_resources())


class TestLoggers:
    NAME = "ottla.cluster.controller"

    def level(self, connection: Connection) -> Any:
        row = described(connection, BROKER_LOGGER, me(connection))[self.NAME]
        assert row["config_source"] == 6
        return row["value"]

    def test_a_logger_level_is_described_altered_and_reset(self, connection):
        broker = me(connection)
        assert self.level(connection) == "INFO"
        assert alter(connection, resource(BROKER_LOGGER, broker, (self.NAME, SET, "DEBUG"))) == [(NONE, "")]
        assert self.level(connection) == "DEBUG"
        assert alter(connection, resource(BROKER_LOGGER, broker, (self.NAME, DELETE, None))) == [(NONE, "")]
        assert self.level(connection) == "INFO"
        assert "root" in described(connection, BROKER_LOGGER, broker)

    def test_a_logger_level_takes_effect(self, start_broker):
        broker = start_broker()
        with Connection(broker) as connection:
            said = "the level of logger"

            def change(level: str) -> str:
                since = len(broker.log_text())
                edit = ("ottla.broker", SET, level)
                assert alter(connection, resource(BROKER_LOGGER, me(connection), edit)) == [(NONE, "")]
                connection.call("api_versions", 0)
                return broker.log_text()[since:]

            assert said in change("INFO")
            assert said not in change("ERROR"), "this logger says nothing of that kind any more"
            assert said in change("TRACE")

    @pytest.mark.parametrize(
        ("edit", "code"),
        [
            (("no.such.logger", SET, "INFO"), INVALID_CONFIG),
            (("ottla.broker", SET, "LOUD"), INVALID_CONFIG),
            (("ottla.broker", SET, None), INVALID_CONFIG),
            (("ottla.broker", APPEND, "INFO"), INVALID_REQUEST),
            (("root", DELETE, None), INVALID_REQUEST),
        ],
    )
    def test_unknown_loggers_and_levels_are_refused_and_change_nothing(self, connection, edit, code):
        broker = me(connection)
        before = described(connection, BROKER_LOGGER, broker)
        fine = (self.NAME, SET, "DEBUG")
        assert [each for each, _ in alter(connection, resource(BROKER_LOGGER, broker, fine, edit))] == [code]
        assert described(connection, BROKER_LOGGER, broker) == before

    def test_altering_loggers_of_another_broker_is_refused(self, connection):
        for name in ("4711", "", "x"):
            ((code, _),) = alter(connection, resource(BROKER_LOGGER, name, ("ottla.broker", SET, "INFO")))
            assert code == INVALID_REQUEST

    def test_loggers_and_topics_in_one_request(self, connection, topic):
        broker = me(connection)
        logger = resource(BROKER_LOGGER, broker, (self.NAME, SET, "WARN"))
        assert alter(connection, logger, resource(TOPIC, topic, ("retention.ms", SET, "1234"))) == [(NONE, "")] * 2
        assert self.level(connection) == "WARN"
        assert described(connection, TOPIC, topic)["retention.ms"]["value"] == "1234"
        assert alter(connection, resource(BROKER_LOGGER, broker, (self.NAME, DELETE, None))) == [(NONE, "")]


def test_a_broker_that_does_not_exist_cannot_be_configured(connection):
    for validate_only in (True, False):
        change = resource(BROKER, "4711", ("log.cleaner.threads", SET, "1"))
        ((code, text),) = alter(connection, change, validate_only=validate_only)
        assert code == INVALID_REQUEST
        assert text.startswith("Unexpected broker id")
        assert "4711" in text
