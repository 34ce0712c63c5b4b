"""The configuration of a topic: its settings, with Kafka's names, and what they resolve to.

Most topic settings have a broker setting that is the default for all topics. Such a row of `TOPIC_SETTINGS` has the
type, the limits, the default and the description of that broker setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.config.broker_config import BrokerConfig, resolved
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.setting import Setting, SettingType, Value
from ottla.errors import ErrorCode, Refused

_BOOLEAN, _INT, _LONG, _LIST = SettingType.BOOLEAN, SettingType.INT, SettingType.LONG, SettingType.LIST
_THROTTLED_REPLICA: Final = r"\*|[0-9]+:[0-9]+"

BROKER_DEFAULTS: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "record.validation": "record.validation",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic setting -> the broker setting that is its default."""


def _with_broker_default(name: str, broker_name: str) -> Setting:
    row = BROKER_SETTINGS[broker_name]
    return Setting(
        name, row.kind, resolved(row, ()), row.doc,
        low=row.low, high=row.high, choices=row.choices, synonyms=((broker_name, 1),),
    )  # fmt: skip


_OWN: Final = (
    Setting("preallocate", _BOOLEAN, False, "Accepted, and has no effect: segments grow as they are written."),
    Setting("internal.segment.bytes", _INT, None, "As segment.bytes, of any size: for tests.", low=1),
    Setting(
        "leader.replication.throttled.replicas",
        _LIST,
        (),
        "Replicas whose leader is throttled: partition:broker pairs, or *.",
        pattern=_THROTTLED_REPLICA,
    ),
    Setting(
        "follower.replication.throttled.replicas",
        _LIST,
        (),
        "Replicas whose follower is throttled: partition:broker pairs, or *.",
        pattern=_THROTTLED_REPLICA,
    ),
    # Tiered storage is not built. The settings exist so that tools find them; what would turn it on is refused.
    Setting("remote.storage.enable", _BOOLEAN, False, "Tiered storage, which Ottla does not have.", choices=("false",)),
    Setting("remote.log.copy.disable", _BOOLEAN, False, "Part of tiered storage; no effect."),
    Setting("remote.log.delete.on.disable", _BOOLEAN, False, "Part of tiered storage; no effect."),
    Setting("local.retention.ms", _LONG, -2, "Part of tiered storage; no effect.", low=-2),
    Setting("local.retention.bytes", _LONG, -2, "Part of tiered storage; no effect.", low=-2),
)

TOPIC_SETTINGS: Final = {
    setting.name: setting for setting in (*(_with_broker_default(*names) for names in BROKER_DEFAULTS.items()), *_OWN)
}
INTERNAL_TOPIC_SETTINGS: Final = frozenset({"internal.segment.bytes"})
"""Settings that are taken but not shown."""


class TopicConfig:
    """Immutable. Attributes are the settings, dots as underscores. Topics without settings share one."""

    __slots__ = (*(setting.attribute for setting in TOPIC_SETTINGS.values()), "compact", "delete", "overrides")

    overrides: Mapping[str, str]
    """The settings of the topic itself, as text."""
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
        for setting in TOPIC_SETTINGS.values():
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
    """Refuse invalid settings of a topic, all in one message. With a broker, its defaults count too."""
    problems: list[str] = []
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            problems.append(f"Unknown topic config name: {name}")
        elif text is None:
            problems.append(f"Null value not supported for topic configs: {name}")
        elif (invalid := setting.refusal(text)) is not None:
            problems.append(invalid)
        else:
            values[name] = setting.parse(text)
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
