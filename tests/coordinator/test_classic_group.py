"""Classic groups and their offsets, by text scenarios."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ottla.coordinator.decision import Decision
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.group_records import encode_value
from ottla.wire import messages
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.schema.sync_group import SyncGroupRequest
from tests.coordinator.consumer_scenarios import WALL_MS, Context
from tests.coordinator.group_scenarios import GroupScenario, scenarios


@pytest.mark.parametrize("lines", scenarios("group_classic.txt"))
def test_a_classic_group(lines: list[str]):
    GroupScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("group_static.txt"))
def test_static_members(lines: list[str]):
    GroupScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("group_refusals.txt"))
def test_a_classic_group_refuses(lines: list[str]):
    GroupScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("group_offsets.txt"))
def test_offsets(lines: list[str]):
    GroupScenario().run(lines)


def join(groups: GroupMachine, group_id: str, client_id: str, instance_id: str | None = None) -> Decision:
    request = JoinGroupRequest(
        group_id=group_id,
        group_instance_id=instance_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return groups.join(request, 0, MemberClient(client_id, "/h"), client_id, 1000.0, WALL_MS)


def test_a_bug_with_one_group_does_not_stop_the_timers_of_others():
    groups = GroupMachine(Context())
    for name in ("a", "b", "c"):
        join(groups, name, name)
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


@pytest.mark.parametrize("instance_id", [None, "i" * 32_767], ids=["dynamic", "static"])
def test_the_longest_client_and_instance_ids_fit_into_records(instance_id: str | None):
    """Those who wait for their assignments would never hear of it."""
    groups = GroupMachine(Context())
    join(groups, "g", "a")
    join(groups, "g", "x" * 32_767, instance_id)
    joined: dict[object, JoinGroupResponse] = {}
    for now in (1003.0, 1006.0):  # somebody came while the group waited, so it waits once more
        for decision in groups.expire(now, WALL_MS):
            joined |= {member: reply for member, reply in decision.replies if isinstance(reply, JoinGroupResponse)}
    assert len(joined) == 2
    for response in joined.values():
        messages.encode(response, 3)
    leader = joined["a"].member_id
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=leader, protocol_type=None, protocol_name=None)
    (record,) = groups.sync(sync, "a", 1006.0, WALL_MS).records
    assert encode_value(record.value)
