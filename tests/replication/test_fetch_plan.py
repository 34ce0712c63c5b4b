"""Fetch plan of a follower: the partitions of the next request, and the effects of a response."""

from __future__ import annotations

from random import Random

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.fetch_plan import FetchPlan
from ottla.replication.partition import Partition
from ottla.sim.disk import SimDisk
from ottla.wire.fetch import PartitionFetched
from ottla.wire.records import Record, build_batch
from ottla.wire.replica_fetch import Answer

TOPIC = bytes(16)
NOW_MS = 1_790_000_000_000
LAST = 1_000_000
"""The number of a request behind which there is none."""


def replica(index: int, epoch: int = 1) -> Partition:
    log = PartitionLog.open(SimDisk(Random(1)), f"/t-{index}", LogConfig(), now_ms=NOW_MS)
    partition = Partition("t", TOPIC, index, 2, log, AppendPolicy())
    lead(partition, epoch)
    return partition


def lead(partition: Partition, epoch: int) -> None:
    partition.become(State((1, 2), leader=1, leader_epoch=epoch, in_sync=(1, 2), partition_epoch=epoch))


def grow(partition: Partition) -> None:
    data = bytearray(build_batch([Record(0, NOW_MS, None, b"x")]))
    data[:8] = partition.log.log_end.to_bytes(8, "big")
    partition.replicate(memoryview(data), 0, 0, NOW_MS)


@pytest.fixture
def plan() -> FetchPlan:
    return FetchPlan(partition_bytes_max=1000, backoff_s_max=1.0)


def named(plan: FetchPlan, now: float = 0.0) -> list[int]:
    request = plan.request(now)
    assert request is not None
    return [wanted.partition for wanted in request.topics.get(TOPIC, [])]


def sent(plan: FetchPlan) -> int:
    """The number of the next request."""
    request = plan.request(0.0)
    assert request is not None
    return request.number


def taken(plan: FetchPlan, answer: Answer, number: int = LAST) -> list[int]:
    """Who takes what it was sent."""
    found = [partition for partition, _ in plan.answered(answer, number)]
    for partition in found:
        plan.took(partition)
    return [partition.index for partition in found]


def answer(*partitions: int, error: int = 0, session: int = 5) -> Answer:
    return Answer(error, session, [(TOPIC, PartitionFetched(index)) for index in partitions])


def test_a_session_names_all_partitions_once_and_then_those_that_moved(plan):
    first, second = replica(0), replica(1)
    plan.add(first)
    plan.add(second)
    assert named(plan) == [0, 1]
    assert taken(plan, answer(0, 1)) == [0, 1]
    assert named(plan) == []
    grow(second)
    plan.took(second)
    assert named(plan) == [1]


def test_a_partition_whose_log_start_moved_is_named_again(plan):
    partition = replica(0)
    for _ in range(2):
        grow(partition)
    plan.add(partition)
    assert named(plan) == [0]
    partition.replicate(memoryview(b""), 2, 1, NOW_MS)
    assert taken(plan, answer(0)) == [0]
    request = plan.request(0.0)
    assert request is not None
    assert [wanted.log_start for wanted in request.topics[TOPIC]] == [1]
    assert taken(plan, answer(0)) == [0]
    assert named(plan) == []


def test_session_epochs_count_the_requests(plan):
    plan.add(replica(0))
    epochs = []
    for _ in range(3):
        request = plan.request(0.0)
        assert request is not None
        epochs.append((request.session_id, request.session_epoch))
        taken(plan, answer())
    assert epochs == [(0, 0), (5, 1), (5, 2)]


def test_a_lost_session_is_opened_again_with_all_partitions(plan):
    plan.add(replica(0))
    named(plan)
    taken(plan, answer(error=70))
    request = plan.request(0.0)
    assert request is not None
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert list(request.topics) == [TOPIC]


def test_without_a_session_each_request_names_all_partitions(plan):
    plan.add(replica(0))
    for _ in range(3):
        assert named(plan) == [0]
        taken(plan, answer(0, session=0))


def test_a_response_for_another_fetch_offset_is_dropped(plan):
    partition = replica(0)
    plan.add(partition)
    named(plan)
    grow(partition)  # by an answer before this one
    assert taken(plan, answer(0)) == []
    assert named(plan) == [0]


def test_a_response_of_another_leader_epoch_is_dropped(plan):
    partition = replica(0)
    plan.add(partition)
    named(plan)
    lead(partition, epoch=2)
    plan.add(partition)
    assert taken(plan, answer(0)) == []
    assert named(plan) == [0]


def test_a_response_of_another_leader_epoch_is_dropped_also_after_a_new_request(plan):
    partition = replica(0, epoch=5)
    plan.add(partition)
    opening = sent(plan)
    assert taken(plan, answer(0), opening) == [0]
    grow(partition)
    plan.took(partition)
    delayed = sent(plan)  # in leader epoch 5
    plan.remove(partition)  # another broker leads in leader epoch 6
    lead(partition, 7)
    plan.add(partition)
    behind = sent(plan)
    cut = Answer(0, 5, [(TOPIC, PartitionFetched(0, diverging=(0, 0)))])
    assert taken(plan, cut, delayed) == []
    assert taken(plan, answer(0), behind) == [0]


def test_a_partition_that_was_not_named_again_takes_records_of_any_later_response(plan):
    first, second = replica(0), replica(1)
    plan.add(first)
    opening = sent(plan)
    assert taken(plan, answer(0), opening) == [0]
    delayed = sent(plan)
    plan.add(second)
    behind = sent(plan)
    assert taken(plan, answer(0), delayed) == [0]
    assert taken(plan, answer(0, 1), behind) == [0, 1]


def test_a_second_request_is_sent_only_once_the_session_has_an_id(plan):
    first, second = replica(0), replica(1)
    plan.add(first)
    named(plan)
    plan.add(second)
    assert not plan.has_news
    taken(plan, answer())
    assert plan.has_news
    assert named(plan) == [1]
    assert not plan.has_news
    lead(first, epoch=2)
    plan.add(first)
    assert plan.has_news


def test_a_refused_partition_backs_off_exponentially_without_delaying_the_others(plan):
    first, second = replica(0), replica(1)
    plan.add(first)
    plan.add(second)
    named(plan)
    plan.failed(first, 10.0)
    request = plan.request(10.0)
    assert request is not None
    assert request.forgotten == {TOPIC: [0]}
    assert request.topics == {}
    pauses = []
    now = 10.0
    for _ in range(8):
        deadline = plan.deadline()
        assert deadline is not None
        pauses.append(round(deadline - now, 2))
        assert named(plan, deadline) == [0]
        now = deadline
        plan.failed(first, now)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_a_partition_with_another_leader_is_removed_from_the_session(plan):
    first = replica(0)
    plan.add(first)
    named(plan)
    plan.remove(first)
    request = plan.request(0.0)
    assert request is not None
    assert request.forgotten == {TOPIC: [0]}
    assert len(plan) == 0


def test_nothing_to_fetch_is_no_request(plan):
    assert plan.request(0.0) is None
    resting = replica(0)
    plan.add(resting)
    plan.failed(resting, 0.0)
    assert plan.request(0.01) is None
    assert plan.request(0.02) is not None
