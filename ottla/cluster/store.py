"""The store interface: the small, strongly ordered, durable tree that all brokers of a cluster share.

Its shape is ZooKeeper's, so that ZooKeeper fits behind it without a translation: a node has a path, some bytes and a
version that starts at 0 and grows by one with every write; a node may be bound to a session (ephemeral) and goes when
the session ends; a node may be numbered by its parent (sequential); several operations commit together or not at all.

Who speaks: every broker holds one session. What is durable: a commit that returned. What can be lost: a commit that
raised a Fault may or may not have happened, so the caller reads before it tries again; after a Conflict it has not.
`embedded` keeps the tree in a local file, `zookeeper_store` in an ensemble; one contract test checks every store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from ottla.errors import Fault

ANY_VERSION: Final = -1
COMMIT_OPS_MAX: Final = 500
"""ZooKeeper takes about a megabyte in one request; larger work is split into several commits, each valid by itself."""
COMMIT_BYTES_MAX: Final = 1_000_000


class Node(NamedTuple):
    path: str
    data: bytes
    version: int


class Check(NamedTuple):
    """Commit only if the node exists with this version."""

    path: str
    version: int


class Create(NamedTuple):
    """Create a node, whose parent must exist. A sequential one gets the parent's next number appended to its name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Remove a node, which must have no children."""

    path: str
    version: int = ANY_VERSION


Op = Check | Create | Set | Delete


class Why(Enum):
    """Why an operation failed."""

    missing = "the node is not there"
    exists = "the node is there already"
    version = "the node has another version"
    not_empty = "the node has children"
    ephemeral_parent = "an ephemeral node cannot have children"


class Conflict(Exception):
    """Nothing was committed: the operation at `index` failed."""

    def __init__(self, index: int, op: Op, why: Why) -> None:
        super().__init__(f"{type(op).__name__} {op.path}: {why.value}")
        self.index = index
        self.op = op
        self.why = why


class SessionState(Enum):
    """
    connected -> suspended (out of reach: change nothing, assume nothing) -> connected, or lost
    lost (ephemeral nodes are gone) -> connected (a new session: register again)
    """

    connected = "connected"
    suspended = "suspended"
    lost = "lost"


class SessionLost(Fault):
    """The session has ended, and its ephemeral nodes with it; nothing was committed."""


class Store(Protocol):
    @property
    def state(self) -> SessionState: ...

    @property
    def session_seconds(self) -> float:
        """The session timeout: no session expires earlier after its last sign of life."""

    def on_state(self, callback: Callable[[SessionState], None]) -> None:
        """Call at every change of the session's state from now on."""

    async def read(self, path: str) -> Node | None: ...

    async def children(self, path: str) -> list[str]:
        """Sorted names; none when the node does not exist."""

    async def children_from(self, path: str, first: str) -> list[Node]:
        """Those children whose name is `first` or sorts after it, in order."""

    async def tree(self, *paths: str) -> list[Node]:
        """These nodes and everything below them, sorted by path. Not necessarily of one instant: a store that needs
        several reads may show part of a commit that came in between."""

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        """All or nothing, durable on return. The path of each operation's node, numbered where it was sequential.
        Raises Conflict, SessionLost, or another Fault when it is not known whether it happened."""

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call whenever this node or its list of children may have changed; may call too often, and once for several
        changes. Returns a function that ends it."""

    def expedite(self) -> None:
        """Another session seems to have ended: a store that finds that out by polling polls now."""

    async def close(self) -> None:
        """End the session: its ephemeral nodes are removed."""


def parent_of(path: str) -> str:
    """The path of the node above: "/" for "/brokers"."""
    return path[: path.rindex("/")] or "/"


def sequence_of(path: str) -> int:
    """The number in the name of a sequential node."""
    return int(path[-10:])
