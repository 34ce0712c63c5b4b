"""The broker settings of logs: Kafka's names and defaults. Most are the defaults of topic settings."""

from __future__ import annotations

from typing import Final

from ottla.config.setting import LONG_MAX, Dynamic, Setting, SettingType

_BOOLEAN, _STRING, _INT = SettingType.BOOLEAN, SettingType.STRING, SettingType.INT
_LONG, _DOUBLE, _LIST = SettingType.LONG, SettingType.DOUBLE, SettingType.LIST
_CLUSTER = Dynamic.CLUSTER_WIDE

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES: Final = ("compact", "delete")

LOG_SETTINGS: Final = (
    Setting(
        "log.dir",
        _STRING,
        "ottla-data",
        "The data directory, when log.dirs is not set. Kafka's default is below /tmp, lost at a reboot.",
    ),
    Setting(
        "log.dirs", _LIST, None, "The data directory. Kafka takes several; Ottla takes one.", synonyms=(("log.dir", 1),)
    ),
    Setting("log.segment.bytes", _INT, 1073741824, "A segment is closed at this size.", low=1048576, dynamic=_CLUSTER),
    Setting(
        "log.roll.ms",
        _LONG,
        None,
        "A segment is closed at this age.",
        low=1,
        dynamic=_CLUSTER,
        synonyms=(("log.roll.hours", _HOUR_MS),),
    ),
    Setting("log.roll.hours", _INT, 168, "A segment is closed at this age, when log.roll.ms is not set.", low=1),
    Setting(
        "log.roll.jitter.ms",
        _LONG,
        None,
        "How much earlier a segment may be closed, at random.",
        low=0,
        dynamic=_CLUSTER,
        synonyms=(("log.roll.jitter.hours", _HOUR_MS),),
    ),
    Setting("log.roll.jitter.hours", _INT, 0, "As log.roll.jitter.ms, when that is not set.", low=0),
    Setting(
        "log.retention.ms",
        _LONG,
        None,
        "Records older than this are deleted, a segment at a time; -1 keeps them.",
        low=-1,
        dynamic=_CLUSTER,
        synonyms=(("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)),
    ),
    Setting("log.retention.minutes", _INT, None, "As log.retention.ms, when that is not set.", low=-1),
    Setting(
        "log.retention.hours",
        _INT,
        168,
        "As log.retention.ms, when neither that nor log.retention.minutes is set.",
        low=-1,
    ),
    Setting(
        "log.retention.bytes",
        _LONG,
        -1,
        "A partition larger than this loses its oldest segments; -1 sets no limit.",
        dynamic=_CLUSTER,
    ),
    Setting("log.retention.check.interval.ms", _LONG, 300000, "How often retention is applied.", low=1),
    Setting(
        "log.cleanup.policy",
        _LIST,
        ("delete",),
        "What happens to old records: delete them, compact to the last one of each key, or both.",
        choices=CLEANUP_POLICIES,
        dynamic=_CLUSTER,
    ),
    Setting("log.index.size.max.bytes", _INT, 10485760, "The maximum size of an index file.", low=4, dynamic=_CLUSTER),
    Setting(
        "log.index.interval.bytes", _INT, 4096, "The bytes of log between two index entries.", low=0, dynamic=_CLUSTER
    ),
    Setting(
        "log.flush.interval.messages",
        _LONG,
        LONG_MAX,
        "A partition is synced to disk after this many records; 1 syncs before every acknowledgement.",
        low=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.flush.interval.ms",
        _LONG,
        None,
        "Records are synced to disk after this time.",
        low=0,
        dynamic=_CLUSTER,
        synonyms=(("log.flush.scheduler.interval.ms", 1),),
    ),
    Setting("log.flush.scheduler.interval.ms", _LONG, LONG_MAX, "How often the broker looks for logs to sync.", low=1),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60000,
        "How often recovery points are written to the checkpoint.",
        low=0,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60000,
        "How often log start offsets are written to the checkpoint.",
        low=0,
    ),
    Setting(
        "log.segment.delete.delay.ms",
        _LONG,
        60000,
        "How long a deleted file stays before it is removed.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.message.timestamp.type",
        _STRING,
        "CreateTime",
        "The timestamp of a record: that of the producer (CreateTime) or of the broker (LogAppendTime).",
        choices=TIMESTAMP_TYPES,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "How far in the past the timestamp of a produced record may be.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        _LONG,
        3600000,
        "How far in the future the timestamp of a produced record may be.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting("message.max.bytes", _INT, 1048588, "The largest record batch, as it is sent.", low=0, dynamic=_CLUSTER),
    Setting(
        "compression.type",
        _STRING,
        "producer",
        "The compression of stored batches; producer: as the producer sent them.",
        choices=COMPRESSION_TYPES,
        dynamic=_CLUSTER,
    ),
    Setting(
        "compression.gzip.level",
        _INT,
        -1,
        "The level of gzip, where the broker compresses; -1 is its default.",
        low=-1,
        high=9,
        dynamic=_CLUSTER,
    ),
    Setting(
        "compression.lz4.level",
        _INT,
        9,
        "The level of lz4, where the broker compresses.",
        low=1,
        high=17,
        dynamic=_CLUSTER,
    ),
    Setting(
        "compression.zstd.level",
        _INT,
        3,
        "The level of zstd, where the broker compresses.",
        low=-131072,
        high=22,
        dynamic=_CLUSTER,
    ),
    Setting("log.cleaner.enable", _BOOLEAN, True, "Whether logs are compacted."),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        134217728,
        "The memory of compaction for keys, 24 bytes each; more keys take several passes.",
        low=1024,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "How full log.cleaner.dedupe.buffer.size may become: fuller takes fewer passes and more time in each.",
        low=0.01,
        high=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        1.7976931348623157e308,
        "How many bytes compaction reads and writes per second, in all.",
        low=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        _LONG,
        15000,
        "The pause of compaction when there is nothing to do.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        _DOUBLE,
        0.5,
        "The dirty ratio from which a log is compacted.",
        low=0,
        high=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.delete.retention.ms",
        _LONG,
        86400000,
        "How long a compacted log keeps tombstones.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms",
        _LONG,
        0,
        "How long a record stays uncompacted at least.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "How long a record stays uncompacted at most.",
        low=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "ottla.scrub.interval.ms",
        _LONG,
        604800000,
        "All closed segments are read and checked once in this time, in the background; damage is copied again from "
        "another replica. -1: never.",
        low=-1,
        dynamic=_CLUSTER,
    ),
)
