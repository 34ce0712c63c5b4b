"""Registration: a process tells its own registration from that of another with its broker id. On every store."""

from __future__ import annotations

import asyncio
import json

import pytest

from ottla.cluster import changes as c
from ottla.cluster import layout
from ottla.cluster.image import BrokerRegistration, Endpoint
from ottla.cluster.requests import TopicSpec
from ottla.cluster.store import Delete
from ottla.errors import Fault
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, run
from tests.cluster.test_controller_loop import TWO, brokers, hold_back, lose_the_answer, partitions, proposals

BROKER = BrokerRegistration(2, 7, (Endpoint("PLAINTEXT", "::1", 9092),), "north", False, 5, "wDk4FTPgSZ6vwJxcIpg2jQ")


@pytest.fixture
def store(store_url):
    return store_url


def test_registrations_of_earlier_releases_are_read_without_an_incarnation():
    data = layout.broker_data(BROKER, 0)
    assert layout.broker_of(2, data) == BROKER
    assert layout.incarnation_of(data) == BROKER.incarnation
    payload = json.loads(data)
    del payload["incarnation"]
    earlier = layout.encode(payload)
    assert layout.broker_of(2, earlier) == BROKER._replace(incarnation="")
    assert layout.incarnation_of(earlier) == ""
    change = c.to_json(c.registered(BROKER))
    assert c.from_json(change) == c.registered(BROKER)
    del change["incarnation"]
    assert c.from_json(change) == c.registered(BROKER._replace(incarnation=""))


def test_a_process_keeps_its_incarnation_when_it_registers_again(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            before = two.registration
            assert before is not None
            assert before.incarnation == two.incarnation
            await one._view.store.commit([Delete(layout.broker_path(2))])
            await until(lambda: two.registration != before)
            assert two.registration is not None
            assert two.registration.incarnation == two.incarnation
            await until(lambda: one.image.brokers.get(2) == two.registration)
        async with cluster_on(store, runtime, 2) as again:
            assert again.incarnation != two.incarnation

    run(test)


def test_a_process_recognizes_its_registration_after_a_lost_answer(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            before = two.registration
            assert before is not None
            notified: list[Fault] = []
            two.on_duplicate_broker_id(notified.append)
            lost = lose_the_answer(two, layout.broker_path(2))
            await one._view.store.commit([Delete(layout.broker_path(2))])
            await until(lambda: bool(lost))
            await until(lambda: two.registration is not None and two.registration.epoch == before.epoch + 1)
            await until(lambda: one.image.brokers.get(2) == two.registration)
            assert not notified

    run(test)


def test_a_process_that_registers_again_and_finds_a_duplicate_broker_id_is_notified(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            notified: list[Fault] = []
            two.on_duplicate_broker_id(notified.append)
            go = asyncio.Event()
            late = hold_back(two, layout.broker_path(2), go)
            await one._view.store.commit([Delete(layout.broker_path(2))])
            await late.wait()  # it has seen that nobody is registered as 2
            before = two.registration
            async with cluster_on(store, runtime, 2) as duplicate:
                go.set()
                await until(lambda: bool(notified))
                assert "another process is broker 2 of this cluster by now at 127.0.0.1:9094" in str(notified[0])
                assert two.registration == before, "that of the other is not its own"
                await until(lambda: one.image.brokers.get(2) == duplicate.registration)
                await until(lambda: not two.has_session_lease)

    run(test)


def test_a_process_does_not_count_as_in_sync_for_another_with_its_id(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, rules=TWO) as (one, two):
            await one.create_topics([TopicSpec("t", assignments=[(0, [1, 2])])])
            go = asyncio.Event()
            late = hold_back(two, layout.broker_path(2), go)
            await one._view.store.commit([Delete(layout.broker_path(2))])
            await late.wait()
            async with cluster_on(store, runtime, 2, rules=TWO) as duplicate:
                await until(lambda: one.image.brokers.get(2) == duplicate.registration)
                await until(lambda: (partitions(one)[0].in_sync, partitions(one)[0].eligible) == ((1,), ()))
                await one.alter_partitions(1, one.image.brokers[1].epoch, proposals(one, 1, [1, 2]))
                await until(lambda: partitions(one)[0].in_sync == (1, 2))
            await until(lambda: 2 not in one.image.brokers)
            go.set()
            await until(lambda: one.image.brokers.get(2) is not None)
            me = one.image.brokers[2]
            assert (me.incarnation, me.clean_since) == (two.incarnation, me.epoch)
            await until(lambda: partitions(one)[0].eligible == ())

    run(test)
