"""The history checker finds violations, and nothing else."""

from __future__ import annotations

import pytest

from ottla.local.history import End, Findings, History, Kind, Value


@pytest.fixture
def history():
    return History()


def value(number, partition=0, producer="p"):
    return Value(producer, partition, number)


def wrote(history, *numbers, first=0):
    for offset, number in enumerate(numbers, first):
        history.sent(value(number))
        history.acknowledged(value(number), offset)


def kinds(history):
    return [violation.kind for violation in history.violations]


def test_a_value_is_decoded_as_it_was_encoded():
    assert Value.decode(Value("writer-1.2", 3, 77).encode(200)) == Value("writer-1.2", 3, 77)


def test_a_log_with_all_acknowledged_values_in_order_has_no_violation(history):
    wrote(history, 0, 1, 2)
    for offset in range(3):
        history.read("r", 0, offset, value(offset))
    history.conclude({0: [(0, value(0)), (1, value(1)), (2, value(2))]})
    assert kinds(history) == []


def test_an_acknowledged_value_that_is_missing_at_the_end_is_lost(history):
    wrote(history, 0, 1)
    history.conclude({0: [(0, value(0))]})
    assert Kind.LOST in kinds(history)


def test_an_acknowledgement_without_an_offset_counts_too(history):
    history.sent(value(0))
    history.acknowledged(value(0), -1)
    history.conclude({0: []})
    assert kinds(history) == [Kind.LOST]


def test_a_value_that_was_given_up_may_be_there_or_not(history):
    history.sent(value(0))
    history.given_up(value(0))
    history.conclude({0: []})
    history.conclude({0: [(0, value(0))]})
    assert kinds(history) == []


def test_a_value_that_was_read_must_stay(history):
    history.sent(value(0))
    history.read("r", 0, 0, value(0))
    history.conclude({0: []})
    assert kinds(history) == [Kind.LOST]


def test_one_offset_with_two_values_is_inconsistent(history):
    wrote(history, 0, 1)
    history.read("r", 0, 0, value(1))
    assert Kind.INCONSISTENT in kinds(history)


def test_one_value_at_two_offsets_is_a_duplicate(history):
    wrote(history, 0)
    history.read("r", 0, 0, value(0))
    history.read("r", 0, 1, value(0))
    assert kinds(history) == [Kind.DUPLICATED]


def test_values_of_one_producer_out_of_order_are_reordered(history):
    wrote(history, 1, 0)
    history.conclude({0: [(0, value(1)), (1, value(0))]})
    assert kinds(history) == [Kind.REORDERED]


def test_order_is_checked_for_each_producer(history):
    other = value(0, producer="q")
    history.conclude({0: [(0, value(0)), (1, other), (2, value(1))]})
    assert kinds(history) == []
    history.conclude({0: [(0, value(0)), (1, value(2)), (2, other), (3, value(1))]})
    assert kinds(history) == [Kind.REORDERED]


def test_records_without_acknowledgement_may_be_in_the_log(history):
    wrote(history, 0)
    history.conclude({0: [(0, value(0)), (1, value(1))]})
    assert kinds(history) == []


def test_a_missing_partition_is_lost(history):
    wrote(history, 0)
    history.conclude({})
    assert Kind.LOST in kinds(history)
    assert history.violations[0].text == "Value(producer='p', partition=0, number=0) was acknowledged at 0@0"


def test_a_value_twice_in_the_log_is_a_duplicate(history):
    wrote(history, 0)
    history.conclude({0: [(0, value(0)), (1, value(0))]})
    assert Kind.DUPLICATED in kinds(history)
    assert history.findings().duplicated == 1


def test_a_gap_in_the_offsets_is_inconsistent(history):
    history.conclude({0: [(0, value(0)), (2, value(1))]})
    assert kinds(history) == [Kind.INCONSISTENT]


def test_a_value_at_another_offset_than_acknowledged_has_moved(history):
    wrote(history, 1)
    history.conclude({0: [(0, value(0)), (1, value(1))]})
    assert Kind.MOVED in kinds(history)


def test_findings_are_counted_by_kind(history):
    wrote(history, 0, 1)
    history.failed("a client that could not go on")
    history.conclude({0: [(0, value(0)), (2, value(2))]})
    assert history.findings() == Findings(lost=2, inconsistent=1), "acknowledged and not there, seen and not there"
    assert str(Findings(1, 2, 3, 4)) == "lost 1 · duplicated 2 · reordered 3 · inconsistent 4"


def test_a_value_that_was_never_sent_is_invented(history):
    history.read("r", 0, 0, value(0))
    assert kinds(history) == [Kind.INVENTED]


def test_readers_neither_skip_nor_go_back_without_a_seek(history):
    wrote(history, 0, 1, 2)
    history.read("r", 0, 1, value(1))
    history.read("r", 0, 1, value(1))
    assert kinds(history) == [Kind.SKIPPED, Kind.BACKWARD]
    history.begins("r", 0, 0)
    history.read("r", 0, 0, value(0))
    assert len(history.violations) == 2


def test_the_log_end_does_not_shrink_in_the_same_or_a_later_leader_epoch():
    history = History(leader_epoch=lambda partition: 4)
    wrote(history, 0, 1, 2)
    known = history.end_known(0)
    assert known == End(3, 4)
    history.end_reported(0, End(2, 3), known)
    assert kinds(history) == [], "a leader that was deposed tells of the past"
    history.end_reported(0, End(2, 4), known)
    assert kinds(history) == [Kind.SHRUNK]


def test_committed_offsets_do_not_go_back_except_by_a_commit_in_doubt(history):
    history.commit_acknowledged("g", 0, 7)
    history.commit_doubtful("g", 0, 5)
    known = history.commit_known("g", 0)
    history.commit_reported("g", 0, 7, known)
    history.commit_reported("g", 0, 5, known)
    assert kinds(history) == []
    history.commit_reported("g", 0, 6, known)
    assert kinds(history) == [Kind.FORGOTTEN]


def test_a_group_commits_only_what_its_members_have_read(history):
    wrote(history, 0, 1, 2)
    history.group_read("g", "a", 0, 1, value(1))
    history.group_read("g", "b", 0, 0, value(0))
    history.commits("g", 0, 2)
    assert kinds(history) == []
    history.commits("g", 0, 3)
    assert kinds(history) == [Kind.SKIPPED]


def test_a_member_starts_at_the_committed_offset(history):
    wrote(history, 0, 1, 2)
    history.group_read("g", "a", 0, 0, value(0))
    history.group_read("g", "a", 0, 1, value(1))
    history.member_begins("g", "b", 0, 1, known=1)
    history.member_begins("g", "b", 0, 2, known=1)
    assert kinds(history) == []
    history.member_begins("g", "b", 0, 0, known=1)
    history.member_begins("g", "b", 0, 3, known=1)
    assert kinds(history) == [Kind.FORGOTTEN, Kind.SKIPPED]
    assert history.read_count("g") == 2
