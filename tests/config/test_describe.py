"""The rows of DescribeConfigs."""

from ottla.config import ConfigSource, load_broker_config
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.describe import describe_broker, describe_dynamic, describe_topic
from ottla.config.topic_config import TOPIC_SETTINGS

TOPIC, DYNAMIC_BROKER, DYNAMIC_CLUSTER, STATIC, DEFAULT = 1, 2, 3, 4, 5


def rows_of(rows):
    assert [row.name for row in rows] == sorted(row.name for row in rows)
    return {row.name: row for row in rows}


def test_all_settings_of_a_topic_are_described_except_internal_ones():
    rows = rows_of(describe_topic({}, load_broker_config()))
    assert set(rows) == set(TOPIC_SETTINGS) - {"internal.segment.bytes"}
    assert all(row.doc and not row.read_only and not row.sensitive for row in rows.values())


def test_the_source_of_a_default_is_default():
    row = rows_of(describe_topic({}, load_broker_config()))["segment.bytes"]
    assert (row.value, row.source, row.kind) == ("1073741824", DEFAULT, 3)
    assert row.synonyms == (("log.segment.bytes", "1073741824", DEFAULT),)


def test_a_topic_setting_is_the_first_synonym():
    config = load_broker_config(flags={"log.retention.hours": "1"}).with_dynamic(
        cluster={"log.retention.ms": "5"}, broker={"log.retention.ms": "6"}
    )
    row = rows_of(describe_topic({"retention.ms": "7"}, config))["retention.ms"]
    assert (row.value, row.source) == ("7", TOPIC)
    assert row.synonyms == (
        ("retention.ms", "7", TOPIC),
        ("log.retention.ms", "6", DYNAMIC_BROKER),
        ("log.retention.ms", "5", DYNAMIC_CLUSTER),
        ("log.retention.hours", "1", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    )


def test_a_broker_value_is_converted_for_the_topic():
    row = rows_of(describe_topic({}, load_broker_config(flags={"log.retention.hours": "1"})))["retention.ms"]
    assert (row.value, row.source) == ("3600000", STATIC)


def test_a_topic_setting_is_described_as_it_was_written():
    row = rows_of(describe_topic({"cleanup.policy": "compact, delete"}, load_broker_config()))["cleanup.policy"]
    assert row.value == "compact, delete"


def test_all_settings_of_a_broker_are_described():
    rows = rows_of(describe_broker(load_broker_config(flags={"num.partitions": "3"})))
    assert set(rows) == {*BROKER_SETTINGS, "node.id", "ottla.version"}
    assert (rows["num.partitions"].value, rows["num.partitions"].source) == ("3", STATIC)
    assert rows["num.partitions"].synonyms == (
        ("num.partitions", "3", STATIC),
        ("num.partitions", "1", DEFAULT),
    )
    assert rows["node.id"].value == rows["broker.id"].value == "1"
    assert rows["broker.id"].read_only
    assert not rows["log.retention.ms"].read_only


def test_a_setting_with_a_value_from_a_synonym_is_described_as_unset():
    rows = rows_of(describe_broker(load_broker_config()))
    assert (rows["log.retention.ms"].value, rows["log.retention.ms"].source) == (None, DEFAULT)
    assert rows["log.retention.hours"].value == "168"


def test_the_cluster_default_resource_has_only_dynamic_settings():
    rows = rows_of(describe_dynamic({"max.connections": "5", "from.the.future": "1"}, ConfigSource.DYNAMIC_CLUSTER))
    assert set(rows) == {"max.connections"}
    assert (rows["max.connections"].value, rows["max.connections"].source) == ("5", DYNAMIC_CLUSTER)
