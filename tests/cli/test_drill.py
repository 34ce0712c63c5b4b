"""`ottla drill`: every drill passes, says what it does, and fails aloud when the world is not as it says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile

import pytest

from ottla.drills.catalogue import DRILLS, Drill, run
from ottla.drills.stage import Differs
from tests.ensembles import zookeeper_jars

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_passes(name):
    lines: list[str] = []
    jars = zookeeper_jars() if DRILLS[name].zookeepers else None
    try:
        asyncio.run(run(name, lines.append, jars=jars))
    except Differs as differs:
        pytest.fail("\n".join((*lines, str(differs))))
    assert lines[0].startswith(f"Drill {name}: ")
    assert lines[-1].startswith("Passed in ")
    assert any("✓" in line for line in lines)


def test_what_differs_is_said_and_the_logs_are_left(monkeypatch, tmp_path):
    async def disappointed(stage):
        stage.say("Something is tried.")
        stage.check(False, "it works", "it does not")

    monkeypatch.setitem(DRILLS, "hopeless", Drill("It cannot pass.", disappointed, (1,)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines: list[str] = []
    with pytest.raises(Differs, match="expected: it works; seen: it does not"):
        asyncio.run(run("hopeless", lines.append))
    assert "Something is tried." in lines[-2]
    assert list(tmp_path.glob("ottla-drill-*/broker-1.log"))


def ottla(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ottla", "drill", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


def test_the_command_lists_drills_and_runs_one():
    listed = ottla()
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(DRILLS)
    assert [each["drill"] for each in json.loads(ottla("--json").stdout)] == list(DRILLS)
    played = ottla("no-replication")
    assert (played.returncode, "Passed in" in played.stdout) == (0, True), played.stderr
    told = json.loads(ottla("no-replication", "--json").stdout)
    assert (told["drill"], told["good"]) == ("no-replication", True)
    assert told["story"][-1].startswith("Passed in")
    unknown = ottla("no-such-drill")
    assert (unknown.returncode, "The drills are: replica-fails" in unknown.stderr) == (2, True)
