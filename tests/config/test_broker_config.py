"""The broker's configuration as an object, and how it changes while the broker runs."""

import typing

import pytest

from ottla.config import BrokerConfig, Source, load_broker_config, validate_broker_overrides
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.inert_settings import UNSUPPORTED, is_inert
from ottla.config.setting import INT_MAX, Kind, text_of
from ottla.errors import ErrorCode, Refused

TYPES = {
    Kind.BOOLEAN: bool,
    Kind.STRING: str,
    Kind.INT: int,
    Kind.SHORT: int,
    Kind.LONG: int,
    Kind.DOUBLE: float,
    Kind.LIST: tuple,
    Kind.CLASS: str,
    Kind.PASSWORD: str,
}


def test_every_setting_is_declared_as_an_attribute_of_its_type():
    declared = typing.get_type_hints(BrokerConfig, localns={"TopicConfig": object})
    config = load_broker_config()
    for setting in BROKER_SETTINGS.values():
        value = getattr(config, setting.attribute)
        plain = TYPES[setting.kind]
        hint = declared[setting.attribute]
        if value is None:
            assert type(None) in typing.get_args(hint), setting.name
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
        else:
            assert isinstance(value, plain), setting.name
        optional = [each for each in typing.get_args(hint) if isinstance(each, type) and issubclass(each, plain)]
        assert plain in (typing.get_origin(hint), hint) or optional, setting.name


def test_nothing_is_declared_that_is_no_setting():
    attributes = {setting.attribute for setting in BROKER_SETTINGS.values()}
    extra = {"_layers", "_topic_defaults", "endpoints", "inert", "inter_broker_endpoint"}
    assert set(BrokerConfig.__annotations__) == attributes | extra


@pytest.mark.parametrize("setting", BROKER_SETTINGS.values(), ids=str)
def test_a_default_is_a_value_the_setting_may_have(setting):
    text = text_of(setting.default)
    assert text is None or setting.parse(text) == setting.default
    assert setting.doc.endswith(".")


def test_no_setting_is_both_known_and_without_effect():
    assert not [name for name in BROKER_SETTINGS if name in UNSUPPORTED]
    shadowed = [name for name in BROKER_SETTINGS if is_inert(name)]
    assert shadowed == ["group.coordinator.rebalance.protocols"]  # its family has no effect, it has


def test_a_configuration_cannot_be_changed():
    config = load_broker_config()
    with pytest.raises(AttributeError):
        config.num_partitions = 5
    with pytest.raises(AttributeError):
        config.no_such_setting = 5


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        load_broker_config().get("no.such.setting")


def test_what_is_changed_while_running_beats_what_was_started_with():
    started = load_broker_config(flags={"log.retention.ms": "5", "num.partitions": "3"})
    changed = started.with_dynamic(cluster={"log.retention.ms": "6", "message.max.bytes": "7"}, broker={})
    assert (changed.log_retention_ms, changed.source("log.retention.ms")) == (6, Source.DYNAMIC_CLUSTER)
    assert changed.num_partitions == 3
    again = changed.with_dynamic(cluster={"log.retention.ms": "6"}, broker={"log.retention.ms": "8"})
    assert (again.log_retention_ms, again.source("log.retention.ms")) == (8, Source.DYNAMIC_BROKER)
    assert again.message_max_bytes == started.message_max_bytes
    assert started.log_retention_ms == 5


def test_what_an_other_release_stored_does_not_stop_this_one():
    config = load_broker_config().with_dynamic(cluster={"from.the.future": "1", "max.connections": "many"}, broker={})
    assert config.max_connections == INT_MAX


@pytest.mark.parametrize(
    ("overrides", "whole_cluster", "words"),
    [
        ({"broker.id": "2"}, False, "Cannot update broker.id dynamically"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1"}, False, "restart"),
        ({"no.such": "2"}, True, "Unknown broker config name: no.such"),
        ({"max.connections": "-1"}, True, "Invalid value -1 for configuration max.connections"),
        ({"max.connections": None}, True, "Null value"),
        ({"log.retention.ms": "0"}, True, "log.retention.ms"),
        (
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
            True,
            "must be at most",
        ),
    ],
)
def test_what_cannot_be_changed_while_running_is_refused(overrides, whole_cluster, words):
    with pytest.raises(Refused, match=words) as refused:
        validate_broker_overrides(overrides, load_broker_config(), whole_cluster=whole_cluster)
    assert refused.value.code is ErrorCode.invalid_config


def test_what_can_be_changed_while_running_is_accepted():
    overrides = {"log.retention.ms": "1000", "max.connections": "10", "compression.type": "zstd"}
    validate_broker_overrides(overrides, load_broker_config(), whole_cluster=True)
