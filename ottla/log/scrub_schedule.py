"""Scrub schedule: which segment the scrub reads next, and how fast. Pure.

A pass reads the segments of a broker in the order of topic, partition and base offset, at a rate at which the pass
takes `ottla.scrub.interval.ms`. The position is one cursor, which survives a restart (`FILE_NAME` in the data
directory): without it a broker that is restarted every day would never read the last segments. Only time in which the
broker runs counts. If the file is damaged, or of another release, the pass begins again.

A segment that is created before the cursor is read in the next pass. If a pass has read nothing, because nothing is
certain to be on the device yet, it does not count, and the next one begins soon.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

FILE_NAME: Final = "ottla-scrub-checkpoint"
SEGMENT_COST_BYTES: Final = 4096
"""The cost of a segment beside its bytes: it is opened, and its indexes are read."""
CATCH_UP_SECONDS: Final = 1.0
"""Time in which nothing could be read is made up for, but not more of it than this."""

BEHIND: Final = 2**63 - 1
"""Behind the last segment of a partition."""

Cursor = tuple[str, int, int]
"""Topic, partition, base offset: the segment that was read last."""


class Progress(NamedTuple):
    """Of the pass under way."""

    passes: int = 0
    """Finished before, since the data directory is in use."""
    finished_ms: int = -1
    """When the last one was, by the clock on the wall; -1: never."""
    elapsed_s: float = 0.0
    read_bytes: int = 0
    cursor: Cursor | None = None

    def encode(self) -> bytes:
        return json.dumps({"version": 1, **self._asdict()}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """From the beginning if it cannot be read."""
        try:
            fields = json.loads(data)
            cursor = fields["cursor"]
            return cls(
                int(fields["passes"]),
                int(fields["finished_ms"]),
                max(float(fields["elapsed_s"]), 0.0),
                max(int(fields["read_bytes"]), 0),
                None if cursor is None else (str(cursor[0]), int(cursor[1]), int(cursor[2])),
            )
        except (ValueError, KeyError, TypeError, IndexError):
            return cls()


class Schedule:
    """The pass under way. `now` is monotonic seconds."""

    def __init__(self, progress: Progress, now: float) -> None:
        self._progress = progress
        self._since = now
        self._free_at = now
        self.total_bytes = 0

    def progress(self, now: float) -> Progress:
        return self._progress._replace(elapsed_s=self._progress.elapsed_s + max(now - self._since, 0.0))

    @property
    def passes(self) -> int:
        return self._progress.passes

    @property
    def ratio(self) -> float:
        """How much of the pass is done, as far as is known before its end."""
        return min(self._progress.read_bytes / max(self.total_bytes, 1), 1.0)

    def counted(self, sizes: Iterable[int]) -> None:
        """The sizes of all segments there are now."""
        self.total_bytes = sum(size + SEGMENT_COST_BYTES for size in sizes)

    def next_partition(self, partitions: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
        """The partition that the cursor is in, or the next one; None: the pass is over. They come sorted."""
        cursor = self._progress.cursor
        return next((each for each in partitions if cursor is None or (*each, BEHIND) > cursor), None)

    def next_segment(self, partition: tuple[str, int], bases: Sequence[int]) -> int | None:
        """The base offset of the next segment to read in this partition; None: continue with the next partition."""
        cursor = self._progress.cursor
        if cursor is None or cursor[:2] != partition:
            return next(iter(bases), None)
        return next((base for base in bases if base > cursor[2]), None)

    def done(self, cursor: Cursor) -> None:
        """This segment was read, or is gone."""
        self._progress = self._progress._replace(cursor=cursor)

    def done_with(self, partition: tuple[str, int]) -> None:
        """All segments of this partition were read."""
        self.done((*partition, BEHIND))

    def read(self, size: int, interval_s: float, now: float) -> float:
        """So many bytes were read, or a segment was opened (`SEGMENT_COST_BYTES`): how long to wait before the next."""
        self._progress = self._progress._replace(read_bytes=self._progress.read_bytes + size)
        rate = max(self.total_bytes, self._progress.read_bytes, 1) / interval_s  # there may be more than was counted
        self._free_at = max(self._free_at, now - CATCH_UP_SECONDS) + size / rate
        return max(self._free_at - now, 0.0)

    @property
    def has_read(self) -> bool:
        return self._progress.read_bytes > 0

    def restart_pass(self, now: float) -> None:
        """Nothing could be read so far: that was no pass, and no time of one."""
        self._progress = Progress(self._progress.passes, self._progress.finished_ms)
        self._since = self._free_at = now
        self.total_bytes = 0  # to be counted again

    def finish(self, interval_s: float, now: float, wall_ms: int) -> float:
        """The pass is over, and the next one begins. How long it is until then, so that one takes an interval."""
        pause = max(interval_s - self.progress(now).elapsed_s, 0.0)
        self._progress = Progress(self._progress.passes + 1, wall_ms)
        self._since = self._free_at = now + pause
        return pause


def status_text(stats: Mapping[str, object]) -> str:
    """For one line: `progress=0.42 passes=3`."""
    return " ".join(f"{name}={value}" for name, value in stats.items())


def status_of(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split() if "=" in part)
