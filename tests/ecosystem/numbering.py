"""The job that several systems are given: number the records of each key, from one topic into another.

A record `k3 103` of key k3 becomes `k3 103 2`, for it is the second of its key. The number is the system's state, so
the check is exact for both: every record comes out once, in the order of its key, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.ecosystem.ring import Record, Ring, by_key, same

KEYS = 100


def key(number: int) -> str:
    return f"k{number % KEYS}"


def write(ring: Ring, topic: str, count: int, *, start: int = 0) -> None:
    ring.produce(topic, ((key(number), f"{key(number)} {number}") for number in range(start, count)))


def check(records: Iterable[Record], count: int) -> None:
    got = by_key(records)
    wanted = {key(first): [f"{key(n)} {n} {n // KEYS + 1}" for n in range(first, count, KEYS)] for first in range(KEYS)}
    same("keys", sorted(got), sorted(wanted))
    for name, lines in wanted.items():
        same(f"records of {name}", got[name], lines)
