"""A topic's configuration: what the topic says, and where it says nothing what the broker says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.setting import Value
from ottla.config.topic_settings import TOPIC_SETTINGS
from ottla.errors import ErrorCode, Refused

_BY_NAME: Final = tuple(TOPIC_SETTINGS.values())


class TopicConfig:
    """Immutable. Attributes are the settings, dots as underscores. Topics that say nothing share one."""

    __slots__ = (*(setting.attribute for setting in _BY_NAME), "compact", "delete", "overrides")

    overrides: Mapping[str, str]
    """What the topic itself says, as text."""
    compact: bool
    delete: bool

    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    flush_messages: int
    flush_ms: int
    preallocate: bool
    internal_segment_bytes: int | None
    record_validation: str
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    leader_replication_throttled_replicas: tuple[str, ...]
    follower_replication_throttled_replicas: tuple[str, ...]
    remote_storage_enable: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    local_retention_ms: int
    local_retention_bytes: int

    def __init__(self, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
        put = object.__setattr__
        put(self, "overrides", dict(overrides))
        for setting in _BY_NAME:
            text = overrides.get(setting.name)
            if text is not None:
                value = setting.parse(text)
            elif setting.synonyms:
                value = broker.get(setting.synonyms[0][0])
            else:
                value = setting.default
            put(self, setting.attribute, value)
        put(self, "compact", "compact" in self.cleanup_policy)
        put(self, "delete", "delete" in self.cleanup_policy)
        if self.internal_segment_bytes is not None:
            put(self, "segment_bytes", self.internal_segment_bytes)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set: a configuration does not change, resolve makes another")

    def get(self, name: str) -> Value:
        """The value of a setting by its Kafka name; KeyError if there is no such setting."""
        value: Value = getattr(self, TOPIC_SETTINGS[name].attribute)
        return value


def resolve(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """The configuration of a topic with these overrides, which have been validated, on this broker."""
    if overrides:
        return TopicConfig(overrides, broker)
    if broker._topic_defaults is None:
        object.__setattr__(broker, "_topic_defaults", TopicConfig({}, broker))
    shared = broker._topic_defaults
    assert shared is not None
    return shared


def validate_topic_overrides(overrides: Mapping[str, str | None], broker: BrokerConfig | None = None) -> None:
    """Refuse what a topic cannot be set to, all in one message. With a broker, its defaults count too."""
    problems: list[str] = []
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            problems.append(f"Unknown topic config name: {name}")
        elif text is None:
            problems.append(f"Null value not supported for topic configs: {name}")
        else:
            try:
                values[name] = setting.parse(text)
            except ValueError as problem:
                problems.append(f"Invalid value {text} for configuration {name}: must be {problem}")
    problems.extend(_lag_conflict(values, broker))
    if problems:
        raise Refused(ErrorCode.invalid_config, "; ".join(problems))


def _lag_conflict(values: Mapping[str, Value], broker: BrokerConfig | None) -> list[str]:
    names = ("min.compaction.lag.ms", "max.compaction.lag.ms")
    if not any(name in values for name in names):
        return []
    default = resolve({}, broker).get if broker else lambda name: TOPIC_SETTINGS[name].default
    low, high = (values.get(name, default(name)) for name in names)
    assert isinstance(low, int)
    assert isinstance(high, int)
    return [f"{names[0]} is {low} and must be at most {names[1]}, which is {high}"] if low > high else []
