"""Why a client waits, as text: what a broker answered last, and the setting or command that helps. Pure."""

from __future__ import annotations

from typing import Final

from ottla.errors import ErrorCode

NO_LEADER: Final = (
    "it has no leader; `ottla topics describe {topic}` shows which brokers have its replicas: start one of them"
)
_IN_SYNC: Final = (
    "`ottla topics describe {topic}` shows which replicas are in sync: start the brokers that are missing, or lower "
    "min.insync.replicas of the topic: `ottla configs set topic {topic} min.insync.replicas=1`"
)
_MENDED_BY: Final = {
    ErrorCode.kafka_storage_error: "make room on the disk of its leader, or look at the device",
    ErrorCode.not_enough_replicas: _IN_SYNC,
    ErrorCode.not_enough_replicas_after_append: _IN_SYNC,
    ErrorCode.coordinator_not_available: "`ottla topics describe __consumer_offsets` (for transactions "
    "__transaction_state) shows whether its partitions have a leader and enough replicas in sync",
    ErrorCode.leader_not_available: NO_LEADER,
    ErrorCode.unknown_topic_or_partition: "`ottla topics create {topic}` makes it, `ottla topics list` shows all",
}


def reason(code: ErrorCode, topic: str, message: str | None = None) -> str:
    """What the broker said of the topic, or of one of its partitions, and what helps."""
    words = code.name.replace("_", " ")
    said = f"{words}: {message}" if message and message.lower() != code.name else words
    helps = _MENDED_BY.get(code)
    if code is ErrorCode.coordinator_not_available and said != words:
        helps = None  # our brokers say it themselves
    return said if helps is None else f"{said}; {helps.format(topic=topic)}"
