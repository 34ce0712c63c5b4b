"""Range: each topic for itself, in runs of neighbouring partitions.

Members in order, partitions in order; the first members get one more where it does not come out even. Topics
with as many partitions and the same subscribers are co-partitioned: whoever has partition 3 of one has
partition 3 of the other, so that equal keys of both meet in one member.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.group.assignors.base import Assignment, Assignor, subscribers
from ottla.client.values import TopicPartition
from ottla.wire.consumer_protocol import Subscription


class Range(Assignor):
    name = "range"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, wanting in sorted(subscribers(members).items()):
            share, extra = divmod(partitions.get(topic, 0), len(wanting))
            start = 0
            for index, member in enumerate(wanting):
                end = start + share + (index < extra)
                assignment[member] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return assignment
