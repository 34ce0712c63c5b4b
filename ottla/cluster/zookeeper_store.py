"""The ZooKeeper store: the tree in a ZooKeeper ensemble (3.8 or newer), below a chroot.

Who speaks: requests are sent and answered in the order of the calls, so a watch that is set before a read misses no
later change. A server may lag behind its leader, so a `sync` goes before every read: through a follower the read sees
everything that was committed before. Through the leader it may briefly miss what the leader has committed and not yet
applied: there `sync` is no barrier. A decision that depends on a read commits with versions, and gets a Conflict. After
a lost connection a transaction that changes nothing goes first. It is a barrier: later reads show the outcome of
commits without an answer.

What is durable: a commit that was answered. What can be lost: the answer, and then the Fault says so. While the
session is suspended nothing is read or written: the cluster stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ottla.cluster import zookeeper_client as zk
from ottla.cluster.store import ANY_VERSION, COMMIT_BYTES_MAX, Check, Create, Node, Op, SessionState
from ottla.cluster.zookeeper_client import GET_CHILDREN, GET_DATA, MultiRead, Read, ReadFailed, ZooKeeperError
from ottla.cluster.zookeeper_options import Address, ZooKeeperOptions
from ottla.cluster.zookeeper_session import ZooKeeperSession
from ottla.errors import Fault
from ottla.runtime import Runtime

READS_PER_REQUEST: Final = 250
REQUESTS_IN_FLIGHT: Final = 4
OP_BYTES_AROUND: Final = 100
"""The size of an operation without its path and data: headers, version, ACL."""

SECRET: Final = ("/config/users", "/config/brokers", "/ottla")
"""With ACLs only brokers can read below these: passwords and keys are there."""


class ZooKeeperStore:
    """The store of `zookeeper:HOST:PORT[,...][/chroot]`."""

    def __init__(self, address: Address, runtime: Runtime, options: ZooKeeperOptions, session_file: str | None) -> None:
        self._chroot = address.chroot
        self._with_acl = options.set_acl
        self._session = ZooKeeperSession(address, runtime, options, self._session_changed, session_file)
        self._state_callbacks: list[Callable[[SessionState], None]] = []
        self._watches: dict[str, list[Callable[[], None]]] = {}

    @classmethod
    async def open(
        cls, address: str, runtime: Runtime, options: ZooKeeperOptions | None = None, *, session_file: str | None = None
    ) -> ZooKeeperStore:
        """`session_file`: of this broker alone; the session whose key is in it is ended."""
        store = cls(Address.parse(address), runtime, options or ZooKeeperOptions(), session_file)
        try:
            await store._session.begin()
            await store._make_chroot()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def session_seconds(self) -> float:
        return self._session.seconds

    def on_state(self, callback: Callable[[SessionState], None]) -> None:
        self._state_callbacks.append(callback)

    async def close(self) -> None:
        await self._session.close()

    async def read(self, path: str) -> Node | None:
        (found,) = await self._contents([path])
        return found

    async def children(self, path: str) -> list[str]:
        (names,) = await self._names([path])
        return sorted(names)

    async def children_from(self, path: str, first: str) -> list[Node]:
        above = path.rstrip("/")
        names = [name for name in await self.children(path) if name >= first]
        found = await self._contents([f"{above}/{name}" for name in names])
        return [node for node in found if node is not None]

    async def tree(self, *paths: str) -> list[Node]:
        nodes: dict[str, Node] = {}
        level: Iterable[str] = paths
        while level := [path for path in dict.fromkeys(level) if path not in nodes]:
            parents: list[str] = []
            for node in await self._contents(level, parents):
                if node is not None:
                    nodes[node.path] = node
            below = await self._names(parents)
            level = [f"{path.rstrip('/')}/{name}" for path, names in zip(parents, below, strict=True) for name in names]
        return sorted(nodes.values())

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        size = sum(OP_BYTES_AROUND + len(op.path) + len(getattr(op, "data", b"")) for op in ops)
        if size > COMMIT_BYTES_MAX:
            raise Fault(f"a commit of {size} bytes is more than ZooKeeper takes at once")
        request = zk.transaction([self._operation(op) for op in ops])
        try:
            results = await self._session.call(request)
        except ZooKeeperError as error:
            raise self._session.fault(error, "it is not known whether this commit happened") from error
        try:
            zk.first_failure(ops, results)
        except ZooKeeperError as error:
            raise self._session.fault(error, "nothing was committed") from error
        below = len(self._chroot)
        return [result[below:] if isinstance(op, Create) else op.path for op, result in zip(ops, results, strict=True)]

    def expedite(self) -> None:
        """ZooKeeper reports by itself when a session has expired."""

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(callback)
        if len(callbacks) == 1 and self.state is SessionState.connected:
            self._arm(path, node=True, children=True)

        def unwatch() -> None:
            callbacks.remove(callback)
            if not callbacks:
                del self._watches[path]  # a watch that ZooKeeper still has fires once more

        return unwatch

    async def _make_chroot(self) -> None:
        """Also the first request to ZooKeeper: it shows whether we have access at all."""
        path = ""
        try:
            await self._session.call(zk.watch_node("/", None))
            for step in self._chroot.split("/")[1:]:
                path += f"/{step}"
                if await self._session.call(zk.watch_node(path, None)) is None:
                    try:
                        await self._session.call(zk.operation(Create(path), path, with_acl=self._with_acl))
                    except ZooKeeperError as error:
                        if not zk.already_exists(error):  # another broker was faster
                            raise
        except ZooKeeperError as error:
            raise self._session.fault(error, f"the node {path or '/'} was not reached") from error

    def _at(self, path: str) -> str:
        return self._chroot + path if path != "/" else self._chroot or path

    def _operation(self, op: Op) -> zk.Request:
        secret = any(op.path == each or op.path.startswith(f"{each}/") for each in SECRET)
        return zk.operation(op, self._at(op.path), with_acl=self._with_acl, secret=secret)

    async def _contents(self, paths: Sequence[str], parents: list[str] | None = None) -> list[Node | None]:
        """Each node, or None; the paths of nodes with children are added to `parents`."""
        nodes: list[Node | None] = []
        for path, found in zip(paths, await self._read(GET_DATA, paths), strict=True):
            nodes.append(None if found is None else Node(path, found.data, found.version))
            if found is not None and found.children and parents is not None:
                parents.append(path)
        return nodes

    async def _names(self, paths: Sequence[str]) -> list[list[str]]:
        """The names of each node's children; none for a node that does not exist."""
        return [names or [] for names in await self._read(GET_CHILDREN, paths)]

    async def _read(self, kind: int, paths: Sequence[str]) -> list[Any]:
        """The answers, None where there is no node; in a few large requests at a time."""
        answers: list[Any] = []
        reads = [Read(kind, self._at(path)) for path in paths]
        chunks = [MultiRead(reads[at : at + READS_PER_REQUEST]) for at in range(0, len(reads), READS_PER_REQUEST)]
        try:
            for at in range(0, len(chunks), REQUESTS_IN_FLIGHT):
                self._session.send(zk.sync(self._at("/")))
                calls = [self._session.call(chunk) for chunk in chunks[at : at + REQUESTS_IN_FLIGHT]]
                for found in await asyncio.gather(*calls):
                    answers += found
        except ZooKeeperError as error:
            raise self._session.fault(error, "nothing was read") from error
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, ReadFailed):
                raise self._session.fault(zk.error_of(answer.code), f"{path} was not read")
        return answers

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.connected:
            barrier = zk.operation(Check(self._at("/"), ANY_VERSION), self._at("/"))
            self._session.send(zk.transaction([barrier]))
            for path in self._watches:  # they were lost with the connection
                self._arm(path, node=True, children=True)
        for callback in list(self._state_callbacks):
            callback(state)

    def _arm(self, path: str, *, node: bool, children: bool) -> None:
        """Set ZooKeeper's own watches, which fire once, and notify when they are set: not before, or a change in
        between would be missed. On a node that does not exist, the watch for its creation suffices."""
        watcher = zk.NodeWatcher(path, self._fired)
        requests = []
        if node:
            requests.append(zk.watch_node(self._at(path), watcher))
        if children:
            requests.append(zk.watch_children(self._at(path), watcher))
        for request in requests[:-1]:
            self._session.send(request)
        self._session.send(requests[-1], lambda: self._notify(path))

    def _fired(self, path: str, children: bool, made: bool) -> None:
        self._session.post(self._seen, path, children, made)

    def _seen(self, path: str, children: bool, made: bool) -> None:
        if path in self._watches and self.state is SessionState.connected:  # otherwise it is set again on connecting
            self._arm(path, node=not children, children=children or made)

    def _notify(self, path: str) -> None:
        for callback in list(self._watches.get(path, ())):
            callback()
