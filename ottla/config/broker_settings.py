"""The broker settings that mean something here: Kafka's names and Kafka's defaults, and a few of Ottla's own.

Where a default differs from Kafka's, the sentence says so. Settings that Kafka has and Ottla accepts without
effect are in `inert_settings`.
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
"""Names that mean the same setting: what is set under the first is set under the second."""

_BASICS = (
    Setting(
        "broker.id",
        _INT,
        1,
        "The id of this broker, unique in its cluster. Kafka leaves it to be generated.",
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
    Setting("ottla.metrics.host", _STRING, "127.0.0.1", "The address of that port. It asks nobody who they are."),
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
        "What of a produced batch is checked: its header and checksum (header), or every record too (full).",
        choices=("header", "full"),
    ),
    Setting(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether asking for a topic that does not exist creates it.",
    ),
    Setting("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    Setting("num.partitions", _INT, 1, "How many partitions a topic gets when nobody says.", low=1),
    Setting(
        "default.replication.factor",
        _INT,
        1,
        "How many replicas a partition gets when nobody says.",
        low=1,
        high=2**15 - 1,
    ),
    Setting(
        "max.request.partition.size.limit",
        _INT,
        2000,
        "How many partitions one answer to DescribeTopicPartitions may hold.",
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
        "The addresses clients are told to use, one for each listener that differs from where it listens.",
    ),
    Setting(
        "listener.security.protocol.map",
        _LIST,
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "The security protocol of each listener name. Only PLAINTEXT can be used yet.",
    ),
    Setting(
        "inter.broker.listener.name",
        _STRING,
        None,
        "The listener that brokers use among themselves. Unset: one of their own, beside the first, on any free port.",
    ),
    Setting(
        "security.inter.broker.protocol",
        _STRING,
        "PLAINTEXT",
        "The protocol among brokers, when inter.broker.listener.name does not say. Only PLAINTEXT yet.",
        choices=("PLAINTEXT",),
    ),
    Setting(
        "controller.listener.names",
        _LIST,
        (),
        "Listeners that a Kafka controller would use. Ottla has no controller port, and does not open them.",
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
        "The largest request a client may send; a larger one closes its connection.",
        low=1,
    ),
    Setting("socket.listen.backlog.size", _INT, 50, "How many connections may wait to be accepted.", low=1),
    Setting(
        "max.connections",
        _INT,
        INT_MAX,
        "How many connections the broker keeps at once.",
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
        "A connection silent for this long is closed; -1 never closes one.",
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
    Setting("request.timeout.ms", _INT, 30000, "How long a broker waits for another broker's answer.", low=1),
    Setting("fetch.max.bytes", _INT, 57671680, "The most bytes of records one Fetch is answered with.", low=1024),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "How many fetch sessions the broker remembers.",
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
        "Whether a replica that may lack records can become leader when no other is left.",
        dynamic=_CLUSTER,
    ),
    Setting(
        "replica.lag.time.max.ms",
        _LONG,
        30000,
        "A follower that has not caught up for this long leaves the in-sync set.",
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
    Setting("replica.fetch.max.bytes", _INT, 1048576, "How much a follower asks for of one partition.", low=0),
    Setting("replica.fetch.wait.max.ms", _INT, 500, "How long a follower's fetch waits for records.", low=0),
    Setting("replica.fetch.min.bytes", _INT, 1, "How many bytes a follower's fetch waits for.", low=0),
    Setting("replica.fetch.backoff.ms", _INT, 1000, "How long a follower rests after an error.", low=0),
    Setting("replica.fetch.response.max.bytes", _INT, 10485760, "How much a follower asks for in all.", low=0),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5000,
        "How often high watermarks are written down.",
        low=1,
    ),
    Setting(
        "replica.selector.class",
        _CLASS,
        None,
        "How the replica to read from is chosen; unset, by the consumer's rack.",
    ),
    Setting(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        "Whether leadership moves back to the preferred replicas by itself.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        "How often the balance of leaders is looked after.",
        low=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        "Above this imbalance leaders are moved.",
        low=0,
        high=100,
    ),
    Setting(
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        "Whether a stopping broker hands over its leadership first.",
    ),
    Setting("controlled.shutdown.max.retries", _INT, 3, "How often handing over is tried.", low=0),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        _LONG,
        5000,
        "How long to rest between two tries of handing over.",
        low=0,
    ),
)

_SESSIONS = (
    Setting(
        "broker.session.timeout.ms",
        _INT,
        9000,
        "With an embedded store: a broker that hangs for this long is taken for dead; one that ends is seen at once.",
        low=100,
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        _INT,
        18000,
        "A broker that ZooKeeper has not heard of for this long is taken for dead, and so is one that hangs.",
        low=100,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        _INT,
        None,
        "How long to wait for ZooKeeper at the start; unset, as long as a session lasts.",
        low=1,
    ),
    Setting(
        "zookeeper.auth",
        SettingType.PASSWORD,
        None,
        "Who the broker is to ZooKeeper: digest:USER:PASSWORD, or sasl:USER:PASSWORD for SASL with DIGEST-MD5.",
    ),
    Setting(
        "zookeeper.set.acl",
        _BOOLEAN,
        False,
        "Whether the nodes that brokers make can be written only by who zookeeper.auth says they are.",
    ),
)

BROKER_SETTINGS: Final = {
    setting.name: setting
    for table in (_BASICS, _NETWORK, LOG_SETTINGS, _REPLICATION, COORDINATOR_SETTINGS, _SESSIONS)
    for setting in table
}
