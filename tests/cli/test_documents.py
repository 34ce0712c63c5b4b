"""The examples of the README, of docs/quickstart.md and of the commands' own help do what they show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from tests.cli.shell import Shell
from tests.serving import BrokerProcess

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"


@pytest.fixture
def shell(tmp_path):
    """On a broker of its own: the examples begin where there is nothing."""
    broker = BrokerProcess(tmp_path / "broker", "--set", "group.initial.rebalance.delay.ms=0").start()
    with Shell(tmp_path, broker.bootstrap) as shell:
        yield shell
    assert broker.stop() == 0


def block(document: str, heading: str, language: str) -> str:
    """The first block of code in that language below the heading."""
    text = (REPOSITORY / document).read_text().partition(f"## {heading}\n")[2]
    return re.split(rf"```{language}\n(.*?)```", text, maxsplit=1, flags=re.DOTALL)[1]


def succeed(shell, script):
    """Every line must succeed, not only the last."""
    done = shell.run("set -e\n" + script.replace(".venv/bin/", ""))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readmes_commands_work_one_after_the_other(shell):
    output = succeed(shell, block("README.md", "The command line", "sh"))
    assert " 0 alice two oranges\n" in output
    assert "\ntwo oranges\n" in output
    assert "kitchen" in output


def test_the_quickstarts_commands_work_one_after_the_other(shell):
    succeed(shell, block("docs/quickstart.md", "A topic", "sh"))
    assert "customer-1 order 1\n" in succeed(shell, block("docs/quickstart.md", "First records", "sh"))


def test_the_quickstarts_program_reads_what_it_wrote_also_in_a_new_group(shell):
    succeed(shell, block("docs/quickstart.md", "A topic", "sh"))
    program = block("docs/quickstart.md", "First records", "python")
    assert ADDRESS in program
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program.replace(ADDRESS, shell.bootstrap)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        seen = [running.stdout.readline().split("order ")[-1] for _ in range(10)]
        running.kill()
    assert sorted(seen) == [f"{number}'\n" for number in range(10)]


def test_the_examples_of_settings_are_of_settings_that_can_be_changed(shell):
    examples = CliRunner().invoke(cli, ["configs", "set", "--help"]).output.partition("Example:")[2]
    commands = re.findall(r"^ *(ottla configs set .*)$", examples, re.MULTILINE)
    assert len(commands) == 2
    succeed(shell, "\n".join(["ottla topics create orders", *commands]))
