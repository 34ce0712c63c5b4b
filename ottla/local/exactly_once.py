"""Exactly-once checker: compares a transactional copy with its original, and checks the sum of a bank.

It works on what a read_committed consumer reads. A transfer is two records, one for each account, in one transaction.
Transaction markers reach partitions one after the other, so a consumer may read one record before the other. The sum of
all accounts, plus the amounts of transfers of which only one record was read, is always the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

EXAMPLES_MAX = 5
ACCOUNTS = 10
OPENING = 100
TOTAL = ACCOUNTS * OPENING
NO_ACCOUNT = -1


class CopyFindings(NamedTuple):
    """Numbers of differences; all zero if the copy equals the original."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    """Neighbours in the wrong order."""
    invented: int = 0
    """In the copy and not in the original, for example from an aborted transaction."""
    examples: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.invented)

    def plus(self, other: CopyFindings) -> CopyFindings:
        return CopyFindings(
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.reordered + other.reordered,
            self.invented + other.invented,
            self.examples + other.examples,
        )


def compare_copy(originals: Sequence[Sequence[bytes]], copies: Sequence[Sequence[bytes]]) -> CopyFindings:
    """Partition by partition; the values of an original are unique."""
    lost = duplicated = reordered = invented = 0
    examples: list[str] = []
    for partition, (original, copy) in enumerate(zip(originals, copies, strict=True)):
        positions = {value: position for position, value in enumerate(original)}
        times = Counter(copy)
        gone = [value for value in original if value not in times]
        again = [value for value, count in times.items() if count > 1]
        strange = [value for value in times if value not in positions]
        order = [positions[value] for value in times if value in positions]  # by first occurrence
        turned = [at for at in range(1, len(order)) if order[at] < order[at - 1]]
        lost += len(gone)
        duplicated += sum(times[value] - 1 for value in again)
        invented += len(strange)
        reordered += len(turned)
        found = [("lost", gone), ("duplicated", again), ("invented", strange)]
        found.append(("out of order", [original[order[at]] for at in turned]))
        examples += [f"copy of partition {partition}: {each[0]!r} is {how}" for how, each in found if each]
    return CopyFindings(lost, duplicated, reordered, invented, tuple(examples[:EXAMPLES_MAX]))


class Entry(NamedTuple):
    """One record of the bank: one side of a transfer."""

    transfer: str
    account: int
    other: int
    """NO_ACCOUNT: the account is opened."""
    amount: int
    meant: bool
    """Whether its transaction is to be committed; otherwise no consumer may see it."""

    def encode(self) -> bytes:
        return f"{self.transfer}:{self.account}:{self.other}:{self.amount}:{int(self.meant)}".encode()

    @classmethod
    def decode(cls, value: bytes) -> Entry:
        transfer, account, other, amount, meant = value.decode().split(":")
        return cls(transfer, int(account), int(other), int(amount), bool(int(meant)))


class Note(NamedTuple):
    """A record that a transfer writes under a constant key, so that compaction removes earlier ones."""

    transfer: str
    meant: bool

    def encode(self) -> bytes:
        return f"note:{self.transfer}:{int(self.meant)}".encode()

    @classmethod
    def decode(cls, value: bytes) -> Note | None:
        kind, *fields = value.decode().split(":")
        return cls(fields[0], bool(int(fields[1]))) if kind == "note" else None


class Ledger:
    """The bank as one reader sees it, with the problems found."""

    def __init__(self) -> None:
        self.balances: Counter[int] = Counter()
        self.seen: set[tuple[str, int]] = set()
        self.problems: list[str] = []
        self._halves: dict[str, Entry] = {}
        self._whole: set[str] = set()
        self._opened = 0
        self._owed = 0

    @property
    def sum(self) -> int:
        return sum(self.balances.values())

    @property
    def transfers(self) -> int:
        return len(self._whole)

    def read(self, value: bytes) -> None:
        if (note := Note.decode(value)) is None:
            self.see(Entry.decode(value))
        elif not note.meant:
            self.problems.append(f"{note} was aborted, and is read")

    def see(self, entry: Entry) -> None:
        if not entry.meant:
            self.problems.append(f"{entry} was aborted, and is read")
        if (entry.transfer, entry.account) in self.seen:
            self.problems.append(f"{entry} is read twice")
        self.seen.add((entry.transfer, entry.account))
        self.balances[entry.account] += entry.amount
        if entry.other == NO_ACCOUNT:
            self._opened += 1
        elif (half := self._halves.pop(entry.transfer, None)) is None:
            self._halves[entry.transfer] = entry
            self._owed -= entry.amount
        else:
            self._owed += half.amount
            self._whole.add(entry.transfer)
            if (half.account, half.amount) != (entry.other, -entry.amount):
                self.problems.append(f"{half} and {entry} are no transfer")
        if self._opened == ACCOUNTS and self.sum + self._owed != TOTAL:
            self.problems.append(f"with {entry} the sum is {self.sum} and {self._owed} are underway: not {TOTAL}")

    def lacks(self, committed: Collection[str]) -> list[str]:
        """What must still be read: the second records of transfers, and committed transfers."""
        return [*self._halves, *sorted(set(committed) - self._whole)]

    def conclude(self, committed: Collection[str]) -> list[str]:
        """All problems, after everything was read."""
        found = list(self.problems)
        found += [f"only half of a transfer is read: {half}" for half in self._halves.values()]
        found += [f"transfer {each} was committed and is not read" for each in sorted(set(committed) - self._whole)]
        if self.sum != TOTAL:
            found.append(f"the sum of the bank is {self.sum}, not {TOTAL}")
        return found
