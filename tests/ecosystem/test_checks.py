"""The checks of `make interop-ecosystem` find the errors that they are for."""

from __future__ import annotations

import pytest

from tests.ecosystem import debezium, numbering
from tests.ecosystem.debezium import Event
from tests.ecosystem.ring import Failed, Record, Ring, same

COUNT = 300


def numbered() -> list[Record]:
    key = numbering.key
    return [Record(n % 3, n, key(n), f"{key(n)} {n} {n // numbering.KEYS + 1}") for n in range(COUNT)]


def test_a_complete_history_in_order_passes():
    same("lines", ["a", "b"], ["a", "b"])
    numbering.check(numbered(), COUNT)


@pytest.mark.parametrize("got", [["a"], ["a", "a", "b"], ["b", "a"], ["a", "c"], []])
def test_a_line_that_is_lost_doubled_moved_or_changed_is_found(got):
    with pytest.raises(Failed, match="lines: "):
        same("lines", got, ["a", "b"])


def test_a_record_that_is_lost_doubled_or_moved_is_found():
    records = numbered()
    first, second = records[0], records[numbering.KEYS]
    for broken in (
        [record for record in records if record is not second],
        [*records, second],
        [second, *(record for record in records if record is not second)],
        [first._replace(value=first.value + "0"), *records[1:]],
        [record for record in records if record.key != "k0"],
    ):
        with pytest.raises(Failed):
            numbering.check(broken, COUNT)


def change(operation: str, before: int | None, after: int | None, row: int = 1) -> Record:
    images = [f'{{"amount": {each}}}' if each is not None else "null" for each in (before, after)]
    return Record(0, 0, f'{{"id": {row}}}', f'{{"op": "{operation}", "before": {images[0]}, "after": {images[1]}}}')


def tombstone(row: int = 1) -> Record:
    return Record(0, 0, f'{{"id": {row}}}', "")


def test_a_change_of_a_row_that_is_lost_or_doubled_is_found():
    history = {1: [Event("c", 5), Event("u", 6), Event("d", None)]}
    records = [change("c", None, 5), change("u", 5, 6), change("d", 6, None)]
    assert debezium._check([*records, tombstone()], history) == 0
    for position in range(len(records)):
        with pytest.raises(Failed):
            debezium._check([*records[:position], *records[position + 1 :], tombstone()], history)
        with pytest.raises(Failed):
            debezium._check([*records[:position], records[position], *records[position:], tombstone()], history)


def test_a_tombstone_too_many_or_too_early_is_found_and_one_for_each_kill_may_be_missing():
    rows = range(debezium.KILLS + 1)
    history = {row: [Event("c", 5), Event("d", None), Event("c", 7)] for row in rows}

    def records(buried: int) -> list[Record]:
        return [
            each
            for row in rows
            for each in (
                change("c", None, 5, row),
                change("d", 5, None, row),
                *([tombstone(row)] if row < buried else []),
                change("c", None, 7, row),
            )
        ]

    assert debezium._check(records(len(rows)), history) == 0
    assert debezium._check(records(1), history) == debezium.KILLS
    for broken in (records(0), [tombstone(), *records(len(rows))], [*records(len(rows)), tombstone()]):
        with pytest.raises(Failed, match="tombstone"):
            debezium._check(broken, history)


class LateRing(Ring):
    """A ring whose program writes one record more before it is stopped."""

    def __init__(self, late: int) -> None:
        self.records = numbered()
        self._late = late
        self._programs = []

    def end(self, topic: str, bootstrap: str = "") -> int:
        return len(self.records)

    def read(self, topic: str, bootstrap: str = "") -> list[Record]:
        return list(self.records)

    def stop_all(self) -> None:
        self.records += self.records[: self._late]


def test_a_record_that_is_doubled_after_all_have_come_is_found():
    assert len(LateRing(0).settled("t", COUNT)) == COUNT
    with pytest.raises(Failed, match="301 committed records instead of 300"):
        LateRing(1).settled("t", COUNT)
