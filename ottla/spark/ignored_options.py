"""Options of Spark's Kafka connector that have no effect here: accepted, with a note that says why.

Programs that were written for the connector bring along settings of the Java client. Settings that
have the same effect here are accepted silently; those without a counterpart are noted; those that would have another
effect than expected are refused.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Final

from ottla.client.consuming import consumer
from ottla.client.producing import producer

KAFKA: Final = "kafka."
READING: Final = "reading"
WRITING: Final = "writing"

WITHOUT_EFFECT: Final = {
    **dict.fromkeys(("receive.buffer.bytes", "send.buffer.bytes"), "the operating system sizes the sockets' buffers"),
    **dict.fromkeys(
        ("connections.max.idle.ms", "client.dns.lookup", "metadata.recovery.strategy"),
        "connections are the client's own affair",
    ),
    **dict.fromkeys(
        ("metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
         "auto.include.jmx.reporter", "enable.metrics.push"),
        "there are no metrics of a Java client",
    ),
    **dict.fromkeys(
        ("group.id", "group.instance.id", "group.protocol", "session.timeout.ms", "heartbeat.interval.ms",
         "max.poll.interval.ms", "max.poll.records", "partition.assignment.strategy", "exclude.internal.topics"),
        "the checkpoint holds the position, and no group is joined",
    ),
    **dict.fromkeys(
        ("partitioner.ignore.keys", "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        "keys are hashed as the Java client does",
    ),
}  # fmt: skip
"""Settings of the Java clients without effect here, and the reason."""
SERIALIZERS: Final = {
    "key.deserializer": "keys are bytes; cast them in the query",
    "value.deserializer": "values are bytes; cast them in the query",
    "key.serializer": "keys are bytes or text",
    "value.serializer": "values are bytes or text",
}
PLAIN: Final = ("bytearraydeserializer", "bytearrayserializer", "stringserializer")
"""Serializers, by the ends of their class names, that equal the behaviour here."""
TRUE_ANYWAY: Final = {"enable.idempotence": "true", "enable.auto.commit": "false"}
OF_READING: Final = frozenset(
    name.lower()
    for name in (
        "assign", "subscribe", "subscribePattern", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets",
        "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "failOnDataLoss", "minPartitions",
        "maxRecordsPerPartition", "kafkaConsumer.pollTimeoutMs",
    )
)  # fmt: skip
"""Those of the connector, which looks at none of them when it writes: many programs have one dict for both. The other
way round, `topic`."""


@cache
def understood(kind: str) -> frozenset[str]:
    """The settings of the client that reads or writes."""
    parts = consumer.PARTS if kind == READING else producer.PARTS
    return frozenset(field.name.replace("_", ".") for part in parts for field in fields(part)) | {"bootstrap.servers"}


def is_true(name: str, value: str) -> bool:
    """Whether a setting, without its prefix, has the value that applies here anyway."""
    if name in SERIALIZERS:
        return value.lower().endswith(PLAIN)
    return TRUE_ANYWAY.get(name) == value.lower()


def note(option: str, kind: str) -> str | None:
    """Why an option, by its name in lower case, has no effect; None: it has one, or is unknown."""
    if option == "includeheaders" and kind == WRITING:
        return "the column headers is written wherever there is one"
    if option in OF_READING and kind == WRITING:
        return "it is an option of reading"
    if option == "topic" and kind == READING:
        return "it is an option of writing; subscribe says what is read"
    other = understood(READING if kind == WRITING else WRITING)
    if option.startswith(KAFKA):
        name = option.removeprefix(KAFKA)
        if name in WITHOUT_EFFECT:
            return WITHOUT_EFFECT[name]
        if name in other and name not in understood(kind):
            return f"it is a setting of the client for {READING if kind == WRITING else WRITING}"
        return None
    name = option.replace("_", ".")
    if name in SERIALIZERS:
        return SERIALIZERS[name]
    if name in WITHOUT_EFFECT or name in other or name in understood(kind) or name == "auto.offset.reset":
        return f"settings of the client begin with {KAFKA}, as {KAFKA}{name}"
    return None
