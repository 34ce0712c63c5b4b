"""The tree of the simulated store: nodes in memory, and commits that happen whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.cluster.store import ANY_VERSION, Check, Conflict, Create, Delete, Node, Op, Set, Why, parent_of


class _Kept:
    """A node as the server keeps it."""

    __slots__ = ("children", "children_made", "data", "session", "version")

    def __init__(self, data: bytes, session: int | None) -> None:
        self.data = data
        self.version = 0
        self.session = session
        self.children: dict[str, None] = {}
        self.children_made = 0


class Tree:
    """The nodes, and what can be done to them."""

    def __init__(self) -> None:
        self._nodes = {"/": _Kept(b"", None)}

    def read(self, path: str) -> Node | None:
        kept = self._nodes.get(path)
        return None if kept is None else Node(path, kept.data, kept.version)

    def children(self, path: str) -> list[str]:
        kept = self._nodes.get(path)
        return [] if kept is None else sorted(kept.children)

    def children_from(self, path: str, first: str) -> list[Node]:
        above = path.rstrip("/")
        found = [self.read(f"{above}/{name}") for name in self.children(path) if name >= first]
        return [node for node in found if node is not None]

    def tree(self, *paths: str) -> list[Node]:
        nodes: dict[str, Node] = {}
        queue = list(paths)
        while queue:
            path = queue.pop()
            node = self.read(path)
            if node is not None and path not in nodes:
                nodes[path] = node
                above = path.rstrip("/")
                queue += [f"{above}/{name}" for name in self._nodes[path].children]
        return sorted(nodes.values())

    def commit(self, session: int, ops: Sequence[Op]) -> list[str]:
        undo: list[Callable[[], object]] = []
        try:
            return [self._perform(session, index, op, undo) for index, op in enumerate(ops)]
        except Conflict:
            for step in reversed(undo):
                step()
            raise

    def ephemeral(self, session: int) -> list[str]:
        return [path for path, kept in self._nodes.items() if kept.session == session]

    def _perform(self, session: int, index: int, op: Op, undo: list[Callable[[], object]]) -> str:
        if isinstance(op, Create):
            return self._create(session, index, op, undo)
        kept = self._nodes.get(op.path)
        if kept is None:
            raise Conflict(index, op, Why.missing)
        if op.version not in (ANY_VERSION, kept.version):
            raise Conflict(index, op, Why.version)
        if isinstance(op, Set):
            undo.append(lambda was=(kept.data, kept.version): self._put(kept, *was))  # type: ignore[misc]
            self._put(kept, op.data, kept.version + 1)
        elif isinstance(op, Delete):
            if kept.children:
                raise Conflict(index, op, Why.not_empty)
            undo.append(lambda: self._link(op.path, kept))
            self._unlink(op.path)
        else:
            assert isinstance(op, Check)
        return op.path

    def _create(self, session: int, index: int, op: Create, undo: list[Callable[[], object]]) -> str:
        path = op.path
        parent = self._nodes.get(parent_of(path))
        if parent is None:
            raise Conflict(index, op, Why.missing)
        if parent.session is not None:
            raise Conflict(index, op, Why.ephemeral_parent)
        if op.sequential:
            path += f"{parent.children_made:010d}"
        if path in self._nodes:
            raise Conflict(index, op, Why.exists)
        if op.sequential:
            parent.children_made += 1
            undo.append(lambda: setattr(parent, "children_made", parent.children_made - 1))
        self._link(path, _Kept(op.data, session if op.ephemeral else None))
        undo.append(lambda: self._unlink(path))
        return path

    def _put(self, kept: _Kept, data: bytes, version: int) -> None:
        kept.data, kept.version = data, version

    def _link(self, path: str, kept: _Kept) -> None:
        self._nodes[path] = kept
        self._nodes[parent_of(path)].children[path[path.rindex("/") + 1 :]] = None

    def _unlink(self, path: str) -> None:
        del self._nodes[path]
        del self._nodes[parent_of(path)].children[path[path.rindex("/") + 1 :]]
