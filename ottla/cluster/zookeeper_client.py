"""The ZooKeeper client: all requests to ZooKeeper go through kazoo, and only this module imports it.

A `ZooKeeperClient` is one kazoo client with its connection thread. Session events and replies are delivered in that
thread. Requests are answered in the order they were made. `zookeeper_session` moves all of it to the loop.
"""

from __future__ import annotations

import logging
import struct
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

GET_DATA: Final = 4
GET_CHILDREN: Final = 8
MULTI_READ: Final = 22
ERROR: Final = -1
NO_NODE: Final = -101

_HEADER: Final = struct.Struct("!i?i")
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_END: Final = _HEADER.pack(-1, True, -1)

Request = Any
ZooKeeperError = KazooException
"""The exception of a request that failed."""

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
    """Receives the answer to a request, in kazoo's thread. It may receive several; only the first counts."""

    def set(self, value: object) -> None: ...

    def set_exception(self, failure: Exception) -> None: ...


class SessionKey(NamedTuple):
    """A client with this key resumes a session, or ends it."""

    id: int
    password: bytes


class SessionEvent(NamedTuple):
    """A change of a client's session."""

    state: SessionState
    key: SessionKey | None
    over: bool
    """kazoo does not reconnect any more."""
    refused: bool
    """Because ZooKeeper refused the authentication."""
    reason: str
    session_ms: int
    """The session timeout that ZooKeeper agreed to: it may differ from the requested one."""


class _Reason(logging.Filter):
    """Keeps kazoo's connection warnings for our own messages, and passes on only errors."""

    last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING and record.msg != "Transition to CONNECTING":
            self.last = record.getMessage().removeprefix("Connection dropped: ")
        return record.levelno > logging.WARNING


class ZooKeeperClient:
    """One kazoo client, from start to end; inside it one session may follow another."""

    def __init__(
        self,
        hosts: str,
        options: ZooKeeperOptions,
        key: SessionKey | None,
        on_event: Callable[[ZooKeeperClient, SessionEvent], None],
    ) -> None:
        logger = logging.Logger("kazoo", logging.INFO)  # never lower: kazoo's debug messages have secrets
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
        # kazoo does not publish the session timeout that was agreed on.
        self._invoke = self._kazoo._connection._invoke
        self._kazoo._connection._invoke = self._invoked
        self._kazoo.add_listener(lambda state: on_event(self, self._event(state)))
        self._ending = threading.Lock()
        self._started = False

    @property
    def reason(self) -> str:
        """Why the connection was lost or could not be made; empty when not known."""
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
        # Not kazoo's own calls: those answer in a thread that stops before the last answers arrive.
        self._kazoo._call(request, reply)

    def _event(self, state: str) -> SessionEvent:
        key, now = self._kazoo.client_id, self._kazoo.client_state
        over = now in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        refused = now == KeeperState.AUTH_FAILED
        known = None if key is None else SessionKey(*key)
        return SessionEvent(_STATES[state], known, over, refused, self.reason, self._session_ms)

    def _invoked(self, timeout: float, request: Request, xid: int | None = None) -> Any:
        """Part of connecting, before the listener is called. In kazoo's thread."""
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


class NodeWatcher(NamedTuple):
    """Called by kazoo, in its thread, when a watch fires. kazoo keeps a set: two for one path are one."""

    path: str
    fired: Callable[[str, bool, bool], None]
    """Takes the path, whether its list of children changed, and whether it was created."""

    def __call__(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE: the connection is lost, which is a SessionEvent
            self.fired(self.path, event.type == EventType.CHILD, event.type == EventType.CREATED)


def sync(path: str) -> Request:
    return serialization.Sync(path)


def watch_node(path: str, watcher: NodeWatcher | None) -> Request:
    return serialization.Exists(path, watcher)


def watch_children(path: str, watcher: NodeWatcher) -> Request:
    return serialization.GetChildren(path, watcher)


def operation(op: Op, path: str, *, with_acl: bool = False, secret: bool = False) -> Request:
    """The ZooKeeper request of `op` on the node `path`. With an ACL only its creator can write the node, and only its
    creator can read a secret one."""
    if isinstance(op, Create):
        acl = OPEN_ACL_UNSAFE
        if with_acl:
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
    """Raise the failure of a transaction: a Conflict, or another ZooKeeperError."""
    for index, (op, result) in enumerate(zip(ops, results, strict=True)):
        if isinstance(result, RolledBackError):
            continue  # it would have succeeded
        if (why := _WHY.get(type(result))) is not None:
            raise Conflict(index, op, why)
        if isinstance(result, KazooException):
            raise result


# Many reads in one request: ZooKeeper's MultiRead (3.6 and newer), which kazoo does not know. The request is a row of
# operations, each behind a header (kind, whether this is the end, error), as in a transaction; so is the answer. A read
# that fails fails alone: its result has the kind -1 and a code. The image of a large cluster takes tens of thousands of
# reads, and each would cost as much alone as 250 do together.


class Read(NamedTuple):
    """`kind` is GET_DATA or GET_CHILDREN."""

    kind: int
    path: str


class NodeData(NamedTuple):
    """A node's content and how many children it has."""

    data: bytes
    version: int
    children: int


class ReadFailed(NamedTuple):
    code: int


Answer = NodeData | list[str] | ReadFailed | None
"""None: there is no such node."""


class MultiRead:
    """A request as kazoo wants it: a type, `serialize` and `deserialize`."""

    type: Final = MULTI_READ
    __slots__ = ("_reads",)

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for kind, path in self._reads:
            raw = path.encode()
            parts += _HEADER.pack(kind, False, -1), _INT.pack(len(raw)), raw, b"\0"  # the last one: no watch
        parts.append(_END)
        return b"".join(parts)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[Answer]:
        answers: list[Answer] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return answers
            (number,) = _INT.unpack_from(buffer, offset)
            offset += _INT.size
            if kind == ERROR:
                answers.append(None if number == NO_NODE else ReadFailed(number))
            elif kind == GET_DATA:
                end = offset + max(number, 0)  # -1: a node without data
                stat = _STAT.unpack_from(buffer, end)
                answers.append(NodeData(buffer[offset:end], stat[4], stat[9]))
                offset = end + _STAT.size
            else:
                assert kind == GET_CHILDREN
                names = []
                for _ in range(number):
                    (length,) = _INT.unpack_from(buffer, offset)
                    offset += _INT.size + length
                    names.append(buffer[offset - length : offset].decode())
                answers.append(names)


# Failures.


def already_exists(error: Exception) -> bool:
    return isinstance(error, NodeExistsError)


def error_of(code: int) -> Exception:
    failure: Exception = EXCEPTIONS[code]()
    return failure


def unanswered(*, expired: bool = False, refused: bool = False) -> Exception:
    """The failure of requests that were in flight when the connection ended: their outcome is unknown, unless the
    session had expired before."""
    failure: Exception
    if refused:
        failure = AuthFailedError()
    elif expired:
        failure = SessionExpiredError()
    else:
        failure = ConnectionLoss()
    return failure


def fault_of(error: Exception, where: str, meaning: str, reason: str = "") -> Fault:
    """A failure as a message: `meaning` says what was not done, or is unknown."""
    where = f"ZooKeeper at {where}"
    if isinstance(error, SessionExpiredError | ConnectionClosedError):
        return SessionLost(f"the session with {where} has ended")
    if isinstance(error, ConnectionLoss | OperationTimeoutError):
        return Fault(f"{where} went out of reach ({reason or 'no answer'}): {meaning}")
    if isinstance(error, AuthFailedError):
        return Fault(f"{where} refused the authentication: check zookeeper.auth")
    if isinstance(error, NoAuthError):
        return Fault(f"{where} denies access ({meaning}): check zookeeper.auth")
    if isinstance(error, UnimplementedError):
        return Fault(f"{where} is too old: Ottla needs 3.8 or newer")
    return Fault(f"{where} failed with {type(error).__name__}: {meaning}")
