"""Reconciliation (KIP-848): from the current to the target assignment; no partition ever has two members.

    STABLE ── new target ──> UNREVOKED ── gave it up ──> UNRELEASED ── others gave theirs up ──> STABLE
       └──────── nothing to give up ──────────────────────┘   └──── nothing to wait for ─────────────┘

A member first revokes what is not in its target, in its old epoch. When it has confirmed that, it moves to the epoch of
the target and gets the free partitions; it gets the others as soon as their members have revoked them. Each member
proceeds by itself, and keeps consuming the partitions it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ottla.coordinator.assignors import EMPTY, Assignment
from ottla.coordinator.consumer_group_member import ConsumerMember, MemberState

IsFree = Callable[[bytes, int], bool]
"""Whether no other member holds a partition."""


def reconcile(
    member: ConsumerMember,
    epoch: int,
    target: Assignment,
    owned: Assignment | None,
    subscribed: Collection[bytes],
    is_free: IsFree,
) -> ConsumerMember:
    """The member after one heartbeat. `owned`: the partitions in the heartbeat, None if not set."""
    if member.reconciled(epoch):
        return member
    if member.state == MemberState.UNREVOKED and _holds_any(owned, member.revoking):
        return _without_unsubscribed(member, subscribed)
    kept = _both(member.assigned, target)
    revoking = _less(member.assigned, kept)
    if revoking and _holds_any(owned, revoking):
        return member._replace(state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    wanted = _less(target, kept)
    free = {
        topic: granted
        for topic, partitions in wanted.items()
        if (granted := frozenset(partition for partition in partitions if is_free(topic, partition)))
    }
    return member.moved_to(epoch)._replace(
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED,
        assigned=_union(kept, free),
        revoking=EMPTY,
    )


def waits_for_others(member: ConsumerMember, target: Assignment, is_free: IsFree) -> bool:
    """Whether other members still hold some of its target."""
    missing = _less(target, member.assigned)
    return any(not is_free(topic, partition) for topic, partitions in missing.items() for partition in partitions)


def _without_unsubscribed(member: ConsumerMember, subscribed: Collection[bytes]) -> ConsumerMember:
    """While it revokes partitions, its assignment must not have topics it no longer subscribes to."""
    unwanted = {topic: partitions for topic, partitions in member.assigned.items() if topic not in subscribed}
    if not unwanted:
        return member
    return member._replace(assigned=_less(member.assigned, unwanted), revoking=_union(member.revoking, unwanted))


def holds_only(owned: Assignment | None, assigned: Assignment) -> bool:
    """False if `owned` is not set."""
    return owned is not None and not _less(owned, assigned)


def _holds_any(owned: Assignment | None, partitions: Assignment) -> bool:
    return owned is None or bool(_both(owned, partitions))


def _both(one: Assignment, other: Assignment) -> Assignment:
    return {topic: both for topic in one.keys() & other.keys() if (both := one[topic] & other[topic])}


def _less(one: Assignment, other: Assignment) -> Assignment:
    return {topic: rest for topic, partitions in one.items() if (rest := partitions - other.get(topic, frozenset()))}


def _union(one: Assignment, other: Assignment) -> Assignment:
    if not other:
        return one
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in one.keys() | other.keys()}
