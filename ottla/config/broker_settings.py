"""The broker settings: Kafka's names and defaults, and a few of Ottla's own.

Where a default differs from Kafka's, its description says so. Settings that Ottla accepts without effect are in
`inert_settings`.
"""

from __future__ import annotations

from typing import Final

from ottla.config.coordinator_settings import COORDINATOR_SETTINGS
from ottla.config.log_settings import LOG_SETTINGS
from ottla.config.setting import INT_MAX, Dynamic, Setting, SettingType

_BOOLEAN, _STRING, _INT = SettingType.BOOLEAN, SettingType.STRING, SettingType.INT
_LONG, _LIST, _CLASS = SettingType.LONG, SettingType.LIST, SettingType.CLASS
_CLUSTER = Dynamic.CLUSTER_WIDE


ALIASES: Final = {"node.id": "broker.id"}
"""Other names of settings."""

_BASICS = (
    Setting(
        "broker.id",
        _INT,
        1,
        "The id of this broker, unique in its cluster. Kafka can generate it.",
        low=0,
    ),
    Setting(
        "broker.rack",
        _STRING,
        None,
        "The rack of this broker, for spreading replicas and for reading from the nearest one.",
    ),
    Setting(
        "ottla.store",
        _STRING,
        None,
        "Where the cluster's metadata lives: embedded:PATH or zookeeper:HOST:PORT[,...][/chroot]. Unset, it is "
        "store.db in the data directory.",
    ),
    Setting(
        "ottla.metrics.port",
        _INT,
        None,
        "The port of /metrics (for Prometheus), /healthz and /readyz; 0 picks one. Unset, there is none.",
        low=0,
        high=65535,
    ),
    Setting(
        "ottla.metrics.host", _STRING, "127.0.0.1", "The address of ottla.metrics.port, which has no authentication."
    ),
    Setting(
        "ottla.metrics.topics.max",
        _INT,
        1000,
        "How many topics have counters of their own on /metrics (bytes and records, in and out). Further ones are "
        "counted together as (others).",
        low=0,
    ),
    Setting(
        "record.validation",
        _STRING,
        "header",
        "What is checked of a produced batch: header and checksum (header), or every record too (full).",
        choices=("header", "full"),
    ),
    Setting(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether a Metadata request for an unknown topic creates it.",
    ),
    Setting("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    Setting("num.partitions", _INT, 1, "The default number of partitions of a new topic.", low=1),
    Setting(
        "default.replication.factor",
        _INT,
        1,
        "The default replication factor of a new topic.",
        low=1,
        high=2**15 - 1,
    ),
    Setting(
        "max.request.partition.size.limit",
        _INT,
        2000,
        "How many partitions one DescribeTopicPartitions response may have.",
        low=1,
    ),
)

_NETWORK = (
    Setting(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "The addresses to listen on, as NAME://host:port. Kafka's default is all interfaces, ours loopback.",
    ),
    Setting(
        "advertised.listeners",
        _LIST,
        None,
        "The addresses that clients use, for listeners where they differ from the bound address.",
    ),
    Setting(
        "listener.security.protocol.map",
        _LIST,
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "The security protocol of each listener name. Only PLAINTEXT is supported yet.",
    ),
    Setting(
        "inter.broker.listener.name",
        _STRING,
        None,
        "The listener for inter-broker traffic. Unset: a separate one, on the host of the first and any free port.",
    ),
    Setting(
        "security.inter.broker.protocol",
        _STRING,
        "PLAINTEXT",
        "The inter-broker security protocol without inter.broker.listener.name. Only PLAINTEXT yet.",
        choices=("PLAINTEXT",),
    ),
    Setting(
        "controller.listener.names",
        _LIST,
        (),
        "Listeners of a Kafka controller. Ottla has no controller port, and does not open them.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        _INT,
        102400,
        "SO_SNDBUF of client connections; -1 leaves it to the system.",
        low=-1,
    ),
    Setting(
        "socket.receive.buffer.bytes",
        _INT,
        102400,
        "SO_RCVBUF of client connections; -1 leaves it to the system.",
        low=-1,
    ),
    Setting(
        "socket.request.max.bytes",
        _INT,
        104857600,
        "The largest request that a client may send; a larger one closes its connection.",
        low=1,
    ),
    Setting("socket.listen.backlog.size", _INT, 50, "How many connections may wait to be accepted.", low=1),
    Setting(
        "max.connections",
        _INT,
        INT_MAX,
        "How many connections the broker may have at once.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "How many connections one address may have at once.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "connections.max.idle.ms",
        _LONG,
        600000,
        "A connection that is idle for this long is closed; -1: never.",
        low=-1,
    ),
    Setting(
        "queued.max.request.bytes",
        _LONG,
        268435456,
        "How many bytes of unanswered requests all connections may hold together before reading stops; "
        "-1 sets no limit, which is Kafka's default.",
        low=-1,
    ),
    Setting(
        "ottla.queued.max.response.bytes",
        _LONG,
        67108864,
        "How many bytes of large answers may be loaded for all clients together and not be read by them. Each client "
        "gets a smaller part as less is left, and waits when nothing is; -1 sets no limit.",
        low=-1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "connection.inflight.requests.max",
        _INT,
        1000,
        "How many unanswered requests one connection may have before the broker stops reading from it.",
        low=1,
    ),
    Setting(
        "connection.inflight.bytes.max",
        _LONG,
        104857600,
        "How many bytes of unanswered requests and unread answers one connection may hold before the "
        "broker stops reading from it. A single request may be larger.",
        low=1,
    ),
    Setting("request.timeout.ms", _INT, 30000, "How long a broker waits for the response of another broker.", low=1),
    Setting("fetch.max.bytes", _INT, 57671680, "How many bytes of records one Fetch response may have.", low=1024),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "How many fetch sessions the broker caches.",
        low=0,
    ),
)

_REPLICATION = (
    Setting(
        "min.insync.replicas",
        _INT,
        1,
        "With acks=all, how many replicas must have a record before it is acknowledged.",
        low=1,
        dynamic=_CLUSTER,
    ),
    Setting(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        "Whether a replica outside of ISR and ELR can become leader when no other is left. Loses records.",
        dynamic=_CLUSTER,
    ),
    Setting(
        "replica.lag.time.max.ms",
        _LONG,
        30000,
        "A follower that has not caught up for this long leaves the ISR.",
        low=1,
    ),
    Setting(
        "leader.replication.throttled.rate",
        _LONG,
        2**63 - 1,
        "Bytes per second that this broker, as a leader, sends to throttled replicas that are not in sync.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting(
        "follower.replication.throttled.rate",
        _LONG,
        2**63 - 1,
        "Bytes per second that this broker fetches for its throttled replicas that are not in sync.",
        low=0,
        dynamic=_CLUSTER,
    ),
    Setting("replica.fetch.max.bytes", _INT, 1048576, "How many bytes a follower fetches of one partition.", low=0),
    Setting("replica.fetch.wait.max.ms", _INT, 500, "How long a follower's fetch waits for records.", low=0),
    Setting("replica.fetch.min.bytes", _INT, 1, "How many bytes a follower's fetch waits for.", low=0),
    Setting("replica.fetch.backoff.ms", _INT, 1000, "How long a follower waits after an error.", low=0),
    Setting(
        "replica.fetch.response.max.bytes", _INT, 10485760, "How many bytes a follower fetches in one request.", low=0
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5000,
        "How often high watermarks are written to the checkpoint.",
        low=1,
    ),
    Setting(
        "replica.selector.class",
        _CLASS,
        None,
        "How the replica to read from is chosen; unset: by the consumer's rack.",
    ),
    Setting(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        "Whether leadership moves back to the preferred replicas automatically.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        "How often the balance of leaders is checked.",
        low=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        "Leaders move back to a broker above this imbalance.",
        low=0,
        high=100,
    ),
    Setting(
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        "Whether a stopping broker moves its leadership to others first.",
    ),
    Setting("controlled.shutdown.max.retries", _INT, 3, "How often a controlled shutdown is tried.", low=0),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        _LONG,
        5000,
        "The pause between two tries of a controlled shutdown.",
        low=0,
    ),
)

_SESSIONS = (
    Setting(
        "broker.session.timeout.ms",
        _INT,
        9000,
        "The session timeout with an embedded store: for a broker that hangs; the end of a process is seen at once.",
        low=100,
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        _INT,
        18000,
        "The ZooKeeper session timeout: after it a broker that is cut off or hangs is removed from the cluster.",
        low=100,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        _INT,
        None,
        "How long to wait for ZooKeeper at the start; unset: the session timeout.",
        low=1,
    ),
    Setting(
        "zookeeper.auth",
        SettingType.PASSWORD,
        None,
        "The credentials for ZooKeeper: digest:USER:PASSWORD, or sasl:USER:PASSWORD for SASL with DIGEST-MD5.",
    ),
    Setting(
        "zookeeper.set.acl",
        _BOOLEAN,
        False,
        "Whether znodes get an ACL: only the identity of zookeeper.auth can write them.",
    ),
)

BROKER_SETTINGS: Final = {
    setting.name: setting
    for table in (_BASICS, _NETWORK, LOG_SETTINGS, _REPLICATION, COORDINATOR_SETTINGS, _SESSIONS)
    for setting in table
}
