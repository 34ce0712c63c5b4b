"""Reading a data directory through, byte by byte, and changing nothing: what `ottla log verify` does.

Of each segment every batch is read: its header, its checksum, that offsets rise without overlap and epochs do not fall.
What is derived from batches (offset and time index, leader epochs, producer snapshots, indexes of aborted transactions)
is held against them. Damage in a batch is damage to records; damage in what is derived costs at most time, for a broker
rebuilds it.

Behind a damaged batch the walk goes on, as long as the header still says where the next one begins. A broker that is
running writes meanwhile: what may be unfinished, the end of the last segment and what is derived from it, is not held
against it, and neither is the end of a log that was not closed cleanly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.errors import Fault, Refused
from ottla.log import checkpoints
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.epochs import NO_EPOCH, LeaderEpochs
from ottla.log.index import IndexDamaged, OffsetIndex, TimeIndex
from ottla.log.producers import Producers, SnapshotDamaged
from ottla.log.segment import file_stem
from ottla.log.transaction_index import TransactionIndexDamaged, decode
from ottla.runtime import Disk, File
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, NO_TIMESTAMP, BatchHeader, read_header

CHUNK_BYTES: Final = 1024 * 1024
FINDINGS_MAX: Final = 20
"""Of one segment: a file full of noise is damaged once."""
_OFFSET_MAX: Final = 2**63 - 1
_NUMBERED: Final = re.compile(r"(\d{20})\.(log|snapshot|txnindex|index|timeindex)")
_UNFINISHED: Final = re.compile(r".*\.(swap|cleaned|deleted|damaged|tmp)")

FROM_A_REPLICA: Final = (
    "if other replicas are in sync: stop the broker, move the partition's directory away, delete "
    f"{checkpoints.CLEAN_SHUTDOWN} (or the broker would be held for complete), start it, and it copies the partition "
    "anew"
)
CUT_AT_START: Final = "the broker cuts it off at its next start"
REBUILT: Final = "delete the file: the broker rebuilds it from the log"


class Finding(NamedTuple):
    """`position` is a byte in the file, `offset` that of a record; -1 where there is none."""

    path: str
    what: str
    remedy: str
    records: bool = False
    """Records are damaged, and not only what is derived from them."""
    position: int = -1
    offset: int = -1


class Checked(NamedTuple):
    """One partition that was read through."""

    path: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    segments: int
    batches: int
    size_bytes: int


def partition_directories(disk: Disk, directory: str) -> list[str]:
    """The partitions in a data directory, or the directory itself if it is one."""
    if _is_partition(disk, directory):
        return [directory]
    paths = [f"{directory}/{name}" for name in disk.listdir(directory)]
    return [path for path in paths if _is_partition(disk, path)]


def _is_partition(disk: Disk, path: str) -> bool:
    return any(
        name == checkpoints.PARTITION_METADATA or ((found := _NUMBERED.fullmatch(name)) and found[2] == "log")
        for name in disk.listdir(path)
    )


def verify_checkpoints(disk: Disk, directory: str) -> list[Finding]:
    """The files of a data directory that belong to no partition."""
    findings = []
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANED):
        try:
            checkpoints.read_offsets(disk, directory, name)
        except Fault as fault:
            findings.append(Finding(f"{directory}/{name}", str(fault), "as it says"))
    try:
        checkpoints.read_meta_properties(disk, directory)
    except Fault as fault:
        findings.append(Finding(f"{directory}/{checkpoints.META_PROPERTIES}", str(fault), "as it says"))
    return findings


def verify_partition(disk: Disk, path: str, *, finished: bool) -> Checked:
    """`finished`: the log was closed cleanly and nobody writes to it, so that nothing may be missing at its end."""
    return _Verification(disk, path, finished).run()


class _Verification:
    def __init__(self, disk: Disk, path: str, finished: bool) -> None:
        self._disk = disk
        self._path = path
        self._finished = finished
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._epochs: LeaderEpochs | None = None
        self._batches = 0
        self._size = 0
        self._next_offset = 0
        self._latest_epoch = NO_EPOCH
        self._epoch_told = False

    def run(self) -> Checked:
        names = self._disk.listdir(self._path)
        numbered = [(int(found[1]), found[2]) for found in map(_NUMBERED.fullmatch, names) if found]
        bases = sorted(base for base, kind in numbered if kind == "log")
        self._notes += [f"{self._path}/{name} is left over" for name in names if _UNFINISHED.fullmatch(name)]
        self._metadata()
        for at, base in enumerate(bases):
            following = bases[at + 1] if at + 1 < len(bases) else _OFFSET_MAX
            self._segment(base, following)
        for base, kind in sorted(numbered):
            if kind == "snapshot":
                self._snapshot(base)
            elif kind == "txnindex":
                self._transactions(base)
        return Checked(
            self._path, tuple(self._findings), tuple(self._notes), len(bases), self._batches, self._size
        )

    def _found(
        self, path: str, what: str, remedy: str, *, records: bool = False, position: int = -1, offset: int = -1
    ) -> None:
        self._findings.append(Finding(path, what, remedy, records, position, offset))

    # Segments.

    def _segment(self, base: int, following: int) -> None:
        stem = file_stem(self._path, base)
        file = self._disk.open(f"{stem}.log")
        size = file.size()
        last = following == _OFFSET_MAX
        excused = last and not self._finished
        walk = _Walk(self._disk, stem, size, excused=excused)
        self._next_offset = max(self._next_offset, base)
        before = len(self._findings)
        end = 0
        for position, header, problem in _batches(file, size):
            if problem:
                self._found(
                    file.path, problem, FROM_A_REPLICA, records=True, position=position, offset=self._next_offset
                )
                walk.lose_track()
            else:
                self._batch(file.path, position, header, following)
                walk.batch(position, header)
            self._batches += 1
            end = position + header.size
            if len(self._findings) - before >= FINDINGS_MAX:
                self._notes.append(f"{file.path}: what is damaged behind byte {position} is not listed")
                break
        else:
            self._tail(file, end, size, excused)
        self._size += size
        file.close()
        for path, what in walk.problems():
            self._found(path, what, REBUILT)

    def _batch(self, path: str, position: int, header: BatchHeader, following: int) -> None:
        if not self._next_offset <= header.base_offset <= header.last_offset < following:
            self._found(
                path,
                f"offsets {header.base_offset}..{header.last_offset} stand where {self._next_offset} or later was "
                f"expected",
                FROM_A_REPLICA,
                records=True,
                position=position,
                offset=header.base_offset,
            )
        elif header.leader_epoch < self._latest_epoch:
            self._found(
                path,
                f"leader epoch {header.leader_epoch} stands behind epoch {self._latest_epoch}",
                FROM_A_REPLICA,
                records=True,
                position=position,
                offset=header.base_offset,
            )
        else:
            self._epoch(header)
        self._next_offset = max(self._next_offset, header.next_offset)
        self._latest_epoch = max(self._latest_epoch, header.leader_epoch)

    def _epoch(self, header: BatchHeader) -> None:
        """What the checkpoint says of this batch; one contradiction is enough."""
        epochs = self._epochs
        if epochs is None or self._epoch_told or header.leader_epoch < 0:
            return
        if header.leader_epoch > epochs.latest and not self._finished:
            return  # it is written when the log is synced
        told = epochs.epoch_of(header.base_offset)
        if told != header.leader_epoch:
            self._epoch_told = True
            self._found(
                f"{self._path}/{EPOCHS_FILE}",
                f"it says epoch {told} of offset {header.base_offset}, the batch says {header.leader_epoch}",
                REBUILT,
                offset=header.base_offset,
            )

    def _tail(self, file: File, end: int, size: int, excused: bool) -> None:
        """What is behind the last batch that could be read."""
        if end == size:
            return
        what = f"{size - end} bytes at its end are no whole batch"
        if excused:
            self._notes.append(f"{file.path}: {what}: {CUT_AT_START}, if it is not about to write the rest")
            return
        self._found(file.path, what, FROM_A_REPLICA, records=True, position=end, offset=self._next_offset)

    # What is derived.

    def _metadata(self) -> None:
        try:
            self._epochs = LeaderEpochs.read(self._disk, self._path)
        except Fault as fault:
            self._found(f"{self._path}/{EPOCHS_FILE}", str(fault), REBUILT)
        try:
            checkpoints.read_partition_metadata(self._disk, self._path)
        except Fault as fault:
            self._found(f"{self._path}/{checkpoints.PARTITION_METADATA}", str(fault), "as it says")

    def _snapshot(self, offset: int) -> None:
        path = f"{file_stem(self._path, offset)}.snapshot"
        try:
            Producers(_OFFSET_MAX).load(self._disk.read(path), now_ms=0)
        except FileNotFoundError:
            pass  # its broker has no more use for it
        except SnapshotDamaged as damaged:
            self._found(path, f"{damaged}", "delete the file: the broker takes an older one and reads the log")

    def _transactions(self, base: int) -> None:
        path = f"{file_stem(self._path, base)}.txnindex"
        try:
            decode(self._disk.read(path))
        except FileNotFoundError:
            pass
        except TransactionIndexDamaged as damaged:
            self._found(path, f"{damaged}", REBUILT)


class _Walk:
    """One walk over a segment, and what its indexes say of the batches that are met."""

    def __init__(self, disk: Disk, stem: str, size: int, *, excused: bool) -> None:
        self._offsets = OffsetIndex(disk, f"{stem}.index")
        self._times = TimeIndex(disk, f"{stem}.timeindex")
        self._base = int(stem.rpartition("/")[2])
        self._problems: list[tuple[str, str]] = []
        self._entry = self._time = 0
        self._max_timestamp = NO_TIMESTAMP
        self._lost = False
        for index in (self._offsets, self._times):
            if not disk.exists(index.path):
                if size and not excused:
                    self._problems.append((index.path, "it is missing"))
                continue
            try:
                self._offsets.load(size) if index is self._offsets else self._times.load()
            except IndexDamaged as damaged:
                if not excused:
                    self._problems.append((index.path, str(damaged)))

    def lose_track(self) -> None:
        """A batch cannot be believed: from here on nobody knows what its entries should be."""
        self._lost = True

    def batch(self, position: int, header: BatchHeader) -> None:
        if self._lost:
            return
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        last = header.last_offset - self._base
        positions = self._offsets.positions
        while self._entry < len(positions) and positions[self._entry] <= position:
            if positions[self._entry] != position or self._offsets.offsets[self._entry] != last:
                self._contradiction(self._offsets, self._entry, header)
            self._entry += 1
        times = self._times.offsets
        while self._time < len(times) and times[self._time] <= last:
            if self._times.timestamps[self._time] != self._max_timestamp:
                self._contradiction(self._times, self._time, header)
            self._time += 1

    def _contradiction(self, index: OffsetIndex | TimeIndex, entry: int, header: BatchHeader) -> None:
        what = f"its entry {entry} does not fit the batch at offset {header.base_offset}"
        if all(path != index.path for path, _ in self._problems):
            self._problems.append((index.path, what))

    def problems(self) -> Sequence[tuple[str, str]]:
        return self._problems


def _batches(file: File, end: int) -> Iterator[tuple[int, BatchHeader, str]]:
    """Position and header of each batch that begins within the file, and what is wrong with it. Ends where no header
    stands, or one that points behind the end."""
    position = 0
    chunk = memoryview(b"")
    start = 0  # of the chunk in the file
    while end - position >= HEADER_BYTES:
        if position + HEADER_BYTES > start + len(chunk):
            start, chunk = position, memoryview(file.pread(min(CHUNK_BYTES, end - position), position))
        try:
            header = read_header(chunk, position - start)
        except Refused:
            return
        if header.size > end - position or header.last_offset_delta < 0:
            return
        inside = chunk[position - start :][: header.size]
        if len(inside) == header.size:
            crc = crc32c(inside[CRC_FROM:])
        else:
            crc = _crc(file, position + CRC_FROM, position + header.size)
        yield position, header, "" if crc == header.crc else "the checksum of a batch is wrong"
        position += header.size


def _crc(file: File, start: int, end: int) -> int:
    """Of a batch that may be larger than one wants to hold."""
    crc = 0
    while start < end:
        piece = file.pread(min(CHUNK_BYTES, end - start), start)
        if not piece:
            break
        crc = crc32c(piece, crc)
        start += len(piece)
    return crc
