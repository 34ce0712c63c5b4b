"""Groups of the next-generation protocol, by text scenarios."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer_scenarios import Scenario, scenarios


@pytest.mark.parametrize("lines", scenarios("consumer_group.txt"))
def test_a_consumer_group(lines: list[str]):
    Scenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("consumer_group_refusals.txt"))
def test_what_a_consumer_group_refuses(lines: list[str]):
    Scenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("consumer_group_conversion.txt"))
def test_a_group_that_changes_its_protocol(lines: list[str]):
    Scenario().run(lines)
