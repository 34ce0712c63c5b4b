"""The store of a simulated cluster: one server with the tree in memory, and a session for every broker.

It behaves as ZooKeeper does. A session lives as long as the server gets a request within its timeout; a client without
answers is `suspended` long before that, and learns only after reconnecting whether its session is `lost`. Requests,
answers and watch events of one connection keep their order. An outage of the server loses nothing but connections, and
gives every session its whole timeout again, from zero. `prompt` sessions end with their process, as those of the
embedded store do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from ottla.cluster.store import Check, Conflict, Delete, Node, Op, SessionLost, SessionState, parent_of
from ottla.errors import Fault
from ottla.sim.network import Network, Wire
from ottla.sim.runtime import SimRuntime
from ottla.sim.store_tree import Tree

T = TypeVar("T")

STORE: Final = "store"
"""The machine on which the server runs."""
OPEN_SECONDS: Final = 18.0
CLOSE_SECONDS: Final = 2.0


class _Session:
    def __init__(self, key: int, timeout_s: float, owner: str) -> None:
        self.key = key
        self.timeout_s = timeout_s
        self.owner = owner
        self.heard_at = 0.0
        self.line: Line | None = None
        self.watches: dict[str, None] = {}


class Line:
    """A connection of a client to the server."""

    def __init__(self, server: StoreServer, client: str, heard: Callable[[tuple[Any, ...]], None]) -> None:
        self.open = True
        self.up = Wire(server.network, client, STORE, self._asked)
        self.down = Wire(server.network, STORE, client, self._received)
        self._server = server
        self._heard = heard

    def _asked(self, message: tuple[Any, ...]) -> None:
        if self.open:
            self._server.asked(self, message)

    def _received(self, message: tuple[Any, ...]) -> None:
        self._heard(message)

    def reset(self) -> None:
        """By the server's machine: the client learns of it."""
        if self.open:
            self.open = False
            self.down.send(("reset",))


class StoreServer:
    """Runs on the kernel's loop of the network: it is never paused, but may be away."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tree = Tree()
        self.away = False
        self.prompt = False
        self.commits = 0
        self._clock = network.kernel.time
        self._sessions: dict[int, _Session] = {}
        self._last_key = 0
        self._checking = False

    # Faults.

    def go_away(self) -> None:
        self.away = True
        for session in self._sessions.values():
            if session.line is not None:
                session.line.reset()
                session.line = None

    def come_back(self) -> None:
        self.away = False
        for session in self._sessions.values():
            session.heard_at = self._clock()
        self._check_later()

    def expire(self, owner: str) -> None:
        """Expire the sessions of a client."""
        for session in [session for session in self._sessions.values() if session.owner == owner]:
            self._end(session)

    def process_died(self, owner: str) -> None:
        """Requests that it had sent may still arrive."""
        if self.prompt and not self.away:
            self.expire(owner)

    # Requests.

    def asked(self, line: Line, message: tuple[Any, ...]) -> None:
        if self.away:
            return
        match message:
            case ("connect",):
                line.down.send(("connected",))
            case ("begin", key, timeout_s, owner):
                self._begin(line, key, timeout_s, owner)
            case ("end", key):
                if (ended := self._sessions.get(key)) is not None:
                    self._end(ended)
                line.down.send(("ended",))
            case (kind, key, *rest):
                session = self._sessions.get(key)
                if session is None or session.line is not line:
                    line.reset()
                    return
                session.heard_at = self._clock()
                self._serve(session, line, kind, rest)

    def _begin(self, line: Line, key: int | None, timeout_s: float, owner: str) -> None:
        session = self._sessions.get(key) if key is not None else None
        if key is not None and session is None:
            line.down.send(("expired",))
            return
        if session is None:
            self._last_key += 1
            session = self._sessions[self._last_key] = _Session(self._last_key, timeout_s, owner)
        elif session.line is not None and session.line is not line:
            session.line.open = False
        session.line = line
        session.heard_at = self._clock()
        self._check_later()
        line.down.send(("begun", session.key))

    def _serve(self, session: _Session, line: Line, kind: str, rest: list[Any]) -> None:
        if kind == "ping":
            line.down.send(("pong",))
        elif kind == "watch":
            session.watches[rest[0]] = None
        elif kind == "commit":
            number, ops = rest
            try:
                paths = self.tree.commit(session.key, ops)
            except Conflict as conflict:
                line.down.send(("failed", number, conflict))
                return
            self.commits += 1
            self._changed(path for path, op in zip(paths, ops, strict=True) if not isinstance(op, Check))
            self.network.trace.line(STORE, f"{session.owner} commits {_summary(ops, paths)}", minor=True)
            line.down.send(("answer", number, paths))
        else:
            number, *arguments = rest
            line.down.send(("answer", number, getattr(self.tree, kind)(*arguments)))

    def _changed(self, paths: Iterable[str]) -> None:
        changed = {path: None for written in paths for path in (written, parent_of(written) if written != "/" else "/")}
        for session in self._sessions.values():
            if session.line is not None:
                for path in changed:
                    if path in session.watches:
                        session.line.down.send(("changed", path))

    # Sessions.

    def _end(self, session: _Session) -> None:
        del self._sessions[session.key]
        paths = self.tree.ephemeral(session.key)
        for path in paths:
            self.tree.commit(session.key, [Delete(path)])
        self.network.trace.line(STORE, f"the session of {session.owner} ends: {' '.join(paths) or 'it had nothing'}")
        if session.line is not None:
            session.line.reset()
        self._changed(paths)

    def _check_later(self) -> None:
        if not self._checking:
            self._checking = True
            self.network.kernel.call_later(0.25, self._check)

    def _check(self) -> None:
        self._checking = False
        if self.away:
            return
        now = self._clock()
        for session in [each for each in self._sessions.values() if now - each.heard_at > each.timeout_s]:
            self._end(session)
        if self._sessions:
            self._check_later()


def _summary(ops: Sequence[Op], paths: Sequence[str]) -> str:
    shown = [f"{type(op).__name__.lower()} {path}" for op, path in zip(ops, paths, strict=True)]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


class SimStore:
    """A broker's session, or one after the other."""

    def __init__(self, server: StoreServer, runtime: SimRuntime, timeout_s: float) -> None:
        self._server = server
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._state = SessionState.lost
        self._notify_state: list[Callable[[SessionState], None]] = []
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self._line: Line | None = None
        self._key: int | None = None
        self._heard_at = 0.0
        self._underway: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._began: asyncio.Future[tuple[Any, ...]] | None = None
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, server: StoreServer, runtime: SimRuntime, *, timeout_s: float = 6.0, session_file: str | None = None
    ) -> SimStore:
        """The session whose key is in the file is ended first: this process replaces the one that had it."""
        store = cls(server, runtime, timeout_s)
        disk = runtime.disk
        old = int(disk.read(session_file)) if session_file is not None and disk.exists(session_file) else None
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while not await store._begin(None):
                    pass
        except TimeoutError:
            raise Fault(f"no store answers within {OPEN_SECONDS:g} s") from None
        if old is not None:
            assert store._line is not None
            store._line.up.send(("end", old))
        if session_file is not None:
            disk.write_atomic(session_file, str(store._key).encode())
        store._state = SessionState.connected
        store._keeper = runtime.spawn(store._keep(), name="store-session")
        return store

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_seconds(self) -> float:
        return self._timeout_s

    def on_state(self, notify: Callable[[SessionState], None]) -> None:
        self._notify_state.append(notify)

    def expedite(self) -> None:
        """Its sessions time out, as ZooKeeper's do."""

    def watch(self, path: str, notify: Callable[[], None]) -> Callable[[], None]:
        watch = (path, notify)
        self._watches.append(watch)
        if self._state is SessionState.connected:
            self._say("watch", path)
        return lambda: self._watches.remove(watch)

    async def read(self, path: str) -> Node | None:
        return await self._ask("read", path)  # type: ignore[no-any-return]

    async def children(self, path: str) -> list[str]:
        return await self._ask("children", path)  # type: ignore[no-any-return]

    async def children_from(self, path: str, first: str) -> list[Node]:
        return await self._ask("children_from", path, first)  # type: ignore[no-any-return]

    async def tree(self, *paths: str) -> list[Node]:
        return await self._ask("tree", *paths)  # type: ignore[no-any-return]

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        return await self._ask("commit", tuple(ops))  # type: ignore[no-any-return]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._line is not None and self._state is SessionState.connected:
            self._began = self._runtime.loop.create_future()
            self._say("end")
            await asyncio.wait([self._began], timeout=CLOSE_SECONDS)
        self._state = SessionState.lost
        self._give_up(SessionLost("the session has ended"))

    # Words with the server.

    def _say(self, kind: str, *rest: object) -> None:
        assert self._line is not None
        self._line.up.send((kind, self._key, *rest))

    async def _ask(self, kind: str, *rest: object) -> Any:
        if self._state is SessionState.lost:
            raise SessionLost("the session with the store has ended")
        if self._state is SessionState.suspended:
            raise Fault("the store is out of reach: try again when it is back")
        self._number += 1
        future = self._underway[self._number] = self._runtime.loop.create_future()
        self._say(kind, self._number, *rest)
        return await future

    def _received(self, line: Line, message: tuple[Any, ...]) -> None:
        if line is not self._line:
            return  # of a connection that was given up
        self._heard_at = self._runtime.now()
        match message:
            case ("answer", number, result):
                if (future := self._underway.pop(number, None)) is not None and not future.done():
                    future.set_result(result)
            case ("failed", number, failure):
                if (future := self._underway.pop(number, None)) is not None and not future.done():
                    future.set_exception(failure)
            case ("changed", path):
                self._notify(path)
            case ("connected",) | ("begun", _) | ("expired",) | ("ended",):
                if self._began is not None and not self._began.done():
                    self._began.set_result(message)
            case ("reset",):
                self._connection_lost()

    def _notify(self, changed: str | None) -> None:
        for path, notify in list(self._watches):
            if changed in (None, path):
                notify()

    async def _begin(self, key: int | None) -> bool:
        """Connect and begin a session, or take one up again. False: no answer, or it is over."""
        loop = self._runtime.loop

        def heard(message: tuple[Any, ...]) -> None:
            loop.call_soon(self._received, line, message)

        line = Line(self._server, self._runtime.machine.name, heard)
        self._line = line
        answer = await self._first_words(line, ("connect",))
        if answer is not None:
            answer = await self._first_words(line, ("begin", key, self._timeout_s, self._runtime.machine.name))
        if answer is None:
            return False
        if answer[0] == "expired":
            self._key = None
            self._become(SessionState.lost)
            return False
        self._key = answer[1]
        self._heard_at = self._runtime.now()
        return True

    async def _first_words(self, line: Line, words: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self._began = self._runtime.loop.create_future()
        line.up.send(words)
        await asyncio.wait([self._began], timeout=self._timeout_s / 3)
        return self._began.result() if self._began.done() else None

    async def _keep(self) -> None:
        """Send heartbeats to the server, and reconnect when there are no answers."""
        while True:
            if self._state is SessionState.connected:
                if self._runtime.now() - self._heard_at > self._timeout_s * 2 / 3:
                    self._connection_lost()
                    continue
                self._say("ping")
                await asyncio.sleep(self._timeout_s / 3)
            elif await self._begin(self._key):
                for path in dict.fromkeys(path for path, _ in self._watches):
                    self._say("watch", path)
                self._become(SessionState.connected)
                self._notify(None)
            elif self._state is SessionState.suspended:
                await asyncio.sleep(0.1)

    def _connection_lost(self) -> None:
        if self._closed and self._began is not None and not self._began.done():
            self._began.set_result(("ended",))
        if self._state is SessionState.connected:
            self._become(SessionState.suspended)
            self._give_up(Fault("the store is out of reach; it is not known whether this happened"))

    def _give_up(self, failure: Exception) -> None:
        underway, self._underway = self._underway, {}
        for future in underway.values():
            if not future.done():
                future.set_exception(failure)

    def _become(self, state: SessionState) -> None:
        self._state = state
        for notify in list(self._notify_state):
            notify(state)
