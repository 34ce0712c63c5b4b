"""Followers with a backlog in many partitions, and batches larger than each of their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.requests import Reassignment, TopicSpec
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from tests.harness.in_process import brokers, run
from tests.log.batches import stored
from tests.replication.test_partition import batch

PARTITIONS = 60
LIMITS = {
    "batches larger than a partition's share": {"replica_fetch_max_bytes": "1000"},
    "batches larger than an answer": {"replica_fetch_response_max_bytes": "3000"},
    "batches larger than both": {"replica_fetch_max_bytes": "1000", "replica_fetch_response_max_bytes": "3000"},
    "an answer holds a few batches": {"replica_fetch_response_max_bytes": "50000"},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_a_new_follower_replicates_the_backlog_of_many_partitions(tmp_path: Path, limits: dict[str, str]) -> None:
    async def test() -> None:
        async with brokers(tmp_path, 2, **limits) as (one, two):
            await one.cluster.create_topics([TopicSpec("t", assignments=[(n, [1]) for n in range(PARTITIONS)])])
            await until(lambda: all((p := one.replicas.get("t", n)) and p.leads for n in range(PARTITIONS)))
            leaders = [one.replica_manager.find("t", n) for n in range(PARTITIONS)]
            now_ms = one.runtime.wall_ms()
            for number, leader in enumerate(leaders):
                for each in range(6):
                    leader.append(batch(b"x" * (100 << (number + each) % 8), timestamp=now_ms), ACKS_ALL, now_ms)
            await one.cluster.alter_reassignments([Reassignment("t", n, [1, 2]) for n in range(PARTITIONS)])
            await until(lambda: all(leader.in_sync == (1, 2) for leader in leaders))
            for leader in leaders:  # and while it follows
                leader.append(batch(b"y" * 7_000, timestamp=now_ms), ACKS_ALL, now_ms)
            await until(lambda: all(leader.high_watermark == 7 for leader in leaders))
            for number, leader in enumerate(leaders):
                follower = two.replicas.get("t", number)
                assert follower is not None
                assert stored(follower.log) == stored(leader.log)

    run(test)
