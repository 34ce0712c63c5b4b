"""Kafka's settings that Ottla knows but does not act on.

Inert ones are accepted, so that a stock server.properties is taken as it is, and named once in the log.
Unsupported ones are refused unless their value is harmless: taking them in silence would promise what is not
kept, such as an authorizer. All other names are unknown, and `load` refuses them with a suggestion.
"""

from __future__ import annotations

from typing import Final

INERT_NAMES: Final = frozenset(
    (
        "allow.everyone.if.no.acl.found",
        "auto.include.jmx.reporter",
        "background.threads",
        "broker.heartbeat.interval.ms",
        "broker.id.generation.enable",
        "client.quota.callback.class",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
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
        "max.connections.per.ip.overrides",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offsets.commit.required.acks",
        "offsets.load.buffer.size",
        "principal.builder.class",
        "process.roles",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "reserved.broker.max.id",
        "security.providers",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "super.users",
        "transaction.state.log.load.buffer.size",
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
    "delegation.token.",
    "group.coordinator.",
    "group.share.",
    "group.streams.",
    "kafka.metrics.",
    "listener.name.",
    "local.log.retention.",
    "log.local.retention.",
    "metadata.",
    "metrics.",
    "password.encoder.",
    "quota.",
    "raft.",
    "remote.fetch.",
    "remote.list.",
    "remote.log.",
    "replication.quota.",
    "sasl.",
    "share.",
    "ssl.",
    "telemetry.",
    "zookeeper.client",
    "zookeeper.ssl.",
)

UNSUPPORTED: Final = {
    "alter.config.policy.class.name": ((), "policies are Java classes, which Ottla cannot load"),
    "authorizer.class.name": ((), "Ottla has no authorization yet, and must not look as if it had"),
    "config.providers": (
        (),
        "values are not looked up elsewhere: write them out, or set OTTLA_... variables",
    ),
    "create.topic.policy.class.name": ((), "policies are Java classes, which Ottla cannot load"),
    "remote.log.storage.system.enable": (("false",), "Ottla has no tiered storage"),
    "zookeeper.ssl.client.enable": (("false",), "Ottla does not speak TLS to ZooKeeper yet"),
}
"""Name -> (harmless values besides none at all, why any other is refused)."""


def is_inert(name: str) -> bool:
    return name in INERT_NAMES or name.startswith(INERT_PREFIXES)


def refusal(name: str, text: str) -> str | None:
    """Why a setting that is known and not supported cannot be taken with this value; None when it can."""
    harmless, why = UNSUPPORTED.get(name, ((), ""))
    text = text.strip()
    return why if why and text and text.lower() not in harmless else None
