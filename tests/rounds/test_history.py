"""The checker finds what it is there to find."""

from __future__ import annotations

from tests.rounds.history import History, record_of

A, B, C = (record_of(0, number) for number in range(3))
OTHER = record_of(1, 0)


def history(*acknowledged, read=()):
    made = History()
    for offset, record in acknowledged:
        made.acknowledge(0, offset, record)
    for offset, record in read:
        made.read(0, offset, record)
    return made


def counts(findings):
    return findings.lost, findings.duplicated, findings.reordered, findings.inconsistent


def test_a_log_that_has_what_was_acknowledged_is_clean():
    findings = history((0, A), (1, B), (-1, OTHER), read=[(0, A)]).compare({0: [(0, A), (1, B), (2, OTHER)]})
    assert (counts(findings), findings.clean) == ((0, 0, 0, 0), True)


def test_records_that_nobody_promised_may_be_there():
    assert history((0, A)).compare({0: [(0, A), (1, B)]}).clean


def test_what_was_acknowledged_and_is_not_there_is_lost():
    findings = history((0, A), (1, B)).compare({0: [(0, A)]})
    assert counts(findings) == (1, 0, 0, 0)
    assert findings.examples == ("partition 0: lost 0:1, acknowledged at 1",)


def test_a_whole_partition_that_is_gone_is_lost():
    assert history((0, A)).compare({}).lost == 1


def test_what_stands_there_twice_is_duplicated():
    findings = history((0, A)).compare({0: [(0, A), (1, A)]})
    assert counts(findings) == (0, 1, 0, 0)
    assert findings.examples == ("partition 0: 0:0 stands at [0, 1]",)


def test_order_is_kept_for_each_producer_by_itself():
    assert history().compare({0: [(0, A), (1, OTHER), (2, B)]}).clean
    assert counts(history().compare({0: [(0, A), (1, C), (2, OTHER), (3, B)]})) == (0, 0, 1, 0)


def test_an_offset_belongs_to_one_record():
    assert counts(history((0, B)).compare({0: [(0, A), (1, B)]})) == (0, 0, 0, 1)
    assert counts(history(read=[(0, B)]).compare({0: [(0, A), (1, B)]})) == (0, 0, 0, 1)
    assert counts(history(read=[(0, B), (0, A)]).compare({0: [(0, A), (1, B)]})) == (0, 0, 0, 1)


def test_what_was_read_is_in_the_log_in_the_end():
    findings = history(read=[(0, A), (1, B)]).compare({0: [(0, A)]})
    assert findings.examples == ("partition 0: read 0:1 at 1, the log has nothing",)


def test_offsets_have_no_holes():
    assert counts(history().compare({0: [(0, A), (2, B)]})) == (0, 0, 0, 1)
