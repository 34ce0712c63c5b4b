"""Requests of a client's state machines: the broker each goes to, its timeout, and the backoff before a retry.

The contract between a machine (`metadata`, `accumulator`, `fetcher` and others) and its shell:
- `decide(now)` gives what is to be done, after whatever happened (to any of the machines) and when `deadline` has
  passed. It never waits.
- `Send`: to that broker (or to `any_broker`, if it is for ANY_NODE), in order with other requests of its kind, in the
  highest common version. Then `answered`, or `failed` when the connection is lost or `timeout_s` is over. A shell that
  gives up on one request closes the connection, and fails everything that was sent on it, before it connects again.
- `Send.awaited` false: no answer comes. `answered` is not called; `failed` need not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.wire.tree import Message

NO_NODE: Final = -1
CONSUMER: Final = -1
"""The replica id of a client."""
BACKOFF_DOUBLINGS_MAX: Final = 16

SETTLING: Final = frozenset({ErrorCode.concurrent_transactions, ErrorCode.unstable_offset_commit})
"""The transaction before has been decided on, and its markers are being written: a matter of milliseconds."""
SETTLING_MS: Final = 20
"""After so long one asks again; Kafka's own producers do, too."""

STALE_METADATA: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id, ErrorCode.leader_not_available, ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch, ErrorCode.kafka_storage_error, ErrorCode.listener_not_found,
        ErrorCode.network_exception,
    }
)  # fmt: skip
"""Errors after which a client should look up the leader."""


class Node(NamedTuple):
    """Bootstrap servers have negative ids: their broker ids are not known yet."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


ANY_NODE: Final = Node(-(2**31), "", 0)
"""Any reachable broker: for requests that every broker can answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    request: Message
    to: Node
    timeout_s: float
    awaited: bool = True
    version_max: int | None = None
    """Later versions cannot say what this request says."""


def code_of(number: int) -> ErrorCode:
    """A code that this release does not know is as bad as one that says nothing."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What every machine that sends requests has: Kafka's names and defaults."""

    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    def retry_backoff_s(self, attempts: int, code: ErrorCode = ErrorCode.none) -> float:
        return backoff_s(attempts, self.retry_backoff_ms, self.retry_backoff_max_ms, code)


def backoff_s(attempts: int, first_ms: int, max_ms: int, code: ErrorCode = ErrorCode.none) -> float:
    """Doubling from the first. Without chance in it, so that a run can be repeated."""
    first_ms = min(first_ms, SETTLING_MS) if code in SETTLING else first_ms
    return min(first_ms << min(attempts, BACKOFF_DOUBLINGS_MAX), max_ms) / 1000
