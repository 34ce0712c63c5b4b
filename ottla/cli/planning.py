"""Capacity planning: how many partitions a topic needs for its traffic. Pure.

A partition is the unit of parallelism: one leader writes it, and within a group one consumer reads it. So there must be
as many as the peak rate needs writers, and as many as it needs readers, whichever is more. Partitions can be added
later, but keys then move to other partitions: it is better to plan for the growth that is expected.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class ExpectedTraffic(NamedTuple):
    records_per_second: float
    """At the peak."""
    record_bytes: float
    consumer_records_per_second: float
    """Throughput of one consumer."""
    partition_bytes_per_second: float
    """Throughput of one partition, replication included."""
    growth: float
    brokers: int
    replication_factor: int
    retention_hours: float


class TopicPlan(NamedTuple):
    partitions: int
    for_writing: int
    for_reading: int
    consumers: int
    """Of one group, at the peak of today."""
    bytes_per_second: float
    """At the peak of today."""
    disk_bytes_per_broker: float
    """If the peak never ended: an upper bound, with growth."""


def plan(traffic: ExpectedTraffic) -> TopicPlan:
    expected = traffic.records_per_second * traffic.growth
    expected_bytes = expected * traffic.record_bytes
    for_writing = max(1, math.ceil(expected_bytes / traffic.partition_bytes_per_second))
    for_reading = max(1, math.ceil(expected / traffic.consumer_records_per_second))
    needed = max(for_writing, for_reading)
    # The same number of leaders on every broker: the busiest broker limits the cluster.
    partitions = math.ceil(needed / traffic.brokers) * traffic.brokers
    retained = expected_bytes * traffic.retention_hours * 3600 * traffic.replication_factor
    return TopicPlan(
        partitions,
        for_writing,
        for_reading,
        max(1, math.ceil(traffic.records_per_second / traffic.consumer_records_per_second)),
        traffic.records_per_second * traffic.record_bytes,
        retained / traffic.brokers,
    )
