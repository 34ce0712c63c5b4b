"""Server-side assignors (KIP-848): `uniform` and `range`.

Both take every member's subscription and its last assignment, and return a new assignment for all. Both are sticky: a
member keeps its partitions as far as the balance allows. The result depends on the arguments only.

    uniform   balances the number of partitions over all topics: any two members with the same subscription differ by
              at most one. Where subscriptions differ, no single move could improve the balance.
    range     balances each topic by itself, in contiguous ranges. Topics with the same number of partitions and the
              same subscribers are co-partitioned: partition 7 of both is assigned to the same member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, TypeAlias

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Topic id to partitions; no topic without partitions."""

EMPTY: Final[Assignment] = {}


class MemberSpec(NamedTuple):
    topics: frozenset[bytes]
    """The ids of its subscribed topics that exist."""
    assigned: Assignment = EMPTY
    """Its last assignment."""


Members: TypeAlias = Mapping[str, MemberSpec]
Assignor: TypeAlias = Callable[[Members, Mapping[bytes, int]], dict[str, Assignment]]
_TopicPartition: TypeAlias = tuple[bytes, int]


def uniform(members: Members, partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    kept = _kept(members, partition_counts)
    if len({spec.topics for spec in members.values()}) > 1:
        shares = _uniform_for_different(members, partition_counts, kept)
    else:
        shares = _uniform_for_equal(members, partition_counts, kept)
    return {member: by_topic(share) for member, share in shares.items()}


def _kept(members: Members, partition_counts: Mapping[bytes, int]) -> dict[str, list[_TopicPartition]]:
    """What each member could keep: existing and subscribed partitions that no member before it keeps."""
    taken: set[_TopicPartition] = set()
    kept = {}
    for member in sorted(members):
        topics, assigned = members[member]
        share = [
            (topic, partition)
            for topic in sorted(assigned.keys() & topics)
            for partition in sorted(assigned[topic])
            if partition < partition_counts[topic] and (topic, partition) not in taken
        ]
        taken.update(share)
        kept[member] = share
    return kept


def _missing(
    partition_counts: Mapping[bytes, int], topics: Iterable[bytes], taken: set[_TopicPartition]
) -> list[_TopicPartition]:
    return [
        (topic, partition)
        for topic in topics
        for partition in range(partition_counts[topic])
        if (topic, partition) not in taken
    ]


def _uniform_for_equal(
    members: Members, partition_counts: Mapping[bytes, int], kept: dict[str, list[_TopicPartition]]
) -> dict[str, list[_TopicPartition]]:
    """Equal subscriptions: a fixed quota for each member; the extra partitions stay with members that have them."""
    topics = sorted(next(iter(members.values())).topics) if members else []
    total = sum(partition_counts[topic] for topic in topics)
    share, extras = divmod(total, len(members)) if members else (0, 0)
    quotas = dict.fromkeys(kept, share)
    by_need = sorted(kept, key=lambda member: len(kept[member]) <= share)  # stable: by id among equals
    for member in by_need[:extras]:
        quotas[member] += 1
    for member, quota in quotas.items():
        del kept[member][quota:]
    spare = iter(_missing(partition_counts, topics, {partition for share_ in kept.values() for partition in share_}))
    for member, quota in quotas.items():
        mine = kept[member]
        mine.extend(next(spare) for _ in range(quota - len(mine)))
    return kept


def _uniform_for_different(
    members: Members, partition_counts: Mapping[bytes, int], kept: dict[str, list[_TopicPartition]]
) -> dict[str, list[_TopicPartition]]:
    """Subscriptions differ: assign topics with few subscribers first, each partition to the least loaded; then balance,
    move by move."""
    readers = _readers(members)
    shares = {member: {topic: set[int]() for topic in members[member].topics} for member in kept}
    loads = {}
    for member, partitions in kept.items():
        for topic, partition in partitions:
            shares[member][topic].add(partition)
        loads[member] = len(partitions)
    taken = {partition for partitions in kept.values() for partition in partitions}
    for topic in sorted(readers, key=lambda topic: (len(readers[topic]), topic)):
        queue = [(loads[member], member) for member in readers[topic]]
        heapify(queue)
        for _, partition in _missing(partition_counts, (topic,), taken):
            load, member = queue[0]
            shares[member][topic].add(partition)
            loads[member] = load + 1
            heapreplace(queue, (load + 1, member))
    while any([_balance(topic, subscribers, shares, loads) for topic, subscribers in readers.items()]):  # noqa: C419  every topic, each time
        pass
    return {
        member: [(topic, partition) for topic, partitions in share.items() for partition in partitions]
        for member, share in shares.items()
    }


def _balance(
    topic: bytes, subscribers: list[str], shares: dict[str, dict[bytes, set[int]]], loads: dict[str, int]
) -> bool:
    """Move partitions of one topic while that helps. It ends, for each move makes the sum of squared loads smaller."""
    moved = False
    while True:
        giver = max((member for member in subscribers if shares[member][topic]), key=loads.__getitem__, default=None)
        taker = min(subscribers, key=loads.__getitem__)
        if giver is None or loads[giver] - loads[taker] < 2:
            return moved
        partition = max(shares[giver][topic])
        shares[giver][topic].remove(partition)
        shares[taker][topic].add(partition)
        loads[giver] -= 1
        loads[taker] += 1
        moved = True


def _readers(members: Members) -> dict[bytes, list[str]]:
    """Topics in the order of their ids, with their subscribers in order."""
    readers: dict[bytes, list[str]] = {}
    for member in sorted(members):
        for topic in members[member].topics:
            readers.setdefault(topic, []).append(member)
    return dict(sorted(readers.items()))


def range_(members: Members, partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    alike: dict[tuple[int, tuple[str, ...]], list[bytes]] = {}
    for topic, subscribers in _readers(members).items():
        alike.setdefault((partition_counts[topic], tuple(subscribers)), []).append(topic)
    shares: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in members}
    for (count, readers), topics in alike.items():
        # The topic with the most assigned partitions decides for all topics of its kind.
        pattern = max(topics, key=lambda topic: sum(len(members[member].assigned.get(topic, ())) for member in readers))
        ranges = _ranges(count, {member: members[member].assigned.get(pattern, frozenset()) for member in readers})
        for member, partitions in ranges.items():
            if partitions:
                for topic in topics:
                    shares[member][topic] = partitions
    return dict(shares)


def _ranges(count: int, had: dict[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    share, extras = divmod(count, len(had))
    kept: dict[str, list[int]] = {}
    taken: set[int] = set()
    quotas = {}
    for member, partitions in had.items():
        mine = [partition for partition in sorted(partitions) if partition < count and partition not in taken]
        quota = share
        if len(mine) > share and extras:
            quota, extras = share + 1, extras - 1
        quotas[member] = quota
        kept[member] = mine[:quota]
        taken.update(kept[member])
    spare = iter([partition for partition in range(count) if partition not in taken])
    for member, mine in kept.items():
        quota = quotas[member]
        if quota == share and extras:
            quota, extras = share + 1, extras - 1
        mine.extend(next(spare) for _ in range(quota - len(mine)))
    return {member: frozenset(mine) for member, mine in kept.items()}


def by_topic(partitions: Iterable[_TopicPartition]) -> Assignment:
    grouped: dict[bytes, set[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, set()).add(partition)
    return {topic: frozenset(partitions) for topic, partitions in grouped.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}
