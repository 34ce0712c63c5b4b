"""Sequence gate: the first batch of a new producer is refused for the moment, and so are the batches after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.coordinator.shard import Phase
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.wire.records import Record, build_batch
from ottla.wire.schema import produce
from ottla.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.harness.in_process import Client, brokers, run

SETTINGS = {"transaction_state_log_replication_factor": "1", "transaction_state_log_min_isr": "1"}


async def send(client: Client, producer_id: int, sequence: int, *, within: str | None = None, version: int = 11) -> int:
    """The error code that one record is answered with."""
    data = build_batch(
        [Record(0, 0, None, b"%d" % sequence)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=within is not None,
    )
    partition = produce.PartitionProduceData(index=0, records=data)
    request = produce.ProduceRequest(
        transactional_id=within,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[produce.TopicProduceData(name="t", partition_data=[partition])],
    )
    answer = await client.call(request, produce.ProduceResponse, version)
    return answer.responses[0].partition_responses[0].error_code


async def begin(broker: Broker, client: Client) -> int:
    """The id of a producer whose transaction the partition is part of."""
    await broker.transactions.create_topic()
    await until(broker.transactions.active)
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    producer_id = (await client.call(init, InitProducerIdResponse, 4)).producer_id
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    answer = await client.call(add, AddPartitionsToTxnResponse, 3)
    assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ErrorCode.none
    return producer_id


@pytest.mark.parametrize("version", [11, 12])
def test_a_batch_behind_one_that_the_coordinator_refused_is_refused(tmp_path: Path, version: int):
    """Or the first, when it comes again, would be taken for one that was appended long ago: lost, and acknowledged."""

    async def test() -> None:
        async with brokers(tmp_path, 1, **SETTINGS) as (one,), Client.to(one) as client:
            await one.cluster.create_topics([TopicSpec("t", 1, 1)])
            producer_id = await begin(one, client)
            shard = one.transactions.shard(one.transactions.partition_of("x") or 0)
            assert shard is not None
            shard.phase = Phase.LOADING
            refused = await send(client, producer_id, 0, within="x", version=version)
            shard.phase = Phase.ACTIVE
            assert refused == ErrorCode.not_enough_replicas
            assert await send(client, producer_id, 1, within="x", version=version) == ErrorCode.not_enough_replicas
            assert await send(client, producer_id, 0, within="x", version=version) == ErrorCode.none
            assert await send(client, producer_id, 1, within="x", version=version) == ErrorCode.none
            assert one.replica_manager.find("t", 0).log.log_end == 2

    run(test)


@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
def test_a_batch_behind_one_for_an_unknown_partition_is_refused(tmp_path: Path, replicas: tuple[int, ...]):
    """A broker hears of a new topic later than the client does: between two batches, now and then."""

    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, _), Client.to(one) as client:
            assert await send(client, 7, 0) == ErrorCode.unknown_topic_or_partition
            await one.cluster.create_topics([TopicSpec("t", assignments=((0, replicas),))])
            await until(lambda: one.replicas.get("t", 0) and one.replica_manager.find("t", 0).leads)
            assert await send(client, 7, 1) == ErrorCode.not_leader_or_follower
            assert await send(client, 7, 0) == ErrorCode.none
            assert await send(client, 7, 1) == ErrorCode.none
            assert one.replica_manager.find("t", 0).log.log_end == 2

    run(test)
