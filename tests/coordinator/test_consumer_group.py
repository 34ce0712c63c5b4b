"""Groups of the next-generation protocol, by text scenarios."""

from __future__ import annotations

import pytest

from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_records import encode_key
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.coordinator.consumer_scenarios import Scenario, scenarios


@pytest.mark.parametrize("lines", scenarios("consumer_group.txt"))
def test_a_consumer_group(lines: list[str]):
    Scenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("consumer_group_refusals.txt"))
def test_a_consumer_group_refuses(lines: list[str]):
    Scenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("consumer_group_conversion.txt"))
def test_online_migration_of_a_group(lines: list[str]):
    Scenario().run(lines)


def test_a_new_partition_is_assigned_after_a_failed_append():
    scenario = Scenario()
    scenario.run(["topics t=2", "m1 join t -> epoch=1 t:0,1", "m1 beat has=t:0,1 -> epoch=1", "add t=3"])
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m1", member_epoch=1, topic_partitions=None)
    refused = scenario.groups.consumer_heartbeat(
        beat, MemberClient("m1", "/h"), object(), scenario.now, scenario.now_ms
    )
    assert refused.records
    scenario.run(["m1 beat -> epoch=2 t:0,1,2"])


def test_a_classic_member_id_fits_into_a_record():
    scenario = Scenario()
    scenario.run(["topics t=2", "m1 join t -> epoch=1 t:0,1"])
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(10))]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols)
    joined = scenario.groups.join(request, 3, MemberClient("é" * 16_383, "/h"), object(), scenario.now, scenario.now_ms)
    assert [encode_key(key) for key, _ in joined.records]
