"""From what a member has to what it should have, without two members ever reading one partition (KIP-848).

    STABLE ── new target ──> UNREVOKED ── gave it up ──> UNRELEASED ── others gave theirs up ──> STABLE
       └──────── nothing to give up ──────────────────────┘   └──── nothing to wait for ─────────────┘

A member first gives up what its target no longer has, in its old epoch. When it has said so it moves to the epoch of
the target and gets what is free; what another member still holds it gets as soon as that one has let go. Each member
goes at its own pace, and keeps reading what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ottla.coordinator.assignors import EMPTY, Assignment
from ottla.coordinator.consumer_group_member import ConsumerMember, MemberState

IsFree = Callable[[bytes, int], bool]
"""Whether nobody but the member itself holds a partition."""


def reconcile(
    member: ConsumerMember,
    epoch: int,
    target: Assignment,
    owned: Assignment | None,
    subscribed: Collection[bytes],
    is_free: IsFree,
) -> ConsumerMember:
    """The member after one heartbeat. `owned`: what it says it holds, None if it did not say."""
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
    """Whether some of its target is still held by somebody else."""
    missing = _less(target, member.assigned)
    return any(not is_free(topic, partition) for topic, partitions in missing.items() for partition in partitions)


def _without_unsubscribed(member: ConsumerMember, subscribed: Collection[bytes]) -> ConsumerMember:
    """A member that has not let go of the old must not be told again of topics that it no longer wants."""
    unwanted = {topic: partitions for topic, partitions in member.assigned.items() if topic not in subscribed}
    if not unwanted:
        return member
    return member._replace(
        assigned=_less(member.assigned, unwanted),
        revoking=_union(member.revoking, unwanted),
    )


def holds_only(owned: Assignment | None, assigned: Assignment) -> bool:
    """False if it did not say what it holds."""
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
