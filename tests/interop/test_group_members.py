"""Our group-member machines on a real broker, alone and in one group with other clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from ottla.client.group.assignors import ASSIGNORS, assignors_named
from ottla.client.group.classic_member import ClassicMember
from ottla.client.group.consumer_member import ConsumerMember, ConsumerState
from ottla.client.group.member import MemberSettings
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from tests.harness.topics import create_topic
from tests.interop.member_shell import Shell, settle, shells

pytest_plugins = ["tests.harness.group_fixtures"]

FAST = {"session_timeout_ms": 1_500, "heartbeat_interval_ms": 100, "retry_backoff_ms": 50}


@pytest.fixture
def broker(group_broker):
    """One with short sessions, in place of the session's."""
    return group_broker


@pytest.fixture
def group():
    return f"g-{uuid.uuid4().hex[:8]}"


def classic(group: str, assignor: str = "range", **settings: Any) -> ClassicMember:
    return ClassicMember(MemberSettings(group_id=group, **{**FAST, **settings}), assignors_named([assignor]))


def consumer(group: str, **settings: Any) -> ConsumerMember:
    return ConsumerMember(MemberSettings(group_id=group, **settings), str(uuid.uuid4()))


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_members_share_leave_and_take_over(broker, make_topic, group, assignor):
    topic = make_topic(partitions=6)

    async def run() -> None:
        async with shells(broker) as start:
            members = [start(classic(group, assignor)).subscribe(topic) for _ in range(2)]
            await settle(members, [3, 3])
            members.append(start(classic(group, assignor)).subscribe(topic))
            await settle(members, [2, 2, 2])
            await members.pop().close()
            await settle(members, [3, 3])
            await members.pop().vanish()
            await settle(members, [6])
            assert all(shell.failure is None for shell in members)

    asyncio.run(run())


def test_cooperative_members_give_up_only_what_moves(broker, make_topic, group):
    topic = make_topic(partitions=6)

    async def run() -> None:
        async with shells(broker) as start:
            members = [start(classic(group, "cooperative-sticky")).subscribe(topic)]
            await settle(members, [6])
            members.append(start(classic(group, "cooperative-sticky")).subscribe(topic))
            await settle(members, [3, 3])
            assert [len(shell.of("revoked")) for shell in members] == [3, 0]
            members.append(start(classic(group, "cooperative-sticky")).subscribe(topic))
            await settle(members, [2, 2, 2])
            assert [len(shell.of("revoked")) for shell in members] == [4, 1, 0]
            await members.pop(0).close()
            await settle(members, [3, 3])
            assert [len(shell.of("revoked")) for shell in members] == [1, 0]

    asyncio.run(run())


OTHERS = {
    "range": ("confluent-kafka", "kafka-python", "aiokafka"),
    "roundrobin": ("confluent-kafka", "kafka-python", "aiokafka"),
    "sticky": ("aiokafka", "kafka-python"),
    "cooperative-sticky": ("confluent-kafka", "kafka-python"),
}


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_one_group_with_other_clients(broker, make_topic, start_members, group, assignor):
    """With either group leader: first ours, then, after ours are gone, one of theirs."""
    topic = make_topic(partitions=8)
    specs = [
        {"name": name, "client": name, "group": group, "topics": [topic], "assignor": assignor}
        for name in OTHERS[assignor]
    ]

    async def run() -> None:
        async with shells(broker) as start:
            ours = [start(classic(group, assignor)).subscribe(topic)]
            await settle(ours, [8])
            theirs = start_members(specs)
            share, extra = divmod(8, 1 + len(theirs))
            even = [share + (index < extra) for index in range(1 + len(theirs))]
            await settle([*ours, *theirs], even)
            ours.append(start(classic(group, assignor)).subscribe(topic))
            share, extra = divmod(8, 2 + len(theirs))
            await settle([*ours, *theirs], [share + (index < extra) for index in range(2 + len(theirs))])
            await ours[0].close()
            await settle([ours[1], *theirs], even)
            await ours[1].close()
            share, extra = divmod(8, len(theirs))
            await settle(theirs, [share + (index < extra) for index in range(len(theirs))])

    asyncio.run(run())


def test_a_static_member_comes_back_without_a_rebalance(broker, make_topic, group):
    topic = make_topic(partitions=4)

    def static(name: str) -> ClassicMember:
        return classic(group, group_instance_id=name, session_timeout_ms=20_000)

    async def run() -> None:
        async with shells(broker) as start:
            members = [start(static(name)).subscribe(topic) for name in ("one", "two")]
            await settle(members, [2, 2])
            for goes, stays in ((members[1], members[0]), (members[0], members[1])):  # one of them leads
                had, reported = goes.owned, list(stays.reported)
                name = goes.machine.settings.group_instance_id
                await goes.vanish()
                returned = start(static(name)).subscribe(topic)
                await settle([returned, stays], [2, 2])
                assert returned.owned == had
                assert stays.reported == reported
                members[members.index(goes)] = returned

    asyncio.run(run())


def test_a_static_member_is_fenced_by_another_with_its_instance_id(broker, make_topic, group):
    topic = make_topic(partitions=2)

    async def run() -> None:
        async with shells(broker) as start:
            first = start(classic(group, group_instance_id="one")).subscribe(topic)
            await settle([first], [2])
            second = start(classic(group, group_instance_id="one")).subscribe(topic)
            await settle([second], [2])
            await until(lambda: first.failure, "the first to be told")
            assert first.failure is not None
            assert first.failure.code is ErrorCode.fenced_instance_id
            assert first.of("lost") == [0, 1]

    asyncio.run(run())


def test_a_member_leaves_when_polling_stops_and_rejoins(broker, make_topic, group):
    topic = make_topic(partitions=2)

    async def run() -> None:
        async with shells(broker) as start:
            busy = start(classic(group, max_poll_interval_ms=600)).subscribe(topic)
            await settle([busy], [2])
            other = start(classic(group)).subscribe(topic)
            await settle([other], [2])
            assert busy.owned == set()
            assert busy.machine.away
            busy.tell(busy.machine.polled)
            await settle([busy, other], [1, 1])

    asyncio.run(run())


def test_a_member_beyond_its_session_timeout_loses_its_partitions_and_rejoins(broker, make_topic, group):
    topic = make_topic(partitions=2)

    async def run() -> None:
        async with shells(broker) as start:
            members = [start(classic(group, session_timeout_ms=600)).subscribe(topic)]
            await settle(members, [2])
            time.sleep(1.5)  # the whole loop stands still, as if the machine had been asleep  # noqa: ASYNC251
            await until(lambda: members[0].of("lost"), "the loss to be noticed")
            await settle(members, [2])

    asyncio.run(run())


def test_new_partitions_are_shared_out(broker, make_topic, group):
    topic = make_topic(partitions=2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    async def run() -> None:
        async with shells(broker) as start:
            members = [start(classic(group)).subscribe(topic) for _ in range(2)]
            await settle(members, [1, 1])
            await asyncio.to_thread(admin.create_partitions([NewPartitions(topic, 4)])[topic].result, 10)

            async def refresh() -> None:
                while True:
                    for shell in members:
                        await shell.refresh()
                    await asyncio.sleep(0.1)

            refreshing = asyncio.create_task(refresh())
            await settle(members, [2, 2])
            refreshing.cancel()

    asyncio.run(run())


def test_a_changed_subscription_is_followed(broker, make_topic, group):
    one, two = make_topic(partitions=2), make_topic(partitions=3)

    async def run() -> None:
        async with shells(broker) as start:
            for machine in (classic(group), classic(group + "-c", "cooperative-sticky"), consumer(group + "-n")):
                shell = start(machine).subscribe(one)
                await settle([shell], [2])
                shell.subscribe(two)
                await settle([shell], [3])
                assert {partition.topic for partition in shell.machine.owned} == {two}
                await shell.close()

    asyncio.run(run())


@pytest.mark.parametrize("static", [False, True])
def test_members_of_the_consumer_protocol_share_leave_and_take_over(broker, make_topic, group, static):
    topic = make_topic(partitions=6)

    def member(index: int) -> ConsumerMember:
        return consumer(group, group_instance_id=f"s{index}" if static else None)

    async def run() -> None:
        async with shells(broker) as start:
            members = [start(member(index)).subscribe(topic) for index in range(2)]
            await settle(members, [3, 3])
            members.append(start(member(2)).subscribe(topic))
            await settle(members, [2, 2, 2])
            assert sum(len(shell.of("revoked")) for shell in members) <= 6
            gone = members.pop()
            if static:
                had = gone.owned
                await gone.close()
                returned = start(member(2)).subscribe(topic)
                await settle([*members, returned], [2, 2, 2])
                assert returned.owned == had
                await returned.vanish()
            else:
                await gone.close()
            await settle(members, [3, 3])
            await members.pop().vanish()
            await settle(members, [6])

    asyncio.run(run())


def test_members_of_the_consumer_protocol_with_librdkafka(broker, make_topic, start_members, group):
    topic = make_topic(partitions=6)
    spec = {"name": "rdk", "client": "confluent-kafka", "group": group, "topics": [topic], "protocol": "consumer"}

    async def run() -> None:
        async with shells(broker) as start:
            ours = [start(consumer(group)).subscribe(topic) for _ in range(2)]
            await settle(ours, [3, 3])
            theirs = start_members([spec])
            await settle([*ours, *theirs], [2, 2, 2])
            await ours.pop().close()
            await settle([*ours, *theirs], [3, 3])

    asyncio.run(run())


def test_a_member_of_the_consumer_protocol_subscribes_by_pattern(broker, admin, group):
    stem = group.replace("-", "x")
    create_topic(admin, f"{stem}-one", 2)
    create_topic(admin, f"{stem}-two", 1)

    async def run() -> None:
        async with shells(broker) as start:
            shell = start(consumer(group))
            shell.tell(shell.machine.subscribe_pattern, f"{stem}-.*")
            await until(lambda: len(shell.machine.owned) == 3, "the partitions of both topics")

    asyncio.run(run())


def test_a_fenced_member_of_the_consumer_protocol_rejoins(broker, make_topic, group):
    topic = make_topic(partitions=2)

    async def run() -> None:
        async with shells(broker) as start:
            shell = start(consumer(group)).subscribe(topic)
            await until(
                lambda: shell.owned and shell.machine.state is ConsumerState.STABLE, "the partitions to be acknowledged"
            )
            shell.machine.epoch += 7  # as if its memory were from another life
            await until(lambda: shell.of("lost") == [0, 1], "the loss")
            await settle([shell], [2])

    asyncio.run(run())


def test_a_hundred_members_that_come_at_once_settle_with_one_rebalance(start_broker, group):
    broker = start_broker("--set", "group.initial.rebalance.delay.ms=1000")
    topic = create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), "wide", 100)

    async def run() -> None:
        async with shells(broker) as start:
            members: list[Shell] = [
                start(classic(group, session_timeout_ms=30_000, heartbeat_interval_ms=3_000)) for _ in range(100)
            ]
            for shell in members:
                shell.subscribe(topic)
            await settle(members, [1] * 100)
            assert {shell.machine.generation for shell in members} == {1}
            assert all([event for event, _ in shell.reported] == ["assigned"] for shell in members)

    asyncio.run(run())
