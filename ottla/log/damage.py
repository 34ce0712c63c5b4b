"""Damage: offsets that a log has lost. `evidence` finds them when the log is opened, the scrub finds them later.

A missing range is a range of offsets. The log keeps the whole batches before and after it. It ends at the highest
offset that anything proves, so no offset is assigned twice. A read in the range fails with KAFKA_STORAGE_ERROR: no
record is skipped silently. The ranges are in the manifest until the replica is copied again from another one
(`truncation.quarantine`), or until an operator accepts the loss (`ottla log accept-loss`): then they are a gap, like
those that compaction leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import ErrorCode, Refused
from ottla.log import transaction_recovery
from ottla.log.manifest import LostEnd, LostEnds, Range, merged, without
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class Damage(NamedTuple):
    """Missing ranges: offsets that a log must have and does not have, in order."""

    path: str
    missing: tuple[Range, ...]
    epoch: int
    """The proven leader epoch, with the end of the log: a replica that has both lacks nothing."""
    end: int

    def __str__(self) -> str:
        ranges = ", ".join(f"{start}..{end - 1}" for start, end in self.missing)
        return f"offsets {ranges} are missing in {self.path}"

    def limit(self, offset: int, limit: int) -> int:
        """The end of a read that begins at `offset`. Refused if the offset is missing."""
        for start, end in self.missing:
            if offset < start:
                return min(start, limit)
            if offset < end:
                raise Refused(
                    ErrorCode.kafka_storage_error,
                    f"offsets {start}..{end - 1} are missing in {self.path}: restore them from another replica, or "
                    f"give them up with `ottla log accept-loss` while the broker is stopped",
                )
        return limit


class Gap(NamedTuple):
    """A gap, as it is reported to followers: they may have these offsets, and then keep them."""

    start: int
    end: int
    given_up: bool = False


def gap_at(log: PartitionLog, offset: int) -> Gap | None:
    """The gap at an offset: missing, or given up."""
    for ranges, given_up in ((() if log.damage is None else log.damage.missing, False), (log.given_up, True)):
        for start, end in ranges:
            if start <= offset < end:
                return Gap(start, end, given_up)
    return None


def read_limit(log: PartitionLog, offset: int, limit: int) -> int:
    """The end of a read that begins at `offset`: the next gap. Refused if the offset is missing. A range that was given
    up is skipped with the next response, because the aborted transactions of a response whose markers are lost end with
    it."""
    if log.damage is not None:
        limit = log.damage.limit(offset, limit)
    return min([limit, *(start for start, _ in log.given_up if start > offset)])


def behind_gap(log: PartitionLog, offset: int) -> int:
    """The first offset at or after `offset` that was not given up."""
    return next((end for start, end in log.given_up if start <= offset < end), offset)


def held_from(log: PartitionLog) -> int:
    """The first offset that the log may have: the log start, or the start of a gap there."""
    start = log.log_start
    while start < log.log_end and (gap := gap_at(log, start)) is not None:
        start = gap.end
    return start


def guessed_from(log: PartitionLog) -> int:
    """The offset from which it is not known whether the log had records before its start (`evidence.unproven_before`);
    the log start if it is proven, or if earlier records were given up."""
    manifest = log.manifest.latest
    guessed = without(log.given_up, () if manifest is None else manifest.decided)
    return next((first for first, end in guessed if first < log.log_start <= end), log.log_start)


def began_at(log: PartitionLog, start: int) -> None:
    """Another replica has records before the log start here, which is not proven: they are lost here. Durable on
    return."""
    end = log.log_start
    log.manifest.start_before(start, end)
    log.log_start = start
    log.given_up = without(log.given_up, [(start, end)])
    mark_missing(log, [(start, end)])


def mark_missing(log: PartitionLog, ranges: Iterable[Range]) -> None:
    """These offsets are missing, too; found while the log is in use."""
    known = () if log.damage is None else log.damage.missing
    log.damage = Damage(log.path, merged([*known, *ranges]), log.epochs.latest, log.log_end)
    trim(log)


def trim(log: PartitionLog) -> None:
    """The log starts later or ends earlier: missing ranges outside of it are no loss any more."""
    if log.given_up:
        log.given_up = tuple((start, min(end, log.log_end)) for start, end in log.given_up if start < log.log_end)
    if log.damage is not None:
        inside = merged((max(start, log.log_start), min(end, log.log_end)) for start, end in log.damage.missing)
        log.damage = log.damage._replace(missing=inside) if inside else None


def pass_over(log: PartitionLog, offset: int, gap: Gap, now_ms: int) -> int:
    """The leader has nothing from `offset` to the end of the gap, and this log ends there or lacks it, too: mark the
    range as the leader does. Durable on return. Returns its end."""
    known = () if log.damage is None else log.damage.missing
    end = gap.end if offset >= log.log_end else min(gap.end, next(e for s, e in known if s <= offset < e))
    at_the_end = offset >= log.log_end
    ends = LostEnds()
    if at_the_end:
        open_since = log.transactions.open_since.items()
        undecided = tuple(LostEnd(producer_id, first, end - 1) for producer_id, first in open_since)
        ends = LostEnds(undecided=undecided, decided=((offset, end),))
    log.make_directory()
    lose(log, [(offset, end)], ends, giving_up=gap.given_up)
    if at_the_end:
        log.producers.close_transactions()
        log.transactions.load()
        log.go_on_at(end, now_ms)
    if gap.given_up:
        log.given_up = merged([*log.given_up, (offset, end)])
        left = without(known, [(offset, end)])
        log.damage = Damage(log.path, left, log.epochs.latest, log.log_end) if left else None
    else:
        log.damage = Damage(log.path, merged([*known, (offset, end)]), log.epochs.latest, log.log_end)
    return end


def lose(log: PartitionLog, ranges: Sequence[Range], ends: LostEnds, *, giving_up: bool = False) -> None:
    """Write missing or given-up ranges to the manifest. Durable on return."""
    log.manifest.lose(log, ranges, ends, giving_up=giving_up)
    transaction_recovery.take_up(log)


def go_on_behind(log: PartitionLog, missing: tuple[Range, ...], end: int, ends: LostEnds, now_ms: int) -> None:
    """The log has lost these offsets, and continues at its highest proven end. The manifest records the loss before
    anything is written there: otherwise the log would look as if it had always begun there."""
    ends_early = log.log_end < end or not log.disk.exists(log.path)
    if ends_early:
        log.make_directory()
    lose(log, missing, ends)
    if ends_early:
        kept = [segment for segment in log.segments if segment.size]
        fresh = Segment(log.disk, log.path, end, created_ms=now_ms)
        fresh.create()
        for empty in log.segments:
            if not empty.size and empty.base_offset != end:
                log.disk.remove(empty.log.path)
        log.adopt([*kept, fresh])
        log.made_files = True
        log.log_end = end
    log.damage = Damage(log.path, missing, log.epochs.latest, log.log_end) if missing else None
