"""Round-robin: all partitions of all topics in one row, dealt out one by one; a member that does not want a topic
is passed over."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.group.assignors.base import Assignment, Assignor, in_order, partitions_of, subscribers
from ottla.wire.consumer_protocol import Subscription


class RoundRobin(Assignor):
    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        order = in_order(members)
        wants = {member: frozenset(members[member].topics) for member in order}
        assignment: Assignment = {member: [] for member in members}
        turn = 0
        for partition in partitions_of(subscribers(members), partitions):
            while partition.topic not in wants[order[turn % len(order)]]:
                turn += 1
            assignment[order[turn % len(order)]].append(partition)
            turn += 1
        return assignment
