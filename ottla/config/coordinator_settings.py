"""The broker settings of groups, offsets, transactions and producer ids: Kafka's names and defaults."""

from __future__ import annotations

from typing import Final

from ottla.config.setting import INT_MAX, Dynamic, Setting, SettingType

_BOOLEAN, _STRING, _INT, _SHORT, _LONG, _LIST = (
    SettingType.BOOLEAN,
    SettingType.STRING,
    SettingType.INT,
    SettingType.SHORT,
    SettingType.LONG,
    SettingType.LIST,
)
_CLUSTER = Dynamic.CLUSTER_WIDE

_OFFSETS = (
    Setting(
        "offsets.topic.num.partitions",
        _INT,
        50,
        "Partitions of the offsets topic; must not change after its creation.",
        low=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        _SHORT,
        3,
        "Replication factor of the offsets topic; it is not created with fewer replicas.",
        low=1,
    ),
    Setting(
        "offsets.topic.compression.codec",
        _INT,
        0,
        "Compression of the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        low=0,
        high=4,
    ),
    Setting("offsets.topic.segment.bytes", _INT, 104857600, "Segment size of the offsets topic.", low=1),
    Setting("offsets.retention.minutes", _INT, 10080, "How long the offsets of an empty group are kept.", low=1),
    Setting("offsets.retention.check.interval.ms", _LONG, 600000, "How often expired offsets are removed.", low=1),
    Setting("offsets.commit.timeout.ms", _INT, 5000, "How long an offset commit waits for replication.", low=1),
    Setting("offset.metadata.max.bytes", _INT, 4096, "The maximum size of the metadata of a committed offset.", low=0),
)

_GROUPS = (
    Setting("group.min.session.timeout.ms", _INT, 6000, "The shortest session timeout of a member.", low=0),
    Setting("group.max.session.timeout.ms", _INT, 1800000, "The longest session timeout of a member.", low=0),
    Setting("group.initial.rebalance.delay.ms", _INT, 3000, "How long a new group waits for more members.", low=0),
    Setting("group.max.size", _INT, INT_MAX, "How many members a group may have.", low=1),
    Setting(
        "group.coordinator.rebalance.protocols",
        _LIST,
        ("classic", "consumer"),
        "The enabled group protocols.",
        choices=("classic", "consumer", "share", "streams"),
    ),
    Setting("group.consumer.session.timeout.ms", _INT, 45000, "Session timeout under the consumer protocol.", low=1),
    Setting("group.consumer.min.session.timeout.ms", _INT, 45000, "The least a group may set it to.", low=1),
    Setting("group.consumer.max.session.timeout.ms", _INT, 60000, "The most a group may set it to.", low=1),
    Setting(
        "group.consumer.heartbeat.interval.ms", _INT, 5000, "Heartbeat interval under the consumer protocol.", low=1
    ),
    Setting("group.consumer.min.heartbeat.interval.ms", _INT, 5000, "The least a group may set it to.", low=1),
    Setting("group.consumer.max.heartbeat.interval.ms", _INT, 15000, "The most a group may set it to.", low=1),
    Setting(
        "group.consumer.max.size", _INT, INT_MAX, "How many members a group of the consumer protocol may have.", low=1
    ),
    Setting(
        "group.consumer.assignors", _LIST, ("uniform", "range"), "Server-side assignors; the first is the default."
    ),
    Setting(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "In which direction a group may be converted between the classic and the consumer protocol.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
)

_TRANSACTIONS = (
    Setting("transaction.state.log.num.partitions", _INT, 50, "Partitions of the transaction topic.", low=1),
    Setting("transaction.state.log.replication.factor", _SHORT, 3, "Replicas of the transaction topic.", low=1),
    Setting("transaction.state.log.min.isr", _INT, 2, "min.insync.replicas of the transaction topic.", low=1),
    Setting("transaction.state.log.segment.bytes", _INT, 104857600, "Segment size of the transaction topic.", low=1),
    Setting(
        "ottla.transaction.version",
        _SHORT,
        2,
        "The version of the transaction protocol (transaction.version) that clients use.",
        low=1,
        high=2,
    ),
    Setting("transaction.max.timeout.ms", _INT, 900000, "The longest timeout a transaction may have.", low=1),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        10000,
        "How often transactions past their timeout are aborted.",
        low=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        3600000,
        "How often expired transactional ids are removed.",
        low=1,
    ),
    Setting(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        True,
        "Whether a leader verifies with the coordinator that a partition is part of the transaction (KIP-890).",
        dynamic=_CLUSTER,
    ),
    Setting(
        "transaction.two.phase.commit.enable", _BOOLEAN, False, "Whether producers may use two-phase commit (KIP-939)."
    ),
    Setting(
        "transactional.id.expiration.ms", _INT, 604800000, "An unused transactional id expires after this time.", low=1
    ),
    Setting(
        "producer.id.expiration.ms",
        _INT,
        86400000,
        "The state of an idempotent producer that has not written for this long expires.",
        low=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "partition.producer.ids.max",
        _INT,
        10000,
        "How many idempotent producers a partition remembers; above it the longest idle ones expire.",
        low=1,
    ),
    Setting(
        "producer.id.expiration.check.interval.ms", _INT, 600000, "How often expired producer ids are removed.", low=1
    ),
)

COORDINATOR_SETTINGS: Final = _OFFSETS + _GROUPS + _TRANSACTIONS
