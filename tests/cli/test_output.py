"""Progress of long work: lines where no terminal is, nothing with --quiet."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count

import click
import pytest
from click.testing import CliRunner

from ottla.cli.output import Progress, quiet_option


@click.command()
@quiet_option
def work():
    bar = Progress("moving", 3)
    for done in range(4):
        bar.reached(done)
    bar.close()


@pytest.fixture
def clock(monkeypatch):
    """Each look at it takes three seconds."""
    now = count(0, 3)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))


@pytest.mark.usefixtures("clock")
def test_without_a_terminal_there_are_lines():
    assert CliRunner().invoke(work).stderr.splitlines() == ["moving: 0 of 3", "moving: 2 of 3"]


@pytest.mark.usefixtures("clock")
def test_quiet_is_quiet():
    assert CliRunner().invoke(work, ["--quiet"]).output == ""


def test_an_interrupted_bar_shows_the_cursor_again():
    """In a pseudo-terminal, as Ctrl-C comes."""
    script = (
        "import click, os, signal\n"
        "from ottla.cli.output import Progress\n"
        "@click.command()\n"
        "def work():\n"
        "    Progress('moving', 3).reached(1)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
        "work()\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a pseudo-terminal
        while more := os.read(ours, 4096):
            shown += more
    os.close(ours)
    assert process.wait() == 1
    assert b"moving" in shown
    assert shown.count(b"\x1b[?25l") > 0
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


def test_short_work_shows_nothing():
    assert CliRunner().invoke(work).output == ""
