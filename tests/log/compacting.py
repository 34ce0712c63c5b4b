"""A log that is compacted as the broker does it, but in one process and without waiting."""

from __future__ import annotations

from ottla.log import compaction
from ottla.log.cleaning import CleanedSegment, Job, Summary, clean, decode_report
from ottla.log.partition_log import PartitionLog
from ottla.log.swap import Swap
from ottla.runtime import Disk
from ottla.wire.batch import BatchHeader, batches, check
from ottla.wire.records import Record, build_batch, iterate
from tests.log.batches import NOW, stored


class InlineChild:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.done_bytes = 0

    def pace(self, done_bytes: int) -> None:
        self.done_bytes += done_bytes


def put(
    log: PartitionLog,
    pairs: list[tuple[bytes | None, bytes | None]],
    *,
    now_ms: int = NOW,
    timestamp: int | None = None,
    epoch: int = 0,
    **options,
) -> int:
    """Append a batch of keys and values; returns its base offset."""
    time = now_ms if timestamp is None else timestamp
    records = [Record(at, time, key, value) for at, (key, value) in enumerate(pairs)]
    view = memoryview(bytearray(build_batch(records, **options)))
    return log.append(view, check(view), leader_epoch=epoch, now_ms=now_ms)


def job_for(
    log: PartitionLog,
    *,
    now_ms: int = NOW,
    last_stable: int | None = None,
    map_bytes: int = 2**20,
    token: str = "7",
) -> Job | None:
    found = compaction.dirt(log, log.log_end if last_stable is None else last_stable, now_ms)
    if found is None:
        return None
    return compaction.plan(log, found, token=token, now_ms=now_ms, map_bytes=map_bytes, map_load=0.9)


def compact(log: PartitionLog, *, roll: bool = True, **options) -> Summary | None:
    """One pass, swaps and all. None when there was nothing to do."""
    if roll:
        log.roll(options.get("now_ms", NOW))
    log.sync()
    job = job_for(log, **options)
    return None if job is None else run(log, job)


def run(log: PartitionLog, job: Job) -> Summary | None:
    child = InlineChild(log.disk)
    for report in map(decode_report, clean(child, job.encode())):
        if isinstance(report, Summary):
            log.cleaned = report.end
            return report
        swap_in(log, report, job.token)
    raise AssertionError("a pass ends with a summary")


def swap_in(log: PartitionLog, cleaned: CleanedSegment, token: str) -> bool:
    swap = Swap(log, cleaned, token)
    if not swap.begin():
        return False
    swap.sync()
    old = swap.finish()
    assert old is not None
    swap.sync()
    for segment in old:
        segment.unlink()
    return True


def contents(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of every record a reader sees."""
    return [
        (record.offset, record.key, record.value)
        for batch in stored(log)
        for record in iterate(batch, bytes_max=2**20)
        if not check(batch).is_control
    ]


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    return [header for batch in stored(log) for _, header in batches(batch)]


def latest(pairs: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The last offset and value of each key."""
    return {key: (offset, value) for offset, key, value in pairs}
