"""Kafka's settings without effect in Ottla.

Inert ones are accepted, so that a stock server.properties works, and are named once in the log. Those that are dynamic
in Kafka (`INERT_DYNAMIC`) can be set here too: they are stored, and shown as without effect. Unsupported ones are
refused unless their value is harmless, and security settings are refused by name: a user who sets an authorizer must
not believe that there is one. All other names are unknown, and `load` refuses them with a suggestion.
"""

from __future__ import annotations

from typing import Final

from ottla.config.setting import Dynamic, Setting, SettingType

INERT_NAMES: Final = frozenset(
    (
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
        "auto.include.jmx.reporter",
        "background.threads",
        "broker.heartbeat.interval.ms",
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "controller.quota.window.num",
        "controller.quota.window.size.seconds",
        "controller.socket.timeout.ms",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "follower.fetch.last.tiered.offset.enable",
        "group.consumer.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.regex.refresh.interval.ms",
        "initial.broker.registration.timeout.ms",
        "inter.broker.protocol.version",
        "log.cleaner.io.buffer.size",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "log.preallocate",
        "max.connection.creation.rate",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offsets.commit.required.acks",
        "offsets.load.buffer.size",
        "process.roles",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "reserved.broker.max.id",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "transaction.state.log.load.buffer.size",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
        "zookeeper.connect",
        "zookeeper.max.in.flight.requests",
        "zookeeper.metadata.migration.enable",
        "zookeeper.sync.time.ms",
    )
)

INERT_PREFIXES: Final = (
    "alter.log.dirs.replication.quota.",
    "controller.quorum.",
    "group.coordinator.",
    "group.share.",
    "group.streams.",
    "kafka.metrics.",
    "local.log.retention.",
    "log.local.retention.",
    "metadata.",
    "metrics.",
    "quota.",
    "raft.",
    "remote.fetch.",
    "remote.list.",
    "remote.log.",
    "replication.quota.",
    "share.",
    "telemetry.",
)

UNSUPPORTED: Final = {
    "alter.config.policy.class.name": ((), "policies are Java classes, which Ottla cannot load"),
    "authorizer.class.name": ((), "Ottla has no authorization yet, and must not look as if it had"),
    "client.quota.callback.class": ((), "Ottla has no quotas yet, and loads no Java classes"),
    "config.providers": (
        (),
        "values are not looked up elsewhere: write them out, or set OTTLA_... variables",
    ),
    "cordoned.log.dirs": ((), "a broker of Ottla has one log directory; to empty it, reassign its partitions"),
    "create.topic.policy.class.name": ((), "policies are Java classes, which Ottla cannot load"),
    "max.connections.per.ip.overrides": (
        (),
        "max.connections.per.ip holds for every address; to keep an address out, use a firewall",
    ),
    "quota.consumer.default": ((), "Ottla has no quotas yet"),
    "quota.producer.default": ((), "Ottla has no quotas yet"),
    "remote.log.storage.system.enable": (("false",), "Ottla has no tiered storage"),
    "zookeeper.ssl.client.enable": (("false",), "Ottla does not speak TLS to ZooKeeper yet"),
}
"""Name -> (harmless values besides the empty one, why any other is refused)."""

_NO_TLS: Final = "Ottla does not speak TLS yet, and must not look as if it did"
_NO_SASL: Final = "Ottla does not authenticate clients yet, and must not look as if it did"
_NO_ACLS: Final = "Ottla has no authorization yet, and must not look as if it had"
SECURITY_NAMES: Final = {
    "allow.everyone.if.no.acl.found": _NO_ACLS,
    "connection.failed.authentication.delay.ms": _NO_SASL,
    "connections.max.reauth.ms": _NO_SASL,
    "principal.builder.class": _NO_SASL,
    "security.providers": "security providers are Java classes, which Ottla cannot load",
    "super.users": _NO_ACLS,
}
SECURITY_PREFIXES: Final = {
    "delegation.token.": _NO_SASL,
    "listener.name.": "settings of single listeners are about TLS and authentication, which Ottla does not have yet",
    "password.encoder.": "Ottla keeps no passwords among its settings",
    "sasl.": _NO_SASL,
    "ssl.": _NO_TLS,
    "zookeeper.client": "Ottla does not speak TLS to ZooKeeper yet",
    "zookeeper.ssl.": "Ottla does not speak TLS to ZooKeeper yet",
}
"""A user who sets one of these relies on it: accepted without effect, it would fail open."""

_NO_EFFECT: Final = "Has no effect in Ottla"


def _inert(name: str, kind: SettingType, why: str, low: float | None = None) -> Setting:
    return Setting(name, kind, None, f"{_NO_EFFECT}: {why}.", low=low, dynamic=Dynamic.CLUSTER_WIDE)


_THREADS: Final = "one loop serves the broker, and threads are taken as they are needed"
_TIERED: Final = "there is no tiered storage"
_MISSING: Final = "the group protocol that it belongs to is not built"
INERT_DYNAMIC: Final = {
    setting.name: setting
    for setting in (
        _inert("background.threads", SettingType.INT, _THREADS, 1),
        _inert("follower.fetch.last.tiered.offset.enable", SettingType.BOOLEAN, _TIERED),
        _inert("group.consumer.assignment.interval.ms", SettingType.INT, "assignments are made at once", 0),
        _inert("group.coordinator.cached.buffer.max.bytes", SettingType.INT, "buffers are not cached", 512 * 1024),
        _inert("group.share.assignment.interval.ms", SettingType.INT, _MISSING, 0),
        _inert("group.streams.assignment.interval.ms", SettingType.INT, _MISSING, 0),
        _inert("log.cleaner.io.buffer.size", SettingType.INT, "the cleaner reads whole pieces of segments", 0),
        _inert("log.cleaner.threads", SettingType.INT, "one log is cleaned at a time", 0),
        _inert("log.local.retention.bytes", SettingType.LONG, _TIERED, -2),
        _inert("log.local.retention.ms", SettingType.LONG, _TIERED, -2),
        _inert("log.preallocate", SettingType.BOOLEAN, "segments grow as they are written"),
        _inert("max.connection.creation.rate", SettingType.INT, "connections are limited by number", 0),
        _inert("metric.reporters", SettingType.LIST, "reporters are Java classes; see ottla.metrics.port"),
        _inert("num.io.threads", SettingType.INT, _THREADS, 1),
        _inert("num.network.threads", SettingType.INT, _THREADS, 1),
        _inert("num.recovery.threads.per.data.dir", SettingType.INT, _THREADS, 1),
        _inert("num.replica.fetchers", SettingType.INT, "one connection to each leader fetches all its partitions", 1),
        _inert("remote.fetch.max.wait.ms", SettingType.INT, _TIERED, 1),
        _inert("remote.list.offsets.request.timeout.ms", SettingType.LONG, _TIERED, 1),
        _inert("remote.log.index.file.cache.total.size.bytes", SettingType.LONG, _TIERED, 1),
        _inert("remote.log.manager.copier.thread.pool.size", SettingType.INT, _TIERED, 1),
        _inert("remote.log.manager.copy.max.bytes.per.second", SettingType.LONG, _TIERED, 1),
        _inert("remote.log.manager.expiration.thread.pool.size", SettingType.INT, _TIERED, 1),
        _inert("remote.log.manager.fetch.max.bytes.per.second", SettingType.LONG, _TIERED, 1),
        _inert("remote.log.manager.follower.thread.pool.size", SettingType.INT, _TIERED, 1),
        _inert("remote.log.reader.threads", SettingType.INT, _TIERED, 1),
        _inert("replica.alter.log.dirs.io.max.bytes.per.second", SettingType.LONG, "there is one log directory", 0),
        _inert("share.coordinator.cached.buffer.max.bytes", SettingType.INT, _MISSING, 512 * 1024),
    )
}
"""The inert settings that are dynamic in Kafka, all cluster-wide."""


def is_inert(name: str) -> bool:
    return name in INERT_NAMES or name.startswith(INERT_PREFIXES)


def has_no_effect(documentation: str) -> bool:
    """Whether a setting is one of `INERT_DYNAMIC`, by what DescribeConfigs says of it."""
    return documentation.startswith(_NO_EFFECT)


def is_security(name: str) -> bool:
    return name in SECURITY_NAMES or name.startswith(tuple(SECURITY_PREFIXES))


def refusal(name: str, text: str) -> str | None:
    """Why a known, unsupported setting cannot have this value; None when it can."""
    text = text.strip()
    if name in UNSUPPORTED:
        harmless, why = UNSUPPORTED[name]
        return why if text and text.lower() not in harmless else None
    if not text or not is_security(name):
        return None
    return SECURITY_NAMES.get(name) or next(why for prefix, why in SECURITY_PREFIXES.items() if name.startswith(prefix))
