"""Replica placement: even, over racks, and with spread successors."""

from __future__ import annotations

import pytest

from ottla.cluster.image import BrokerRegistration
from ottla.cluster.placement import assign_replicas


def brokers_in(racks: str) -> list[BrokerRegistration]:
    return [BrokerRegistration(n, 1, (), None if rack == "-" else rack) for n, rack in enumerate(racks)]


@pytest.mark.parametrize("racks", ["----", "aabb", "abab", "abcd", "aaab", "aabbcc", "------"])
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
@pytest.mark.parametrize("start", [0, 5])
def test_placement_is_even_and_uses_a_rack_twice_only_when_all_are_used(racks, factor, start):
    brokers = brokers_in(racks)
    placed = assign_replicas(brokers, len(brokers) * (len(brokers) - 1), factor, start=start)
    rack_of = {broker.id: broker.rack for broker in brokers}
    leaders = [replicas[0] for replicas in placed]
    assert {leaders.count(broker.id) for broker in brokers} == {len(brokers) - 1}, "leaders spread evenly"
    for replicas in placed:
        assert len(set(replicas)) == factor
        if "-" not in racks:
            assert len({rack_of[r] for r in replicas}) == min(factor, len(set(racks)))
    if len(set(racks)) in (1, len(racks)):
        held = [sum(broker.id in replicas for replicas in placed) for broker in brokers]
        assert len(set(held)) == 1, "replicas spread evenly"


def test_the_load_of_a_lost_broker_is_taken_over_by_all_others():
    placed = assign_replicas(brokers_in("----"), 12, 2, start=0)
    successors = [follower for leader, follower in placed if leader == 0]
    assert sorted(successors) == [1, 2, 3]
