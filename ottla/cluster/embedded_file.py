"""The file of the embedded store: the tree and the sessions in SQLite. Everything here blocks.

Who is alive: a session holds an exclusive lock on a file of its own beside the database, so others see the death of its
process by trying that lock. (The database file itself is never locked by us: closing any descriptor of it would drop
SQLite's own locks.) And a session increments the heartbeat in its row while the loop of its process runs
(`failure_detector`): one that hangs counts as dead although its lock is held. Any session that finds a dead one removes
its row and its ephemeral nodes. A commit first checks the row of its session, so an expired one commits nothing.

What is durable: every commit, before it returns (write-ahead log, synced). What can be lost: the rows of sessions and
an empty schema, which are written without a sync and created again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.failure_detector import HEARTBEATS_PER_LEASE, FailureDetector, Heartbeat
from ottla.cluster.store import ANY_VERSION, Check, Conflict, Create, Delete, Node, Op, SessionLost, Set, Why, parent_of
from ottla.errors import Fault, StorageFault
from ottla.runtime import Lock, Runtime

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger("ottla.cluster.embedded")

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x4F74746C  # "Ottl"
BUSY_SECONDS: Final = 10.0
PREPARE_ATTEMPTS: Final = 200
PREPARE_PAUSE_SECONDS: Final = 0.02

_SCHEMA: Final = """
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    beat INTEGER NOT NULL DEFAULT 0,           -- the heartbeat: grows while the loop runs
    lease_ms INTEGER NOT NULL DEFAULT 0        -- how long without one; 0: only the lock counts
);
CREATE TABLE node (
    parent TEXT NOT NULL, name TEXT NOT NULL,
    data BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0,
    children_made INTEGER NOT NULL DEFAULT 0,  -- numbers sequential children; never goes back
    session INTEGER,                           -- set: an ephemeral node
    PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX node_session ON node (session) WHERE session IS NOT NULL;
INSERT INTO node (parent, name, data) VALUES ('', '', x'');
"""
_TALLY: Final = "CREATE TABLE tally AS SELECT 0 AS commits"
"""How often the tree has changed: a heartbeat is a commit of SQLite, too, and is no reason to read the tree."""
_LATER_COLUMNS: Final = {"session": {"beat": "INTEGER NOT NULL DEFAULT 0", "lease_ms": "INTEGER NOT NULL DEFAULT 0"}}
"""Columns that files of earlier releases do not have. Those releases can use files with them."""


class Seen(NamedTuple):
    """The result of a poll: the tree has changed; our own session is alive; there is no other session."""

    changed: bool
    alive: bool
    alone: bool


class StoreFile:
    """The database. Only one thread at a time may use it."""

    def __init__(self, path: str, runtime: Runtime, lease_seconds: float) -> None:
        self.path = path
        self.lease_seconds = lease_seconds
        self._heartbeat_due = 0.0
        self._failure_detector = FailureDetector()
        self._disk = runtime.disk
        self._random = runtime.random
        self._lock: Lock | None = None
        self._session = 0
        self._data_version = 0
        self._others: list[int] = []  # sessions, as of `_data_version`
        self._commits = 0  # changes of the tree that were reported
        self._all_count = True  # all sessions count the changes of the tree in `tally`
        self._db: sqlite3.Connection

    def open(self) -> None:
        import sqlite3  # takes a few milliseconds; not every command opens a store

        directory = self.path.rpartition("/")[0] or "."
        self._disk.mkdir(directory)
        fresh = not self._disk.exists(self.path)
        if fresh:
            self._make_private()
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as failure:
            raise Fault(f"cannot open the store {self.path}: {failure}") from failure
        try:
            self._prepare_with_retries()
            self.begin_session()
        except BaseException as failure:
            self._release()
            if isinstance(failure, sqlite3.DatabaseError):
                raise self._unusable(failure) from failure
            raise
        if fresh:
            self._disk.sync_dir(directory)

    def _make_private(self) -> None:
        """The file has the cluster's secret, so only its owner may read it; SQLite gives its other files the same
        mode."""
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass  # another broker has just created it
        except OSError as failure:
            raise StorageFault(f"cannot make the store {self.path}: {failure.strerror or failure}") from failure

    def _unusable(self, failure: sqlite3.DatabaseError) -> Fault:
        name: str = getattr(failure, "sqlite_errorname", "")
        if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
            return Fault(f"{self.path} is not a store: {failure}; name another file, or restore this one")
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return StorageFault(
                f"cannot write the store {self.path}: {failure}; make the file and its directory writable"
            )
        return StorageFault(f"cannot use the store {self.path}: {failure}{remedy_for(failure)}")

    def _prepare_with_retries(self) -> None:
        """SQLite waits for other processes itself, except when a database is switched to WAL mode."""
        import sqlite3

        for attempt in range(PREPARE_ATTEMPTS):
            try:
                return self._prepare()
            except sqlite3.OperationalError as failure:
                if failure.sqlite_errorcode != sqlite3.SQLITE_BUSY or attempt == PREPARE_ATTEMPTS - 1:
                    raise
            time.sleep(PREPARE_PAUSE_SECONDS)

    def _prepare(self) -> None:
        db = self._db
        version, application, empty = self._inspect()
        if version == 0 and application == 0 and empty:
            db.execute("PRAGMA journal_mode=WAL").fetchone()
            db.execute("PRAGMA synchronous=NORMAL")
            self._create_schema()
        elif application != APPLICATION_ID:
            raise Fault(f"{self.path} is not a store but another program's database; name another file")
        elif version > SCHEMA_VERSION:
            raise Fault(
                f"the store {self.path} was written by a newer Ottla (format {version}, this one knows up to "
                f"{SCHEMA_VERSION}); use that version"
            )
        elif not self._has_tally():
            with self._transaction():
                if not self._has_tally():  # another process was faster
                    self._complete()

    def _inspect(self) -> tuple[int, int, bool]:
        """Schema version, application id and whether it is empty, of one instant: another process may be filling it."""
        db = self._db
        db.execute("BEGIN")
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (application,) = db.execute("PRAGMA application_id").fetchone()
            return version, application, db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        finally:
            if db.in_transaction:  # some failures have rolled back already
                db.execute("ROLLBACK")

    def _has_tally(self) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name='tally'").fetchone() is not None

    def _complete(self) -> None:
        for table, columns in _LATER_COLUMNS.items():
            known = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
            for name, kind in columns.items():
                if name not in known:
                    self._db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
        self._db.execute(_TALLY)

    def _create_schema(self) -> None:
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                return  # another process was faster
            for statement in _SCHEMA.strip().split(";\n"):
                db.execute(statement)
            db.execute(_TALLY)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # as above
                self._db.execute("ROLLBACK")
            raise

    def begin_session(self) -> None:
        """Take a free lock, then write the session row: in this order, or others would find the session dead."""
        while True:
            session = self._random.getrandbits(62)
            lock = self._disk.lock(self._lock_path(session))
            if lock is not None:
                break
        if self._lock is not None:
            self._lock.release()
        self._lock, self._session = lock, session
        with self._unsynced() as db:
            db.execute("INSERT INTO session (id, lease_ms) VALUES (?, ?)", (session, round(self.lease_seconds * 1000)))
            self._read_sessions()
            self._end_sessions(self._dead())
        self._read_sessions()

    @contextmanager
    def _unsynced(self) -> Iterator[sqlite3.Connection]:
        """For session rows: after a power failure no process is left that has one."""
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            yield self._db
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        try:
            self._end_sessions({self._session: None})
        finally:
            self._release()

    def _release(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read(self, path: str) -> Node | None:
        row = self._db.execute("SELECT data, version FROM node WHERE parent=? AND name=?", _key(path)).fetchone()
        return None if row is None else Node(path, row[0], row[1])

    def children(self, path: str) -> list[str]:
        rows = self._db.execute("SELECT name FROM node WHERE parent=? ORDER BY name", (path,))
        return [name for (name,) in rows]

    def children_from(self, path: str, first: str) -> list[Node]:
        rows = self._db.execute(
            "SELECT parent, name, data, version FROM node WHERE parent=? AND name>=? ORDER BY name", (path, first)
        )
        return [_node(*row) for row in rows]

    def tree(self, paths: Sequence[str]) -> list[Node]:
        nodes: list[Node] = []
        self._db.execute("BEGIN")  # one instant for all of them
        try:
            for path in paths:
                if (node := self.read(path)) is not None:
                    nodes.append(node)
                above = path.rstrip("/")
                rows = self._db.execute(
                    "SELECT parent, name, data, version FROM node WHERE parent=? UNION ALL "
                    "SELECT parent, name, data, version FROM node WHERE parent>? AND parent<?",
                    (path, above + "/", above + "0"),  # "0" is what sorts next after "/"
                )
                nodes += [_node(*row) for row in rows]
        finally:
            self._db.execute("COMMIT")
        nodes.sort()
        return nodes

    def commit(self, ops: Sequence[Op]) -> list[str]:
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM session WHERE id=?", (self._session,)).fetchone():
                raise SessionLost(f"the session on the store {self.path} has expired")
            paths = [self._perform(index, op) for index, op in enumerate(ops)]
            db.execute("UPDATE tally SET commits=commits+1")
        self._commits += 1  # our own change need not be reported
        return paths

    def _perform(self, index: int, op: Op) -> str:
        if isinstance(op, Create):
            return self._create(index, op)
        parent, name = _key(op.path)
        row = self._db.execute("SELECT version FROM node WHERE parent=? AND name=?", (parent, name)).fetchone()
        if row is None:
            raise Conflict(index, op, Why.missing)
        if op.version not in (ANY_VERSION, row[0]):
            raise Conflict(index, op, Why.version)
        if isinstance(op, Set):
            self._db.execute(
                "UPDATE node SET data=?, version=version+1 WHERE parent=? AND name=?", (op.data, parent, name)
            )
        elif isinstance(op, Delete):
            if self._db.execute("SELECT 1 FROM node WHERE parent=? LIMIT 1", (op.path,)).fetchone():
                raise Conflict(index, op, Why.not_empty)
            self._db.execute("DELETE FROM node WHERE parent=? AND name=?", (parent, name))
        else:
            assert isinstance(op, Check)
        return op.path

    def _create(self, index: int, op: Create) -> str:
        db = self._db
        path = op.path
        parent = _key(parent_of(path))
        found = db.execute("SELECT children_made, session FROM node WHERE parent=? AND name=?", parent).fetchone()
        if found is None:
            raise Conflict(index, op, Why.missing)
        if found[1] is not None:
            raise Conflict(index, op, Why.ephemeral_parent)
        if op.sequential:
            path += f"{found[0]:010d}"
            db.execute("UPDATE node SET children_made=children_made+1 WHERE parent=? AND name=?", parent)
        session = self._session if op.ephemeral else None
        row = (*_key(path), op.data, session)
        made = db.execute("INSERT OR IGNORE INTO node (parent, name, data, session) VALUES (?, ?, ?, ?)", row)
        if made.rowcount == 0:
            raise Conflict(index, op, Why.exists)
        return path

    def poll(self, now: float) -> Seen:
        """Look for commits and deaths of other sessions, and send our heartbeat; cheap when there is no change. Called
        by the loop only: when the loop hangs, the heartbeat has to stop."""
        reported = self._commits
        try:
            return self._poll(now)
        except BaseException:  # not reported: the next poll has to find it again
            self._commits, self._data_version = reported, -1
            raise

    def _poll(self, now: float) -> Seen:
        reported, all_count = self._commits, self._all_count
        dead = self._dead()
        self._end_sessions(dead)
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        news = bool(dead) or version != self._data_version
        alive = self._read_sessions() if news else True
        if alive and self._others:
            expired = self._failure_detector.expired(now)
            if expired:
                self._end_sessions(expired)
                self._read_sessions()
            alive = self._send_heartbeat(now)
        if not alive:
            self._data_version = -1  # until there is a new session, every poll finds that
        unreported = news and not (all_count and self._all_count)
        return Seen(self._commits != reported or unreported, alive, not self._others)

    def _send_heartbeat(self, now: float) -> bool:
        """Send a heartbeat when one is due. Whether our session still exists."""
        if now < self._heartbeat_due:
            return True
        self._heartbeat_due = now + self.lease_seconds / HEARTBEATS_PER_LEASE
        with self._unsynced() as db:
            return db.execute("UPDATE session SET beat=beat+1 WHERE id=?", (self._session,)).rowcount == 1

    def _read_sessions(self) -> bool:
        """Read all sessions. Whether our own one still exists."""
        (self._data_version,) = self._db.execute("PRAGMA data_version").fetchone()
        rows = self._db.execute("SELECT id, beat, lease_ms FROM session").fetchall()
        heartbeats = {session: Heartbeat(beat, lease_ms / 1000) for session, beat, lease_ms in rows}
        alive = heartbeats.pop(self._session, None) is not None
        self._others = list(heartbeats)
        self._all_count = all(each.lease_seconds for each in heartbeats.values())  # earlier releases do not count
        self._failure_detector.observe(heartbeats)
        (self._commits,) = self._db.execute("SELECT commits FROM tally").fetchone()
        return alive

    def _dead(self) -> dict[int, Heartbeat | None]:
        """Other sessions whose lock is free. The lock is released again: a session never comes back."""
        dead: dict[int, Heartbeat | None] = {}
        for session in self._others:
            lock = self._disk.lock(self._lock_path(session))
            if lock is not None:
                lock.release()
                dead[session] = None
        return dead

    def _end_sessions(self, sessions: Mapping[int, Heartbeat | None]) -> None:
        """Remove sessions and their ephemeral nodes, except one that has sent a heartbeat after its last known one."""
        if not sessions:
            return
        ended = []
        with self._transaction() as db:
            for session, last in sessions.items():
                known = "SELECT 1 FROM session WHERE id=? AND beat=?"
                if last is None or db.execute(known, (session, last.beat)).fetchone():
                    db.execute("DELETE FROM node WHERE session=?", (session,))
                    db.execute("DELETE FROM session WHERE id=?", (session,))
                    ended.append((session, last))
            db.execute("UPDATE tally SET commits=commits+1")
        for session, last in ended:
            if last is not None:
                log.warning("a broker process has hung for more than %g s: its session has expired", last.lease_seconds)
            self._disk.remove(self._lock_path(session))

    def _lock_path(self, session: int) -> str:
        return f"{self.path}-session-{session:016x}"


def _key(path: str) -> tuple[str, str]:
    return ("", "") if path == "/" else (parent_of(path), path[path.rindex("/") + 1 :])


def _node(parent: str, name: str, data: bytes, version: int) -> Node:
    return Node(f"{parent.rstrip('/')}/{name}", data, version)


def remedy_for(failure: sqlite3.Error) -> str:
    """What to do about a failure, where that is known: the end of its message."""
    name: str = getattr(failure, "sqlite_errorname", None) or ""
    if name == "SQLITE_FULL":
        return "; make room on its disk: nothing about the cluster can change until then"
    if name.startswith("SQLITE_IOERR"):
        return "; look at its device: nothing about the cluster can change until it works"
    return ""
