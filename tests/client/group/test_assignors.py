"""Assignors: every partition has one member, balanced, with few moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.group.assignors import ASSIGNORS, Assignment, assignors_named
from ottla.client.values import TopicPartition
from ottla.wire.consumer_protocol import Subscription

ALL = sorted(ASSIGNORS)
STICKY = ["cooperative-sticky", "sticky"]
Wanted = Mapping[str, tuple[str, ...]]
TOPICS = ("a", "b", "c", "d")

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=4)
member_names = st.sets(st.integers(0, 30).map("m{:02}".format), min_size=1, max_size=8)
wanted = st.lists(st.sampled_from(TOPICS), unique=True, max_size=4).map(tuple)


@st.composite
def mixed_groups(draw):
    """Members that want different topics."""
    return {member: draw(wanted) for member in sorted(draw(member_names))}


def tp(text: str) -> TopicPartition:
    return TopicPartition(text[0], int(text[1:]))


def partitions_named(text: str) -> list[TopicPartition]:
    return [tp(word) for word in text.split()]


def shown(assignment: Assignment) -> dict[str, str]:
    return {member: " ".join(f"{p.topic}{p.partition}" for p in sorted(held)) for member, held in assignment.items()}


def subscription(name: str, topics, owned=(), generation: int = -1, instance_id: str | None = None) -> Subscription:
    """As a member would send it for the assignor of this name."""
    user_data = ASSIGNORS[name].user_data(owned, generation)
    kept = tuple(owned) if ASSIGNORS[name].cooperative else ()
    return Subscription(tuple(topics), kept, generation, user_data, instance_id=instance_id)


def settle(name: str, counts: dict[str, int], groups: Wanted, before: Assignment, generation=1):
    """The assignment that a group comes to, in as many rounds as its assignor takes."""
    for step in range(3):
        members = {m: subscription(name, topics, before.get(m, ()), generation + step) for m, topics in groups.items()}
        after = ASSIGNORS[name].assign(counts, members)
        if not ASSIGNORS[name].cooperative or {m: sorted(p) for m, p in before.items()} == after:
            return after
        before = after
    return after


def assert_each_once(assignment: Assignment, counts: dict[str, int], groups: Wanted) -> None:
    times = Counter(partition for held in assignment.values() for partition in held)
    subscribed = {topic for topics in groups.values() for topic in topics}
    expected = {TopicPartition(t, n) for t, count in counts.items() if t in subscribed for n in range(count)}
    assert set(times) == expected
    assert set(times.values()) <= {1}
    assert set(assignment) == set(groups)
    for member, held in assignment.items():
        assert {partition.topic for partition in held} <= set(groups[member])


def spread(assignment: Assignment) -> int:
    loads = [len(held) for held in assignment.values()]
    return max(loads) - min(loads)


@pytest.mark.parametrize("name", ALL)
@given(counts=partition_counts, groups=mixed_groups())
def test_assignors_assign_every_partition_to_one_subscribed_member(name, counts, groups):
    assert_each_once(settle(name, counts, groups, {}), counts, groups)


@pytest.mark.parametrize("name", ["roundrobin", *STICKY])
@given(counts=partition_counts, members=member_names)
def test_members_that_want_the_same_have_as_much_give_or_take_one(name, counts, members):
    assert spread(settle(name, counts, dict.fromkeys(members, TOPICS), {})) <= 1


@given(counts=partition_counts, members=member_names)
def test_range_is_even_within_each_topic(counts, members):
    assignment = settle("range", counts, dict.fromkeys(members, TOPICS), {})
    for topic in counts:
        held = {m: [p for p in parts if p.topic == topic] for m, parts in assignment.items()}
        assert spread(held) <= 1
        for parts in held.values():
            assert all(after.partition == before.partition + 1 for before, after in pairwise(parts))


@given(count=st.integers(0, 20), members=member_names)
def test_range_gives_equal_partitions_of_like_topics_to_one_member(count, members):
    assignment = settle("range", {"a": count, "b": count}, dict.fromkeys(members, ("a", "b")), {})
    for held in assignment.values():
        assert [p.partition for p in held if p.topic == "a"] == [p.partition for p in held if p.topic == "b"]


@pytest.mark.parametrize("name", STICKY)
@given(counts=partition_counts, groups=mixed_groups())
def test_nothing_moves_when_nothing_has_changed(name, counts, groups):
    before = settle(name, counts, groups, {})
    assert settle(name, counts, groups, before) == before


@pytest.mark.parametrize("name", STICKY)
@given(counts=partition_counts, members=member_names, leavers=st.data())
def test_when_members_leave_only_what_they_had_moves(name, counts, members, leavers):
    before = settle(name, counts, dict.fromkeys(members, TOPICS), {})
    staying = members - leavers.draw(st.sets(st.sampled_from(sorted(members)), max_size=len(members) - 1))
    after = settle(name, counts, dict.fromkeys(staying, TOPICS), before, 2)
    for member in staying:
        assert set(before[member]) <= set(after[member])


@pytest.mark.parametrize("name", STICKY)
@given(counts=partition_counts, members=member_names, joiners=member_names)
def test_when_members_join_no_more_moves_than_they_get(name, counts, members, joiners):
    before = settle(name, counts, dict.fromkeys(members, TOPICS), {})
    together = dict.fromkeys(members | joiners, TOPICS)
    after = settle(name, counts, together, before, 2)
    assert_each_once(after, counts, together)
    assert spread(after) <= 1
    for member in members:
        assert set(after[member]) <= set(before[member])


@pytest.mark.parametrize("name", STICKY)
@given(counts=partition_counts, groups=mixed_groups(), others=mixed_groups(), extended=st.integers(0, 5))
def test_after_any_change_no_member_could_take_one_from_another_that_has_two_more(
    name, counts, groups, others, extended
):
    before = settle(name, counts, groups, {})
    counts = {topic: count + extended for topic, count in counts.items()}
    after = settle(name, counts, others, before, 2)
    assert_each_once(after, counts, others)
    for giver, held in after.items():
        for taker, topics in others.items():
            if len(after[taker]) + 2 <= len(held):
                assert not {partition.topic for partition in held} & set(topics), (giver, taker)


@given(counts=partition_counts, groups=mixed_groups(), others=mixed_groups())
def test_cooperative_never_gives_a_partition_away_before_its_owner_let_go(counts, groups, others):
    before = settle("cooperative-sticky", counts, groups, {})
    members = {m: subscription("cooperative-sticky", topics, before.get(m, ()), 1) for m, topics in others.items()}
    first = ASSIGNORS["cooperative-sticky"].assign(counts, members)
    owners = {partition: member for member in members for partition in before.get(member, ())}
    for member, held in first.items():
        for partition in held:
            assert owners.get(partition, member) == member


def test_range_as_in_kafkas_example():
    assignment = settle("range", {"a": 3, "b": 3}, {"x": ("a", "b"), "y": ("a", "b")}, {})
    assert shown(assignment) == {"x": "a0 a1 b0 b1", "y": "a2 b2"}


def test_round_robin_as_in_kafkas_examples():
    assignment = settle("roundrobin", {"a": 3, "b": 3}, {"x": ("a", "b"), "y": ("a", "b")}, {})
    assert shown(assignment) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}
    uneven = {"x": ("a",), "y": ("a", "b"), "z": ("a", "b", "c")}
    assignment = settle("roundrobin", {"a": 1, "b": 2, "c": 3}, uneven, {})
    assert shown(assignment) == {"x": "a0", "y": "b0", "z": "b1 c0 c1 c2"}


def test_sticky_as_in_kafkas_examples():
    everything = dict.fromkeys(("x", "y", "z"), TOPICS)
    before = settle("sticky", dict.fromkeys(TOPICS, 2), everything, {})
    assert shown(before) == {"x": "a0 b1 d0", "y": "a1 c0 d1", "z": "b0 c1"}
    after = settle("sticky", dict.fromkeys(TOPICS, 2), {"x": TOPICS, "z": TOPICS}, before, 2)
    assert all(set(before[member]) <= set(after[member]) for member in "xz")
    uneven = {"x": ("a",), "y": ("a", "b"), "z": ("a", "b", "c")}
    before = settle("sticky", {"a": 1, "b": 2, "c": 3}, uneven, {})
    assert shown(before) == {"x": "a0", "y": "b0 b1", "z": "c0 c1 c2"}
    del uneven["x"]
    after = settle("sticky", {"a": 1, "b": 2, "c": 3}, uneven, before, 2)
    assert shown(after) == {"y": "a0 b0 b1", "z": "c0 c1 c2"}


def test_sticky_levels_over_a_member_in_between():
    """x has too much of what z does not want; y can take it and give z what it wants."""
    members = {
        "x": subscription("sticky", ("a",), partitions_named("a0 a1 a2"), 4),
        "y": subscription("sticky", ("a", "b"), partitions_named("b0 b1"), 4),
        "z": subscription("sticky", ("b",), (), 4),
    }
    assignment = ASSIGNORS["sticky"].assign({"a": 3, "b": 2}, members)
    assert sorted(map(len, assignment.values())) == [1, 2, 2]


@pytest.mark.parametrize("name", STICKY)
def test_of_two_claims_the_younger_counts(name):
    members = {
        "old": subscription(name, ("a",), partitions_named("a0 a1"), 3),
        "new": subscription(name, ("a",), partitions_named("a0 a1"), 4),
    }
    assignment = ASSIGNORS[name].assign({"a": 2}, members)
    assert len(assignment["new"]) == 1
    if name == "sticky":
        assert len(assignment["old"]) == 1


def test_static_members_come_first_and_in_the_order_of_their_own_names():
    members = {
        "1": subscription("range", ("a",)),
        "2": subscription("range", ("a",), instance_id="y"),
        "3": subscription("range", ("a",), instance_id="x"),
    }
    expected = {"3": "a0", "2": "a1", "1": "a2"}
    for name in ("range", "roundrobin"):
        assert shown(ASSIGNORS[name].assign({"a": 3}, members)) == expected


def test_a_topic_that_does_not_exist_is_left_out():
    for name in ALL:
        assert shown(settle(name, {"a": 1}, {"x": ("a", "gone")}, {})) == {"x": "a0"}


def test_assignors_are_found_by_name():
    assert [assignor.name for assignor in assignors_named(["sticky", "range"])] == ["sticky", "range"]
    with pytest.raises(ValueError, match="no assignor is called 'uniform'"):
        assignors_named(["range", "uniform"])
    with pytest.raises(ValueError):
        assignors_named([])
