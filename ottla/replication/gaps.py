"""Gaps in the logs of several replicas: an offset is lost only if no replica has it.

If the leader's log lacks offsets (missing or given up), it says so to a follower that fetches them. The follower keeps
what it has before the gap, and continues after it. Its own log then lacks only the offsets that neither log has, marked
in the same way as missing or given up. So a gap in the leader's log deletes nothing on other brokers, and no follower
waits for offsets that cannot come.

A follower whose log lacks offsets fetches them first, in every leader epoch (`next_offset`). If the leader has them,
the follower quarantines everything after the gap and copies it again (`log.truncation`). If the leader does not have
them, this is noted (`agreed`).

A leader hands leadership over to the followers that lack the fewest offsets, if they lack fewer than the leader. It
learns this from their fetch offsets (`lacking`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.log import damage
from ottla.log.damage import Gap
from ottla.log.manifest import Range, merged

if TYPE_CHECKING:
    from ottla.replication.leader import Follower
    from ottla.replication.partition import Partition


log = logging.getLogger("ottla.replication")


def unsettled(partition: Partition) -> Range | None:
    """The first missing range that the leader may have."""
    if partition.log.damage is not None:
        for start, end in partition.log.damage.missing:
            if end > partition.follower.agreed:
                return max(start, partition.follower.agreed), end
    return None


def next_offset(partition: Partition) -> int:
    """The fetch offset of a follower: the first missing range, then the log end."""
    missing = unsettled(partition)
    return partition.log.log_end if missing is None else missing[0]


def pass_over(partition: Partition, gap: Gap, now_ms: int) -> Gap | None:
    """The leader does not have these offsets. Returns the range that neither log has; None: it does not apply here.
    Blocks."""
    offset = next_offset(partition)
    if not gap.start <= offset < gap.end:
        return None
    partition.follower.agreed = damage.pass_over(partition.log, offset, gap, now_ms)
    return Gap(offset, partition.follower.agreed, gap.given_up)


def compare_start(partition: Partition, start: int) -> None:
    """Compare the log start of another replica. If this log starts later, and nothing proves that, the records in
    between are lost here (a first segment, with the manifest that listed it). Blocks."""
    own = partition.log
    if own.given_up and 0 <= start < own.log_start:
        guessed = damage.guessed_from(own)
        if max(start, guessed) < own.log_start:
            damage.began_at(own, max(start, guessed))
            log.error("%s is damaged: %s. Another replica has them", partition, own.damage)


def gap_for(partition: Partition, replica: int, offset: int) -> Gap | None:
    """The gap in the leader's log at the fetch offset of a follower; None: there is none."""
    follower = partition.leader.followers[replica]
    compare_start(partition, follower.log_start)
    gap = damage.gap_at(partition.log, offset)
    if gap is not None:
        follower.lacks = merged([*follower.lacks, (offset, gap.end)])
    return gap


def next_held(partition: Partition, offset: int) -> int:
    """Where a coordinator that loads its own log continues: after offsets that were given up and, without another
    replica, after missing ones."""
    while (gap := damage.gap_at(partition.log, offset)) is not None and (gap.given_up or len(partition.replicas) == 1):
        if not gap.given_up:
            where = partition, gap.start, gap.end - 1
            log.error("%s: offsets %d..%d: these records are lost; continuing without them", *where)
        offset = gap.end
    return offset


def lacking(missing: tuple[Range, ...], follower: Follower) -> int:
    """How many of the offsets that the leader lacks a follower lacks, too. It lacks the offsets that it has fetched; of
    later ones, up to the end of the missing range, this is not known, so they count as present."""
    lacks = merged([*follower.lacks, (0, max(follower.log_start, 0))])
    return sum(max(min(end, last) - max(start, first), 0) for start, end in missing for first, last in lacks)


def better_followers(partition: Partition, able: Callable[[int, int], bool]) -> set[int]:
    """The followers that lack the fewest of the leader's missing offsets, if they lack fewer than the leader, and have
    all committed records: their logs reach the proven end in the same epochs. One of them should lead instead."""
    missing = partition.log.damage
    assert missing is not None
    have = {
        replica: lacking(missing.missing, follower)
        for replica, follower in partition.leader.followers.items()
        if follower.heard
        and follower.log_end >= missing.end
        and follower.log_start >= 0
        and partition.leader.caught_up(follower)
        and able(replica, follower.epoch)
    }
    least = min(have.values(), default=0)
    if least >= sum(end - start for start, end in missing.missing):
        return set()
    return {replica for replica, count in have.items() if count == least}
