"""What clients were told, what the log says, and where the two differ.

Every record names its producer and its number: each producer counts up in each partition. So whatever was lost, doubled
or put out of order can be counted from the log alone.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

UNSEEN = -1
SHIFT = 40
EXAMPLES_MAX = 5

Log = dict[int, list[tuple[int, int]]]
"""Partition to (offset, record) in the order of the log."""


def record_of(producer: int, number: int) -> int:
    """Both in one number, which takes less memory than a pair."""
    return producer << SHIFT | number


def shown(record: int) -> str:
    return f"{record >> SHIFT}:{record & (1 << SHIFT) - 1}"


def parse(value: bytes) -> int:
    producer, number, *_ = value.split(b":")
    return record_of(int(producer), int(number))


class Findings(NamedTuple):
    """All zero, or something is broken."""

    lost: int = 0
    """Acknowledged, and not in the log."""
    duplicated: int = 0
    """In the log twice or more."""
    reordered: int = 0
    """Behind a later record of the same producer."""
    inconsistent: int = 0
    """Offsets that two clients were told different records of, or that are missing between two others."""
    examples: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.inconsistent)


class History:
    """Filled by clients from their threads."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._promised: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._read: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self._contradictions: list[str] = []

    def acknowledge(self, partition: int, offset: int, record: int) -> None:
        """A negative offset: the producer knows that the record is there, and not where."""
        with self._lock:
            self.acknowledged += 1
            self._promised[partition].append((offset, record))

    def fail(self, why: str) -> None:
        with self._lock:
            self.failures.append(why)

    def read(self, partition: int, offset: int, record: int) -> None:
        """A consumer saw this. What it saw once it must see again."""
        seen = self._read[partition]
        if offset >= len(seen):
            seen.extend([UNSEEN] * (offset + 1 - len(seen)))
        if seen[offset] not in (UNSEEN, record):
            with self._lock:
                self._contradictions.append(
                    f"partition {partition} offset {offset}: read {shown(seen[offset])}, and later {shown(record)}"
                )
        seen[offset] = record

    def read_count(self) -> int:
        return sum(len(seen) - seen.count(UNSEEN) for seen in list(self._read.values()))

    def compare(self, log: Log) -> Findings:
        """The verdict, once everything is quiet."""
        examples = list(self._contradictions)
        lost = duplicated = reordered = 0
        for partition in sorted({*self._promised, *log}):
            entries = log.get(partition, [])
            lost += self._lost(partition, entries, examples)
            duplicated += _duplicated(partition, entries, examples)
            reordered += _reordered(partition, entries, examples)
        inconsistent = len(self._contradictions)
        for partition, entries in sorted(log.items()):
            inconsistent += self._inconsistent(partition, entries, examples)
        return Findings(lost, duplicated, reordered, inconsistent, tuple(examples[:EXAMPLES_MAX]))

    def _lost(self, partition: int, entries: list[tuple[int, int]], examples: list[str]) -> int:
        there = {record for _, record in entries}
        lost = [(offset, record) for offset, record in self._promised[partition] if record not in there]
        _tell(examples, (f"partition {partition}: lost {shown(r)}, acknowledged at {offset}" for offset, r in lost))
        return len(lost)

    def _inconsistent(self, partition: int, entries: list[tuple[int, int]], examples: list[str]) -> int:
        by_offset = dict(entries)
        found: list[str] = []
        for offset, record in self._promised[partition]:
            if offset >= 0 and by_offset.get(offset, record) != record:
                found.append(f"acknowledged {shown(record)} at {offset}, the log has {shown(by_offset[offset])}")
        for offset, record in enumerate(self._read[partition]):
            if record != UNSEEN and by_offset.get(offset) != record:
                has = shown(by_offset[offset]) if offset in by_offset else "nothing"
                found.append(f"read {shown(record)} at {offset}, the log has {has}")
        offsets = [offset for offset, _ in entries]
        if offsets != list(range(offsets[0] if offsets else 0, len(offsets) + (offsets[0] if offsets else 0))):
            found.append("offsets of the log are not one after the other")
        _tell(examples, (f"partition {partition}: {each}" for each in found))
        return len(found)


def _duplicated(partition: int, entries: list[tuple[int, int]], examples: list[str]) -> int:
    more = {record: times for record, times in Counter(record for _, record in entries).items() if times > 1}
    places = defaultdict(list)
    for offset, record in entries:
        if record in more:
            places[record].append(offset)
    _tell(examples, (f"partition {partition}: {shown(r)} stands at {at}" for r, at in places.items()))
    return sum(times - 1 for times in more.values())


def _reordered(partition: int, entries: list[tuple[int, int]], examples: list[str]) -> int:
    last: dict[int, int] = {}
    found = []
    for offset, record in entries:
        producer = record >> SHIFT
        if record < last.get(producer, record):
            found.append(f"partition {partition}: {shown(record)} at {offset} behind {shown(last[producer])}")
        last[producer] = record
    _tell(examples, found)
    return len(found)


def _tell(examples: list[str], found: Iterable[str]) -> None:
    for each in found:
        if len(examples) >= EXAMPLES_MAX:
            return
        examples.append(each)
