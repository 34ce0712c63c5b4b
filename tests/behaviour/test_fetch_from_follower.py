"""Fetch from follower: consumers read from a replica in their rack (KIP-392)."""

from __future__ import annotations

from pathlib import Path

from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from tests.harness.in_process import run, start_broker, stop_broker
from tests.replication.test_partition import batch

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def test_no_consumer_is_sent_to_a_follower_without_the_offset(tmp_path: Path):
    async def test() -> None:
        one, two = [
            await start_broker(tmp_path, number, broker_rack=rack, replica_selector_class=SELECTOR)
            for number, rack in ((1, "here"), (2, "there"))
        ]
        await until(lambda: all(len(each.image.brokers) == 2 for each in (one, two)))
        await one.cluster.create_topics([TopicSpec("t", assignments=[(0, [1, 2])])])
        await until(lambda: all(each.replicas.get("t", 0) is not None for each in (one, two)))
        leader, follower = one.replicas.get("t", 0), two.replicas.get("t", 0)
        assert leader is not None
        assert follower is not None
        for value in (b"a", b"b"):
            now_ms = one.runtime.wall_ms()
            leader.append(batch(value, timestamp=now_ms), ACKS_ALL, now_ms)
            await until(lambda: leader.high_watermark == leader.log.log_end == follower.high_watermark)
            assert one.replica_manager.nearer_replica(leader, "there", 0) == 2
            follower.log.roll(now_ms)
        follower.log.config = follower.log.config._replace(retention_bytes=1)  # its segments need not be the leader's
        await two.log_manager._retain()
        assert (leader.log.log_start, follower.log.log_start) == (0, 1)
        await until(lambda: one.replica_manager.nearer_replica(leader, "there", 0) is None)
        assert one.replica_manager.nearer_replica(leader, "there", 1) == 2
        await stop_broker(two)
        await stop_broker(one)

    run(test)
