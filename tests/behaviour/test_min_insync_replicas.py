"""min.insync.replicas of topics and of the cluster (KIP-966), with any broker configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.changes import BrokerConfigChanged
from ottla.cluster.elections import missing_min_in_sync
from ottla.cluster.image import EMPTY
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, TopicSpec
from ottla.errors import ErrorCode, Refused
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from tests.harness.in_process import brokers, run, start_broker, stop_broker
from tests.replication.test_partition import batch


def test_a_leader_commits_alone_when_min_insync_replicas_allows_it(tmp_path: Path):
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


MIN = "min.insync.replicas"


async def alter(broker: Broker, whom: int | None, *edits: ConfigEdit, replace: bool = False) -> ErrorCode:
    (result,) = await broker.cluster.alter_broker_configs([ConfigAlteration(whom, edits, replace)])
    return result.code


def test_the_first_controller_persists_its_configured_value(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, min_insync_replicas="2") as (one,):
            assert one.image.broker_configs == {None: {MIN: "2"}}
            assert await alter(one, None, ConfigEdit(MIN, "3")) is ErrorCode.none
            assert one.config.min_insync_replicas == 3
        async with brokers(tmp_path, 1) as (one,):  # as long as the cluster lives
            assert one.image.broker_configs == {None: {MIN: "3"}}
            assert one.config.min_insync_replicas == 3

    run(test)


@pytest.mark.broker_may_log("min.insync.replicas=1 has no effect: the cluster has 2")
def test_a_broker_with_another_value_uses_the_clusters_and_logs_it(tmp_path: Path, caplog):
    async def test() -> None:
        async with brokers(tmp_path, 1, min_insync_replicas="2") as (one,):
            other = await start_broker(tmp_path, 2, min_insync_replicas="1")
            assert other.config.min_insync_replicas == one.config.min_insync_replicas == 2
            await stop_broker(other)

    run(test)
    assert "ottla configs set broker all min.insync.replicas=1" in caplog.text


def test_the_clusters_value_cannot_be_removed_and_no_broker_has_another(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            assert await alter(one, None, ConfigEdit(MIN, None, ConfigOp.delete)) is ErrorCode.invalid_config
            assert await alter(one, None, ConfigEdit("message.max.bytes", "5000"), replace=True) is (
                ErrorCode.invalid_config
            )
            assert await alter(one, 1, ConfigEdit(MIN, "2")) is ErrorCode.invalid_config
            assert one.image.broker_configs == {None: {MIN: "1"}}

    run(test)


def test_values_of_single_brokers_from_an_earlier_release_are_dropped():
    reported = {1: {MIN: "2", "message.max.bytes": "5"}, 2: {MIN: "3"}}
    image = EMPTY.apply(*(BrokerConfigChanged(broker, configs) for broker, configs in reported.items()))
    after = image.apply(*missing_min_in_sync(image, 2))
    assert after.broker_configs == {None: {MIN: "2"}, 1: {"message.max.bytes": "5"}}
    assert not list(missing_min_in_sync(after, 7)), "once is enough"


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
