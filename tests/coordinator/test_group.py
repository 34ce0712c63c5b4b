"""Classic groups and their offsets, by text scenarios."""

from __future__ import annotations

import pytest

from tests.coordinator.group_scenarios import GroupScenario, scenarios


@pytest.mark.parametrize("lines", scenarios("group_classic.txt"))
def test_a_classic_group(lines: list[str]):
    GroupScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("group_static.txt"))
def test_static_members(lines: list[str]):
    GroupScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("group_refusals.txt"))
def test_what_a_classic_group_refuses(lines: list[str]):
    GroupScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("group_offsets.txt"))
def test_offsets(lines: list[str]):
    GroupScenario().run(lines)
