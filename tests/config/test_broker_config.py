"""The broker configuration, and dynamic settings."""

import typing

import pytest

from ottla.config import BrokerConfig, ConfigSource, load_broker_config
from ottla.config.broker_config import validate_broker_overrides
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.describe import describe_broker, describe_dynamic
from ottla.config.inert_settings import INERT_DYNAMIC, UNSUPPORTED, has_no_effect, is_inert, is_security
from ottla.config.setting import INT_MAX, Dynamic, SettingType, text_of
from ottla.errors import ErrorCode, Refused

TYPES = {
    SettingType.BOOLEAN: bool,
    SettingType.STRING: str,
    SettingType.INT: int,
    SettingType.SHORT: int,
    SettingType.LONG: int,
    SettingType.DOUBLE: float,
    SettingType.LIST: tuple,
    SettingType.CLASS: str,
    SettingType.PASSWORD: str,
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


def test_every_attribute_is_a_setting():
    attributes = {setting.attribute for setting in BROKER_SETTINGS.values()}
    extra = {"_layers", "_topic_defaults", "endpoints", "inert", "inter_broker_endpoint"}
    assert set(BrokerConfig.__annotations__) == attributes | extra


@pytest.mark.parametrize("setting", BROKER_SETTINGS.values(), ids=str)
def test_every_default_is_valid(setting):
    text = text_of(setting.default)
    assert text is None or setting.parse(text) == setting.default
    assert setting.doc.endswith(".")


def test_no_setting_is_both_active_and_inert():
    assert not [name for name in BROKER_SETTINGS if name in UNSUPPORTED or is_security(name)]
    assert not [name for name in INERT_DYNAMIC if not is_inert(name) or name in BROKER_SETTINGS]
    shadowed = [name for name in BROKER_SETTINGS if is_inert(name)]
    assert shadowed == ["group.coordinator.rebalance.protocols"]  # its family has no effect, it has


KAFKA_DYNAMIC = """
background.threads compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers cordoned.log.dirs follower.fetch.last.tiered.offset.enable follower.replication.throttled.rate
group.consumer.assignment.interval.ms group.coordinator.cached.buffer.max.bytes
group.share.assignment.interval.ms group.streams.assignment.interval.ms leader.replication.throttled.rate
listener.security.protocol.map listeners log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
log.cleaner.delete.retention.ms log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
log.cleaner.min.compaction.lag.ms log.cleaner.threads log.cleanup.policy log.flush.interval.messages
log.flush.interval.ms log.index.interval.bytes log.index.size.max.bytes log.local.retention.bytes
log.local.retention.ms log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
log.message.timestamp.type log.preallocate log.retention.bytes log.retention.ms log.roll.jitter.ms log.roll.ms
log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate max.connections
max.connections.per.ip max.connections.per.ip.overrides message.max.bytes metric.reporters min.insync.replicas
num.io.threads num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers
producer.id.expiration.ms remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
remote.log.reader.threads replica.alter.log.dirs.io.max.bytes.per.second
share.coordinator.cached.buffer.max.bytes transaction.partition.verification.enable
unclean.leader.election.enable
"""
"""What Kafka 4.3 can change at run time (`DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS`), security left out."""
NEED_A_RESTART = {"listener.security.protocol.map", "listeners"}


def test_every_dynamic_setting_of_kafka_is_active_inert_or_refused_with_a_reason():
    def is_dynamic(name: str) -> bool:
        return name in BROKER_SETTINGS and BROKER_SETTINGS[name].dynamic is not Dynamic.READ_ONLY

    names = set(KAFKA_DYNAMIC.split())
    unknown = {name for name in names if name not in INERT_DYNAMIC and name not in UNSUPPORTED and not is_dynamic(name)}
    assert unknown == NEED_A_RESTART
    assert set(INERT_DYNAMIC) <= names


def refused(overrides: dict[str, str | None], *, whole_cluster: bool = True) -> str | None:
    try:
        validate_broker_overrides(overrides, load_broker_config(), whole_cluster=whole_cluster)
    except Refused as refusal:
        return refusal.message if refusal.code is ErrorCode.invalid_config else f"another code: {refusal.code.name}"
    return None


@pytest.mark.parametrize("name", sorted(INERT_DYNAMIC))
@pytest.mark.parametrize("whole_cluster", [True, False])
def test_inert_dynamic_settings_are_accepted_and_shown_as_such(name, whole_cluster):
    value = {SettingType.BOOLEAN: "true", SettingType.INT: "600000", SettingType.LONG: "600000"}.get(
        INERT_DYNAMIC[name].kind, "a,b"
    )
    assert refused({name: value}, whole_cluster=whole_cluster) is None
    config = load_broker_config()
    assert name not in {row.name for row in describe_broker(config)}, "only where it was set"
    here, everywhere = ({}, {name: value}) if whole_cluster else ({name: value}, {})
    (row,) = (row for row in describe_broker(config.with_dynamic(cluster=everywhere, broker=here)) if row.name == name)
    source = ConfigSource.DYNAMIC_CLUSTER if whole_cluster else ConfigSource.DYNAMIC_BROKER
    assert (row.value, row.source, row.read_only) == (value, source.code, False)
    assert has_no_effect(row.doc)
    (row,) = describe_dynamic({name: value}, ConfigSource.DYNAMIC_CLUSTER)
    assert has_no_effect(row.doc)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num.io.threads", "0", "Invalid value 0"),
        ("num.io.threads", "many", "Invalid value many"),
        ("log.preallocate", "perhaps", "Invalid value perhaps"),
        ("ssl.keystore.location", "/k", "does not speak TLS"),
        ("listener.name.outside.ssl.keystore.location", "/k", "cannot be used"),
        ("sasl.jaas.config", "x", "does not authenticate"),
        ("principal.builder.class", "x", "does not authenticate"),
        ("ssl.keystore.location", "", "Cannot update"),
        ("max.connections.per.ip.overrides", "127.0.0.1:0", "holds for every address"),
        ("queued.max.requests", "7", "Cannot update queued.max.requests dynamically"),
        ("group.share.heartbeat.interval.ms", "7", "Cannot update"),
        ("no.such.setting", "7", "Unknown broker config name"),
    ],
)
def test_security_unknown_and_static_settings_are_refused_dynamically(name, value, said):
    for whole_cluster in (True, False):
        assert said in (refused({name: value}, whole_cluster=whole_cluster) or "")


def test_a_configuration_cannot_be_changed():
    config = load_broker_config()
    with pytest.raises(AttributeError):
        config.num_partitions = 5
    with pytest.raises(AttributeError):
        config.no_such_setting = 5


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        load_broker_config().get("no.such.setting")


def test_dynamic_settings_come_before_static_ones():
    started = load_broker_config(flags={"log.retention.ms": "5", "num.partitions": "3"})
    changed = started.with_dynamic(cluster={"log.retention.ms": "6", "message.max.bytes": "7"}, broker={})
    assert (changed.log_retention_ms, changed.source("log.retention.ms")) == (6, ConfigSource.DYNAMIC_CLUSTER)
    assert changed.num_partitions == 3
    again = changed.with_dynamic(cluster={"log.retention.ms": "6"}, broker={"log.retention.ms": "8"})
    assert (again.log_retention_ms, again.source("log.retention.ms")) == (8, ConfigSource.DYNAMIC_BROKER)
    assert again.message_max_bytes == started.message_max_bytes
    assert started.log_retention_ms == 5


def test_unknown_dynamic_settings_of_another_release_are_ignored():
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
def test_invalid_dynamic_settings_are_refused(overrides, whole_cluster, words):
    with pytest.raises(Refused, match=words) as refused:
        validate_broker_overrides(overrides, load_broker_config(), whole_cluster=whole_cluster)
    assert refused.value.code is ErrorCode.invalid_config


def test_valid_dynamic_settings_are_accepted():
    overrides = {"log.retention.ms": "1000", "max.connections": "10", "compression.type": "zstd"}
    validate_broker_overrides(overrides, load_broker_config(), whole_cluster=True)
