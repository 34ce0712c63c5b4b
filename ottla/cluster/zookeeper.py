"""All that is said to ZooKeeper through kazoo; nothing else imports it.

A `Client` is one kazoo client with its connection thread, which reports to `told` and answers to a reply object, both
in that thread. Requests are answered in the order they were made. `zookeeper_session` brings all of it to the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.protocol import connection, serialization
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from ottla.cluster.store import Check, Conflict, Create, Delete, Op, SessionLost, SessionState, Set, Why
from ottla.cluster.zookeeper_options import Credentials, ZooKeeperOptions
from ottla.errors import Fault

log = logging.getLogger("ottla.cluster.zookeeper")

RECONNECT_SECONDS_MAX: Final = 1.0

Request = Any
Trouble = KazooException
"""What a request ends with when it fails."""

_WHY: Final = {
    NoNodeError: Why.missing,
    NodeExistsError: Why.exists,
    BadVersionError: Why.version,
    NotEmptyError: Why.not_empty,
    NoChildrenForEphemeralsError: Why.ephemeral_parent,
}
_STATES: Final = {
    KazooState.CONNECTED: SessionState.connected,
    KazooState.SUSPENDED: SessionState.suspended,
    KazooState.LOST: SessionState.lost,
}


class Reply(Protocol):
    """What gets the answer to a request, in kazoo's thread; it may be given several, and only the first counts."""

    def set(self, value: object) -> None: ...

    def set_exception(self, failure: Exception) -> None: ...


class _Nobody:
    """Waits for the answer to a request that needs none."""

    def set(self, value: object) -> None: ...

    def set_exception(self, failure: Exception) -> None: ...


NOBODY: Final = _Nobody()


class SessionKey(NamedTuple):
    """With these a client takes up a session, or ends it."""

    id: int
    password: bytes


class News(NamedTuple):
    """A change of a client's session."""

    state: SessionState
    key: SessionKey | None
    over: bool
    """kazoo will not connect again by itself."""
    refused: bool
    """Because ZooKeeper does not believe who we say we are."""
    reason: str
    session_ms: int
    """How long ZooKeeper keeps a session that it does not hear of: it may not be what was asked for."""


class _Reason(logging.Filter):
    """Keeps what kazoo says of a connection for our own messages, and passes on only what nobody foresaw."""

    last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING and record.msg != "Transition to CONNECTING":
            self.last = record.getMessage().removeprefix("Connection dropped: ")
        return record.levelno > logging.WARNING


class Client:
    """One kazoo client, from start to end; inside it one session may follow another."""

    def __init__(
        self,
        hosts: str,
        options: ZooKeeperOptions,
        key: SessionKey | None,
        told: Callable[[Client, News], None],
    ) -> None:
        logger = logging.Logger("kazoo", logging.INFO)  # never lower: secrets stand in kazoo's debug messages
        logger.parent = log
        self._reason = _Reason()
        logger.addFilter(self._reason)
        self._kazoo = KazooClient(
            hosts,
            timeout=options.session_timeout_ms / 1000,
            client_id=key,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=RECONNECT_SECONDS_MAX),
            logger=logger,
            auth_data=_digest(options.credentials),
            sasl_options=_sasl(options.credentials),
        )
        self._session_ms = options.session_timeout_ms
        # kazoo goes by what was agreed on, and tells nobody.
        self._invoke = self._kazoo._connection._invoke
        self._kazoo._connection._invoke = self._invoked
        self._kazoo.add_listener(lambda state: told(self, self._news(state)))
        self._ending = threading.Lock()
        self._started = False

    @property
    def reason(self) -> str:
        """Why the connection was lost, or could not be made; empty when nobody knows."""
        return self._reason.last

    def start(self) -> None:
        self._started = True
        self._kazoo.start_async()

    def end(self) -> None:
        """End the session. Blocks; may be called by any thread, and more than once."""
        with self._ending:
            if self._started:
                self._started = False
                self._kazoo.stop()
                self._kazoo.close()

    def call(self, request: Request, reply: Reply) -> None:
        # Not kazoo's own calls: those answer through a thread that is stopped before the last answers are there.
        self._kazoo._call(request, reply)

    def _news(self, state: str) -> News:
        key, now = self._kazoo.client_id, self._kazoo.client_state
        over = now in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        refused = now == KeeperState.AUTH_FAILED
        known = None if key is None else SessionKey(*key)
        return News(_STATES[state], known, over, refused, self.reason, self._session_ms)

    def _invoked(self, timeout: float, request: Request, xid: int | None = None) -> Any:
        """Part of connecting, before the listener is told. In kazoo's thread."""
        answer = self._invoke(timeout, request, xid)
        if isinstance(request, serialization.Connect) and answer[0].time_out > 0:
            self._session_ms = answer[0].time_out
        return answer


def _digest(credentials: Credentials | None) -> list[tuple[str, str]]:
    if credentials is None or credentials.scheme != "digest":
        return []
    return [("digest", f"{credentials.user}:{credentials.password}")]


def _sasl(credentials: Credentials | None) -> dict[str, str] | None:
    if credentials is None or credentials.scheme != "sasl":
        return None
    if not connection.PURESASL_AVAILABLE:
        raise Fault("authentication with SASL needs pure-sasl: pip install 'ottla[zookeeper]'")
    return {"mechanism": "DIGEST-MD5", "username": credentials.user, "password": credentials.password}


# Requests.


class Watcher(NamedTuple):
    """What kazoo calls, in its thread, when a watch fires. Two for the same path are one: kazoo keeps a set."""

    path: str
    fired: Callable[[str, bool, bool], None]
    """Takes the path, whether its list of children changed, and whether it was made."""

    def __call__(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # that one says that the connection is gone, which is told otherwise
            self.fired(self.path, event.type == EventType.CHILD, event.type == EventType.CREATED)


def sync(path: str) -> Request:
    return serialization.Sync(path)


def watch_node(path: str, watcher: Watcher | None) -> Request:
    return serialization.Exists(path, watcher)


def watch_children(path: str, watcher: Watcher) -> Request:
    return serialization.GetChildren(path, watcher)


def operation(op: Op, path: str, *, guarded: bool = False, secret: bool = False) -> Request:
    """What `op` is at ZooKeeper, where its node is `path`. A guarded node can be written by its maker alone, and a
    secret one be read by nobody else."""
    if isinstance(op, Create):
        acl = OPEN_ACL_UNSAFE
        if guarded:
            acl = CREATOR_ALL_ACL if secret else [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
        return serialization.Create(path, op.data, acl, op.ephemeral | op.sequential << 1)
    if isinstance(op, Set):
        return serialization.SetData(path, op.data, op.version)
    if isinstance(op, Delete):
        return serialization.Delete(path, op.version)
    assert isinstance(op, Check)
    return serialization.CheckVersion(path, op.version)


def transaction(operations: Sequence[Request]) -> Request:
    return serialization.Transaction(operations)


def first_failure(ops: Sequence[Op], results: Sequence[object]) -> None:
    """Raise what ended a transaction: a Conflict, or else a Trouble."""
    for index, (op, result) in enumerate(zip(ops, results, strict=True)):
        if isinstance(result, RolledBackError):
            continue  # it would have succeeded
        if (why := _WHY.get(type(result))) is not None:
            raise Conflict(index, op, why)
        if isinstance(result, KazooException):
            raise result


# Failures.


def is_there_already(trouble: Exception) -> bool:
    return isinstance(trouble, NodeExistsError)


def trouble_of(code: int) -> Exception:
    failure: Exception = EXCEPTIONS[code]()
    return failure


def unanswered(*, expired: bool = False, refused: bool = False) -> Exception:
    """What became of requests that were under way when the connection ended: it is in doubt, unless the session had
    expired before they could have been heard."""
    failure: Exception
    if refused:
        failure = AuthFailedError()
    elif expired:
        failure = SessionExpiredError()
    else:
        failure = ConnectionLoss()
    return failure


def fault_of(trouble: Exception, where: str, meaning: str, reason: str = "") -> Fault:
    """A failure in words: `meaning` says what it left undone, or in doubt."""
    where = f"ZooKeeper at {where}"
    if isinstance(trouble, SessionExpiredError | ConnectionClosedError):
        return SessionLost(f"the session with {where} has ended")
    if isinstance(trouble, ConnectionLoss | OperationTimeoutError):
        return Fault(f"{where} went out of reach ({reason or 'no answer'}): {meaning}")
    if isinstance(trouble, AuthFailedError):
        return Fault(f"{where} refused the authentication: check zookeeper.auth")
    if isinstance(trouble, NoAuthError):
        return Fault(f"{where} allows this to somebody else only ({meaning}): check zookeeper.auth")
    if isinstance(trouble, UnimplementedError):
        return Fault(f"{where} is too old: Ottla needs 3.8 or newer")
    return Fault(f"{where} failed with {type(trouble).__name__}: {meaning}")
