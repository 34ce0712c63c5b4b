"""Pictures as text: replicas of partitions, offsets of consumers, assignments of groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

BAR_WIDTH: Final = 30
CELL: Final = 4
LEADER: Final = "leader"
"""The role of the broker that leads a partition."""
OFFSETS_MAX: Final = 16
"""The last so many offsets of a log are drawn."""


class Copy(NamedTuple):
    """One replica: the number of records in its log, and its current role."""

    broker: int
    records: int
    role: str


def replicas(partition: str, copies: Sequence[Copy], high_watermark: int | None) -> list[str]:
    """One partition: a bar for the log of each replica."""
    longest = max((copy.records for copy in copies), default=0)
    width = max(len(str(longest)), 1)
    lines = [f"{partition}"]
    for copy in copies:
        filled = 0 if not longest else -(-copy.records * BAR_WIDTH // longest)
        bar = "█" * filled + "·" * (BAR_WIDTH - filled)
        lines.append(f"broker {copy.broker:<3} {bar} {copy.records:>{width}} records  {copy.role}")
    led = any(copy.role == LEADER for copy in copies)
    unknown = "not known yet: the leader is new" if led else "unknown: no leader"
    lines.append(f"high watermark {unknown if high_watermark is None else high_watermark}")
    return lines


def matrix(brokers: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Several partitions: a row for each, a column for each broker, in each cell the role of the broker."""
    first = max(map(len, rows), default=0)
    width = max((len(cell) for cells in (brokers, *rows.values()) for cell in cells), default=0)
    lines = ["  ".join(("".ljust(first), *(name.ljust(width) for name in brokers))).rstrip()]
    for name, cells in rows.items():
        lines.append("  ".join((name.ljust(first), *(cell.ljust(width) for cell in cells))).rstrip())
    return lines


def log(partition: str, end: int, readers: Mapping[str, int], *, start: int = 0) -> list[str]:
    """One partition as a log: its offsets, and below them the positions of consumers. `end`: the log end offset."""
    first = max(start, end - OFFSETS_MAX)
    cut = "… " if first > start else ""
    cells = "".join(f"│{offset:>{CELL - 1}}" for offset in range(first, end)) + "│"
    margin = len(partition) + 2 + len(cut)
    lines = [f"{partition}  {cut}{cells}"]
    marks: dict[int, list[str]] = {}
    for name, offset in readers.items():
        marks.setdefault(max(offset, first), []).append(f"{name} at {offset}" if offset < first else name)
    if marks:
        columns = {offset: margin + (offset - first) * CELL + CELL - 1 for offset in marks}
        arrows = [" "] * (max(columns.values()) + 1)
        for column in columns.values():
            arrows[column] = "▲"
        lines.append("".join(arrows))
        lines += [
            f"{' ' * columns[offset]}{', '.join(marks[offset])}: next is {offset}"
            for offset in sorted(marks, reverse=True)
        ]
    return lines


def shares(topic: str, partitions: Sequence[int], groups: Mapping[str, Mapping[str, Sequence[int]]]) -> list[str]:
    """Which member of which group reads which partition of a topic."""
    lines: list[str] = []
    for group, members in groups.items():
        owners = {partition: name for name, owned in members.items() for partition in owned}
        lines.append(f"group {group}")
        lines += [f"  {topic}-{partition} ──▶ {owners.get(partition, 'none')}" for partition in partitions]
        lines += [f"  {' ' * len(topic)}       {name} is idle" for name, owned in members.items() if not owned]
    return lines
