"""Replicas of one partition: tests/scenarios/partition.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replication.partition_scenarios import World

TEXT = Path(__file__).parents[1] / "scenarios" / "partition.txt"


def scenarios() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in TEXT.read_text().splitlines():
        if line.startswith("# "):
            found.append((line[2:], []))
        elif line.strip() and found:
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize(("name", "lines"), scenarios(), ids=[name for name, _ in scenarios()])
def test_partition(name, lines):
    world = World()
    for line in lines:
        acts, _, expected = line.split("  #")[0].partition("->")
        for act in acts.split("·"):
            world.act(act.strip())
        try:
            world.expect([each.strip() for each in expected.split("·") if each.strip()])
        except AssertionError as failure:
            raise AssertionError(f"{name}\n    {line}\n{failure}") from failure
