"""Fetch sessions: the state between requests, and the partitions that a request reads."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode, Refused
from ottla.local.waiting import until
from ottla.replication.fetch_sessions import CachedPartition, FetchSessionCache
from ottla.wire.fetch import FetchPartition, FetchRequest, Topic
from ottla.wire.schema import fetch as wire
from tests.harness.in_process import Client, brokers, run
from tests.replication.test_partition import partition

__all__ = ["partition"]


def request(session_id=0, epoch=-1, wanted=(), forgotten=(), replica=-1):
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    topics += [("t", [FetchPartition(index, -1, offset, -1, -1, 1000) for index, offset in wanted])] if wanted else []
    return FetchRequest(replica, -1, 500, 1, 1000, 0, session_id, epoch, topics, [("t", list(forgotten))], "")


def opened(sessions, wanted=((0, 0), (1, 0))):
    return sessions.resolve(request(0, 0, wanted), by_id=False)


def refusal(sessions, message, by_id=False):
    with pytest.raises(Refused) as refused:
        sessions.resolve(message, by_id=by_id)
    return refused.value.code


def offsets(fetch):
    return {entry.partition: entry.offset for entry in fetch.dirty}


def test_a_session_keeps_its_partitions_and_takes_new_offsets():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions)
    fetch.dirty.clear()
    again = sessions.resolve(request(fetch.id, 1, wanted=[(1, 7)]), by_id=False)
    assert again is fetch
    assert len(fetch) == 2
    assert offsets(fetch) == {1: 7}


def test_a_forgotten_partition_is_not_fetched_any_more():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions)
    sessions.resolve(request(fetch.id, 1, forgotten=[0]), by_id=False)
    assert len(fetch) == 1
    assert offsets(fetch) == {1: 0}


def test_requests_of_a_session_come_in_their_order():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions)
    sessions.resolve(request(fetch.id, 1), by_id=False)
    assert refusal(sessions, request(fetch.id, 1)) == ErrorCode.invalid_fetch_session_epoch
    assert refusal(sessions, request(fetch.id, 3)) == ErrorCode.invalid_fetch_session_epoch
    sessions.resolve(request(fetch.id, 2), by_id=False)


def test_the_epoch_wraps_around_to_one():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions)
    fetch.epoch = 2**31 - 1
    sessions.resolve(request(fetch.id, 2**31 - 1), by_id=False)
    assert fetch.epoch == 1


def test_an_unknown_session_is_refused():
    assert refusal(FetchSessionCache(Random(1), 10), request(5, 1)) == ErrorCode.fetch_session_id_not_found


def test_names_and_ids_are_not_mixed_in_one_session():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions)
    assert refusal(sessions, request(fetch.id, 1), by_id=True) == ErrorCode.fetch_session_topic_id_error


def test_a_final_request_closes_the_session():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions)
    last = sessions.resolve(request(fetch.id, -1, wanted=[(0, 0)]), by_id=False)
    assert not last.is_session
    assert refusal(sessions, request(fetch.id, 1)) == ErrorCode.fetch_session_id_not_found


def test_the_least_recently_used_session_is_evicted():
    sessions = FetchSessionCache(Random(1), 2)
    first, second = opened(sessions), opened(sessions)
    sessions.resolve(request(first.id, 1), by_id=False)
    opened(sessions)
    assert len(sessions) == 2
    assert refusal(sessions, request(second.id, 1)) == ErrorCode.fetch_session_id_not_found
    sessions.resolve(request(first.id, 2), by_id=False)


def test_a_session_with_a_delayed_fetch_is_not_evicted():
    sessions = FetchSessionCache(Random(1), 1)
    delayed = opened(sessions)
    delayed.notify = lambda size: None
    assert not opened(sessions).is_session
    delayed.notify = None
    sessions.resolve(request(delayed.id, 1), by_id=False)


def test_without_session_slots_every_fetch_is_a_full_one():
    assert not opened(FetchSessionCache(Random(1), 0)).is_session


def test_an_append_marks_its_partition_dirty_and_no_other():
    sessions = FetchSessionCache(Random(1), 10)
    fetch = opened(sessions, wanted=[(index, 0) for index in range(1000)])
    entries = list(fetch.dirty)
    fetch.dirty.clear()
    reported: list[int] = []
    fetch.notify = reported.append
    entries[500].on_high_watermark(123)
    assert [entry.partition for entry in fetch.dirty] == [500]
    assert reported == [123]


def test_a_follower_that_names_a_partition_again_gets_its_high_watermark_again():
    """It passes over the answer to what it asked before."""
    sessions = FetchSessionCache(Random(1), 10)
    fetch = sessions.resolve(request(0, 0, [(0, 0), (1, 0)], replica=2), by_id=False)
    for entry in fetch.dirty:
        entry.high_watermark, entry.log_start = 7, 3
    sessions.resolve(request(fetch.id, 1, [(1, 5)], replica=2), by_id=False)
    assert [(entry.high_watermark, entry.log_start) for entry in fetch.dirty] == [(7, 3), (-1, -1)]


def followed(sessions, replica):
    return sessions.resolve(request(0, 0, [(0, 0)], replica=replica), by_id=False)


def test_a_follower_that_reconnects_leaves_no_fetch_session(partition):
    sessions = FetchSessionCache(Random(1), 10)
    other = followed(sessions, replica=3)
    before = followed(sessions, replica=2)
    watched = partition()
    for entry in before.dirty:
        entry.watch(watched)
    now = followed(sessions, replica=2)
    assert len(sessions) == 2
    assert not watched.high_watermark_listeners
    assert not watched.append_listeners
    assert refusal(sessions, request(before.id, 1, replica=2)) == ErrorCode.fetch_session_id_not_found
    for fetch, replica in ((now, 2), (other, 3)):
        assert sessions.resolve(request(fetch.id, 1, replica=replica), by_id=False) is fetch


def test_sessions_of_consumers_are_independent():
    sessions = FetchSessionCache(Random(1), 10)
    assert len({opened(sessions).id for _ in range(5)}) == len(sessions) == 5


def test_a_delayed_fetch_is_notified_when_its_session_is_closed():
    sessions = FetchSessionCache(Random(1), 10)
    before = followed(sessions, replica=2)
    reported: list[int] = []
    before.notify = reported.append
    followed(sessions, replica=2)
    assert reported == [0]
    assert before.closed


def test_a_delayed_fetch_of_a_closed_session_is_refused_and_removes_its_listeners(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,), Client.to(broker) as client, Client.to(broker) as other:
            await broker.cluster.create_topics([TopicSpec("t")])
            await until(lambda: (found := broker.replicas.get("t", 0)) is not None and found.leads)
            listeners = broker.replica_manager.find("t", 0).high_watermark_listeners
            wanted = wire.FetchTopic(topic="t", partitions=[wire.FetchPartition(partition=0, partition_max_bytes=1000)])
            opening = wire.FetchRequest(max_wait_ms=0, min_bytes=1, topics=[wanted], session_epoch=0)
            session_id = (await client.call(opening, wire.FetchResponse, 12)).session_id
            assert session_id
            waiting = wire.FetchRequest(max_wait_ms=600_000, min_bytes=1, session_id=session_id, session_epoch=1)
            delayed = asyncio.create_task(client.call(waiting, wire.FetchResponse, 12))
            await until(lambda: any(isinstance(each, CachedPartition) and each.fetch.notify for each in listeners))
            closing = wire.FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=-1)
            await other.call(closing, wire.FetchResponse, 12)
            assert (await delayed).error_code == ErrorCode.fetch_session_id_not_found
            assert not listeners

    run(test)
