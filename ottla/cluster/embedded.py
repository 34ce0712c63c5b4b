"""The embedded store: the tree in one SQLite file, for brokers of one machine.

Who speaks: each process that opens the file is a session. It holds an exclusive lock on a file of its own beside the
database, so its death is seen by whoever tries that lock; the database file itself is never locked by us, because
closing any descriptor of it would drop SQLite's own locks. Whoever finds a dead session removes its ephemeral nodes.

What is durable: every commit, before it returns (write-ahead log, synced). What can be lost: the rows of sessions and
an empty schema, which are made without a sync and made again.

All SQLite calls run beside the loop, one at a time, on one connection: the order of calls is the order of commits.
Commits of other processes are noticed by polling `PRAGMA data_version`, which reads shared memory and no disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ottla.cluster.store import (
    ANY_VERSION,
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Op,
    SessionLost,
    SessionState,
    Set,
    Why,
    parent_of,
)
from ottla.errors import Fault, StorageFault
from ottla.runtime import Lock, Runtime

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger("ottla.cluster.embedded")

T = TypeVar("T")

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x4F74746C  # "Ottl"
POLL_SECONDS: Final = 0.1
POLL_ALONE_SECONDS: Final = 0.5
"""With no other session about, all that can happen is that one begins."""
BUSY_SECONDS: Final = 10.0
PREPARE_ATTEMPTS: Final = 200
PREPARE_PAUSE_SECONDS: Final = 0.02

_SCHEMA: Final = """
CREATE TABLE session (id INTEGER PRIMARY KEY);
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


class Seen(NamedTuple):
    """What a poll found: commits or deaths of others, our own session still there, nobody else there."""

    changed: bool
    alive: bool
    alone: bool


class _File:
    """The database, seen from the one thread at a time that may use it. Everything here blocks."""

    def __init__(self, path: str, runtime: Runtime) -> None:
        self.path = path
        self._disk = runtime.disk
        self._random = runtime.random
        self._lock: Lock | None = None
        self._session = 0
        self._data_version = 0
        self._others: list[int] = []  # sessions, as of `_data_version`
        self._db: sqlite3.Connection

    def open(self) -> None:
        import sqlite3  # a few milliseconds that commands which open no store need not pay

        directory = self.path.rpartition("/")[0] or "."
        self._disk.mkdir(directory)
        fresh = not self._disk.exists(self.path)
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as failure:
            raise Fault(f"cannot open the store {self.path}: {failure}") from failure
        try:
            self._prepare_patiently()
            self.begin_session()
        except BaseException as failure:
            self._let_go()
            if isinstance(failure, sqlite3.DatabaseError):
                raise self._unusable(failure) from failure
            raise
        if fresh:
            self._disk.sync_dir(directory)

    def _unusable(self, failure: sqlite3.DatabaseError) -> Fault:
        name: str = getattr(failure, "sqlite_errorname", "")
        if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
            return Fault(f"{self.path} is not a store: {failure}; name another file, or restore this one")
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return StorageFault(
                f"cannot write the store {self.path}: {failure}; make the file and its directory writable"
            )
        return StorageFault(f"cannot use the store {self.path}: {failure}")

    def _prepare_patiently(self) -> None:
        """SQLite waits for others by itself, except where a database becomes a write-ahead one."""
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
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if version == 0 and application == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
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

    def _create_schema(self) -> None:
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                return  # another process was faster
            for statement in _SCHEMA.strip().split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # some failures have rolled back already
                self._db.execute("ROLLBACK")
            raise

    def begin_session(self) -> None:
        """Take a lock that nobody has, then say so in the database: in this order, or others would think us dead."""
        while True:
            session = self._random.getrandbits(62)
            lock = self._disk.lock(self._lock_path(session))
            if lock is not None:
                break
        if self._lock is not None:
            self._lock.release()
        self._lock, self._session = lock, session
        # Not synced: after a power cut there is no process left that the row could speak for.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("INSERT INTO session (id) VALUES (?)", (session,))
        self._look_again()
        self._bury(self._dead())
        self._db.execute("PRAGMA synchronous=FULL")
        self._look_again()

    def close(self) -> None:
        try:
            self._bury([self._session])
        finally:
            self._let_go()

    def _let_go(self) -> None:
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
            "SELECT parent, name, data, version FROM node WHERE parent=? AND name>=? ORDER BY name",
            (path, first),
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
                raise SessionLost(f"the session on the store {self.path} has ended: somebody held it for dead")
            return [self._perform(index, op) for index, op in enumerate(ops)]

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

    def poll(self) -> Seen:
        """Look for commits and deaths of others; cheap when there are none."""
        dead = self._dead()
        self._bury(dead)
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if not dead and version == self._data_version:
            return Seen(False, True, not self._others)
        alive = self._look_again()
        return Seen(True, alive, not self._others)

    def _look_again(self) -> bool:
        """Note who else is there. Whether our own session still is."""
        (self._data_version,) = self._db.execute("PRAGMA data_version").fetchone()
        sessions = [session for (session,) in self._db.execute("SELECT id FROM session")]
        self._others = [session for session in sessions if session != self._session]
        return self._session in sessions

    def _dead(self) -> list[int]:
        """Sessions of others whose lock can be had. Their locks are let go again: a session never comes back."""
        dead = []
        for session in self._others:
            lock = self._disk.lock(self._lock_path(session))
            if lock is not None:
                lock.release()
                dead.append(session)
        return dead

    def _bury(self, sessions: Sequence[int]) -> None:
        if not sessions:
            return
        with self._transaction() as db:
            for session in sessions:
                db.execute("DELETE FROM node WHERE session=?", (session,))
                db.execute("DELETE FROM session WHERE id=?", (session,))
        for session in sessions:
            self._disk.remove(self._lock_path(session))

    def _lock_path(self, session: int) -> str:
        return f"{self.path}-session-{session:016x}"


def _key(path: str) -> tuple[str, str]:
    return ("", "") if path == "/" else (parent_of(path), path[path.rindex("/") + 1 :])


def _node(parent: str, name: str, data: bytes, version: int) -> Node:
    return Node(f"{parent.rstrip('/')}/{name}", data, version)


class EmbeddedStore:
    """The store of `embedded:PATH`."""

    def __init__(self, file: _File, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime
        self._turn = asyncio.Lock()  # one thread at a time in the connection, in the order of asking
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self._tell_state: list[Callable[[SessionState], None]] = []
        self._state = SessionState.connected
        self._closed = False
        self._poller = runtime.spawn(self._poll(), name="store-poll")

    @classmethod
    async def open(cls, path: str, runtime: Runtime) -> EmbeddedStore:
        file = _File(path, runtime)
        await runtime.offload(file.open)
        return cls(file, runtime)

    @property
    def state(self) -> SessionState:
        return self._state

    def on_state(self, tell: Callable[[SessionState], None]) -> None:
        self._tell_state.append(tell)

    def watch(self, path: str, tell: Callable[[], None]) -> Callable[[], None]:
        watch = (path, tell)
        self._watches.append(watch)
        return lambda: self._watches.remove(watch)

    async def read(self, path: str) -> Node | None:
        return await self._call(self._file.read, path)

    async def children(self, path: str) -> list[str]:
        return await self._call(self._file.children, path)

    async def children_from(self, path: str, first: str) -> list[Node]:
        return await self._call(self._file.children_from, path, first)

    async def tree(self, *paths: str) -> list[Node]:
        return await self._call(self._file.tree, paths)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        paths = await self._call(self._file.commit, ops)
        written = [path for path, op in zip(paths, ops, strict=True) if not isinstance(op, Check)]
        touched = {*written, *map(parent_of, written)}
        for path, tell in list(self._watches):
            if path in touched:
                tell()
        return paths

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._poller.cancel()
        await asyncio.wait([self._poller])
        try:
            await self._call(self._file.close)
        except Fault as fault:
            log.warning("the session was not ended, others will find it dead: %s", fault)

    async def _call(self, act: Callable[..., T], *args: object) -> T:
        """Run beside the loop. A caller that is cancelled still waits for it: nobody else may enter meanwhile."""
        import sqlite3

        async with self._turn:
            job = asyncio.ensure_future(self._runtime.offload(act, *args))
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait([job])
                raise
            except sqlite3.Error as failure:
                raise StorageFault(f"the store {self._file.path} failed: {failure}") from failure

    async def _poll(self) -> None:
        pause = POLL_SECONDS
        complaint = ""
        while True:
            await asyncio.sleep(pause)
            try:
                seen = await self._call(self._file.poll)
                if not seen.alive:
                    await self._begin_again()
            except Fault as fault:
                if complaint != str(fault):  # once is enough, the poll goes on
                    complaint = str(fault)
                    log.warning("%s", fault)
                continue
            complaint = ""
            pause = POLL_ALONE_SECONDS if seen.alone else POLL_SECONDS
            if seen.changed:
                for _, tell in list(self._watches):
                    tell()

    async def _begin_again(self) -> None:
        """Somebody held us for dead, and our ephemeral nodes are gone. A new session; its owner registers again."""
        self._become(SessionState.lost)
        await self._call(self._file.begin_session)
        self._become(SessionState.connected)

    def _become(self, state: SessionState) -> None:
        self._state = state
        for tell in self._tell_state:
            tell(state)
