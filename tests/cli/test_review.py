"""Every question of docs/review.md is answered by the output of its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.harness.brokers import WatchedBroker

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs" / "review.md"
QUESTION = re.compile(r"^### (.+?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
BLOCKS = re.compile(r"```sh\n(.*?)```\s+```text( in another order each time)?\n(.*?)```", re.DOTALL)
QUESTIONS = {question: BLOCKS.findall(answer) for question, answer in QUESTION.findall(DOCUMENT.read_text())}
ASKED = 16
"""In the texts: four about producers, five about consumers, seven about a single node."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """On a broker of its own: so the document can be read from the top, as it was written."""
    directory = tmp_path_factory.mktemp("review")
    broker = WatchedBroker(directory / "broker", "--set", "group.initial.rebalance.delay.ms=0").start()
    with Shell(directory, broker.bootstrap) as shell:
        yield shell
    assert broker.stop() == 0


def test_every_question_of_the_course_has_an_answer():
    assert len(QUESTIONS) == ASKED
    assert all(len(blocks) == 1 for blocks in QUESTIONS.values())


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_commands_print_the_answer(shell, question):
    [(commands, shuffled, expected)] = QUESTIONS[question]
    done = shell.run(commands.replace("localhost:9092", shell.bootstrap))
    if not shuffled:
        assert done.stdout.strip() == expected.strip(), done.stderr
        return
    assert sorted(without_partition(done.stdout)) == sorted(without_partition(expected)), done.stderr
    for shown in (done.stdout, expected):
        typed = [line.rpartition(": ")[2] for line in shown.splitlines()]
        assert typed != sorted(typed, key=lambda line: line.split()[-1]), "four lines in three partitions"


def without_partition(shown):
    """Which partition got which line is decided by chance."""
    return [re.sub(r"partition \d", "partition N", line) for line in shown.splitlines()]
