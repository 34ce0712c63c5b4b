"""Assignors of classic groups: which member reads which partitions, under the names other clients know.

Only the leader computes. For members of different make to share a group they need to agree on the names of the
assignors and on the bytes the members send to the leader, not on the algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.group.assignors.base import Assignment, Assignor
from ottla.client.group.assignors.cooperative import CooperativeSticky
from ottla.client.group.assignors.range import Range
from ottla.client.group.assignors.roundrobin import RoundRobin
from ottla.client.group.assignors.sticky import Sticky

ASSIGNORS: Final[Mapping[str, Assignor]] = {
    assignor.name: assignor for assignor in (Range(), RoundRobin(), Sticky(), CooperativeSticky())
}

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "assignors_named"]


def assignors_named(names: Sequence[str]) -> tuple[Assignor, ...]:
    """In the order of preference given. ValueError for a name that none has."""
    unknown = [name for name in names if name not in ASSIGNORS]
    if unknown or not names:
        raise ValueError(f"no assignor is called {unknown[0] if unknown else ''!r}: there are {', '.join(ASSIGNORS)}")
    return tuple(ASSIGNORS[name] for name in names)
