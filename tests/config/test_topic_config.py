"""The configuration of a topic, with the defaults of its broker."""

import typing

import pytest

from ottla.config import load_broker_config
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.setting import LONG_MAX, text_of
from ottla.config.topic_config import TOPIC_SETTINGS, TopicConfig, resolve, validate_topic_overrides
from ottla.errors import ErrorCode, Refused


def broker(**flags):
    return load_broker_config(flags={name.replace("_", "."): value for name, value in flags.items()})


def test_a_topic_without_settings_has_the_defaults_of_the_broker():
    config = resolve({}, broker(log_retention_hours="2", message_max_bytes="77", log_cleanup_policy="compact"))
    assert config.retention_ms == 7_200_000
    assert config.max_message_bytes == 77
    assert (config.compact, config.delete) == (True, False)


def test_topics_without_settings_share_one_configuration():
    one = broker()
    assert resolve({}, one) is resolve({}, one)


def test_a_topic_setting_comes_before_that_of_the_broker():
    config = resolve({"retention.ms": "5", "cleanup.policy": "compact,delete"}, broker(log_retention_ms="9"))
    assert config.retention_ms == 5
    assert (config.compact, config.delete) == (True, True)
    assert config.overrides == {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    assert config.get("retention.ms") == 5


def test_internal_segment_bytes_may_be_below_the_limit():
    assert resolve({"internal.segment.bytes": "100"}, broker()).segment_bytes == 100


@pytest.mark.parametrize("setting", TOPIC_SETTINGS.values(), ids=str)
def test_the_default_of_a_topic_setting_is_that_of_the_broker(setting):
    text = text_of(setting.default)
    assert text is None or setting.parse(text) == setting.default
    for name, factor in setting.synonyms:
        assert factor == 1
        assert BROKER_SETTINGS[name].kind == setting.kind
        assert resolve({}, broker()).get(setting.name) == setting.default


def test_every_setting_is_declared_as_an_attribute():
    declared = set(typing.get_type_hints(TopicConfig))
    assert declared == {setting.attribute for setting in TOPIC_SETTINGS.values()} | {
        "overrides",
        "compact",
        "delete",
    }


def test_a_configuration_cannot_be_changed():
    with pytest.raises(AttributeError):
        resolve({}, broker()).retention_ms = 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"no.such": "1"}, "Unknown topic config name: no.such"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "soon"}, "Invalid value soon for configuration retention.ms"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"segment.bytes": "1048575"}, "at least 1048576"),
        ({"cleanup.policy": "shred"}, "a list of compact or delete"),
        ({"compression.type": "brotli"}, "uncompressed, zstd, lz4, snappy, gzip or producer"),
        ({"message.timestamp.type": "logappendtime"}, "CreateTime or LogAppendTime"),
        ({"min.insync.replicas": "0"}, "at least 1"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "from 0 to 1"),
        ({"remote.storage.enable": "true"}, "must be false"),
        ({"leader.replication.throttled.replicas": "one:two"}, "leader.replication.throttled.replicas"),
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "must be at most max.compaction.lag.ms",
        ),
    ],
)
def test_invalid_topic_settings_are_refused(overrides, words):
    with pytest.raises(Refused, match=words) as refused:
        validate_topic_overrides(overrides)
    assert refused.value.code is ErrorCode.invalid_config


def test_all_problems_are_in_one_message():
    with pytest.raises(Refused) as refused:
        validate_topic_overrides({"a": "1", "retention.ms": "x", "flush.ms": "1"})
    assert "name: a" in (refused.value.message or "")
    assert "retention.ms" in (refused.value.message or "")
    assert "flush.ms" not in (refused.value.message or "")


def test_the_brokers_defaults_count_when_lags_are_compared():
    overrides = {"min.compaction.lag.ms": "10"}
    validate_topic_overrides(overrides, broker())
    with pytest.raises(Refused, match="which is 9"):
        validate_topic_overrides(overrides, broker(log_cleaner_max_compaction_lag_ms="9"))


def test_valid_topic_settings_are_accepted():
    validate_topic_overrides(
        {
            "retention.ms": "-1",
            "retention.bytes": "1000000",
            "cleanup.policy": "",
            "max.compaction.lag.ms": str(LONG_MAX),
            "follower.replication.throttled.replicas": "*",
            "leader.replication.throttled.replicas": "0:1,1:2",
            "preallocate": "TRUE",
        }
    )
