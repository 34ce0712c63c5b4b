"""Follower state of a partition: it copies the leader's log, and truncates its own where the two diverge (KIP-101).

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.log.segment import Segment
from ottla.log.truncation import quarantine
from ottla.replication.gaps import next_offset
from ottla.replication.leader import NO_EPOCH, truncation_offset

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class FollowerState:
    """The follower state of one partition."""

    __slots__ = ("_partition", "agreed", "watermark_known")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.agreed = 0
        """Up to this offset it is known that the leader lacks the missing records, too."""
        self.watermark_known = False
        """Whether the high watermark is exact: it is from the time as leader, or from a clean stop, and nothing was
        replicated since."""

    def position(self) -> tuple[int, int, int]:
        """The parameters of the next fetch: leader epoch, fetch offset, and the epoch of the last record before it."""
        log, at = self._partition.log, next_offset(self._partition)
        return self._partition.leader_epoch, at, log.epochs.epoch_of(at - 1) if at > log.log_start else NO_EPOCH

    def truncate(self, epoch: int, end: int, now_ms: int) -> list[Segment]:
        """Truncate: the log has diverged from the leader's after the end of this epoch, or before. Returns the segments
        whose files may be deleted. The next fetch shows whether the rest agrees."""
        log = self._partition.log
        return self._cut(log.truncate_to, truncation_offset(log, epoch, end), now_ms)

    def restart_at(self, offset: int, now_ms: int) -> list[Segment]:
        """Start over at `offset`: the leader has nothing before it, and this log nothing from there on."""
        return self._cut(self._partition.log.truncate_fully_and_start_at, offset, now_ms)

    def _cut(self, cut: Callable[[int, int], list[Segment]], offset: int, now_ms: int) -> list[Segment]:
        try:
            return cut(offset, now_ms)
        finally:  # the disk may have refused half of it
            self._partition.end_moved_back()

    def copy_again(self, now_ms: int) -> None:
        """Quarantine the records after the damage, and copy them again from the leader."""
        try:
            quarantine(self._partition.log, now_ms)
        finally:
            self._partition.end_moved_back()
