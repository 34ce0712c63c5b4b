"""`ottla log verify`: reads all files of a data directory, and changes nothing.

Every batch is read: its header and checksum; offsets ascend without overlap, and leader epochs do not decrease. Derived
files (offset index, time index, leader epochs, producer snapshots, transaction indexes) are compared with the batches,
and so are manifest and checkpoints (`verify_claims`). A damaged or missing batch is damage to records. A damaged
derived file costs only time, because a broker rebuilds it.

After a damaged batch the scan continues, as long as its header says where the next one begins. A running broker writes
meanwhile: what may be unfinished (the end of the last segment, and what is derived from it) is not reported, and
neither is the end of a log that was not closed cleanly. Other damage beside a running broker is reported only if it is
found twice (`confirmed`): files are deleted, compacted and truncated while they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.errors import Fault
from ottla.log import checkpoints, manifest
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.epochs import NO_EPOCH, LeaderEpochs
from ottla.log.evidence import NOT_KNOWN, Evidence, StartEvidence, lost_before
from ottla.log.producers import Producers, SnapshotDamaged
from ottla.log.recovery import DELETED, orphaned
from ottla.log.scan import batches
from ottla.log.segment import file_stem
from ottla.log.transaction_index import SUFFIX as INDEX_SUFFIX
from ottla.log.transaction_index import TransactionIndexDamaged, decode
from ottla.log.verify_claims import (
    AT_START,
    NO_CHECKPOINTS,
    REBUILT,
    RESTORED,
    AbortedInLog,
    Checkpointed,
    Finding,
    IndexesInLog,
    against_checkpoints,
    against_manifest,
    files_named_as_partitions,
)
from ottla.runtime import Disk, File
from ottla.wire import marker
from ottla.wire.batch import BatchHeader

FINDINGS_MAX: Final = 20
"""Of one segment: a file full of noise is damaged once."""
_OFFSET_MAX: Final = 2**63 - 1
_NUMBERED: Final = re.compile(r"(\d{20})\.(log|snapshot|txnindex|index|timeindex)")
_UNFINISHED: Final = re.compile(r".*\.(swap|cleaned|deleted|damaged|tmp)")

_DELETED_DIRECTORY: Final = "-delete"
STRAY_DIRECTORY: Final = "-stray"

FROM_A_REPLICA: Final = (
    "leave the files as they are. The broker quarantines damaged batches and copies them again from a replica when its "
    "scrub reads them: sooner with a lower ottla.scrub.interval.ms. Without another replica, restore the file from a "
    "backup while the broker is stopped"
)
OWNER: Final = (
    "start the broker: it rebuilds the file if the partitions beside it prove whose they are; if not, it says what to "
    "write into the file"
)
FROM_AN_OLDER_ONE: Final = "nothing to do: the broker rebuilds it from an older one and the log"
CUT_AT_START: Final = "the broker cuts it off at its next start"


class Checked(NamedTuple):
    """One partition that was read through."""

    path: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    segments: int
    batches: int
    size_bytes: int


def partition_directories(disk: Disk, directory: str) -> list[str]:
    """The partitions in a data directory, or the directory itself if it is one. Those that are being deleted are none
    any more."""
    if _is_partition(disk, directory):
        return [directory]
    names = [name for name in disk.listdir(directory) if not name.endswith((_DELETED_DIRECTORY, STRAY_DIRECTORY))]
    return [path for name in names if _is_partition(disk, path := f"{directory}/{name}")]


def stray_directories(disk: Disk, directory: str) -> list[str]:
    """A directory that a broker has renamed because it is no partition of this broker."""
    paths = [f"{directory}/{name}" for name in disk.listdir(directory) if name.endswith(STRAY_DIRECTORY)]
    return [path for path in paths if disk.listdir(path)]


def log_bytes(disk: Disk, path: str) -> int:
    return sum(disk.open(f"{path}/{name}").size() for name in disk.listdir(path) if name.endswith(".log"))


def _is_partition(disk: Disk, path: str) -> bool:
    names = disk.listdir(path)
    recorded = checkpoints.PARTITION_METADATA in names or manifest.FILE_NAME in names
    return recorded or any((found := _NUMBERED.fullmatch(name)) and found[2] == "log" for name in names)


def verify_checkpoints(
    disk: Disk, directory: str, *, finished: bool, running: bool = False
) -> tuple[dict[tuple[str, int], Checkpointed], list[Finding], list[str]]:
    """The files of a data directory that belong to no partition: their entries for each partition, errors, and remarks.
    `running`: a broker writes there."""
    findings, notes = [], []
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANED):
        try:
            offsets[name] = checkpoints.read_offsets(disk, directory, name)
        except Fault as fault:
            findings.append(Finding(f"{directory}/{name}", str(fault), REBUILT))
    findings += files_named_as_partitions(disk, directory)
    try:
        checkpoints.read_meta_properties(disk, directory)
    except Fault as fault:
        findings.append(Finding(f"{directory}/{checkpoints.META_PROPERTIES}", str(fault), OWNER))
    points, high = offsets.get(checkpoints.RECOVERY_POINTS, {}), offsets.get(checkpoints.HIGH_WATERMARKS, {})
    mark = checkpoints.read_clean_shutdown(disk, directory)
    closed = {(each.topic, each.partition): (each.start, each.end) for each in (mark and mark.logs) or ()}
    for key, (_, end) in closed.items():
        points[key] = max(points.get(key, 0), end)
    starts, cleaned = offsets.get(checkpoints.LOG_STARTS, {}), offsets.get(checkpoints.CLEANED, {})
    unclosed = NOT_KNOWN, NOT_KNOWN
    by_partition = {
        key: Checkpointed(
            Evidence(points.get(key, 0), high.get(key, 0), *closed.get(key, unclosed), starts.get(key, NOT_KNOWN)),
            starts.get(key, 0),
            cleaned.get(key, 0) > 0,
        )
        for key in {*points, *high, *starts, *cleaned}
    }
    for (topic, index), said in sorted(by_partition.items()):
        end, path = max(said.evidence[:2]), f"{directory}/{topic}-{index}"
        if end <= said.log_start or _is_partition(disk, path):
            continue
        what = f"it is missing or empty, and checkpoints say that it holds offsets up to {end - 1}"
        renamed = any(name.startswith(f"{topic}-{index}.") for name in disk.listdir(directory))
        if finished or not (running or renamed):
            findings.append(Finding(path, what, AT_START, records=True))
        elif not renamed:
            notes.append(f"{path}: {what}; the topic may have been deleted since")
    return by_partition, findings, notes


def checkpointed(recorded: dict[tuple[str, int], Checkpointed], path: str) -> Checkpointed:
    topic, _, index = path.rpartition("/")[2].rpartition("-")
    return recorded.get((topic, int(index)), NO_CHECKPOINTS) if index.isdecimal() else NO_CHECKPOINTS


def verify_partition(
    disk: Disk,
    path: str,
    recorded: Checkpointed = NO_CHECKPOINTS,
    *,
    finished: bool,
    running: bool = False,
    read: Callable[[int], object] | None = None,
) -> Checked:
    """`finished`: the log was closed cleanly and no process writes to it, so that nothing may be missing at its end.
    `running`: its broker may be writing to it. `read` gets the number of bytes read."""
    return _Verification(disk, path, recorded, finished, running, read or (lambda size: None)).run()


def confirmed(found: Checked, again: Checked) -> Checked:
    """Findings that were made twice: the same error at the same position."""
    seen = {_location(finding) for finding in again.findings}
    return again._replace(findings=tuple(finding for finding in found.findings if _location(finding) in seen))


def _location(finding: Finding) -> tuple[str, int, str]:
    return finding.path, finding.position, re.sub(r"\d+", "", finding.what)


class _Verification:
    def __init__(
        self,
        disk: Disk,
        path: str,
        recorded: Checkpointed,
        finished: bool,
        running: bool,
        read: Callable[[int], object],
    ) -> None:
        self._disk = disk
        self._path = path
        self._recorded = recorded
        self._finished = finished
        self._running = running
        self._read = read
        self._manifest: manifest.Manifest | None = None
        self._aborted = AbortedInLog()
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._epochs: LeaderEpochs | None = None
        self._batches = 0
        self._size = 0
        self._next_offset = 0
        self._latest_epoch = NO_EPOCH
        self._epoch_reported = False

    def run(self) -> Checked:
        names = [name for name in self._disk.listdir(self._path) if name != manifest.FILE_NAME]
        numbered = [(int(found[1]), found[2]) for found in map(_NUMBERED.fullmatch, names) if found]
        bases = sorted(base for base, kind in numbered if kind == "log")
        self._notes += self._left_over(names)
        self._metadata()
        sizes = {base: self._disk.open(f"{file_stem(self._path, base)}.log").size() for base in bases}
        if self._manifest is not None:
            claims = against_manifest(self._disk, self._path, self._manifest, sizes, finished=self._finished)
            self._findings += claims
        elif bases and (lost := lost_before(bases[0], self._started, self._beginning(names))) is not None:
            start, path = lost[0], f"{file_stem(self._path, bases[0])}.log"
            what = f"offsets {start}..{bases[0] - 1} before it are missing: the log started at {start}"
            self._missing(path, what, start)
        for at, base in enumerate(bases):
            following = bases[at + 1] if at + 1 < len(bases) else _OFFSET_MAX
            self._segment(base, following)
            self._gap(base, following, sizes[base])
        snapshots = sorted(base for base, kind in numbered if kind == "snapshot")
        for base in snapshots:
            self._snapshot(base)
        self._removed(snapshots)
        self._end(snapshots)
        return Checked(self._path, tuple(self._findings), tuple(self._notes), len(bases), self._batches, self._size)

    def _beginning(self, names: Sequence[str]) -> StartEvidence:
        epochs = [] if self._epochs is None else self._epochs.entries
        orphans = [] if self._running else orphaned(names)
        return StartEvidence(
            self._recorded.log_start, epochs, orphans, self._running or any(map(DELETED.fullmatch, names))
        )

    def _left_over(self, names: Sequence[str]) -> list[str]:
        """One note per kind of file that is not part of the log, also if there are many of them."""
        kinds: dict[str, list[str]] = {}
        for name in sorted(names):
            if found := _UNFINISHED.fullmatch(name):
                kinds.setdefault(found[1], []).append(name)
        notes = []
        for kind, files in kinds.items():
            more = f" and {len(files) - 1} more .{kind} files" if len(files) > 1 else ""
            if kind == "damaged":
                text = "quarantined by the broker: evidence, delete it when you need it no more"
            elif self._running:
                continue
            else:
                text = "left over: the broker removes it, or finishes what it was for"
            notes.append(f"{self._path}/{files[0]}{more}: {text}")
        return notes

    def _gap(self, base: int, following: int, size: int) -> None:
        """Nothing lies between the end of a segment and the next, where nothing was compacted and no loss accepted."""
        if following == _OFFSET_MAX or self._next_offset >= following or following <= self._log_start:
            return
        claim = None if self._manifest is None else self._manifest.claim(base)
        ranges = () if self._manifest is None else (*self._manifest.missing, *self._manifest.given_up)
        known = any(start <= self._next_offset and following <= end for start, end in ranges)
        reported = any(finding.records for finding in self._findings)
        if known or reported or self._recorded.compacted or (claim is not None and claim.size == size):
            return
        what = f"offsets {self._next_offset}..{following - 1} are missing behind it"
        path = f"{file_stem(self._path, base)}.log"
        if self._running:
            self._notes.append(f"{path}: {what}, if it has not just been compacted")
        else:
            self._missing(path, what, self._next_offset)

    def _end(self, snapshots: list[int]) -> None:
        if any(finding.records for finding in self._findings):
            return  # it is already reported that the log is incomplete
        starts = [] if self._epochs is None else [start for _, start in self._epochs.entries]
        derived = {"a producer snapshot": max(snapshots, default=0), "a leader epoch": max(starts, default=0)}
        end = max(self._next_offset, self._log_start)
        self._findings += against_checkpoints(
            self._path, self._manifest, self._recorded.evidence, derived, end, finished=self._finished
        )

    @property
    def _started(self) -> int:
        """Where the log started, if that is known without its manifest."""
        recorded = self._recorded.evidence
        return recorded.started if recorded.closed_start == NOT_KNOWN else recorded.closed_start

    @property
    def _log_start(self) -> int:
        return max(self._recorded.log_start, 0 if self._manifest is None else self._manifest.log_start)

    def _found(self, path: str, what: str, remedy: str, offset: int = -1) -> None:
        self._findings.append(Finding(path, what, remedy, offset=offset))

    def _damaged(self, path: str, what: str, position: int, offset: int) -> None:
        self._findings.append(Finding(path, what, FROM_A_REPLICA, records=True, position=position, offset=offset))

    def _missing(self, path: str, what: str, offset: int) -> None:
        self._findings.append(Finding(path, what, AT_START, records=True, offset=offset))

    # Segments.

    def _segment(self, base: int, following: int) -> None:
        stem = file_stem(self._path, base)
        file = self._disk.open(f"{stem}.log")
        size = file.size()
        last = following == _OFFSET_MAX
        excused = last and not self._finished
        walk = IndexesInLog(self._disk, stem, size, excused=excused)
        self._next_offset = max(self._next_offset, base)
        before = len(self._findings)
        end = 0
        for position, header, problem in batches(file, size, self._read):
            if problem:
                self._damaged(file.path, problem, position, self._next_offset)
                walk.lose_track()
                self._aborted.lose_track()
            else:
                self._batch(file.path, position, header, following)
                walk.batch(position, header)
                if header.producer_id >= 0:
                    control = header.is_control and header.record_count
                    self._aborted.batch(header, marker.read(file.pread(header.size, position)) if control else None)
            self._batches += 1
            end = position + header.size
            if len(self._findings) - before >= FINDINGS_MAX:
                self._notes.append(f"{file.path}: what is damaged behind byte {position} is not listed")
                self._aborted.lose_track()
                break
        else:
            self._tail(file, end, size, excused)
        self._size += size
        file.close()
        reported = {finding.path for finding in self._findings}
        for path, what in walk.problems:
            if path not in reported:
                self._found(path, what, REBUILT)
        self._transactions(base, excused=excused and not self._running)

    def _batch(self, path: str, position: int, header: BatchHeader, following: int) -> None:
        if not self._next_offset <= header.base_offset <= header.last_offset < following:
            offsets = f"{header.base_offset}..{header.last_offset}"
            what = f"offsets {offsets} stand where {self._next_offset} or later was expected"
            self._damaged(path, what, position, header.base_offset)
        elif header.leader_epoch < self._latest_epoch:
            what = f"leader epoch {header.leader_epoch} stands behind epoch {self._latest_epoch}"
            self._damaged(path, what, position, header.base_offset)
        else:
            self._epoch(header)
        self._next_offset = max(self._next_offset, header.next_offset)
        self._latest_epoch = max(self._latest_epoch, header.leader_epoch)

    def _epoch(self, header: BatchHeader) -> None:
        """Compare the leader epoch of this batch with the checkpoint; one contradiction is reported."""
        epochs = self._epochs
        if epochs is None or self._epoch_reported or header.leader_epoch < 0:
            return
        if header.leader_epoch > epochs.latest and not self._finished:
            return  # it is written when the log is synced
        recorded = epochs.epoch_of(header.base_offset)
        if recorded == NO_EPOCH and (header.base_offset < self._log_start or not self._finished):
            return  # nothing is known of records that were deleted within a segment
        if recorded != header.leader_epoch:
            self._epoch_reported = True
            what = f"it says epoch {recorded} of offset {header.base_offset}, the batch says {header.leader_epoch}"
            self._found(f"{self._path}/{EPOCHS_FILE}", what, REBUILT, header.base_offset)

    def _tail(self, file: File, end: int, size: int, excused: bool) -> None:
        """The bytes after the last readable batch."""
        if end == size:
            return
        what = f"{size - end} bytes at its end are no whole batch"
        if excused:
            self._notes.append(f"{file.path}: {what}: {CUT_AT_START}, if it is not about to write the rest")
            return
        self._damaged(file.path, what, end, self._next_offset)

    # Derived files.

    def _metadata(self) -> None:
        try:
            self._epochs = LeaderEpochs.read(self._disk, self._path)
        except Fault as fault:
            self._found(f"{self._path}/{EPOCHS_FILE}", str(fault), REBUILT)
        try:
            self._manifest = manifest.read(self._disk, self._path)
        except manifest.ManifestDamaged as damaged:
            self._found(f"{self._path}/{manifest.FILE_NAME}", f"{damaged}", REBUILT)
        try:
            checkpoints.read_partition_metadata(self._disk, self._path)
        except Fault as fault:
            path = f"{self._path}/{checkpoints.PARTITION_METADATA}"
            known = self._manifest is not None and self._manifest.topic_id is not None
            self._found(path, str(fault).removeprefix(f"{path} is "), REBUILT if known else RESTORED)

    def _snapshot(self, offset: int) -> None:
        path = f"{file_stem(self._path, offset)}.snapshot"
        try:
            data = self._disk.read(path)
            Producers(_OFFSET_MAX).load(data, now_ms=0)
            claims = dict(self._manifest.snapshots) if self._finished and self._manifest is not None else {}
            if claims.get(offset, manifest.NO_CRC) not in (manifest.NO_CRC, crc32c(data)):
                raise SnapshotDamaged("it is not what the manifest says")
        except FileNotFoundError:
            pass  # its broker has no more use for it
        except SnapshotDamaged as damaged:
            self._found(path, f"{damaged}", FROM_AN_OLDER_ONE)

    def _removed(self, snapshots: Sequence[int]) -> None:
        """Derived files that a clean stop of this release leaves in every log: it names the log in its mark."""
        began, ended = self._recorded.evidence.closed_start, self._recorded.evidence.closed_end
        if not self._finished or began == NOT_KNOWN:
            return
        path = f"{self._path}/{manifest.FILE_NAME}"
        if not self._disk.exists(path):
            what = "it is missing: until it is rebuilt, only checkpoints prove which files the log must have"
            self._found(path, what, REBUILT)
        left = {*dict(() if self._manifest is None else self._manifest.snapshots), *([ended] if ended > began else [])}
        for offset in sorted(left.difference(snapshots)):
            what = "it is missing: the state of idempotent producers and open transactions at its offset"
            self._found(f"{file_stem(self._path, offset)}.snapshot", what, FROM_AN_OLDER_ONE)

    def _transactions(self, base: int, *, excused: bool) -> None:
        """The index of a segment that was just scanned. Read after it: a missing entry is really missing."""
        path = f"{file_stem(self._path, base)}{INDEX_SUFFIX}"
        try:
            problem = self._aborted.segment(decode(self._disk.read(path)), self._next_offset)
        except FileNotFoundError:
            problem = self._aborted.segment([], self._next_offset)
        except TransactionIndexDamaged as damaged:
            self._aborted.segment([], self._next_offset)
            problem = f"{damaged}"
        if problem and not excused and all(finding.path != path for finding in self._findings):
            self._found(path, problem, REBUILT)
