"""Assignor: the interface, and the order in which all assignors see members and partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ottla.client.values import TopicPartition
from ottla.wire.consumer_protocol import Subscription

Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id; every member has an entry."""


class Assignor(Protocol):
    """Without state: what a member must remember between two rebalances is handed in."""

    name: str
    """What the protocol calls it; the group uses one that all members know."""
    cooperative: bool = False
    """Whether members may keep their partitions while they rebalance (KIP-429)."""

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        """What a member tells the leader's assignor: its last assignment, and the generation it is of."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """`partitions` has the number of partitions of each topic there is; others are left out."""


def in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members first and by their own names: when one restarts under a new member id nothing moves."""
    return sorted(members, key=lambda member: _rank(member, members[member]))


def _rank(member: str, subscription: Subscription) -> tuple[bool, str]:
    instance = subscription.instance_id
    return instance is None, member if instance is None else instance


def subscribers(members: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """The members that want each topic, in order."""
    wanted: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in set(members[member].topics):
            wanted.setdefault(topic, []).append(member)
    return wanted


def partitions_of(topics: Iterable[str], partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(partitions.get(topic, 0))]
