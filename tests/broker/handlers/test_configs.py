"""DescribeConfigs and IncrementalAlterConfigs: repeated resources, invalid broker ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.wire.schema import describe_configs as describe
from ottla.wire.schema import incremental_alter_configs as alter
from tests.harness.in_process import Client, brokers, run

TOPIC, BROKER = 2, 4


@pytest.mark.parametrize("name", ["²", "٣", "9" * 400, "9" * 5000, "2147483648", "-1", "one"])
def test_an_invalid_broker_id_is_refused(tmp_path: Path, name):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            resource = describe.DescribeConfigsResource(resource_type=BROKER, resource_name=name)
            request = describe.DescribeConfigsRequest(resources=[resource])
            described = await client.call(request, describe.DescribeConfigsResponse, 4)
            assert [each.error_code for each in described.results] == [ErrorCode.invalid_request]
            edit = alter.AlterableConfig(name="message.max.bytes", value="5000")
            change = alter.IncrementalAlterConfigsRequest(
                resources=[alter.AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=[edit])]
            )
            altered = await client.call(change, alter.IncrementalAlterConfigsResponse, 1)
            assert [each.error_code for each in altered.responses] == [ErrorCode.invalid_request]
            assert list(one.image.broker_configs) == [None]

    run(test)


def test_a_resource_that_is_repeated_is_described_once_with_all_keys(tmp_path: Path):
    def resource(kind: int, name: str, *keys: str) -> describe.DescribeConfigsResource:
        return describe.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
        )

    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            await one.cluster.create_topics([TopicSpec("t", 1, 1)])
            resources = [
                resource(TOPIC, "t", "retention.ms"),
                resource(BROKER, "1", "log.retention.ms"),
                resource(TOPIC, "t", "cleanup.policy"),
                resource(BROKER, "1"),
                resource(BROKER, "1", "log.retention.ms"),
            ]
            request = describe.DescribeConfigsRequest(resources=resources)
            answer = await client.call(request, describe.DescribeConfigsResponse, 4)
            topic, broker = answer.results
            assert {each.name for each in topic.configs} == {"retention.ms", "cleanup.policy"}
            assert len(broker.configs) > 100

    run(test)
