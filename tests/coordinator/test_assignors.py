"""Server-side assignors (KIP-848): complete, balanced, and with few moves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.assignors import ASSIGNORS, Assignment, MemberSpec, range_, uniform

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def fresh(*members: str, topics: frozenset[bytes]) -> dict[str, MemberSpec]:
    return {member: MemberSpec(topics) for member in members}


def again(members: Mapping[str, MemberSpec], assigned: Mapping[str, Assignment]) -> dict[str, MemberSpec]:
    return {member: MemberSpec(spec.topics, assigned.get(member, {})) for member, spec in members.items()}


def partitions_of(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, partition) for topic, partitions in assignment.items() for partition in partitions}


def counts(assigned: Mapping[str, Assignment]) -> list[int]:
    return sorted(len(partitions_of(each)) for each in assigned.values())


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """How many partitions have a member now that is not the one they had."""
    owners = {partition: member for member, each in before.items() for partition in partitions_of(each)}
    return sum(
        owners.get(partition, member) != member for member, each in after.items() for partition in partitions_of(each)
    )


def test_uniform_assignor_balances_over_all_topics():
    assert counts(uniform(fresh("m1", "m2", "m3", topics=frozenset({A, B})), {A: 4, B: 4})) == [2, 3, 3]


def test_uniform_assignor_moves_only_what_a_new_member_needs():
    two = uniform(fresh("m1", "m2", topics=frozenset({A})), {A: 7})
    three = uniform(again(fresh("m1", "m2", "m3", topics=frozenset({A})), two), {A: 7})
    assert counts(three) == [2, 2, 3]
    assert moved(two, three) == 2


def test_uniform_assignor_leaves_the_extra_partition_with_its_owner():
    members = fresh("m1", "m2", topics=frozenset({A}))
    had: dict[str, Assignment] = {"m1": {A: frozenset({0})}, "m2": {A: frozenset({1, 2})}}
    assert uniform(again(members, had), {A: 3}) == had


def test_uniform_assignor_reassigns_partitions_of_a_member_that_left():
    three = uniform(fresh("m1", "m2", "m3", topics=frozenset({A})), {A: 6})
    two = uniform(again(fresh("m1", "m3", topics=frozenset({A})), three), {A: 6})
    assert counts(two) == [3, 3]
    assert moved({member: three[member] for member in ("m1", "m3")}, two) == 0


def test_uniform_assignor_balances_different_subscriptions():
    members = {"m1": MemberSpec(frozenset({A})), "m2": MemberSpec(frozenset({A, B})), "m3": MemberSpec(frozenset({B}))}
    assigned = uniform(members, {A: 3, B: 3})
    assert counts(assigned) == [2, 2, 2]
    assert assigned["m1"].keys() == {A}
    assert assigned["m3"].keys() == {B}


def test_range_assignor_assigns_contiguous_ranges():
    assigned = range_(fresh("m1", "m2", "m3", topics=frozenset({A})), {A: 7})
    assert assigned == {
        "m1": {A: frozenset({0, 1, 2})},
        "m2": {A: frozenset({3, 4})},
        "m3": {A: frozenset({5, 6})},
    }


def test_range_assignor_co_partitions_equal_topics():
    one = range_(fresh("m1", "m2", topics=frozenset({A})), {A: 4})
    swapped = {"m1": one["m2"], "m2": one["m1"]}
    both = range_(again(fresh("m1", "m2", topics=frozenset({A, B})), swapped), {A: 4, B: 4})
    assert all(each[A] == each[B] for each in both.values())
    assert moved(swapped, both) == 0


def test_range_assignor_leaves_members_without_partitions_when_there_are_too_few():
    assert counts(range_(fresh("m1", "m2", "m3", topics=frozenset({A})), {A: 2})) == [0, 1, 1]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_no_members_and_no_partitions(name: str):
    assert ASSIGNORS[name]({}, {}) == {}
    assert ASSIGNORS[name](fresh("m1", topics=frozenset()), {}) == {"m1": {}}


TOPICS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """Any group, with any memory of what its members had; two may even remember the same partition."""
    counts = draw(TOPICS)
    had = st.dictionaries(st.sampled_from(sorted(counts)), st.frozensets(st.integers(0, 10), min_size=1, max_size=6))
    alike = draw(st.booleans())
    wanted = st.just(frozenset(counts)) if alike else st.frozensets(st.sampled_from(sorted(counts)))
    member = st.sampled_from([f"m{number}" for number in range(8)])
    return draw(st.dictionaries(member, st.builds(MemberSpec, wanted, had), min_size=1)), counts


@settings(max_examples=300, deadline=None)
@given(group=groups(), name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_subscribed_partition_has_one_subscribed_member(group, name: str):
    members, counts_of = group
    assigned = ASSIGNORS[name](members, counts_of)
    wanted = frozenset[bytes]().union(*(spec.topics for spec in members.values()))
    read = [partition for each in assigned.values() for partition in partitions_of(each)]
    assert sorted(read) == sorted((topic, number) for topic in wanted for number in range(counts_of[topic]))
    assert assigned.keys() == members.keys()
    assert all(each.keys() <= members[member].topics for member, each in assigned.items())
    assert all(partitions for each in assigned.values() for partitions in each.values())


@settings(max_examples=300, deadline=None)
@given(group=groups())
def test_no_single_move_improves_a_uniform_assignment(group):
    members, counts_of = group
    assigned = uniform(members, counts_of)
    load = {member: len(partitions_of(each)) for member, each in assigned.items()}
    for member, each in assigned.items():
        for topic in each:
            takers = [other for other, spec in members.items() if topic in spec.topics]
            assert all(load[member] - load[other] <= 1 for other in takers)


@settings(max_examples=200, deadline=None)
@given(group=groups(), name=st.sampled_from(sorted(ASSIGNORS)))
def test_a_balanced_assignment_stays(group, name: str):
    members, counts_of = group
    assigned = ASSIGNORS[name](members, counts_of)
    assert ASSIGNORS[name](again(members, assigned), counts_of) == assigned
