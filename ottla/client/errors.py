"""Errors of the clients, as classes.

`code` is the protocol's, `retriable` says that trying again may help, `fatal` that this client is of no more use, and
`hint` what else may help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.errors import RETRIABLE, ErrorCode

BUSY: Final = "The broker may be busy or paused; look at its log."
"""What to say of a broker that did not answer in time, where nothing is known of the reason."""
FATAL: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed, ErrorCode.fenced_instance_id, ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format, ErrorCode.inconsistent_group_protocol,
    }
)  # fmt: skip


class ClientError(Exception):
    """The base of all errors; also the error for codes without a class of their own."""

    hint: str | None = None
    errors: Mapping[object, ClientError] = {}
    """What became of the parts of a call that failed in parts, by what they were about."""
    results: Mapping[object, object] = {}
    """The results of the parts that succeeded."""
    words: str | None = None
    """What to say when the broker sends a code and no message."""
    said: str | None = None
    """The message of the broker, or of this client, without the subject."""

    def __init__(
        self, message: str, *, code: ErrorCode = ErrorCode.unknown_server_error, retriable: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable

    @property
    def fatal(self) -> bool:
        """Whether the client is unusable: create another one."""
        return self.code in FATAL


class Unreachable(ClientError):
    """No broker answers at the addresses given."""

    hint = "Is a broker running there? `ottla serve` starts one."

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.network_exception, retriable=True)


class ConnectionLost(Unreachable):
    """A broker closed the connection instead of answering."""

    hint = "The broker may have stopped, or refused what it was sent; its log says which."


class HungUp(ConnectionLost):
    """The server closed the connection before it sent anything."""

    hint = "Does that port expect TLS? This client speaks PLAINTEXT only. Or the broker was about to stop."


class TimedOut(ClientError):
    """A broker took longer than the client waits. A message that has the reason needs no hint beside it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, code=ErrorCode.request_timed_out, retriable=True)
        if hint is not None:
            self.hint = hint


SILENT: Final = "has not answered; is a Kafka broker there?"


class NoAnswer(TimedOut):
    """Something listens where a broker should, and says nothing."""

    hint = "Another program may listen there, or a broker that hangs."


class NotUnderstood(ClientError):
    """What answers is no Kafka broker, or one that supports no version that we support."""

    hint = "Is the port that of a Kafka-compatible broker, without TLS?"


class UnknownTopic(ClientError):
    """There is no such topic. Not retriable: no other request creates it."""

    hint = "`ottla topics list` shows the topics there are, `ottla topics create NAME` makes one."
    words = "there is no such topic"


class TopicExists(ClientError):
    """A topic of this name is there already."""


class BadName(ClientError):
    """No topic can have this name."""

    hint = "A name has up to 249 letters, digits, dots, dashes and underscores."


class BadSetting(ClientError):
    """A setting has no such name, or cannot have this value."""


class CommitFailed(ClientError):
    """The coordinator has removed this member, or is about to rebalance."""

    hint = "Another member may read these partitions now, from the last commit on: process records faster, fetch fewer \
at a time (max_poll_records), or raise max_poll_interval_ms."


class Several(ClientError):
    """A call about several things, of which some or all failed. `errors` says which, and why."""

    @classmethod
    def of(cls, what: str, errors: Mapping[object, ClientError]) -> ClientError:
        """One error for one or many; worth trying again only if all of them are."""
        first = next(iter(errors.values()))
        if len(errors) == 1:
            first.errors = dict(errors)
            return first
        shown = "; ".join(dict.fromkeys(str(error) for error in list(errors.values())[:SHOWN_MAX]))
        more = f"; and {len(errors) - SHOWN_MAX} more" if len(errors) > SHOWN_MAX else ""
        retriable = all(error.retriable for error in errors.values())
        several = cls(f"{what}: {len(errors)} failed: {shown}{more}", code=first.code, retriable=retriable)
        several.errors = dict(errors)
        several.hint = first.hint
        return several


SHOWN_MAX: Final = 5
"""So many of several errors are shown in one message."""

_CLASSES: Final[dict[ErrorCode, type[ClientError]]] = {
    ErrorCode.unknown_topic_or_partition: UnknownTopic,
    ErrorCode.topic_already_exists: TopicExists,
    ErrorCode.invalid_topic_exception: BadName,
    ErrorCode.invalid_config: BadSetting,
    ErrorCode.unsupported_version: NotUnderstood,
}


NO_MESSAGE: Final = (None, "", "This server does not host this topic-partition.")
"""What brokers say beside a code when they have nothing to say: less than the words of our own."""


def error_of(code: int, subject: str, message: str | None = None) -> ClientError | None:
    """The exception for an error code; None for success."""
    if code == ErrorCode.none:
        return None
    try:
        known = ErrorCode(code)
    except ValueError:
        return ClientError(f"{subject}: the broker answered with error {code}, which this release does not know")
    chosen = _CLASSES.get(known, ClientError)
    words = chosen.words if message in NO_MESSAGE else message
    words = words or message or known.name.replace("_", " ")
    retriable = known in RETRIABLE and chosen is ClientError
    named = words.lower().startswith(f"{subject.lower()} ")  # no need to name it twice
    error = chosen(f"{subject}: {words[len(subject) + 1 :] if named else words}", code=known, retriable=retriable)
    error.said = words
    return error


NO_LEADER_HINT: Final = (
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
    ErrorCode.leader_not_available: NO_LEADER_HINT,
    ErrorCode.unknown_topic_or_partition: "`ottla topics create {topic}` makes it, `ottla topics list` shows all",
}


def explained(code: ErrorCode, topic: str, message: str | None = None) -> str:
    """Why a client waits: the error of the topic or of one of its partitions, and the remedy."""
    words = code.name.replace("_", " ")
    said = f"{words}: {message}" if message and message.lower() != code.name else words
    helps = _MENDED_BY.get(code)
    if code is ErrorCode.coordinator_not_available and said != words:
        helps = None  # our brokers say it themselves
    return said if helps is None else f"{said}; {helps.format(topic=topic)}"
