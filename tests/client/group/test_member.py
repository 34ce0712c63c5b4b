"""The group-member machines, by text scenarios; and whole groups of them, by chance."""

from __future__ import annotations

import pytest

from tests.client.member_scenarios import Scenario, scenarios


@pytest.mark.parametrize("lines", scenarios("member_classic.txt"))
def test_a_member_of_the_classic_protocol(lines):
    Scenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("member_consumer.txt"))
def test_a_member_of_the_consumer_protocol(lines):
    Scenario().run(lines)
