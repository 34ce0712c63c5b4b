"""Logs that start in the middle of a batch, as DeleteRecords may leave them."""

from __future__ import annotations

from pathlib import Path

from ottla.cluster.requests import Reassignment, TopicSpec
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from tests.harness.in_process import brokers, run
from tests.log.batches import stored
from tests.replication.test_partition import batch


def test_a_new_replica_of_a_log_that_starts_inside_a_batch_catches_up(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            await one.cluster.create_topics([TopicSpec("t", assignments=[(0, [1])])])
            await until(lambda: (found := one.replicas.get("t", 0)) is not None and found.leads)
            leader = one.replicas.get("t", 0)
            assert leader is not None
            now_ms = one.runtime.wall_ms()
            leader.append(batch(b"a", b"b", b"c", timestamp=now_ms), ACKS_ALL, now_ms)
            leader.log.prove_start(leader.delete_before(1))
            await one.cluster.alter_reassignments([Reassignment("t", 0, [1, 2])])
            await until(lambda: leader.in_sync == (1, 2))
            follower = two.replicas.get("t", 0)
            assert follower is not None
            assert (follower.log.log_start, follower.log.log_end) == (1, 3)
            assert stored(follower.log) == stored(leader.log)

    run(test)
