"""Output of commands: progress, escaped names."""

from __future__ import annotations

import io
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

from ottla.cli.output import ProgressBar, alarming, print_table, printable, quiet_option


@click.command()
@quiet_option
def work():
    bar = ProgressBar("moving", 3)
    for done in range(4):
        bar.reached(done)
    bar.close()


@pytest.fixture
def clock(monkeypatch):
    """Each look at it takes three seconds."""
    now = count(0, 3)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))


@pytest.mark.usefixtures("clock")
def test_progress_is_lines_without_a_terminal():
    assert CliRunner().invoke(work).stderr.splitlines() == ["moving: 0 of 3", "moving: 2 of 3"]


@pytest.mark.usefixtures("clock")
def test_quiet_shows_no_progress():
    assert CliRunner().invoke(work, ["--quiet"]).output == ""


def test_an_interrupted_bar_shows_the_cursor_again():
    """In a pseudo-terminal, as Ctrl-C comes."""
    script = (
        "import click, os, signal\n"
        "from ottla.cli.output import ProgressBar\n"
        "@click.command()\n"
        "def work():\n"
        "    ProgressBar('moving', 3).reached(1)\n"
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


def test_short_work_shows_no_progress():
    assert CliRunner().invoke(work).output == ""


def test_a_bar_ends_complete(monkeypatch):
    """Also where what was counted falls short: records from 0 on, or files that shrank."""
    drawn = io.StringIO()
    drawn.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", drawn)
    bar = ProgressBar("reading", 100)
    bar.reached(99)
    bar.finish()
    assert drawn.getvalue().rstrip("\x1b[?25h\n").rstrip().endswith("100%")


def test_control_characters_in_names_are_escaped(capsys):
    assert printable("a\nb\x1b[2Jc\x7f\x9b") == "a\\nb\\x1b[2Jc\\x7f\\x9b"
    red = alarming("x", True)
    assert printable(red) == red
    print_table(("GROUP", "STATE"), [("a\nb", "Empty")])
    assert capsys.readouterr().out == "GROUP  STATE\na\\nb   Empty\n"
