"""Log cleaner, the work: one pass over a log that keeps the last record of every key, in a child process.

The pass reads closed segments, which do not change, by their paths, and writes new segments beside them. It changes
nothing else, so it may be killed at any moment. The event loop replaces the old segments by each new one (`swap`), and
drops a new segment if its log has changed meanwhile.

First the pass reads the dirty part of the log, which no earlier pass has read, and fills a map from key to last offset.
When the map is full, the pass is limited to this part, and the next pass continues there. Then the pass reads the log
again from its start. A record stays if
    its offset is beyond the part that is in the map, or
    the map has no later record of its key, and it is not a tombstone past its delete horizon.
A batch without remaining records is removed, but stays as an empty batch (header only) if it is
    the last batch of a producer whose state is still kept: it has the sequence, or
    the last batch of the new segment: so each segment ends where the next one begins, and a gap between two
    segments after a crash is known to be a loss and not compaction.
Records without a key, from before the topic was compacted, are removed.

Small segments are merged, up to the segment size. A segment that would not change stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ottla.errors import ErrorCode, Fault, Refused
from ottla.log.index import RELATIVE_OFFSET_MAX, IndexBuilder, OffsetIndex, TimeIndex
from ottla.log.offset_map import OffsetMap
from ottla.log.scan import headers, whole
from ottla.log.segment import file_stem
from ottla.log.transaction_index import AbortedTransaction, CleanedTransactions
from ottla.runtime import Child, Disk, File
from ottla.wire.batch import BatchHeader, read_header
from ottla.wire.record_filter import RecordSpan, delete_horizon_ms, keep, keep_header, record_spans
from ottla.wire.records import open_batch

WORK = "ottla.log.cleaning:clean"
"""The command of the child process."""

RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""Limit of the decompressed size of one batch."""

SOURCES_MAX = 64
"""Limit of the segments that are merged into one: the event loop waits while they are renamed."""

_SEGMENT_BYTES_MAX = 2**31 - 1
_WRITE_BYTES = 1024 * 1024


class Source(NamedTuple):
    """A closed segment."""

    base_offset: int
    size: int
    next_base: int


class LastBatch(NamedTuple):
    """The last batch of a producer that the log still knows: its last offset, or none (-1) but a marker."""

    producer_id: int
    last_offset: int
    epoch: int


class Job(NamedTuple):
    """The input of a pass; sent through a pipe as JSON."""

    path: str
    token: str
    """Part of the names of its files, so that two passes never write the same file."""
    sources: list[Source]
    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    map_load: float
    producers: list[LastBatch]
    aborted: list[AbortedTransaction]

    def encode(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def decode(cls, message: Mapping[str, Any]) -> Job:
        job = cls(**message)
        return job._replace(
            sources=[Source(*source) for source in job.sources],
            producers=[LastBatch(*producer) for producer in job.producers],
            aborted=[AbortedTransaction(*transaction) for transaction in job.aborted],
        )


class CleanedSegment(NamedTuple):
    """A new segment, durable under its temporary names."""

    sources: list[Source]
    size: int
    aborted: list[AbortedTransaction]

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset


class Summary(NamedTuple):
    """The result of a pass."""

    end: int
    read_bytes: int
    written_bytes: int
    records_seen: int
    records_kept: int
    records_without_key: int


def decode_report(report: Mapping[str, Any]) -> CleanedSegment | Summary:
    if "end" in report:
        return Summary(**report)
    return CleanedSegment(
        [Source(*source) for source in report["sources"]],
        report["size"],
        [AbortedTransaction(*transaction) for transaction in report["aborted"]],
    )


def cleaned_path(path: str, base_offset: int, kind: str, token: str) -> str:
    return f"{file_stem(path, base_offset)}.{kind}.{token}.cleaned"


def clean(child: Child, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Run one pass. Reports each new segment when it is durable, and then the summary (`decode_report`)."""
    job = Job.decode(message)
    for name in child.disk.listdir(job.path):
        if name.endswith(".cleaned"):
            child.disk.remove(f"{job.path}/{name}")  # of a pass that was killed
    yield from _Pass(child, job).run()


class _Pass:
    def __init__(self, child: Child, job: Job) -> None:
        self._child = child
        self._disk = child.disk
        self._job = job
        self._last_of = {producer.producer_id: producer for producer in job.producers}
        self._offsets = OffsetMap(keys_max=self._count_dirty(), buffer_bytes=job.map_bytes, load_factor=job.map_load)
        self._mapped_end = job.first_dirty
        self._transactions = CleanedTransactions()
        self._read_bytes = self._written_bytes = 0
        self._seen = self._kept = self._without_key = 0

    def run(self) -> Iterator[dict[str, Any]]:
        job = self._job
        self._transactions = CleanedTransactions(job.aborted)
        self._mapped_end = self._fill_map()
        self._transactions = CleanedTransactions(job.aborted)
        for cleaned in self._clean():
            yield cleaned._asdict()
        yield Summary(
            self._mapped_end, self._read_bytes, self._written_bytes, self._seen, self._kept, self._without_key
        )._asdict()

    def _file(self, source: Source) -> File:
        return self._disk.open(file_stem(self._job.path, source.base_offset) + ".log")

    def _batches(self, source: Source) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Every batch of a segment, checked: a damaged one must not get a new checksum."""
        file = self._file(source)
        end = 0
        try:
            for position, header, batch in whole(file, 0, source.size):
                self._child.pace(header.size)
                yield position, header, batch
                end = position + header.size
        finally:
            file.close()
            self._read_bytes += end
        if end != source.size:
            raise Refused(ErrorCode.corrupt_message, f"{file.path} ends at {end} instead of {source.size}")

    # -- the map ---------------------------------------------------------------------------------------------

    def _count_dirty(self) -> int:
        """The highest possible number of keys."""
        job = self._job
        return sum(
            header.record_count
            for source in job.sources
            if source.next_base > job.first_dirty
            for _, header in headers(self._file(source), 0, source.size)
            if job.first_dirty <= header.last_offset and header.base_offset < job.end
        )

    def _fill_map(self) -> int:
        """Fill the offset map. Returns the offset up to which it has every key."""
        job, offsets = self._job, self._offsets
        for source in job.sources:
            if source.next_base <= job.first_dirty:
                continue
            for _, header, batch in self._batches(source):
                if header.base_offset >= job.end:
                    break
                if header.last_offset < job.first_dirty or self._is_void(header, batch):
                    continue
                base = header.base_offset
                for _, _, _, _, delta, key, _ in record_spans(*open_batch(batch, RECORDS_BYTES_MAX)):
                    offset = base + delta
                    if key is None or not job.first_dirty <= offset < job.end:
                        continue
                    if offsets.full:
                        return offset
                    offsets.put(key, offset)
        return job.end

    def _is_void(self, header: BatchHeader, batch: memoryview) -> bool:
        """A marker, or an aborted batch: none of its records is the last one of its key."""
        if header.is_control:
            self._transactions.saw_marker(*open_batch(batch, RECORDS_BYTES_MAX))
            return True
        return self._transactions.saw_batch(header)

    # -- the new segments ------------------------------------------------------------------------------------

    def _clean(self) -> Iterator[CleanedSegment]:
        """The new segments, one by one. Old segments are merged into one up to the segment size."""
        output: _Output | None = None
        try:
            for source in self._job.sources:
                if source.base_offset >= self._mapped_end:
                    break
                if output is not None and not output.has_room_for(source):
                    yield from self._finish(output)
                    output = None
                if output is None:
                    output = _Output(self._child, self._job, source)
                    self._transactions.kept = []
                else:
                    output.join(source)
                for _, header, batch in self._batches(source):
                    self._filter_records(header, batch, output)
            if output is not None:
                yield from self._finish(output)
        except (Fault, Refused):
            if output is not None:
                output.discard()
            raise

    def _finish(self, output: _Output) -> Iterator[CleanedSegment]:
        if output.finish():
            self._written_bytes += output.size
            yield CleanedSegment(output.sources, output.size, self._transactions.kept)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id < 0:
            return False
        last = self._last_of.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset >= 0:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _filter_records(self, header: BatchHeader, batch: memoryview, output: _Output) -> None:
        """Write the remaining records of a batch, or only its header where that must stay."""
        now_ms = self._job.now_ms
        horizon_ms = delete_horizon_ms(header)
        due = horizon_ms is not None and horizon_ms <= now_ms
        if header.is_control:
            opened = open_batch(batch, RECORDS_BYTES_MAX)
            removable = self._transactions.saw_marker(*opened) and header.base_offset < self._mapped_end
            kept = [] if removable and due else [RecordSpan(*span) for span in record_spans(*opened)]
            waits = removable
        elif self._transactions.saw_batch(header) and header.base_offset < self._mapped_end:
            kept, waits = [], False
        elif header.base_offset >= self._mapped_end:
            output.copy(header, batch)
            self._seen += header.record_count
            self._kept += header.record_count
            return
        else:
            opened = open_batch(batch, RECORDS_BYTES_MAX)
            kept, waits = self._choose(*opened, due=due)
        self._seen += header.record_count
        self._kept += len(kept)
        if kept and waits and horizon_ms is None:
            output.add(keep(*opened, kept, horizon_ms=now_ms + self._job.delete_retention_ms))
        elif not kept and not self._is_last_of_producer(header):
            output.drop(header)
        elif len(kept) == header.record_count:
            output.copy(header, batch)
        else:
            output.add(keep(*opened, kept) if kept else keep_header(header))

    def _choose(self, header: BatchHeader, data: bytes, *, due: bool) -> tuple[list[RecordSpan], bool]:
        """The records that stay, and whether one of them is a tombstone before its delete horizon."""
        last_offset = self._offsets.get
        base, mapped_end = header.base_offset, self._mapped_end
        kept: list[RecordSpan] = []
        waits = False
        for span in record_spans(header, data):
            _, _, _, _, delta, key, has_value = span
            offset = base + delta
            if offset < mapped_end:
                if key is None:
                    self._without_key += 1
                    continue
                if last_offset(key) > offset:
                    continue
                if not has_value:
                    if due:
                        continue
                    waits = True
            kept.append(RecordSpan._make(span))
        return kept, waits


class _Output:
    """A new segment. Nothing is written as long as it is equal to the first segment it is made from."""

    def __init__(self, child: Child, job: Job, source: Source) -> None:
        base = source.base_offset
        self._child = child
        self._disk: Disk = child.disk
        self._job = job
        self._same_as: File | None = self._disk.open(file_stem(job.path, base) + ".log")
        self._paths = [cleaned_path(job.path, base, kind, job.token) for kind in ("log", "index", "timeindex")]
        self._log = self._disk.open(self._paths[0], create=True)
        self._builder = IndexBuilder(base, job.index_interval_bytes)
        self._dropped: BatchHeader | None = None  # the batch before this position was left out
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.sources = [source]
        self.size = 0

    def has_room_for(self, source: Source) -> bool:
        """Whether the next segment fits, even if none of its records is removed."""
        job = self._job
        stem = file_stem(job.path, source.base_offset)
        index_bytes = max(self._disk.open(f"{stem}.{kind}").size() for kind in ("index", "timeindex"))
        return (
            len(self.sources) < SOURCES_MAX
            and self.size + source.size <= job.segment_bytes
            and len(self._builder.offsets) * TimeIndex.ENTRY_BYTES + index_bytes <= job.segment_index_bytes
            and source.next_base - 1 - self.sources[0].base_offset <= RELATIVE_OFFSET_MAX
        )

    def join(self, source: Source) -> None:
        """Continue with the batches of the next segment."""
        self._differ()
        self.sources.append(source)

    def copy(self, header: BatchHeader, batch: memoryview) -> None:
        """Copy a batch unchanged."""
        if self._dropped is not None:
            self._differ()
            self._dropped = None
        self._builder.add(self.size, header)
        self.size += len(batch)
        if self._same_as is None:
            self._write(bytes(batch))

    def add(self, batch: bytes) -> None:
        """Write a changed batch."""
        self._differ()
        self._dropped = None
        self._builder.add(self.size, read_header(batch))
        self.size += len(batch)
        self._write(batch)

    def drop(self, header: BatchHeader) -> None:
        """Skip a batch."""
        self._dropped = header
        if header.record_count:
            self._differ()

    def _differ(self) -> None:
        """The first difference: write everything that was equal so far."""
        if self._same_as is None:
            return
        for position in range(0, self.size, _WRITE_BYTES):
            self._write(self._same_as.pread(min(_WRITE_BYTES, self.size - position), position))
        self._same_as.close()
        self._same_as = None

    def _write(self, batch: bytes) -> None:
        if self.size > _SEGMENT_BYTES_MAX:
            raise Refused(ErrorCode.record_list_too_large, f"{self._log.path} would be too large for a segment")
        self._pending.append(batch)
        self._pending_bytes += len(batch)
        if self._pending_bytes >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._child.pace(self._pending_bytes)
        self._log.append(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0

    def finish(self) -> bool:
        """Flush it. False: nothing differs, so nothing was written."""
        if self._same_as is not None:
            self._same_as.close()
            return False
        if self._dropped is not None:
            self.add(keep_header(self._dropped))
        self._flush()
        self._builder.finish()
        offsets, times = OffsetIndex(self._disk, self._paths[1]), TimeIndex(self._disk, self._paths[2])
        offsets.replace(self._builder.offsets, self._builder.positions)
        times.replace(self._builder.timestamps, self._builder.timestamp_offsets)
        offsets.write()
        times.write()
        # An offset index that is cut short only costs time, but the end of the time index is taken for the newest
        # record. Names are synced together with the next rename.
        for file in (self._log, times.file):
            file.sync()
        for file in (self._log, offsets.file, times.file):
            file.close()
        return True

    def discard(self) -> None:
        self._log.close()
        for path in self._paths:
            self._disk.remove(path)
