"""The settings of a topic: Kafka's names and defaults, and the broker setting that stands in for each."""

from __future__ import annotations

from typing import Final

from ottla.config.log_settings import CLEANUP_POLICIES, COMPRESSION_TYPES, TIMESTAMP_TYPES
from ottla.config.setting import LONG_MAX, Kind, Setting

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.LONG,
    Kind.DOUBLE,
    Kind.LIST,
)
_WEEK_MS: Final = 604800000
_THROTTLED_REPLICA: Final = r"\*|[0-9]+:[0-9]+"


def _from(broker_setting: str) -> tuple[tuple[str, int], ...]:
    return ((broker_setting, 1),)


_RETENTION = (
    Setting(
        "cleanup.policy",
        _LIST,
        ("delete",),
        "What happens to old records: delete them, compact to the last one of each key, or both.",
        choices=CLEANUP_POLICIES,
        synonyms=_from("log.cleanup.policy"),
    ),
    Setting(
        "retention.ms",
        _LONG,
        _WEEK_MS,
        "Records older than this are deleted; -1 keeps them.",
        low=-1,
        synonyms=_from("log.retention.ms"),
    ),
    Setting(
        "retention.bytes",
        _LONG,
        -1,
        "A partition larger than this loses its oldest segments; -1 sets no limit.",
        synonyms=_from("log.retention.bytes"),
    ),
    Setting(
        "delete.retention.ms",
        _LONG,
        86400000,
        "How long tombstones are kept.",
        low=0,
        synonyms=_from("log.cleaner.delete.retention.ms"),
    ),
    Setting(
        "file.delete.delay.ms",
        _LONG,
        60000,
        "How long a deleted file stays.",
        low=0,
        synonyms=_from("log.segment.delete.delay.ms"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        "The log is compacted when this part of it is not yet.",
        low=0,
        high=1,
        synonyms=_from("log.cleaner.min.cleanable.ratio"),
    ),
    Setting(
        "min.compaction.lag.ms",
        _LONG,
        0,
        "How long a record stays uncompacted at least.",
        low=0,
        synonyms=_from("log.cleaner.min.compaction.lag.ms"),
    ),
    Setting(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "How long a record stays uncompacted at most.",
        low=1,
        synonyms=_from("log.cleaner.max.compaction.lag.ms"),
    ),
)

_SEGMENTS = (
    Setting(
        "segment.bytes",
        _INT,
        1073741824,
        "A segment is closed at this size.",
        low=1048576,
        synonyms=_from("log.segment.bytes"),
    ),
    Setting(
        "segment.ms",
        _LONG,
        _WEEK_MS,
        "A segment is closed at this age.",
        low=1,
        synonyms=_from("log.roll.ms"),
    ),
    Setting(
        "segment.jitter.ms",
        _LONG,
        0,
        "How much earlier, by chance.",
        low=0,
        synonyms=_from("log.roll.jitter.ms"),
    ),
    Setting(
        "segment.index.bytes",
        _INT,
        10485760,
        "The largest an index becomes.",
        low=4,
        synonyms=_from("log.index.size.max.bytes"),
    ),
    Setting(
        "index.interval.bytes",
        _INT,
        4096,
        "An index entry every so many bytes.",
        low=0,
        synonyms=_from("log.index.interval.bytes"),
    ),
    Setting(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "Sync after this many records.",
        low=1,
        synonyms=_from("log.flush.interval.messages"),
    ),
    Setting(
        "flush.ms",
        _LONG,
        LONG_MAX,
        "Sync at the latest after this time.",
        low=0,
        synonyms=_from("log.flush.interval.ms"),
    ),
    Setting("preallocate", _BOOLEAN, False, "Accepted, and has no effect: segments grow as they are written."),
    Setting("internal.segment.bytes", _INT, None, "As segment.bytes, of any size: for tests.", low=1),
)

_RECORDS = (
    Setting(
        "record.validation",
        _STRING,
        "header",
        "What of a produced batch is checked: its header and checksum (header), or every record too (full).",
        choices=("header", "full"),
        synonyms=_from("record.validation"),
    ),
    Setting(
        "max.message.bytes",
        _INT,
        1048588,
        "The largest record batch, as it is sent.",
        low=0,
        synonyms=_from("message.max.bytes"),
    ),
    Setting(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "Whose time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime).",
        choices=TIMESTAMP_TYPES,
        synonyms=_from("log.message.timestamp.type"),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "How far in the past a record's time may lie.",
        low=0,
        synonyms=_from("log.message.timestamp.before.max.ms"),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        _LONG,
        3600000,
        "How far in the future a record's time may lie.",
        low=0,
        synonyms=_from("log.message.timestamp.after.max.ms"),
    ),
    Setting(
        "compression.type",
        _STRING,
        "producer",
        "The codec records are kept in; producer keeps what the producer chose.",
        choices=COMPRESSION_TYPES,
        synonyms=_from("compression.type"),
    ),
    Setting(
        "compression.gzip.level",
        _INT,
        -1,
        "The level of gzip.",
        low=-1,
        high=9,
        synonyms=_from("compression.gzip.level"),
    ),
    Setting(
        "compression.lz4.level",
        _INT,
        9,
        "The level of lz4.",
        low=1,
        high=17,
        synonyms=_from("compression.lz4.level"),
    ),
    Setting(
        "compression.zstd.level",
        _INT,
        3,
        "The level of zstd.",
        low=-131072,
        high=22,
        synonyms=_from("compression.zstd.level"),
    ),
)

_REPLICAS = (
    Setting(
        "min.insync.replicas",
        _INT,
        1,
        "With acks=all, how many replicas must have a record before it is acknowledged.",
        low=1,
        synonyms=_from("min.insync.replicas"),
    ),
    Setting(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        "Whether a replica that may lack records can become leader when no other is left.",
        synonyms=_from("unclean.leader.election.enable"),
    ),
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
)

# Tiered storage is not built. The settings exist so that tools find them; what would turn it on is refused.
_TIERED = (
    Setting(
        "remote.storage.enable",
        _BOOLEAN,
        False,
        "Tiered storage, which Ottla does not have.",
        choices=("false",),
    ),
    Setting("remote.log.copy.disable", _BOOLEAN, False, "Part of tiered storage; no effect."),
    Setting("remote.log.delete.on.disable", _BOOLEAN, False, "Part of tiered storage; no effect."),
    Setting("local.retention.ms", _LONG, -2, "Part of tiered storage; no effect.", low=-2),
    Setting("local.retention.bytes", _LONG, -2, "Part of tiered storage; no effect.", low=-2),
)

TOPIC_SETTINGS: Final = {
    setting.name: setting for table in (_RETENTION, _SEGMENTS, _RECORDS, _REPLICAS, _TIERED) for setting in table
}
INTERNAL_TOPIC_SETTINGS: Final = frozenset({"internal.segment.bytes"})
"""Settings that are taken but not shown."""
