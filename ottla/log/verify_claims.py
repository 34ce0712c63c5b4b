"""`ottla log verify`, the comparisons: files of a partition with the manifest, the checkpoints of the data directory,
and the indexes and transaction ends that follow from its batches.

A broker compares the same when it opens the log (`damage`), and the checksums of derived files when it loads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ottla.log import manifest as manifests
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.evidence import Evidence, closed_there, recorded_ends
from ottla.log.index import IndexDamaged, OffsetIndex, TimeIndex
from ottla.log.manifest import NO_CRC, Manifest, SegmentClaim
from ottla.log.segment import file_stem
from ottla.log.transaction_index import AbortedTransaction
from ottla.runtime import Disk
from ottla.wire.batch import NO_TIMESTAMP, BatchHeader
from ottla.wire.marker import Marker

AT_START: Final = (
    "leave everything as it is and start the broker: it quarantines what is wrong and copies the partition again from "
    "a replica that has it. Without another replica, restore the files from a backup first, or give the offsets up "
    "with `ottla log accept-loss`"
)
RESTORED: Final = "restore it from a backup: without it the broker does not know whose records these are"
REBUILT: Final = "nothing to do: the broker rebuilds it from the log"
QUARANTINED: Final = "nothing to do: the broker truncates it at its next start, and quarantines the rest"
KNOWN: Final = (
    "the broker knows. It copies them again if another replica has them; else restore the files from a backup, or stop "
    "it and give them up with `ottla log accept-loss`"
)


class Finding(NamedTuple):
    """`position` is a byte in the file, `offset` that of a record; -1 where there is none."""

    path: str
    what: str
    remedy: str
    records: bool = False
    """Damage to records, not only to derived files."""
    position: int = -1
    offset: int = -1


class Checkpointed(NamedTuple):
    """The offsets of a partition in the checkpoints of the data directory."""

    evidence: Evidence = Evidence()
    log_start: int = 0
    compacted: bool = False


NO_CHECKPOINTS: Final = Checkpointed()


def files_named_as_partitions(disk: Disk, directory: str) -> Iterator[Finding]:
    """Files where the directories of partitions should be."""
    for name in disk.listdir(directory):
        topic, _, index = name.rpartition("-")
        if topic and index.isdecimal() and not disk.is_directory(f"{directory}/{name}"):
            what = "it is a file, and has the name of a partition, which is a directory"
            yield Finding(f"{directory}/{name}", what, AT_START, records=True)


def against_manifest(
    disk: Disk, path: str, manifest: Manifest, sizes: Mapping[int, int], *, finished: bool
) -> Iterator[Finding]:
    """`sizes`: of the segments that are there, by base offset."""
    name = f"{path}/{manifests.FILE_NAME}"
    for start, end in manifest.missing:
        yield Finding(name, f"offsets {start}..{end - 1} are missing", KNOWN, records=True, offset=start)
    for claim in manifest.segments:
        yield from _segment(disk, path, claim, sizes.get(claim.base_offset), exact=True)
    if manifest.active is not None:
        yield from _segment(disk, path, manifest.active, sizes.get(manifest.active.base_offset), exact=finished)
    first = min((base for base, size in sizes.items() if size), default=None)
    known = any(start <= manifest.log_start < end for start, end in (*manifest.missing, *manifest.given_up))
    claimed = any(claim.base_offset <= manifest.log_start for claim in manifest.segments)
    if first is not None and 0 <= manifest.log_start < first and not known and not claimed:
        what = f"offsets {manifest.log_start}..{first - 1} are missing: the log starts at {manifest.log_start}"
        yield Finding(f"{file_stem(path, first)}.log", what, AT_START, records=True, offset=manifest.log_start)
    epochs = f"{path}/{EPOCHS_FILE}"
    if finished and manifest.epochs_crc not in (NO_CRC, manifests.file_crc(disk, epochs)):
        yield Finding(epochs, "it is not what the manifest says", REBUILT)


def _segment(disk: Disk, path: str, claim: SegmentClaim, size: int | None, *, exact: bool) -> Iterator[Finding]:
    stem = file_stem(path, claim.base_offset)
    if size is None and claim.size:
        what = f"it is missing: {claim.size} bytes, offsets {claim.base_offset}..{claim.end_offset - 1}"
        yield Finding(f"{stem}.log", what, AT_START, records=True, offset=claim.base_offset)
    elif size is not None and size < claim.size:
        what = f"it has {size} bytes instead of {claim.size}: offsets up to {claim.end_offset - 1} are missing"
        yield Finding(f"{stem}.log", what, AT_START, records=True, position=size)
    elif size is not None and exact and size > claim.size:
        what = f"it has {size} bytes instead of {claim.size}"
        yield Finding(f"{stem}.log", what, QUARANTINED, position=claim.size)
    if size is None or not exact:
        return
    crcs = (("index", claim.index_crc), ("timeindex", claim.timeindex_crc), ("txnindex", claim.txnindex_crc))
    for kind, crc in crcs:
        if crc == NO_CRC and kind != "txnindex":
            continue  # nothing is known of it
        found = manifests.file_crc(disk, f"{stem}.{kind}")
        if found != crc:
            gone = found == NO_CRC
            yield Finding(f"{stem}.{kind}", "it is missing" if gone else "it is not what the manifest says", REBUILT)


def against_checkpoints(
    path: str,
    manifest: Manifest | None,
    evidence: Evidence,
    derived: Mapping[str, int],
    log_end: int,
    *,
    finished: bool,
) -> Iterator[Finding]:
    """The end of the log against everything that proves one. `derived`: what files of the partition say of it."""
    manifest = manifest or Manifest()
    said = recorded_ends(manifest, evidence, derived, clean=finished)
    more = {what: offset for what, offset in said.items() if offset > log_end}
    if closed_there(manifest, evidence, log_end, clean=finished):
        for what, offset in more.items():
            yield Finding(path, f"{what} says {offset}, the log ends at {log_end} as its manifest proves", REBUILT)
        return
    end = max([manifest.end_offset, *more.values()])
    if end <= log_end or any(stop >= end for _, stop in manifest.missing):
        return
    sources = ", ".join(what for what, offset in more.items() if offset == end) or "the manifest"
    what = f"offsets {log_end}..{end - 1} are missing at the end of the log: {sources} proves them"
    yield Finding(path, what, AT_START, records=True, offset=log_end)


class AbortedInLog:
    """The transactions that a walk over a log sees aborted, to be held against the indexes of its segments."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # the first offset of each producer's transaction
        self._ended: dict[int, tuple[int, int | None]] = {}  # by the marker's offset: producer, first offset if known
        self._lost = False

    def batch(self, header: BatchHeader, marker: Marker | None) -> None:
        if header.is_control:
            first = self._open.pop(header.producer_id, None)
            if marker is not None and not marker.committed:
                self._ended[header.base_offset] = header.producer_id, first
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)

    def lose_track(self) -> None:
        """A batch is damaged: it is unknown which transaction it ended."""
        self._lost = True
        self._open.clear()

    def segment(self, entries: list[AbortedTransaction], end: int) -> str:
        """A segment is through, up to an offset; what its index says that the log does not, or the other way round."""
        ended, self._ended = self._ended, {}
        lost, self._lost = self._lost, False
        if lost:
            return ""
        for entry in entries:
            if entry.last_offset >= end:
                continue  # written since
            producer, first = ended.pop(entry.last_offset, (None, None))
            if producer != entry.producer_id or (first is not None and entry.first_offset > first):
                return f"its entry {entry} is not what the log says"
        missing = sorted(offset for offset, (_, first) in ended.items() if first is not None)
        if missing:
            return f"the transaction that was aborted at offset {missing[0]} is not in it"
        return ""


class IndexesInLog:
    """One walk over a segment, and what its indexes say of the batches that are met. `problems`: paths, and why."""

    def __init__(self, disk: Disk, stem: str, size: int, *, excused: bool) -> None:
        self._offsets = OffsetIndex(disk, f"{stem}.index")
        self._times = TimeIndex(disk, f"{stem}.timeindex")
        self._base = int(stem.rpartition("/")[2])
        self.problems: list[tuple[str, str]] = []
        self._entry = self._time = 0
        self._max_timestamp = NO_TIMESTAMP
        self._lost = False
        for index in (self._offsets, self._times):
            if not disk.exists(index.path):
                continue  # rebuilt when it is needed; the manifest knows whether there was one
            try:
                self._offsets.load(size) if index is self._offsets else self._times.load()
            except IndexDamaged as damaged:
                if not excused:
                    self.problems.append((index.path, str(damaged)))

    def lose_track(self) -> None:
        """A batch is damaged: the entries from here on are unknown."""
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
        if all(path != index.path for path, _ in self.problems):
            self.problems.append((index.path, what))
