"""Assignments in groups of real clients in real processes: balance, extra members, take-over, mixed groups."""

from __future__ import annotations

from collections import Counter
from itertools import count

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions

from ottla.local.waiting import wait_for
from tests.harness.groups import NAMES, Group, produce

pytest_plugins = ["tests.harness.group_fixtures"]


@pytest.fixture
def broker(group_broker):
    """One with short sessions, in place of the session's."""
    return group_broker


@pytest.fixture(params=NAMES)
def client(request):
    return request.param


def assert_each_read_once_by_its_owner(broker, groups: list[Group], topic: str, partitions: int, label: str):
    """Write to every partition, and look who reads it."""
    values = [f"{label} {partition}" for partition in range(partitions)]
    produce(broker, topic, values, partitions)
    for group in groups:
        group.wait_for_values(values)
        times = Counter(value for value in group.values() if value in values)
        assert set(times.values()) == {1}
        for partition, value in enumerate(values):
            assert value in group.owner(partition).values


def test_a_growing_group_shares_evenly_and_an_idle_member_takes_over(broker, make_topic, make_group, client):
    topic = make_topic(partitions=4)
    group = make_group(topic, client=client, commit="after")
    for members, shares in ((1, [4]), (1, [2, 2]), (2, [1, 1, 1, 1]), (2, [1, 1, 1, 1, 0, 0])):
        group.add(members)
        group.settle(shares)
    assert_each_read_once_by_its_owner(broker, [group], topic, 4, "six")
    group.kill(group.owner(2))
    group.settle([1, 1, 1, 1, 0])
    assert_each_read_once_by_its_owner(broker, [group], topic, 4, "five")


def test_two_groups_of_two_and_four_each_read_everything(broker, make_topic, start_members, client):
    """Group A of two has two partitions each, group B of four one each (S66)."""
    assert_shares_side_by_side(broker, make_topic(partitions=4), start_members, client, {2: [2, 2], 4: [1, 1, 1, 1]})


def test_two_groups_of_two_and_three_over_three_partitions(broker, make_topic, start_members, client):
    """S67: with three consumers one partition each, with two one of them has two."""
    assert_shares_side_by_side(broker, make_topic(partitions=3), start_members, client, {2: [2, 1], 3: [1, 1, 1]})


def assert_shares_side_by_side(broker, topic, start_members, client, expected):
    groups = [Group(start_members, topic, client=client, commit="after") for _ in expected]
    specs = [group.spec() for group, size in zip(groups, expected, strict=True) for _ in range(size)]
    members = start_members(specs)
    for group, shares in zip(groups, expected.values(), strict=True):
        group.members = [member for member in members if member.name.startswith(group.id)]
        group.settle(shares)
    assert_each_read_once_by_its_owner(broker, groups, topic, sum(next(iter(expected.values()))), "both")


def test_a_member_that_leaves_is_replaced_at_once(broker, make_topic, make_group, client):
    """Not after its session: it has said goodbye."""
    group = make_group(make_topic(partitions=4), client=client, session_ms=60_000)
    group.add(2)
    group.settle([2, 2])
    leaver = group.members.pop()
    leaver.stop()
    group.settle([4])


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_one_group_of_three_different_clients(broker, make_topic, make_group, assignor):
    topic = make_topic(partitions=6)
    group = make_group(topic, assignor=assignor, commit="after")
    for client in NAMES:
        group.add(client=client)
    group.settle([2, 2, 2])
    assert_each_read_once_by_its_owner(broker, [group], topic, 6, "mixed")
    # With each group leader: one after another is killed, and another client has to lead.
    group.kill(group.members[0])
    group.settle([3, 3])
    group.kill(group.members[0])
    group.settle([6])
    assert_each_read_once_by_its_owner(broker, [group], topic, 6, "alone")


def test_a_sticky_group_of_different_clients(make_topic, make_group):
    """They do not read each other's memory of what they had, so more moves than need be; but all is read."""
    group = make_group(make_topic(partitions=6), assignor="sticky")
    for client in ("aiokafka", "kafka-python", "aiokafka"):
        group.add(client=client)
    group.settle([2, 2, 2])
    group.kill(group.members[0])
    group.settle([3, 3])


def test_a_topic_that_gains_partitions_is_read_in_full(broker, admin, make_topic, make_group, client):
    topic = make_topic(partitions=2)
    group = make_group(topic, client=client, commit="after")
    group.add(2)
    group.settle([1, 1])
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
    # Each member of librdkafka hears of the growth by itself and rejoins: a second rebalance may follow the first,
    # and a record in the hands of a member then is read again. So we look at a time in which nothing moved.
    for attempt in count():
        group.settle([2, 2])
        values, before = [f"grown {attempt} {partition}" for partition in range(4)], group.moves()
        produce(broker, topic, values, 4)
        group.wait_for_values(values)
        times = Counter(value for value in group.values() if value in values)
        if group.moves() == before:
            break
        assert attempt < 2, "each member has heard of the growth, and still they do not settle"
    assert times == dict.fromkeys(values, 1)


def test_a_static_member_comes_back_without_a_rebalance(broker, make_topic, make_group, client):
    """A static member is killed and restarted within its session: no rebalance, and the same partitions."""
    group = make_group(make_topic(partitions=4), client=client, session_ms=20_000)
    stays = group.add_one(instance="one")
    goes = group.add_one(instance="two")
    group.settle([2, 2])
    kept, undisturbed = set(goes.owned), list(stays.events)
    group.kill(goes)
    returned = group.add_one(instance="two")
    wait_for(lambda: returned.owned, "the static member's partitions")
    assert returned.owned == kept
    assert stays.events == undisturbed


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])
def test_cooperative_members_give_up_only_what_moves(broker, make_topic, make_group, client):
    topic = make_topic(partitions=4)
    group = make_group(topic, client=client, assignor="cooperative-sticky", commit="after")
    first = group.add_one()
    group.settle([4])
    group.add()
    group.settle([2, 2])
    assert len(first.revoked) == 2
    group.add()
    group.settle([2, 1, 1])
    assert sum(len(member.revoked) for member in group.members) == 3
    assert [member.lost for member in group.members] == [[], [], []]
    assert_each_read_once_by_its_owner(broker, [group], topic, 4, "moved")


def test_a_cooperative_group_of_different_clients(broker, make_topic, make_group):
    topic = make_topic(partitions=4)
    group = make_group(topic, assignor="cooperative-sticky", commit="after")
    group.add(client="confluent-kafka")
    group.settle([4])
    group.add(client="kafka-python")
    group.settle([2, 2])
    assert sum(len(member.revoked) for member in group.members) == 2
    group.kill(group.members[0])
    group.settle([4])
    assert_each_read_once_by_its_owner(broker, [group], topic, 4, "left")


def test_a_group_is_described_and_listed_by_clients(admin, make_topic, make_group):
    group = make_group(make_topic(partitions=2), client="confluent-kafka")
    group.add(2)
    group.settle([1, 1])
    described = admin.describe_consumer_groups([group.id])[group.id].result(10)
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    shares = [[partition.partition for partition in member.assignment.topic_partitions] for member in described.members]
    assert sorted(shares) == [[0], [1]]
    listed = admin.list_consumer_groups().result(10)
    assert group.id in {each.group_id for each in listed.valid}
