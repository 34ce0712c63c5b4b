"""Internal topics: written by coordinators only, and always compacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, TopicSpec
from ottla.errors import ErrorCode, Refused
from ottla.local.waiting import until
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import NOW_MS, batch

POLICY = "cleanup.policy"


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_clients_cannot_produce_to_internal_topics(tmp_path: Path, name, policy):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            await one.cluster.create_topics([TopicSpec(name, 1, 1, configs={POLICY: policy})])
            await until(lambda: (found := one.replicas.get(name, 0)) is not None and found.leads)
            partition = one.replicas.get(name, 0)
            assert partition is not None
            with pytest.raises(Refused) as refused:
                partition.append(batch(b"garbage"), 1, NOW_MS)
            assert refused.value.code is ErrorCode.invalid_topic_exception
            assert partition.log.log_end == 0

    run(test)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_created_compacted(tmp_path: Path, name):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            await one.cluster.create_topics([TopicSpec(name, 1, 1, configs={"segment.bytes": "2000000"})])
            await until(lambda: one.replicas.get(name, 0) is not None)
            partition = one.replicas.get(name, 0)
            assert partition is not None
            assert partition.log.config.cleanup_compact
            assert not partition.log.config.cleanup_delete

    run(test)


def test_internal_topics_stay_compacted(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1, offsets_topic_replication_factor="1") as (one,):
            await one.groups.create_topic()
            await until(lambda: one.image.topic("__consumer_offsets") is not None)
            for edit, code in [
                (ConfigEdit(POLICY, "delete"), ErrorCode.invalid_config),
                (ConfigEdit(POLICY, "delete", ConfigOp.append), ErrorCode.invalid_config),
                (ConfigEdit(POLICY, None, ConfigOp.delete), ErrorCode.invalid_config),
                (ConfigEdit(POLICY, "compact"), ErrorCode.none),
                (ConfigEdit("segment.bytes", "2000000"), ErrorCode.none),
            ]:
                alteration = ConfigAlteration("__consumer_offsets", [edit])
                (result,) = await one.cluster.alter_topic_configs([alteration])
                assert result.code is code, edit

    run(test)
