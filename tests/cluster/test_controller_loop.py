"""Controller election and failover, registration, controlled shutdown: on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ottla.cluster import layout
from ottla.cluster.changes import ReplicaDeleted, encoded
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image, PartitionState
from ottla.cluster.requests import ElectionKind, InSyncProposal, Reassignment, Rules, TopicSpec
from ottla.cluster.store import Create, Delete, Op, SessionLost
from ottla.errors import ErrorCode, Fault, Refused
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, registration, run, states

MANY = 600
"""Partitions: several commits' worth of states."""
LOST = Fault("out of reach: it is not known whether this commit happened")
TWO = Rules(min_in_sync=lambda configs: 2)


@pytest.fixture
def store(store_url):
    return store_url


async def loaded(cluster: Cluster) -> Image:
    return Image.load(await cluster._view.store.tree(*layout.IMAGE_PATHS))


@asynccontextmanager
async def brokers(store, runtime, *ids: int, rules: Rules | None = None) -> AsyncIterator[list[Cluster]]:
    """These brokers; the first is controller."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(cluster_on(store, runtime, each, rules=rules)) for each in ids]
        await until(lambda: all(sorted(cluster.image.brokers) == sorted(ids) for cluster in found))
        yield found


def dies_after(cluster: Cluster, commits: int) -> None:
    """From the commit after so many on nothing reaches the store, as if the process were gone."""
    commit = cluster._view.store.commit
    left = commits

    async def counted(ops):
        nonlocal left
        left -= 1
        if left < 0:
            raise SessionLost("killed")
        return await commit(ops)

    cluster._view.store.commit = counted  # type: ignore[method-assign]


def partitions(cluster: Cluster, topic: str = "t") -> tuple[PartitionState, ...]:
    found = cluster.image.topic(topic)
    return () if found is None else found.partitions


def all_led_by(cluster: Cluster, *leaders: int) -> bool:
    return bool(partitions(cluster)) and all(p.leader in leaders for p in partitions(cluster))


def proposals(cluster: Cluster, leader: int, replicas: list[int]) -> list[InSyncProposal]:
    """What this leader would say if these replicas were in sync, in all its partitions."""
    image = cluster.image
    topic = image.topics["t"]
    return [
        InSyncProposal(
            topic.id, index, p.leader_epoch, p.partition_epoch, [(each, image.brokers[each].epoch) for each in replicas]
        )
        for index, p in enumerate(topic.partitions)
        if p.leader == leader
    ]  # fmt: skip


def test_a_partly_created_topic_is_completed_by_the_next_controller(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3) as (one, two, three):
            dies_after(one, 1)
            with pytest.raises((Fault, Refused)):
                await one.create_topics([TopicSpec("t", MANY, 2)])
            await one.close()
            await until(lambda: two.is_controller or three.is_controller)
            await until(lambda: all_led_by(two, 2, 3) and all_led_by(three, 2, 3), timeout_s=30)
            assert len(partitions(two)) == MANY
            assert await loaded(two) == two.image

    run(test)


def test_a_partly_committed_election_is_completed_by_the_next_controller(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3, rules=TWO) as (one, two, three):
            await one.create_topics([TopicSpec("t", MANY, 3)])
            await until(lambda: len(partitions(two)) == MANY)
            dies_after(one, 1)  # the loss of 3 takes several commits
            await three.close()
            await until(lambda: not one.is_controller)
            await one.close()
            await until(lambda: two.is_controller)
            await until(lambda: all((p.leader, p.in_sync) == (2, (2,)) for p in partitions(two)), timeout_s=30)
            assert all(1 in p.eligible for p in partitions(two)), "two left in sync were below the minimum when 1 went"
            assert await loaded(two) == two.image

    run(test)


def test_a_partly_started_reassignment_is_continued_by_the_next_controller(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3, 4) as (one, two, three, four):
            await one.create_topics([TopicSpec("t", assignments=[(n, [2, 3]) for n in range(MANY)])])
            dies_after(one, 1)
            wanted = [Reassignment("t", n, [2, 4]) for n in range(MANY)]
            with pytest.raises((Fault, Refused)):
                await one.alter_reassignments(wanted)
            await one.close()
            await until(lambda: any(each.is_controller for each in (two, three, four)))
            new = next(each for each in (two, three, four) if each.is_controller)
            await until(lambda: sorted(new.image.brokers) == [2, 3, 4])
            begun = [n for n, p in enumerate(partitions(new)) if p.adding]
            assert 0 < len(begun) < MANY
            assert await loaded(new) == new.image
            results = await new.alter_reassignments(wanted)
            assert {result.code for result in results} == {ErrorCode.none}
            assert all((p.adding, p.removing) == ((4,), (3,)) for p in partitions(new))
            epoch = new.image.brokers[2].epoch
            answers = await new.alter_partitions(2, epoch, proposals(new, 2, [2, 3, 4]))
            assert {answer.code for answer in answers} == {ErrorCode.none}
            assert {(p.replicas, p.in_sync, p.leader) for p in partitions(new)} == {((2, 4), (2, 4), 2)}
            assert await loaded(new) == new.image

    run(test)


def test_partly_completed_reassignments_are_completed_by_the_next_controller(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3, 4) as (one, two, three, four):
            await one.create_topics([TopicSpec("t", assignments=[(n, [2, 3]) for n in range(MANY)])])
            await one.alter_reassignments([Reassignment("t", n, [2, 4]) for n in range(MANY)])
            dies_after(one, 1)
            with pytest.raises((Fault, Refused)):
                await one.alter_partitions(2, one.image.brokers[2].epoch, proposals(one, 2, [2, 3, 4]))
            await one.close()
            await until(lambda: any(each.is_controller for each in (two, three, four)))
            new = next(each for each in (two, three, four) if each.is_controller)
            await until(lambda: sorted(new.image.brokers) == [2, 3, 4])
            moved = [p for p in partitions(new) if not p.adding]
            assert 0 < len(moved) < MANY
            assert {p.replicas for p in moved} == {(2, 4)}
            left = [each for each in proposals(new, 2, [2, 3, 4]) if partitions(new)[each.partition].adding]
            await new.alter_partitions(2, new.image.brokers[2].epoch, left)
            assert {p.replicas for p in partitions(new)} == {(2, 4)}
            assert await loaded(new) == new.image

    run(test)


def test_a_draining_broker_soon_leads_no_partition(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3) as (one, two, three):
            await one.create_topics([TopicSpec("t", 6, 3)])
            await until(lambda: len(partitions(three)) == 6)
            await three.drain()
            assert three.image.brokers[3].draining
            await until(lambda: all(p.leader in (1, 2) and set(p.in_sync) == {1, 2} for p in partitions(three)))
            await one.drain()  # the controller itself
            await until(lambda: all((p.leader, p.in_sync) == (2, (2,)) for p in partitions(two)))
            assert await loaded(one) == one.image

    run(test)


def test_leaders_of_a_draining_broker_are_moved_by_the_next_controller(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3) as (one, two, three):
            await one.create_topics([TopicSpec("t", 6, 3)])
            await until(lambda: len(partitions(three)) == 6)
            dies_after(one, 0)
            await three.drain()
            await until(lambda: not one.is_controller)
            await one.close()
            await until(lambda: all((p.leader, p.in_sync) == (2, (2,)) for p in partitions(two)))

    run(test)


def test_every_broker_confirms_the_deletion_of_its_own_files(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, 3) as (one, two, three):
            made = await one.create_topics([TopicSpec(f"t{n}", 1, 3) for n in range(3)])
            await one.delete_topics([topic.topic_id for topic in made])
            ids = [topic.topic_id for topic in made]
            await asyncio.gather(*(each.replicas_deleted(ids) for each in (one, two, three)))
            await until(lambda: all(not each.image.tombstones for each in (one, two, three)))
            assert await loaded(one) == one.image

    run(test)


def test_a_clean_shutdown_keeps_a_replica_in_sync_and_a_kill_does_not(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2, rules=TWO) as (one, two):
            await one.create_topics([TopicSpec("t", assignments=[(0, [1, 2])])])
            me = two.registration
            assert me is not None
            await two.close()
            await until(lambda: partitions(one)[0].eligible == (2,))
            async with cluster_on(store, runtime, None, rules=TWO) as again:
                await again.register(registration(2)._replace(clean_epoch=me.epoch, clean_since=me.clean_since))
                assert again.registration is not None
                assert again.registration.clean_since == me.clean_since
                epoch = again.registration.epoch
                await until(lambda: partitions(one)[0].eligible_epochs == (epoch,))
            async with cluster_on(store, runtime, 2, rules=TWO) as killed:
                assert killed.registration is not None
                assert killed.registration.clean_since == killed.registration.epoch
                await until(lambda: partitions(one)[0].eligible == ())
                assert await loaded(one) == one.image

    run(test)


def test_a_deleted_registration_is_made_again_with_the_same_clean_since(store):
    """Of Kafka's ephemeral registrations some were never made again."""

    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            await one.create_topics([TopicSpec("t", assignments=[(0, [1, 2])])])
            before = two.registration
            assert before is not None
            await one._view.store.commit([Delete(layout.broker_path(2))])
            await until(lambda: two.registration is not None and two.registration.epoch > before.epoch)
            assert two.registration is not None
            assert two.registration.clean_since == before.clean_since
            await until(lambda: one.image.brokers.get(2) == two.registration)
            assert partitions(one)[0].leader == 1

    run(test)


def test_alter_partition_changes_the_isr_or_answers_why_not(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            await one.create_topics([TopicSpec("t", assignments=[(0, [2, 1])])])
            (proposal,) = proposals(one, 2, [2])
            epoch = one.image.brokers[2].epoch
            (answer,) = await one.alter_partitions(2, epoch, [proposal])
            assert (answer.code, answer.state) == (ErrorCode.none, partitions(one)[0])
            assert states(one.image, "t") == ["2@0 2/2,1 #1"]
            (again,) = await one.alter_partitions(2, epoch, [proposal])
            assert again.code is ErrorCode.invalid_update_version
            (unknown,) = await one.alter_partitions(2, epoch, [proposal._replace(topic_id=bytes(16))])
            assert unknown.code is ErrorCode.unknown_topic_id
            with pytest.raises(Refused) as caught:
                await one.alter_partitions(2, epoch - 1, [proposal])
            assert caught.value.code is ErrorCode.stale_broker_epoch
            with pytest.raises(Refused) as caught:
                await two.alter_partitions(2, epoch, [proposal])
            assert caught.value.code is ErrorCode.not_controller
            assert await loaded(one) == one.image

    run(test)


def test_leaders_are_rebalanced_automatically(store):
    async def test(runtime):
        rules = Rules(balance_seconds=0.05)
        async with brokers(store, runtime, 1, 2, rules=rules) as (one, two):
            await one.create_topics([TopicSpec("t", assignments=[(0, [2, 1])])])
            await two.close()
            await until(lambda: states(one.image, "t") == ["1@1 1/2,1 #1"])
            async with cluster_on(store, runtime, 2, rules=rules):
                await until(lambda: 2 in one.image.brokers)
                results = await one.elect_leaders(ElectionKind.preferred, [("t", 0)])
                assert [result.code for result in results] == [ErrorCode.preferred_leader_not_available]
                await one.alter_partitions(1, one.image.brokers[1].epoch, proposals(one, 1, [1, 2]))
                await until(lambda: partitions(one)[0].leader == 2)

    run(test)


# Campaigns whose answers are lost.


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
    """Wait until this broker acts as controller, and the store agrees."""
    await until(lambda: cluster.is_controller)
    await cluster.create_topics([TopicSpec("t", 1, 1)])
    assert cluster.image.topic("t") is not None
    assert Image.load(await cluster._view.store.tree(*layout.IMAGE_PATHS)) == cluster.image


def test_a_controller_is_elected_after_a_campaign_without_an_answer(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            lost = lose_the_answer(two)
            await one.close()
            await until(lambda: bool(lost))
            await controls(two)
            assert two.image.controller_epoch == 3, "the campaign in doubt is fenced"

    run(test)


def test_a_controller_is_elected_when_reads_fail_after_its_campaign(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two):
            lost = lose_what_is_read_after(two)
            await one.close()
            await until(lambda: bool(lost))
            await controls(two)
            assert two.image.controller_epoch == 2

    run(test)


def test_a_broker_becomes_controller_after_registering_again_without_an_answer(store):
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


def test_a_controller_whose_registration_is_deleted_registers_again(store):
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


def test_a_broker_that_registers_during_a_campaign_is_in_the_image(store):
    async def test(runtime):
        async with brokers(store, runtime, 1, 2) as (one, two), cluster_on(store, runtime, None) as three:
            registered = asyncio.Event()
            standing = hold_back(two, layout.CONTROLLER, registered)
            registers = hold_back(three, layout.broker_path(3), standing)
            joining = asyncio.ensure_future(three.register(registration(3)))
            await registers.wait()  # it has seen that 1 controls
            await one.close()
            await standing.wait()  # 2 has seen only itself
            await joining
            registered.set()
            await until(lambda: two.is_controller or three.is_controller)
            await until(lambda: all(sorted(each.image.brokers) == [2, 3] for each in (two, three)))
            assert Image.load(await two._view.store.tree(*layout.IMAGE_PATHS)) == two.image

    run(test)
