"""FindCoordinator: repeated keys."""

from __future__ import annotations

from pathlib import Path

from ottla.wire.schema import find_coordinator as find
from tests.harness.in_process import Client, brokers, run


def test_a_repeated_coordinator_key_is_answered_once(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, offsets_topic_replication_factor="1") as (one,), Client.to(one) as client:
            request = find.FindCoordinatorRequest(coordinator_keys=["g", "h", "g"])
            answer = await client.call(request, find.FindCoordinatorResponse, 4)
            assert [each.key for each in answer.coordinators] == ["g", "h"]

    run(test)
