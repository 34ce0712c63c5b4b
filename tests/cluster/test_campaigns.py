"""Campaigns that go wrong in the middle: whatever is lost, in the end somebody controls and sees everybody. On every
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ottla.cluster import layout
from ottla.cluster.changes import ReplicaDeleted, encoded
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image
from ottla.cluster.requests import TopicSpec
from ottla.cluster.store import Create, Delete, Op
from ottla.errors import Fault
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, registration, run
from tests.cluster.test_controller_failover import brokers

LOST = Fault("out of reach: it is not known whether this commit happened")


@pytest.fixture
def store(store_url):
    return store_url


def makes(ops: Sequence[Op], path: str) -> bool:
    return any(isinstance(op, Create) and op.path == path for op in ops)


def lose_the_answer(cluster: Cluster, path: str = layout.CONTROLLER) -> list[str]:
    """The next commit that makes this node happens, and its answer does not arrive. Grows when that was so."""
    commit = cluster._view.store.commit
    lost: list[str] = []

    async def unanswered(ops):
        paths = await commit(ops)
        if not lost and makes(ops, path):
            lost.append(path)
            raise LOST
        return paths

    cluster._view.store.commit = unanswered  # type: ignore[method-assign]
    return lost


def lose_what_is_read_after(cluster: Cluster) -> list[str]:
    """After the next campaign the store goes out of reach for one read, and the log has a change in it that was
    committed just before the campaign. Grows with what was not read."""
    store = cluster._view.store
    lost: list[str] = []
    commit, children, children_from = store.commit, store.children, store.children_from
    change = Create(layout.CHANGE, encoded((ReplicaDeleted(bytes(16), 9),)), sequential=True)
    campaigned = False

    async def after_another(ops):
        nonlocal campaigned
        if makes(ops, layout.CONTROLLER):
            await commit([change])
            paths = await commit(ops)
            campaigned = True
            return paths
        return await commit(ops)

    def once(read: Callable):
        async def lossy(path, *rest):
            if campaigned and not lost:
                lost.append(path)
                raise LOST
            return await read(path, *rest)

        return lossy

    store.commit, store.children, store.children_from = after_another, once(children), once(children_from)  # type: ignore[method-assign]
    return lost


async def controls(cluster: Cluster) -> None:
    """Wait until this broker does what a controller does, and everybody would read the same in the store."""
    await until(lambda: cluster.is_controller)
    await cluster.create_topics([TopicSpec("t", 1, 1)])
    assert cluster.image.topic("t") is not None
    assert Image.load(await cluster._view.store.tree(*layout.IMAGE_PATHS)) == cluster.image


def test_a_campaign_whose_answer_is_lost_leaves_somebody_who_controls(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            lost = lose_the_answer(two)
            await one.close()
            await until(lambda: bool(lost))
            await controls(two)
            assert two.image.controller_epoch == 3, "the campaign in doubt is fenced"

    run(test)


def test_a_campaign_after_which_nothing_can_be_read_leaves_somebody_who_controls(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            lost = lose_what_is_read_after(two)
            await one.close()
            await until(lambda: bool(lost))
            await controls(two)
            assert two.image.controller_epoch == 2

    run(test)


def test_a_broker_that_registers_again_and_campaigns_with_no_answer_controls_in_the_end(store):
    async def test(runtime):
        async with cluster_on(store, runtime, 1) as one, cluster_on(store, runtime, None) as other:
            before = one.registration
            lost = lose_the_answer(one)
            await other._view.store.commit([Delete(layout.broker_path(1)), Delete(layout.CONTROLLER)])
            await until(lambda: bool(lost))
            await controls(one)
            assert before is not None
            assert one.registration is not None
            assert one.registration.epoch == before.epoch + 1, "what seemed to fail is not done again"

    run(test)


def test_a_controller_whose_registration_alone_was_taken_away_goes_on(store):
    async def test(runtime):
        async with cluster_on(store, runtime, 1) as one, cluster_on(store, runtime, None) as other:
            await other._view.store.commit([Delete(layout.broker_path(1))])
            await until(lambda: one.image.controller_epoch == 2)
            await controls(one)

    run(test)


def hold_back(cluster: Cluster, path: str, go: asyncio.Event) -> asyncio.Event:
    """Commits that make this node wait for `go`. Set when the first one waits."""
    commit, waits = cluster._view.store.commit, asyncio.Event()

    async def late(ops):
        if makes(ops, path):
            waits.set()
            await go.wait()
        return await commit(ops)

    cluster._view.store.commit = late  # type: ignore[method-assign]
    return waits


def test_a_broker_that_registers_while_another_becomes_controller_is_seen(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two), cluster_on(store, runtime, None) as three:
            registered = asyncio.Event()
            standing = hold_back(two, layout.CONTROLLER, registered)
            registers = hold_back(three, layout.broker_path(3), standing)
            joining = asyncio.ensure_future(three.register(registration(3)))
            await registers.wait()  # it has seen that 1 controls
            await one.close()
            await standing.wait()  # 2 has seen nobody but itself
            await joining
            registered.set()
            await until(lambda: two.is_controller or three.is_controller)
            await until(lambda: all(sorted(each.image.brokers) == [2, 3] for each in (two, three)))
            assert Image.load(await two._view.store.tree(*layout.IMAGE_PATHS)) == two.image

    run(test)
