"""Capacity planning of a topic."""

from __future__ import annotations

from ottla.cli.planning import ExpectedTraffic, plan


def test_a_plan_has_partitions_for_producers_and_consumers():
    needs = plan(ExpectedTraffic(20_000, 500, 3000, 10_000_000, 2.0, 3, 3, 24))
    assert (needs.for_writing, needs.for_reading, needs.partitions, needs.consumers) == (2, 14, 15, 7)
    assert needs.disk_bytes_per_broker == 20_000 * 2 * 500 * 86_400
    assert plan(ExpectedTraffic(1, 1, 1000, 1000, 1.0, 1, 1, 1)).partitions == 1
