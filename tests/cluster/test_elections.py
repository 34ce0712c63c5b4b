"""Elections, AlterPartition, controlled shutdown and reassignment: the controller's decisions as text scenarios."""

from __future__ import annotations

import pytest

from tests.cluster.controller_scenarios import ControllerScenario, scenarios


@pytest.mark.parametrize("lines", scenarios("controller_elections.txt"))
def test_elections(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_in_sync.txt"))
def test_alter_partition(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_draining.txt"))
def test_draining_brokers(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_leader_moves.txt"))
def test_preferred_and_unclean_elections(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_reassignment.txt"))
def test_reassignments(lines: list[str]):
    ControllerScenario().run(lines)
