"""`ottla drill`: every drill passes, its output is checked against the cluster, and a failed check is reported."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ottla.drills import catalogue, running
from ottla.drills.catalogue import DRILLS, Drill
from ottla.drills.running import Player, missing
from ottla.drills.stage import CheckFailed
from ottla.drills.texts import Quote
from ottla.errors import Fault
from tests.cli.drill_witness import Witness
from tests.cli.terminal import Terminal
from tests.harness.zookeeper import zookeeper_jars

pytestmark = pytest.mark.timeout(120)

OTTLA = (sys.executable, "-m", "ottla")
REQUIREMENTS = Path(__file__).resolve().parents[2] / "docs" / "requirements.md"
SLOW = ("add-a-broker", "consumer-recovers", "fast-catch-up", "zookeeper-leader-dies", "six-brokers-three-zookeepers")

SAYS = {
    "offsets": ["the last offsets are 6, 9 and 10"],
    "two-readers": ["A reads offset 4 of log-0", "B is still at 7"],
    "order": ["so topic many as a whole is out of order", "but many-0 is in order"],
    "keys-and-partitions": ["key 'alice': all records are in employees-0", "12 records are 4 in each"],
    "log-on-disk": ["auto.offset.reset=latest: it reads 0 old records", "one week by default"],
    "high-watermark": ["secrets-0: log end offset 6, high watermark 4", "a consumer sees offsets 0 to 3"],
    "acks": [
        "of 6 acknowledged records are left,",  # and one that was sent with acks=0, without a response
        "lost, because only the leader had it when it acknowledged (acks=1)",
        "the record for payments-0 is not acknowledged (REQUEST_TIMED_OUT)",
        "since then the default of acks is all",
    ],
    "replica-fails": ["broker 3 lacks all 300 records of notes-0"],
    "leader-fails-last": [
        "Broker 4 has no replica of it",
        "three replicas of notes-0 are dead",
        "a write to notes-0 is refused (LEADER_NOT_AVAILABLE)",
    ],
    "recover-clean": ["notes-0: all 400 acknowledged records are read back"],
    "recover-unclean": [
        "notes-0: 100 of 300 acknowledged records are left, 200 are lost, because",
        "broker 1 has truncated its log of notes-0: 200 acknowledged records are deleted",
        "broker 2 has truncated its log of notes-0: 100 acknowledged records are deleted",
    ],
    "start-from-zero": [
        "notes-0: 0 of 300 acknowledged records are left, 300 are lost, because",
        "broker 1 has truncated its log of notes-0: 300 acknowledged records are deleted",
        "broker 2 has truncated its log of notes-0: 200 acknowledged records are deleted",
    ],
    "eligible-leader": ["an eligible leader replica (ELR)"],
    "no-replication": ["notes-1: 0 of 100 acknowledged records are left, 100 are lost, because"],
    "two-groups": ["the producer writes at offset 12, group A reads at 6 (lag 6), group B reads at 9 (lag 3)"],
    "fair-share": [
        "C3 has read shares-",
        "The assignor decides",
        "group share-A: 4 partitions are assigned 2, 2;",
        "group share-B: 4 partitions are assigned 1,",
    ],
    "idle-consumer": [
        "3 partitions are assigned 2, 1",
        "is idle: within a group, a partition has one consumer",
        "has taken over",
    ],
    "consumer-failover": ["bert started at the committed offset 6", "offsets 6 to 9 were processed twice"],
    "consumer-offsets": ["__consumer_offsets is compacted", "continues where it stopped: offset 6"],
    "delivery": [
        "this group never processes offsets 3 and 4 of invoices-0",
        "offsets 0 to 2 of invoices-0 are processed twice",
    ],
    "consumer-threads": ["thread 3 has read work-2, offsets 0 to 9 in order"],
    "bootstrap": ["the metadata of broker 3 names all brokers: 1, 2, 3", "(NOT_LEADER_OR_FOLLOWER)"],
    "zookeeper-registry": ["the ephemeral znode of broker 1 is gone", "the watch has fired"],
}
"""What a drill must have said, beside its checks."""

MARKS = {
    "two-groups": {"group A": "pace-A", "group B": "pace-B"},
    "consumer-failover": {"committed": "desk"},
    "consumer-offsets": {"group readers": "readers"},
    "consumer-threads": {"shares": "none"},
}

DRAWN = {
    "keys-and-partitions": ["│ visit 9 │", "│ urgent │", "│ here │"],
    "order": ["one-0  │ message 1 to message 7 │ "],
    "log-on-disk": [
        "archive-0  │  0│  1│  2│  3│  4│  5│  6│  7│",
        "group archive-first, group archive-second, group archive",
    ],
    "bootstrap": ["leader (1)", "leader (2)", "leader (3)"],
    "consumer-threads": ["work-2  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│", "work-2 ──▶ thread 3"],
    "delivery": [
        "booked-0  in the log: 5 results, 5 of them of an aborted transaction",
        "booked-0  a consumer with read_committed sees: nothing",
        "booked-0  in the log: 10 results, 5 of them of an aborted transaction",
        "booked-0  a consumer with read_committed sees: RECORD 0, RECORD 1, RECORD 2, RECORD 3, RECORD 4",
        "committed, processed, the producer: next is 5",
    ],
    "no-replication": ["leader (100)", "killed, in sync (0)", "leader (0)"],
    "replicas-spread": ["leader (10)", "in sync (10)"],
}
"""What a picture must have shown after a step."""

WITNESSED = {
    "copies": ("replica-reads", "high-watermark", "acks", "replica-fails", "two-replicas-fail", "leader-fails-last",
               "recover-clean", "recover-unclean", "start-from-zero", "eligible-leader", "fast-catch-up"),
    "shares": ("fair-share", "idle-consumer"),
    "cells": ("no-replication", "replicas-spread", "bootstrap"),
    "marks": ("two-readers", "two-groups", "consumer-failover", "consumer-offsets", "delivery"),
}  # fmt: skip
"""Pictures of which the witness has to have seen some."""


@pytest.fixture(scope="module")
def shared():
    """A cluster that drills share which leave it whole."""
    player = Player(lambda line: None)
    yield player
    player.close()


PLAYED = [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in DRILLS]


@pytest.mark.parametrize("name", PLAYED)
def test_a_drill_passes(name, shared):
    drill = DRILLS[name]
    jars = zookeeper_jars() if drill.zookeepers else None
    player = shared if drill.reusable else Player(lambda line: None, jars=jars)
    witness = Witness(MARKS.get(name, {}))
    witness.player = player
    player.print, player.ended = witness, witness.ended
    try:
        asyncio.run(player.play(name))
    except CheckFailed as failed:
        pytest.fail("\n".join((*witness.lines, str(failed))))
    finally:
        if not drill.reusable:
            player.close()
    text = "\n".join(witness.lines)
    assert witness.lines[0] == f"Drill {name}: {drill.title}"
    assert re.fullmatch(r"  Text [1-5] \(.+\), S\d+(, S\d+)*:", witness.lines[1])
    assert witness.lines[2] == f"  “{drill.quote.sentence}”"
    assert witness.lines[3] == f"  Kafka's term: {drill.term}"
    assert witness.lines[-1].startswith("Passed in ")
    assert "✓" in text
    assert sum(line.startswith(" " * 6) for line in witness.lines) >= 3, "no picture"
    for words in SAYS.get(name, ()):
        assert words in text
    drawn = "\n".join(line for line in witness.lines if line.startswith(" " * 6))
    for words in DRAWN.get(name, ()):
        assert words in drawn
    for kind, names in WITNESSED.items():
        assert name not in names or witness.checked[kind] > 0, kind


def test_every_requirement_has_a_drill_or_a_reason():
    """The second table of docs/requirements.md: each number with its drills, or with what shows it instead."""
    shown = {
        number: {name for name, drill in DRILLS.items() if number in drill.quote.requirements}
        for number in range(1, 93)
    }
    documented: dict[int, tuple[set[str], str]] = {}
    _, _, table = REQUIREMENTS.read_text().partition("## Drills")
    for row in re.finditer(r"^\| S(\d+)(?: to S(\d+))? \| (.+) \|$", table, re.MULTILINE):
        for number in range(int(row[1]), int(row[2] or row[1]) + 1):
            assert number not in documented, number
            documented[number] = (set(re.findall(r"`([a-z0-9-]+)`", row[3])) & set(DRILLS), row[3])
    assert sorted(documented) == list(range(1, 93)), "each requirement stands in the table once"
    for number, (names, words) in documented.items():
        assert names == shown[number], f"S{number}"
        assert names or words.startswith("no drill: "), f"S{number}"


def test_a_failed_check_is_reported_and_the_logs_are_kept(monkeypatch, tmp_path):
    async def disappointed(stage):
        stage.say("Something is tried.")
        stage.check(False, "it works", "it does not")

    hopeless = {"hopeless": Drill("It cannot pass.", disappointed, Quote(1, "It cannot pass.", (1,)), "failure", (1,))}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines: list[str] = []
    player = Player(lines.append)
    with pytest.raises(CheckFailed, match="expected: it works; seen: it does not"):
        asyncio.run(player.play("hopeless", hopeless))
    assert "Something is tried." in lines[-2]
    assert list(tmp_path.glob("ottla-drill-*/broker-1.log"))
    assert player.cluster is None


def test_a_zookeeper_drill_names_all_missing_programs_before_it_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    monkeypatch.setattr("ottla.cluster.ensemble.find_spec", lambda name: None)
    lacking = missing(DRILLS["zookeeper-registry"], str(tmp_path))
    assert [word for word in ("kazoo", "Java", "zookeeper-*.jar") if not any(word in each for each in lacking)] == []
    lines: list[str] = []
    with pytest.raises(Fault, match=r"kazoo.*Java.*jar"):
        asyncio.run(Player(lines.append, jars=str(tmp_path)).play("zookeeper-registry"))
    assert lines == [], "nothing was started"
    assert missing(DRILLS["recover-clean"]) == []


def ottla(*arguments):
    return subprocess.run(
        [*OTTLA, "drill", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


LECTURE = """\

Topics, partitions, offsets

1 of N: offsets. A topic has partitions, and each partition has its own offsets.
Drill offsets: A topic has partitions, and each partition has its own offsets.
  Text 3 (lecture that introduces Kafka), S1, S4, S5, S7, S8, S9:
  “each specific message in a Kafka cluster can be uniquely identified by a tuple consisting of the message's topic, the
 partition, and the offset within the partition”
  Kafka's term: offset, log end offset
  ✓ 3 brokers are ready, and registered (after T s)
  ✓ topic stream is created: all brokers know it, 3 of 3 partitions have a leader (after T s)
  Topic stream has three partitions. Each has its own offsets, from 0 on.
  ✓ 7 records written to stream-0, acks=all: offsets 0 to 6
      stream-0  │  0│  1│  2│  3│  4│  5│  6│
      stream-1  │
      stream-2  │
  ✓ 10 records written to stream-1, acks=all: offsets 0 to 9
      stream-0  │  0│  1│  2│  3│  4│  5│  6│
      stream-1  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│
      stream-2  │
  ✓ 11 records written to stream-2, acks=all: offsets 0 to 10
      stream-0  │  0│  1│  2│  3│  4│  5│  6│
      stream-1  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│
      stream-2  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│ 10│
  ✓ the last offsets are 6, 9 and 10: each partition has its own
  ✓ each of 28 records has a unique name: (topic, partition, offset)
  ✓ (stream, 1, 4) is 'record 11', and a Fetch of that offset returns it
  ✓ 5 records written to stream-1, acks=all: offsets 10 to 14
      stream-0  │  0│  1│  2│  3│  4│  5│  6│
      stream-1  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│ 10│ 11│ 12│ 13│ 14│
      stream-2  │  0│  1│  2│  3│  4│  5│  6│  7│  8│  9│ 10│
  ✓ new records in stream-1 have changed no existing record
Passed in T s.

2 of N: two-readers. A partition is a log: each consumer reads at its own position.
  press a key to play it, q to end"""


def steady(screen):
    """What differs from run to run is left out."""
    return re.sub(r"\b\d+\.\d+ s\b", "T s", re.sub(r"^(\d+) of \d+:", r"\1 of N:", screen, flags=re.MULTILINE))


def test_a_lecture_plays_a_drill_for_each_key_in_a_terminal():
    with Terminal(*OTTLA, "drill", "--lecture", width=120, height=60) as terminal:
        terminal.until("press a key to play it")
        terminal.press(" ")
        terminal.until("2 of ", 60)
        screen = terminal.until_screen(lambda text: text.endswith("q to end"), "the second drill to be offered")
        assert steady(screen).strip("\n").endswith(LECTURE.strip("\n"))
        terminal.press(" ")
        terminal.until("3 of ", 60)
        terminal.until_screen(lambda text: text.endswith("q to end"), "the third drill to be offered")
        terminal.press("q")
        assert terminal.close() == 0


def test_a_lecture_names_the_drills_it_leaves_out_and_the_reason(tmp_path):
    last = list(DRILLS)[-1]
    assert DRILLS[last].zookeepers
    found = subprocess.run(
        [*OTTLA, "drill", "--lecture", last],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUTF8": "1", "OTTLA_ZOOKEEPER_JARS": str(tmp_path), "PATH": str(tmp_path)},
    ).stdout
    left_out = ", ".join(name for name, drill in DRILLS.items() if drill.zookeepers)
    assert f"Left out: {left_out}. Reason: " in found
    assert "The end: 0 drills" in found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_whole_lecture_is_played_key_by_key():
    with Terminal(*OTTLA, "drill", "--lecture", OTTLA_ZOOKEEPER_JARS=zookeeper_jars()) as terminal:
        for number, name in enumerate(DRILLS, 1):
            terminal.until(f"{number} of {len(DRILLS)}: {name}. ", 120)
            terminal.until_screen(lambda text: text.endswith("q to end"), "the drill to be offered")
            terminal.press(" ")
        terminal.until(f"The end: {len(DRILLS)} drills", 120)
        assert terminal.close() == 0


def test_the_command_lists_drills_in_the_order_of_a_lecture_and_runs_one():
    listed = ottla().stdout.splitlines()
    assert [line for line in listed[:-1] if not line.startswith("  ")] == list(catalogue.CHAPTERS)
    assert [line.split()[0] for line in listed if line.startswith("  ")] == list(DRILLS)
    listed = json.loads(ottla("--json").stdout)
    assert [each["drill"] for each in listed] == list(DRILLS)
    assert listed[0]["requirements"][0] == "S1"
    played = json.loads(ottla("bootstrap", "--json").stdout)
    assert (played["drill"], played["good"]) == ("bootstrap", True)
    assert played["story"][-1].startswith("Passed in")
    unknown = ottla("no-such-drill")
    assert (unknown.returncode, "The drills are: offsets" in unknown.stderr) == (2, True)
