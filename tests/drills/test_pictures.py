"""Pictures of drills, as text."""

from __future__ import annotations

from ottla.drills.pictures import Copy, log, matrix, replicas, shares


def test_replicas_are_bars_as_long_as_their_logs():
    copies = [Copy(1, 300, "leader"), Copy(2, 200, "killed, out of sync"), Copy(3, 0, "out of sync")]
    assert replicas("notes-0", copies, 300) == [
        "notes-0",
        "broker 1   ██████████████████████████████ 300 records  leader",
        "broker 2   ████████████████████·········· 200 records  killed, out of sync",
        "broker 3   ······························   0 records  out of sync",
        "high watermark 300",
    ]
    assert replicas("notes-0", [], None) == ["notes-0", "high watermark unknown: no leader"]
    assert replicas("notes-0", copies, None)[-1] == "high watermark not known yet: the leader is new"
    assert replicas("notes-0", copies[1:], None)[-1] == "high watermark unknown: no leader"


def test_a_log_shows_positions():
    assert log("pace-0", 12, {"group A": 6, "group B": 9, "the producer": 12}) == [
        "pace-0  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│ 10│ 11│",
        "                                   ▲           ▲           ▲",
        "                                                           the producer: next is 12",
        "                                               group B: next is 9",
        "                                   group A: next is 6",
    ]
    assert log("empty-0", 0, {}) == ["empty-0  │"]


def test_a_long_log_shows_its_end():
    drawn = log("long-0", 100, {"early": 3, "the producer": 100})
    assert drawn[0].startswith("long-0  … │ 84│")
    assert drawn[0].endswith("│ 99│")
    assert any("early at 3" in line for line in drawn)


def test_partitions_and_members_are_rows():
    assert matrix(["broker 1", "broker 2"], {"t-0": ["leader", "in sync"], "t-1": ["-", "leader"]}) == [
        "     broker 1  broker 2",
        "t-0  leader    in sync",
        "t-1  -         leader",
    ]
    assert shares("t", range(2), {"A": {"C1": [0], "C2": [], "C3": []}}) == [
        "group A",
        "  t-0 ──▶ C1",
        "  t-1 ──▶ none",
        "          C2 is idle",
        "          C3 is idle",
    ]
