"""The examples of the README, of docs/quickstart.md and of the commands' own help do what they show."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from tests.cli.shell import Shell
from tests.harness.brokers import WatchedBroker

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"


@pytest.fixture
def shell(tmp_path):
    """On a broker of its own: the examples begin where there is nothing."""
    broker = WatchedBroker(tmp_path / "broker", "--set", "group.initial.rebalance.delay.ms=0").start()
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


def test_the_program_of_the_quickstart_reads_its_records_also_in_a_new_group(shell):
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


@pytest.mark.ottla(brokers=3)
def test_the_commands_of_learn_work_one_after_the_other(ottla_cluster, tmp_path):
    """All but those for the cluster of `ottla dev`, which the tests of `ottla dev` type, and the demo."""
    addresses = ottla_cluster.bootstrap_servers.split(",")
    text = (REPOSITORY / "docs" / "learn.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    elsewhere = ("ottla dev", "make ", "python examples/high_watermark.py")
    script = "\n".join(line for line in lines if not line.startswith(elsewhere))
    with Shell(tmp_path, addresses[0]) as shell:
        output = succeed(shell, script.replace("localhost:9094", addresses[-1]))
    assert "numbers-0 4: 5\n" in output
    assert "alice is in partition 0\n" in output
    assert re.search(r"^pace +0 +6 +12 +6 ", output, re.MULTILINE)
    assert re.search(r"^pace +0 +9 +12 +3 ", output, re.MULTILINE)


def test_learn_ends_one_cluster_before_it_starts_another():
    """A second `ottla dev` is refused while the first runs on the same directory."""
    text = (REPOSITORY / "docs" / "learn.md").read_text()
    running = text.index("`ottla dev` in a terminal of its own")
    starts = [found.start() for found in re.finditer(r"^ottla dev(?: --.*)?$", text, re.MULTILINE)]
    assert starts
    for before, after in pairwise([running, *starts]):
        assert "end the `ottla dev` that runs with `q` first" in text[before:after], text[after:].partition("\n")[0]
