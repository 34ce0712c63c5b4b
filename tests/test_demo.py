"""`make demo` without a terminal: it ends by itself, and its counts are right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.actors import second_act

pytest.importorskip("confluent_kafka")

REPOSITORY = Path(__file__).resolve().parent.parent
VERDICT = re.compile(r"^new leader after [\d.]+ s · acknowledged ([\d,]+) · lost 0 · duplicated 0 · reordered 0$", re.M)


def test_the_demo_kills_a_leader_and_a_member_and_loses_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    verdict = VERDICT.search(said)
    assert verdict is not None, said
    assert int(verdict[1].replace(",", "")) > 10_000
    assert "The coordinator removes her when her session times out, after 3 s" in said
    assert "anna has" not in said.partition("The coordinator removes her")[2]
    assert "bert has 0, 1, 2, 3, 4, 5" in said
    assert "1 member reading, lag 0 records" in said
    assert "Still running" not in said


def test_the_progress_of_a_download_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(second_act, "HOME", tmp_path / "home")
    monkeypatch.setattr(second_act, "LOG", tmp_path / "log")
    monkeypatch.setattr(second_act, "PAUSE_S", 0.01)
    step = 'while ! [ -e "$TMPDIR/go" ]; do sleep 0.02; done; rm "$TMPDIR/go"'
    fetching = second_act.begin(f'for n in 1 2; do {step}; head -c 3145728 /dev/zero > "$TMPDIR/part-$n"; done; {step}')
    lines: list[str] = []

    def sleep(_: float) -> None:
        lines.extend(capsys.readouterr().out.splitlines())
        if not (tmp_path / "home/tmp/go").exists():
            (tmp_path / "home/tmp/go").touch()

    monkeypatch.setattr("examples.actors.second_act.time.sleep", sleep)
    assert second_act.wait(fetching)
    seen = [int(each) for each in re.findall(r"^Fetching PySpark: (\d+) MB are here, \d+ s $", "\n".join(lines), re.M)]
    assert len(seen) == len(lines)
    assert seen[0] == 0
    assert 3 in seen
    assert seen == sorted(seen)
