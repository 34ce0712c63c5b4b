"""Dynamic settings: contradictions, and effect at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, TopicSpec
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.harness.in_process import Client, brokers, run, start_broker, stop_broker

MIN_LAG, MAX_LAG = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"


async def alter(broker: Broker, whom: int | None, **settings: str) -> ErrorCode:
    edits = [ConfigEdit(name.replace("_", "."), value) for name, value in settings.items()]
    (result,) = await broker.cluster.alter_broker_configs([ConfigAlteration(whom, edits)])
    return result.code


def test_settings_of_all_brokers_and_of_one_are_checked_together(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            assert await alter(one, None, **{MIN_LAG: "100000"}) is ErrorCode.none
            assert await alter(one, 1, **{MAX_LAG: "5000"}) is ErrorCode.invalid_config
            assert await alter(one, 1, **{MAX_LAG: "200000"}) is ErrorCode.none
            assert await alter(one, None, **{MIN_LAG: "300000"}) is ErrorCode.invalid_config
            assert await alter(one, 1, message_max_bytes="5000") is ErrorCode.none
            assert one.config.message_max_bytes == 5000

    run(test)


@pytest.mark.broker_may_log("keeps its present settings: log.cleaner.min.compaction.lag.ms")
def test_a_cluster_setting_that_contradicts_a_brokers_own_does_not_stop_it(tmp_path: Path):
    async def test() -> None:
        own = {MAX_LAG: "5000"}
        async with brokers(tmp_path, 1) as (one,):
            two = await start_broker(tmp_path, 2, **own)
            await until(lambda: len(one.image.brokers) == 2)
            assert await alter(one, None, **{MIN_LAG: "100000"}) is ErrorCode.none
            await until(lambda: MIN_LAG in two.image.broker_configs.get(None, {}))
            assert two.config.log_cleaner_min_compaction_lag_ms == 0
            await stop_broker(two)
            two = await start_broker(tmp_path, 2, **own)  # and it starts again
            assert await alter(one, None, **{MIN_LAG: "4000"}) is ErrorCode.none
            await until(lambda: two.config.log_cleaner_min_compaction_lag_ms == 4000)
            await stop_broker(two)

    run(test)


@pytest.mark.parametrize("setting", ["max.connections", "max.connections.per.ip"])
def test_connection_limits_are_changed_at_runtime(tmp_path: Path, setting):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            assert await alter(one, 1, **{setting: "1"}) is ErrorCode.none
            async with Client.to(one) as first, Client.to(one) as second:
                assert await second.closed()
                assert await alter(one, 1, **{setting: "2"}) is ErrorCode.none
                async with Client.to(one) as third:
                    request = ApiVersionsRequest()
                    for client in (first, third):
                        assert (await client.call(request, ApiVersionsResponse, 0)).error_code == ErrorCode.none

    run(test)


def test_an_unknown_broker_has_no_settings(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            two = await start_broker(tmp_path, 2)
            await until(lambda: len(one.image.brokers) == 2)
            assert await alter(one, 77, message_max_bytes="5000") is ErrorCode.invalid_request
            assert 77 not in one.image.broker_configs
            await one.cluster.create_topics([TopicSpec("t", 1, 2)])
            await stop_broker(two)
            await until(lambda: len(one.image.brokers) == 1)
            assert await alter(one, 2, message_max_bytes="5000") is ErrorCode.none, "it has replicas"
            await one.cluster.delete_topics(["t"])
            assert await alter(one, 2, message_max_bytes="6000") is ErrorCode.none, "it has settings"
            edits = [ConfigEdit("message.max.bytes", None, ConfigOp.delete)]
            await one.cluster.alter_broker_configs([ConfigAlteration(2, edits)])
            assert 2 not in one.image.broker_configs
            assert await alter(one, 2, message_max_bytes="5000") is ErrorCode.invalid_request

    run(test)
