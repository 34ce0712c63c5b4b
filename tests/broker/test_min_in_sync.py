"""Brokers that are configured differently, as in the middle of a rolling restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.requests import ConfigAlteration, ConfigEdit, TopicSpec
from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import ACKS_ALL
from tests.broker.clustered import brokers, run, start_broker, stop_broker, until
from tests.replication.test_partition import batch


def test_a_leader_commits_alone_as_soon_as_that_is_enough(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            two = await start_broker(tmp_path, 2)
            await until(lambda: len(one.image.brokers) == 2)
            configs = {"min.insync.replicas": "2"}
            await one.cluster.create_topics([TopicSpec("t", assignments=[(0, [1, 2])], configs=configs)])
            await until(lambda: (found := one.replicas.get("t", 0)) is not None and found.leads)
            partition = one.replicas.get("t", 0)
            assert partition is not None
            await stop_broker(two)
            await until(lambda: one.image.topics["t"].partitions[0].eligible == (2,))
            assert not partition.enough_in_sync
            edit = ConfigEdit("min.insync.replicas", "1")
            await one.cluster.alter_topic_configs([ConfigAlteration("t", [edit])])
            await until(lambda: partition.enough_in_sync)
            assert one.image.topics["t"].partitions[0].eligible == ()

    run(test)


def test_nothing_acknowledged_is_lost_while_brokers_disagree_on_min_insync_replicas(tmp_path: Path):
    async def test() -> None:
        controller = await start_broker(tmp_path, 3, min_insync_replicas="2")
        leader = await start_broker(tmp_path, 1)
        follower = await start_broker(tmp_path, 2)
        await until(lambda: len(controller.image.brokers) == 3)
        await controller.cluster.create_topics([TopicSpec("t", assignments=[(0, [1, 2])])])
        await until(lambda: (found := leader.replicas.get("t", 0)) is not None and found.leads)
        partition = leader.replicas.get("t", 0)
        assert partition is not None
        await stop_broker(follower)
        await until(lambda: partition.in_sync == (1,))
        # For the controller two must be in sync, and broker 2, who left as one of them, may be elected.
        assert controller.image.topics["t"].partitions[0].eligible == (2,)
        now_ms = leader.runtime.wall_ms()
        with pytest.raises(Refused) as refused:  # else it would be acknowledged, and lost when broker 2 leads next
            partition.append(batch(b"a", timestamp=now_ms), ACKS_ALL, now_ms)
        assert refused.value.code == ErrorCode.not_enough_replicas
        for broker in (leader, controller):
            await stop_broker(broker)

    run(test)
