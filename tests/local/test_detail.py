"""What `ottla dev` shows beyond metadata: who leads when a process is dead, lag, and the rate of writing."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

from ottla.client.errors import ClientError
from ottla.local.cluster import LocalCluster
from ottla.local.detail import UNKNOWN, Asker, Detail, Group, GroupMember, Offsets, without_the_dead
from ottla.local.processes import State
from ottla.local.session import Session, killed_words
from ottla.local.snapshot import NOBODY, ClusterSnapshot, Replicas
from ottla.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

ORDERS = ("orders", 0)


def test_a_dead_broker_leads_and_controls_nothing():
    partitions = {ORDERS: Replicas(2, (1, 2, 3), (1, 2, 3)), ("orders", 1): Replicas(1, (1,), (1,))}
    snapshot = ClusterSnapshot(2, (1, 2, 3), partitions)
    seen = without_the_dead(snapshot, [1, 3])
    assert (seen.controller, seen.partitions[ORDERS].leader, seen.partitions["orders", 1].leader) == (NOBODY, NOBODY, 1)
    assert seen.partitions[ORDERS].in_sync == (1, 2, 3), "it stays in sync until the controller takes it out"
    assert without_the_dead(snapshot, [1, 2, 3]) == snapshot


def test_lag_counts_from_the_committed_offset_or_from_the_start_to_the_high_watermark():
    offsets = {ORDERS: Offsets(start=2, high_watermark=10, end=12)}
    assert Group("kitchen", "Stable", 1, committed={ORDERS: 6}).lag(ORDERS, offsets) == 4
    assert Group("kitchen", "Stable", 1, (GroupMember("anna", (ORDERS,)),)).lag(ORDERS, offsets) == 8
    assert Group("kitchen", "Stable", 1, committed={ORDERS: 6}).lag(ORDERS, {}) == UNKNOWN


def test_the_rate_is_what_the_log_end_has_grown_by_in_the_last_seconds():
    async def nobody(broker_id: int, request: Any, answer: Any) -> Any:
        raise ClientError("nobody answers")

    asker = Asker(nobody)
    ends = [(0.0, 0), (1.0, 10), (2.0, 20), (3.0, 20), (4.0, 20), (5.0, 20)]
    rates = [asker._rates({ORDERS: Offsets(0, end, end)}, now).get(ORDERS, 0.0) for now, end in ends]
    assert rates == [0.0, 10.0, 10.0, 5.0, 0.0, 0.0]
    assert asker._rates({ORDERS: Offsets()}, 6.0) == {}, "a leader that did not answer is no leader that lost records"


def test_who_does_not_answer_is_left_out():
    async def nobody(broker_id: int, request: Any, answer: Any) -> Any:
        raise TimeoutError

    snapshot = ClusterSnapshot(1, (1, 2), {ORDERS: Replicas(1, (1, 2), (1,))})
    detail = asyncio.run(Asker(nobody).look(snapshot, [1, 2], 0.0))
    assert detail == Detail({ORDERS: Offsets()}, {}, (), {})


def test_eligible_leader_replicas_are_as_last_told_when_nobody_is_left_to_ask():
    told = DescribeTopicPartitionsResponse(
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
        return told

    asker = Asker(call)
    alone = ClusterSnapshot(3, (3,), {ORDERS: Replicas(3, (1, 2, 3), (3,))})
    assert asyncio.run(asker.look(alone, [3], 0.0)).eligible == {ORDERS: (2,)}
    silent = True
    assert asyncio.run(asker.look(alone, [3], 1.0)).eligible == {ORDERS: (2,)}
    assert asyncio.run(asker.look(alone, [], 2.0)).eligible == {ORDERS: (2,)}
    whole = ClusterSnapshot(3, (1, 2, 3), {ORDERS: Replicas(3, (1, 2, 3), (1, 2, 3))})
    assert asyncio.run(asker.look(whole, [3], 3.0)).eligible == {}


def test_whoever_was_killed_is_not_among_those_that_may_lead(tmp_path):
    session = Session(LocalCluster(tmp_path, 3), lambda line: None)
    session.snapshot = ClusterSnapshot(NOBODY, (), {ORDERS: Replicas(NOBODY, (1, 2, 3), (3,))})
    session.detail = Detail(eligible={ORDERS: (1, 2)})
    assert (session.may_lead(ORDERS), session.will_not_lead()) == ((1, 2), [])
    for broker_id, ending in ((1, State.STOPPED), (2, State.KILLED), (3, State.KILLED)):
        broker = session.cluster[broker_id]
        broker._ending = ending
        broker._process = subprocess.Popen(["true"])
        broker._process.wait()
        session._note_state(broker)
    assert (session.may_lead(ORDERS), session.will_not_lead()) == ((1,), [2]), "3 is in sync"
    assert "broker 2 was killed" in killed_words(session.will_not_lead())
