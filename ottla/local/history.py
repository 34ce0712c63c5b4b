"""History checker: records what clients sent and received, and reports violations of Kafka's guarantees. Used by the
simulator and the soak.

Every value is unique and names its producer, partition and number. The guarantees (acks=all, three replicas, two in
sync, an idempotent producer): an acknowledged record is in the log once, at its offset, in the order of its producer;
an offset never has two values; a reader misses nothing; log ends and committed offsets never go back.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

NO_OFFSET: Final = -1
VIOLATIONS_MAX: Final = 50


class Value(NamedTuple):
    """`number` counts the values of this producer in this partition."""

    producer: str
    partition: int
    number: int

    def encode(self, size: int = 0) -> bytes:
        return f"{self.producer}:{self.partition}:{self.number}:".encode().ljust(size, b".")

    @classmethod
    def decode(cls, data: bytes) -> Value:
        producer, partition, number, _ = data.split(b":", 3)
        return cls(producer.decode(), int(partition), int(number))


class Kind(Enum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    INCONSISTENT = "inconsistent"
    INVENTED = "invented"
    SKIPPED = "skipped"
    BACKWARD = "backward"
    MOVED = "moved"
    SHRUNK = "shrunk"
    FORGOTTEN = "forgotten"
    DIVERGED = "diverged"
    TWO_LEADERS = "two leaders"
    WRONG_SUM = "wrong sum"
    STUCK = "stuck"
    FAILED = "failed"


class End(NamedTuple):
    """A log end, and the leader epoch in which it is known: every later leader has it, too."""

    offset: int
    leader_epoch: int


class Violation(NamedTuple):
    kind: Kind
    text: str


class Findings(NamedTuple):
    """Numbers of violations; all zero if there are none."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    inconsistent: int = 0
    """All other violations."""

    def plus(self, other: Findings) -> Findings:
        return Findings(*(one + another for one, another in zip(self, other, strict=True)))

    def __str__(self) -> str:
        return " · ".join(f"{name} {count}" for name, count in self._asdict().items())


class History:
    """Filled by clients, from one loop or from several threads."""

    def __init__(
        self, report: Callable[[str], object] | None = None, leader_epoch: Callable[[int], int] = lambda partition: 0
    ) -> None:
        """`leader_epoch`: returns the current leader epoch of a partition; only the simulator knows it."""
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._report = report
        self._leader_epoch = leader_epoch
        self._sent: set[Value] = set()
        self._acknowledged: dict[Value, int] = {}
        self._values: dict[tuple[int, int], Value] = {}
        self._offsets: dict[Value, int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._ends: dict[int, End] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._in_doubt: dict[tuple[str, int], set[int]] = {}
        self._covered: dict[tuple[str, int], int] = {}
        self._ahead: dict[tuple[str, int], set[int]] = {}

    def violated(self, kind: Kind, text: str) -> None:
        with self._lock:
            self.counts[kind.value] += 1
            if len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(Violation(kind, text))
        if self._report is not None:
            self._report(f"{kind.value}: {text}")

    def failed(self, why: str) -> None:
        """A client that could not continue."""
        self.violated(Kind.FAILED, why)

    def findings(self) -> Findings:
        lost, duplicated, reordered = (self.counts[each.value] for each in (Kind.LOST, Kind.DUPLICATED, Kind.REORDERED))
        total = sum(self.counts[kind.value] for kind in Kind if kind is not Kind.FAILED)
        return Findings(lost, duplicated, reordered, total - lost - duplicated - reordered)

    # Producers.

    def sent(self, value: Value) -> None:
        with self._lock:
            self._sent.add(value)
            self.counts["sent"] += 1

    def acknowledged(self, value: Value, offset: int) -> None:
        """The offset is -1 for a duplicate whose offset the leader does not remember."""
        with self._lock:
            self.counts["acknowledged"] += 1
            self._acknowledged[value] = offset
            if offset != NO_OFFSET:
                self._seen(value, offset, "the producer was acknowledged")
                self._reaches(value.partition, offset + 1)

    def given_up(self, value: Value) -> None:
        """It may be in the log or not."""
        with self._lock:
            self.counts["given up"] += 1

    # Consumers without a group.

    def begins(self, reader: str, partition: int, offset: int) -> None:
        """The reader continues at this offset."""
        self._positions[reader, partition] = offset

    def read(self, reader: str, partition: int, offset: int, value: Value) -> None:
        with self._lock:
            self.counts["read"] += 1
            expected = self._positions.get((reader, partition), 0)
            if offset < expected:
                self.violated(Kind.BACKWARD, f"{reader} read {partition}@{offset} after {expected - 1}")
            elif offset > expected:
                self.violated(Kind.SKIPPED, f"{reader} read {partition}@{offset} but not {expected}..{offset - 1}")
            self._positions[reader, partition] = offset + 1
            self._reaches(partition, offset + 1)
            if value not in self._sent or value.partition != partition:
                self.violated(Kind.INVENTED, f"{reader} read {value} at {partition}@{offset}, which was not sent to it")
            self._seen(value, offset, f"{reader} read")

    def _seen(self, value: Value, offset: int, how: str) -> None:
        partition = value.partition
        other = self._values.setdefault((partition, offset), value)
        if other != value:
            self.violated(Kind.INCONSISTENT, f"{how} {value} at {partition}@{offset}, where {other} was")
        first = self._offsets.setdefault(value, offset)
        if first != offset:
            self.violated(Kind.DUPLICATED, f"{how} {value} at {partition}@{offset}, and it is at {first} too")

    def position(self, reader: str, partition: int) -> int:
        return self._positions.get((reader, partition), 0)

    # Log ends. A response is compared with what was known at the time of the request, not with what was learnt
    # meanwhile; a leader that does not know its successor yet may report an older end.

    def _reaches(self, partition: int, offset: int) -> None:
        if offset > self.end_known(partition).offset:
            self._ends[partition] = End(offset, self._leader_epoch(partition))

    def end_known(self, partition: int) -> End:
        return self._ends.get(partition, End(0, 0))

    def end_reported(self, partition: int, reported: End, known: End) -> None:
        self.counts["ends reported"] += 1
        if reported.offset < known.offset and reported.leader_epoch >= known.leader_epoch:
            self.violated(Kind.SHRUNK, f"partition {partition} ends at {reported}, and was known to reach {known}")
        self._reaches(partition, reported.offset)

    # Groups.

    def group_read(self, group: str, member: str, partition: int, offset: int, value: Value) -> None:
        with self._lock:
            self.counts["read by groups"] += 1
            self._reaches(partition, offset + 1)
            self._seen(value, offset, f"{member} read")
            key = group, partition
            if offset == self._covered.get(key, 0):
                offset += 1
                ahead = self._ahead.get(key, set())
                while offset in ahead:
                    ahead.discard(offset)
                    offset += 1
                self._covered[key] = offset
            elif offset > self._covered.get(key, 0):
                self._ahead.setdefault(key, set()).add(offset)

    def member_begins(self, group: str, member: str, partition: int, offset: int, known: int) -> None:
        """The first record that a member reads of a partition when offset `known` was committed: it must not be before
        `known`, nor behind what the group has read."""
        covered = self.covered(group, partition)
        if offset < known:
            self.violated(Kind.FORGOTTEN, f"{member} begins at {partition}@{offset}, and {known} was committed")
        elif offset > covered:
            self.violated(Kind.SKIPPED, f"{member} begins at {partition}@{offset}, and {group} has read to {covered}")

    def read_count(self, reader: str) -> int:
        """Records that a reader or a group has read, without repetitions."""
        read = sum(position for (name, _), position in list(self._positions.items()) if name == reader)
        read += sum(covered for (name, _), covered in list(self._covered.items()) if name == reader)
        return read + sum(len(ahead) for (name, _), ahead in list(self._ahead.items()) if name == reader)

    def covered(self, group: str, partition: int) -> int:
        """The members have read everything before this offset."""
        return self._covered.get((group, partition), 0)

    def commits(self, group: str, partition: int, offset: int) -> None:
        """A member is about to commit `offset`."""
        covered = self.covered(group, partition)
        if offset > covered:
            self.violated(Kind.SKIPPED, f"{group} commits {offset} in partition {partition}, and has read to {covered}")

    def commit_doubtful(self, group: str, partition: int, offset: int) -> None:
        """A commit without a response may take effect at any later time."""
        self._in_doubt.setdefault((group, partition), set()).add(offset)

    def commit_acknowledged(self, group: str, partition: int, offset: int) -> None:
        with self._lock:
            self.counts["offsets committed"] += 1
            key = group, partition
            self._committed[key] = max(self._committed.get(key, 0), offset)

    def commit_known(self, group: str, partition: int) -> int:
        return self._committed.get((group, partition), 0)

    def commit_reported(self, group: str, partition: int, offset: int, known: int) -> None:
        if offset < known and offset not in self._in_doubt.get((group, partition), ()):
            self.violated(Kind.FORGOTTEN, f"{group} is at {offset} in partition {partition}, and had committed {known}")

    # The final log.

    def conclude(self, logs: Mapping[int, Iterable[tuple[int, Value]]]) -> None:
        """Check everything against the final logs: offsets and values of each partition."""
        found: dict[Value, int] = {}
        for partition, records in logs.items():
            last: dict[str, int] = {}
            due: int | None = None
            for offset, value in records:
                if due not in (None, offset):
                    self.violated(Kind.INCONSISTENT, f"{value} is at {partition}@{offset}, where {due} is due")
                due = offset + 1
                if value in found:
                    self.violated(Kind.DUPLICATED, f"{value} is at {partition}@{offset} and at {found[value]}")
                elif value.number < last.get(value.producer, -1):
                    self.violated(
                        Kind.REORDERED, f"{value} at {partition}@{offset} comes after number {last[value.producer]}"
                    )
                found[value] = offset
                last[value.producer] = value.number
        for value, offset in self._acknowledged.items():
            if value not in found:
                self.violated(Kind.LOST, f"{value} was acknowledged at {value.partition}@{offset}")
            elif offset not in (NO_OFFSET, found[value]):
                self.violated(Kind.MOVED, f"{value} was acknowledged at {offset} and is at {found[value]}")
        for (partition, offset), value in self._values.items():
            if found.get(value) != offset:
                self.violated(Kind.LOST, f"{value} was seen at {partition}@{offset}, and is not there in the end")
