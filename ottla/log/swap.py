"""Log cleaner, the swap: a compacted segment replaces the segments it was made from. A crash at any moment loses
neither.

    .cleaned   written and flushed by the cleaner (`cleaning`); removed by recovery
    .swap      the log may still have all or some of the old segments: recovery replaces them by this one
    .log       the old segments are renamed to .deleted before it gets this name, and removed when no reader has them
               open

Files are renamed on the event loop, and the directory is flushed in a thread: first the name .swap, then the old
segments are removed. If truncation or retention removes one of them meanwhile, the swap is cancelled and its files are
removed at once: recovery would bring back removed records. If the disk refused the swap half-way, it is completed
before the log removes anything (`settle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.log.cleaning import CleanedSegment, cleaned_path
from ottla.log.manifest import claim_of
from ottla.log.segment import Segment, file_stem
from ottla.log.unsynced import Unsynced

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

SWAP_SUFFIX = ".swap"
_INDEXES = ("index", "timeindex")


class Swap:
    """`begin`, `sync` beside the loop, `finish`, `sync` again. At most one at a time in a log."""

    def __init__(self, log: PartitionLog, cleaned: CleanedSegment, token: str) -> None:
        self._log = log
        self._cleaned = cleaned
        self._old: list[Segment] = []
        self._old_are_going = False
        self._fresh: Segment | None = None
        self._truncations = 0
        self._stem = file_stem(log.path, cleaned.base_offset)
        self._paths = {kind: cleaned_path(log.path, cleaned.base_offset, kind, token) for kind in ("log", *_INDEXES)}
        self._swap_path = f"{self._stem}.log{SWAP_SUFFIX}"

    def begin(self) -> bool:
        """Begin the swap, if the log still has the old segments. False: it is cancelled, and its files are removed."""
        log = self._log
        assert log.swap is None
        bases = [source.base_offset for source in self._cleaned.sources]
        self._old = [segment for segment in log.segments if bases[0] <= segment.base_offset <= bases[-1]]
        sizes = [source.size for source in self._cleaned.sources]
        if (
            [segment.base_offset for segment in self._old] != bases
            or [segment.size for segment in self._old] != sizes
            or not self.fits(log.segments)
            or log.disk.open(self._paths["log"]).size() != self._cleaned.size
        ):
            self._remove()
            return False
        log.disk.rename(self._paths["log"], self._swap_path)
        log.swap = self
        return True

    def fits(self, segments: list[Segment]) -> bool:
        """Whether the log still has all old segments, and will not write to them."""
        return set(segments[:-1]).issuperset(self._old)

    def sync(self) -> None:
        """Blocks; for a thread."""
        log = self._log
        if log.swap is self:
            log.manifest.replacing({segment.base_offset for segment in self._old})
        log.disk.sync_dir(log.path)
        if self._fresh is not None:
            self._claim(log, self._fresh)

    def _claim(self, log: PartitionLog, fresh: Segment) -> None:
        """The new segment has its name, durably: the manifest may claim it."""
        truncations = self._truncations
        for kind in _INDEXES:
            if log.disk.exists(f"{self._stem}.{kind}"):
                Unsynced(log.disk.open(f"{self._stem}.{kind}"), passing=True).sync()
        claim = claim_of(log.disk, log.path, fresh.base_offset, self._cleaned.sources[-1].next_base, fresh.size)
        log.manifest.add(log, [claim], lambda: not fresh.deleted and log.truncations == truncations and not log.dropped)

    def finish(self) -> list[Segment] | None:
        """Put the new segment into the log. Returns the old ones, to be deleted later; None if the swap was cancelled.
        After a StorageFault it can be tried again; until then the log uses the old ones."""
        log, disk = self._log, self._log.disk
        if log.swap is not self:
            return None
        old = self._old
        log.manifest.replacing({segment.base_offset for segment in old})
        for segment in old:
            if not segment.deleted:
                try:
                    segment.delete(indexes=segment is old[0])
                finally:
                    self._old_are_going |= segment.deleted
        for kind in _INDEXES:
            if disk.exists(self._paths[kind]):
                disk.rename(self._paths[kind], f"{self._stem}.{kind}")
        log.transactions.prepare_replacement(self._cleaned.base_offset, self._cleaned.aborted)
        disk.rename(self._swap_path, f"{self._stem}.log")
        log.swap = None
        log.transactions.replace(self._cleaned.base_offset)
        fresh = Segment(disk, log.path, self._cleaned.base_offset, created_ms=old[-1].created_ms)
        first = log.segments.index(old[0])
        log.adopt([*log.segments[:first], fresh, *log.segments[first + len(old) :]])
        log.manifest.replaced()
        self._fresh, self._truncations = fresh, log.truncations
        return old

    def settle(self) -> list[Segment]:
        """The log is about to remove records, and the swap may be half done: then it must be completed, because
        recovery would complete it in any case. Blocks. Returns the old segments, to be deleted."""
        if not self._old_are_going:
            return []
        old = self.finish()
        assert old is not None
        self.sync()
        return old

    def abandon(self) -> None:
        """Cancel the swap, also for recovery after a crash: the log has changed, or the cleaner was stopped. Not
        possible once it has begun to replace the old segments."""
        if self._old_are_going:
            return
        if self._log.swap is self:
            self._log.disk.remove(self._swap_path)
            self._log.swap = None
            self._log.manifest.replaced()
        self._remove()

    def _remove(self) -> None:
        for path in self._paths.values():
            self._log.disk.remove(path)
