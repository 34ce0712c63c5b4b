"""The exactly-once checkers find every kind of violation."""

from __future__ import annotations

import pytest

from ottla.local.exactly_once import ACCOUNTS, NO_ACCOUNT, OPENING, TOTAL, Entry, Ledger, Note, compare_copy

ORIGINAL = [[b"0:0", b"0:1", b"0:2"], [b"1:0"]]


@pytest.mark.parametrize(
    ("copy", "lost", "duplicated", "reordered", "invented"),
    [
        ([b"0:0", b"0:1", b"0:2"], 0, 0, 0, 0),
        ([b"0:0", b"0:2"], 1, 0, 0, 0),
        ([], 3, 0, 0, 0),
        ([b"0:0", b"0:1", b"0:1", b"0:2"], 0, 1, 0, 0),
        ([b"0:0", b"0:1", b"0:0", b"0:1", b"0:2"], 0, 2, 0, 0),
        ([b"0:1", b"0:0", b"0:2"], 0, 0, 1, 0),
        ([b"0:0", b"0:1", b"0:2", b"0:3"], 0, 0, 0, 1),
    ],
)
def test_differences_between_copy_and_original_are_found(copy, lost, duplicated, reordered, invented):
    found = compare_copy(ORIGINAL, [copy, [b"1:0"]])
    assert found[:4] == (lost, duplicated, reordered, invented)
    assert found.clean == (copy == ORIGINAL[0])
    assert bool(found.examples) != found.clean


def test_an_example_describes_the_difference():
    assert compare_copy([[b"0:0"]], [[]]).examples == ("copy of partition 0: b'0:0' is lost",)


def ledger(*entries):
    made = Ledger()
    for account in range(ACCOUNTS):
        made.see(Entry(f"opening-{account}", account, NO_ACCOUNT, OPENING, meant=True))
    for entry in entries:
        made.see(entry)
    return made


def test_transfers_do_not_change_the_sum():
    made = ledger(Entry("a", 1, 2, -5, meant=True), Entry("b", 3, 1, 7, meant=True), Entry("a", 2, 1, 5, meant=True))
    assert made.problems == []
    assert made.lacks(["a"]) == ["b"]
    made.see(Entry("b", 1, 3, -7, meant=True))
    assert (made.sum, made.lacks(["a", "b"]), made.conclude(["a", "b"])) == (TOTAL, [], [])


def test_half_a_transfer_at_the_end_is_a_wrong_sum():
    found = ledger(Entry("a", 1, 2, -5, meant=True)).conclude([])
    assert len(found) == 2
    assert found[-1] == f"the sum of the bank is {TOTAL - 5}, not {TOTAL}"


def test_a_duplicate_record_is_found_at_once():
    side = Entry("a", 1, 2, -5, meant=True)
    made = ledger(side, Entry("a", 2, 1, 5, meant=True))
    made.see(side)
    assert made.problems
    assert ledger(side, side).problems


def test_a_transfer_that_loses_money_is_found_at_once():
    assert ledger(Entry("a", 1, 2, -5, meant=True), Entry("a", 2, 1, 4, meant=True)).problems


def test_an_aborted_record_that_is_read_is_found():
    assert "was aborted" in ledger(Entry("a", 1, 2, -5, meant=False)).problems[0]


def test_a_record_of_an_aborted_transaction_that_is_read_is_found():
    made = ledger()
    made.read(Note("a", meant=True).encode())
    made.read(Entry("a", 1, 2, -5, meant=True).encode())
    assert made.problems == []
    made.read(Note("b", meant=False).encode())
    assert "was aborted" in made.problems[0]


def test_a_missing_committed_transfer_is_found():
    assert ledger().conclude(["a"]) == ["transfer a was committed and is not read"]


def test_an_entry_is_decoded_as_it_was_encoded():
    entry = Entry("teller-0.3.17", 4, 5, -20, meant=False)
    assert Entry.decode(entry.encode()) == entry
