"""Who leads, who is in sync, where replicas are: the controller's decisions, by text scenarios."""

from __future__ import annotations

import pytest

from tests.cluster.controller_scenarios import ControllerScenario, scenarios


@pytest.mark.parametrize("lines", scenarios("controller_elections.txt"))
def test_elections(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_in_sync.txt"))
def test_in_sync_sets(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_draining.txt"))
def test_brokers_about_to_stop(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_leader_moves.txt"))
def test_leadership_that_moves_though_nobody_has_failed(lines: list[str]):
    ControllerScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("controller_reassignment.txt"))
def test_reassignments(lines: list[str]):
    ControllerScenario().run(lines)
