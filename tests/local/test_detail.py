"""Details beyond metadata that `ottla dev` shows: lag, write rate, eligible leader replicas."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.client.errors import ClientError
from ottla.local.detail import UNKNOWN, Detail, DetailRequests, GroupDetail, MemberDetail, Offsets
from ottla.local.snapshot import ClusterSnapshot, PartitionReplicas
from ottla.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

ORDERS = ("orders", 0)


def test_lag_counts_from_the_committed_offset_or_from_the_start_to_the_high_watermark():
    offsets = {ORDERS: Offsets(start=2, high_watermark=10, end=12)}
    assert GroupDetail("kitchen", "Stable", 1, committed={ORDERS: 6}).lag(ORDERS, offsets) == 4
    assert GroupDetail("kitchen", "Stable", 1, (MemberDetail("anna", (ORDERS,)),)).lag(ORDERS, offsets) == 8
    assert GroupDetail("kitchen", "Stable", 1, committed={ORDERS: 6}).lag(ORDERS, {}) == UNKNOWN


def test_the_rate_is_the_growth_of_the_log_end_in_the_last_seconds():
    async def no_answer(broker_id: int, request: Any, answer: Any) -> Any:
        raise ClientError("no answer")

    requests = DetailRequests(no_answer)
    ends = [(0.0, 0), (1.0, 10), (2.0, 20), (3.0, 20), (4.0, 20), (5.0, 20)]
    rates = [requests._rates({ORDERS: Offsets(0, end, end)}, now).get(ORDERS, 0.0) for now, end in ends]
    assert rates == [0.0, 10.0, 10.0, 5.0, 0.0, 0.0]
    assert requests._rates({ORDERS: Offsets()}, 6.0) == {}, "an offset that is unknown is not zero"


def test_a_broker_that_does_not_answer_is_left_out():
    async def no_answer(broker_id: int, request: Any, answer: Any) -> Any:
        raise TimeoutError

    snapshot = ClusterSnapshot(1, (1, 2), {ORDERS: PartitionReplicas(1, (1, 2), (1,))})
    detail = asyncio.run(DetailRequests(no_answer).look(snapshot, [1, 2], 0.0))
    assert detail == Detail({ORDERS: Offsets()}, {}, (), {})


def test_the_last_eligible_leader_replicas_are_kept_while_no_broker_answers():
    response = DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                name="orders",
                partitions=[DescribeTopicPartitionsResponsePartition(partition_index=0, eligible_leader_replicas=[2])],
            )
        ]
    )
    silent = False

    async def call(broker_id: int, request: Any, answer: Any) -> Any:
        if silent or answer is not DescribeTopicPartitionsResponse:
            raise TimeoutError
        return response

    requests = DetailRequests(call)
    alone = ClusterSnapshot(3, (3,), {ORDERS: PartitionReplicas(3, (1, 2, 3), (3,))})
    assert asyncio.run(requests.look(alone, [3], 0.0)).eligible == {ORDERS: (2,)}
    silent = True
    assert asyncio.run(requests.look(alone, [3], 1.0)).eligible == {ORDERS: (2,)}
    assert asyncio.run(requests.look(alone, [], 2.0)).eligible == {ORDERS: (2,)}
    whole = ClusterSnapshot(3, (1, 2, 3), {ORDERS: PartitionReplicas(3, (1, 2, 3), (1, 2, 3))})
    assert asyncio.run(requests.look(whole, [3], 3.0)).eligible == {}
