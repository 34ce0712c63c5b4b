"""Cooperative sticky (KIP-429): the sticky assignment, reached in two steps so that nobody stops reading what stays.

Members join with the partitions they own and go on reading them. A partition that is to move is in this round
given to nobody: its owner sees that it is gone, revokes it and asks for another round, in which it is free.
So no partition ever has two readers, and what does not move is read without a pause.

Members tell what they own in the subscription itself (since version 1), and the generation there (since
version 2) or, as older Java clients do, in four bytes of user data, or, as older librdkafka does, as sticky does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ottla.client.group.assignors.base import Assignment
from ottla.client.group.assignors.sticky import Claims, decode_user_data, stick
from ottla.client.values import TopicPartition
from ottla.wire.consumer_protocol import NO_GENERATION, Subscription

GENERATION_BYTES: Final = 4


class CooperativeSticky:
    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        return generation.to_bytes(GENERATION_BYTES, "big", signed=True)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        claims: Claims = {
            member: (subscription.owned, _generation(subscription)) for member, subscription in members.items()
        }
        final = stick(partitions, members, claims)
        owners: dict[TopicPartition, set[str]] = {}
        for member, subscription in members.items():
            for partition in subscription.owned:
                owners.setdefault(partition, set()).add(member)
        return {
            member: [partition for partition in assigned if member in owners.get(partition, {member})]
            for member, assigned in final.items()
        }


def _generation(subscription: Subscription) -> int:
    if subscription.generation != NO_GENERATION or not subscription.user_data:
        return subscription.generation
    if len(subscription.user_data) == GENERATION_BYTES:
        return int.from_bytes(subscription.user_data, "big", signed=True)
    return decode_user_data(subscription.user_data)[1]
