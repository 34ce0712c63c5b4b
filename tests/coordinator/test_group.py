"""Classic groups and their offsets, by text scenarios."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ottla.coordinator.groups import Groups
from ottla.coordinator.surroundings import Client
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.coordinator.consumer_scenarios import WALL_MS, World
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


def test_a_mistake_with_one_group_stops_the_clock_of_no_other():
    groups = Groups(World())
    for name in ("a", "b", "c"):
        request = JoinGroupRequest(
            group_id=name,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        groups.join(request, 0, Client(name, "/h"), name, 1000.0, WALL_MS)
    joined = []
    for _ in range(2):
        due = groups.deadline
        assert due is not None
        assert due <= 1100.0
        with suppress(ZeroDivisionError):
            for decision in groups.expire(1100.0, WALL_MS):
                joined += [reply_to for reply_to, _ in decision.replies]
                if joined == ["a"]:
                    raise ZeroDivisionError
    assert joined == ["a", "b", "c"]
