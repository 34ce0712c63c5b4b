"""The manifest file of an open log, and its claims when the log is opened and when it is closed (`manifest` has the
rules)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ottla.errors import StorageFault, SyncFault
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.manifest import (
    FILE_NAME,
    NO_CRC,
    NO_CUT,
    NO_ENDS,
    NOT_PROVEN,
    LostEnds,
    Manifest,
    Range,
    SegmentClaim,
    claim_of,
    decode_claim,
    file_crc,
    give_up,
    merged,
    without,
)
from ottla.log.segment import Segment, file_stem
from ottla.log.transaction_index import SUFFIX as TXNINDEX_SUFFIX
from ottla.runtime import Disk

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class ManifestFile:
    """The manifest of an open log, kept as its bytes: it is read rarely, and a broker has many. Only while the log
    is opened it is kept decoded (`opened` ends that).

    Written by threads (a sync, a compaction) and on the loop (a truncation): under a lock, each on top of what the last
    one wrote."""

    __slots__ = (
        "_data", "_decoded", "_directory", "_disk", "_lock", "_on_disk", "_replaced", "closed_cleanly", "cuts",
        "proven_start",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._data = b""
        self._decoded: Manifest | None = None
        self._on_disk: bytes | None = None  # None: there is no manifest, or its content is unknown
        self._lock = disk.mutex()
        self._replaced: Collection[int] = ()  # segments that are about to give way to a compacted one
        self.closed_cleanly = False
        """The log was closed cleanly after the manifest was written, and not written since."""
        self.cuts = 0
        """How often the log was truncated below what checkpoints may say, if they may still say it; else 0."""
        self.proven_start = NOT_PROVEN
        """The log start that the manifest on the device proves."""

    @property
    def latest(self) -> Manifest | None:
        if self._decoded is not None:
            return self._decoded
        return Manifest.decode(self._data) if self._data else None

    def _latest_of(self, log: PartitionLog) -> Manifest:
        return self.latest or Manifest(log.log_start, topic_id=log.topic_id, given_up=log.given_up)

    def claim(self, base_offset: int) -> SegmentClaim | None:
        """Of a closed segment: the one line is decoded, not the manifest."""
        return self._claim(b"segment", base_offset)

    def _claim(self, kind: bytes, base_offset: int) -> SegmentClaim | None:
        at = self._data.find(b"\n%s %d " % (kind, base_offset))
        if at < 0:
            return None
        return decode_claim(self._data[at + 1 : self._data.index(b"\n", at + 1)].decode().split(" ")[1:])

    def index_crcs(self, base_offset: int, size: int) -> tuple[int | None, int | None]:
        """The claims of a segment's index files, for `Segment`. Those of the last segment change while it is written:
        claims of a clean stop count as long as the segment has not grown."""
        claim = self.claim(base_offset)
        if claim is None and self.closed_cleanly:
            claim = self._claim(b"active", base_offset)
        if claim is None or claim.size != size:
            return None, None
        index, timeindex = (None if crc == NO_CRC else crc for crc in claim[3:5])
        return index, timeindex

    def found(self, manifest: Manifest | None, data: bytes = b"") -> None:
        """The manifest when the log was opened; `data` are its bytes, if they are at hand."""
        self._decoded = manifest
        self._data = b"" if manifest is None else data or manifest.encode()
        self._on_disk = self._data or None
        self.proven_start = NOT_PROVEN if manifest is None else manifest.proven_start
        self.cuts = int(manifest is not None and manifest.cut != NO_CUT)

    def opened(self) -> None:
        """The log is open: drop the decoded manifest."""
        self._decoded = None

    def rebuilt(self, manifest: Manifest) -> None:
        """The state of the log as it was found. Written now if the old manifest claims missing files; otherwise with
        the next change, because until then the old one, or none, is also true."""
        old = self.latest
        if old == manifest:
            return
        if old is not None and _claims_more(old, manifest):
            self.save(manifest)
        else:
            self._decoded, self._data = None, manifest.encode()

    def save(self, manifest: Manifest) -> None:
        """Blocks. Durable on return: the new claims, or none."""
        with self._lock:
            self._write(manifest)

    def _write(self, manifest: Manifest, *, takes_back: bool = True) -> None:
        """Write it. `takes_back`: the old manifest must not stay, even if the write fails."""
        self._decoded = None
        data = manifest.encode()
        if data == self._on_disk:
            self._data = data
            return
        try:
            self._disk.write_atomic(f"{self._directory}/{FILE_NAME}", data)
        except SyncFault:
            raise
        except StorageFault:
            if takes_back:
                self._disk.remove(f"{self._directory}/{FILE_NAME}")
                self._disk.sync_dir(self._directory)
                self._data, self._on_disk = data, None
                self.proven_start = NOT_PROVEN
            return
        self._data = self._on_disk = data
        self.proven_start = manifest.proven_start

    def add(self, log: PartitionLog, claims: Sequence[SegmentClaim], still: Callable[[], bool]) -> None:
        """Claim these flushed files, if the log has not changed since the claims were made. Blocks; for a thread."""
        with self._lock:
            manifest = self._latest_of(log)
            wanted = [
                claim
                for claim in claims
                if claim.end_offset > manifest.log_start and claim.base_offset not in self._replaced
            ]
            if wanted and still():
                self._write(manifest.with_segments(wanted), takes_back=False)

    def start_at(self, log_start: int, topic_id: bytes | None) -> None:
        """Write the log start: segments before it may be renamed. Blocks."""
        with self._lock:
            manifest = self.latest or Manifest(topic_id=topic_id)
            self._write(manifest.started_at(max(manifest.log_start, log_start)))

    def start_before(self, start: int, end: int) -> None:
        """The log started at `start`, and everything before `end` is lost. Blocks."""
        with self._lock:
            manifest = self.latest or Manifest()
            lost, kept = [(start, end)], without(manifest.given_up, [(start, end)])
            missing = merged([*manifest.missing, *lost])
            self._write(manifest._replace(log_start=start, missing=missing, given_up=kept), takes_back=False)

    def cut_at(self, offset: int) -> None:
        """The log is about to be truncated to `offset`, and checkpoints may say more. Blocks."""
        with self._lock:
            self.cuts += 1
            self._write((self.latest or Manifest()).ended_at(offset))

    def prove_nothing(self) -> None:
        """All files are about to be removed. Blocks."""
        with self._lock:
            self.cuts += 1
            self._write(Manifest(cut=0, topic_id=None if (latest := self.latest) is None else latest.topic_id))

    def begin_at(self, offset: int, topic_id: bytes | None) -> None:
        """The log is empty and continues at `offset`. Blocks."""
        with self._lock:
            self._write(Manifest(offset, cut=offset, topic_id=topic_id))

    def lose(
        self, log: PartitionLog, ranges: Sequence[Range], ends: LostEnds = NO_ENDS, *, giving_up: bool = False
    ) -> None:
        """These offsets cannot be served any more, or were given up, so that no reader waits for them. With the results
        for transactions that ended there. Blocks; for a thread. Durable on return, or StorageFault."""
        with self._lock:
            manifest = self._latest_of(log)
            manifest = manifest._replace(
                missing=merged([*manifest.missing, *ranges]),
                decided=merged([*manifest.decided, *ends.decided]),
                aborted=tuple(dict.fromkeys([*manifest.aborted, *ends.aborted])),
                undecided=tuple(dict.fromkeys([*manifest.undecided, *ends.undecided])),
            )
            manifest = give_up(manifest, ranges) if giving_up else manifest
            self._write(manifest, takes_back=False)
            if self._on_disk != manifest.encode():
                raise StorageFault(f"cannot write {self._directory}/{FILE_NAME}")

    def checkpointed(self, cuts: int) -> None:
        """Checkpoints were written that know of so many truncations. Blocks; for a thread."""
        with self._lock:
            if cuts == self.cuts:
                self.cuts = 0
                if (latest := self.latest) is not None:
                    self._write(latest._replace(cut=NO_CUT), takes_back=False)

    def replacing(self, bases: Collection[int]) -> None:
        """These segments are about to be replaced by a compacted one. Blocks."""
        with self._lock:
            self._replaced = bases
            latest = self.latest
            if latest is not None and (kept := latest.without(bases)) is not latest:
                self._write(kept)

    def replaced(self) -> None:
        """The replacement is done, or was cancelled."""
        with self._lock:
            self._replaced = ()


def _claims_more(old: Manifest, new: Manifest) -> bool:
    """Whether the old manifest claims something that the new one does not."""
    if not set(old.segments) <= set(new.segments) or old.missing != new.missing:
        return True
    return old.active not in (None, new.active) or old.log_start > new.log_start


def rebuild(log: PartitionLog) -> None:
    """The log was opened: claim the files that are on the device, as far as they are known without reading them."""
    if not log.disk.exists(log.path):
        return
    old = log.manifest.latest
    manifest = old or Manifest(log.log_start, topic_id=log.topic_id, given_up=log.given_up)
    found = closed_segments(log.segments, log.recovery_point)
    recorded = {claim.base_offset: claim for claim in manifest.segments}
    claims = tuple(_known(recorded, segment, end) or _unread(log, segment, end) for segment, end in found)
    active = manifest.active
    if active is not None and not _holds(log, active, {claim.base_offset for claim in claims}):
        active = None
    manifest = manifest._replace(
        log_start=min(manifest.log_start, log.log_start),
        segments=claims,
        active=active,
        missing=() if log.damage is None else log.damage.missing,
        topic_id=log.topic_id,
    )
    if old is None and log.log_start:
        log.manifest.save(manifest)  # otherwise followers would not get the proven log start
    else:
        log.manifest.rebuilt(manifest)


def _known(recorded: Mapping[int, SegmentClaim], segment: Segment, end: int) -> SegmentClaim | None:
    """The claim of a closed segment, if its file matches it."""
    claim = recorded.get(segment.base_offset)
    return claim if claim is not None and (claim.end_offset, claim.size) == (end, segment.size) else None


def _unread(log: PartitionLog, segment: Segment, end: int) -> SegmentClaim:
    """The claim of a segment whose indexes are not known, which is harmless. The transaction index is read: there are
    few."""
    txnindex = file_stem(log.path, segment.base_offset) + TXNINDEX_SUFFIX
    crc = file_crc(log.disk, txnindex) if log.transactions.has_index(segment.base_offset) else NO_CRC
    return SegmentClaim(segment.base_offset, end, segment.size, txnindex_crc=crc)


def _holds(log: PartitionLog, active: SegmentClaim, claimed: Collection[int]) -> bool:
    if active.base_offset in claimed:
        return False
    if not active.size:
        return active.end_offset <= log.log_end
    segments = [segment for segment in log.segments if segment.base_offset == active.base_offset]
    return bool(segments) and segments[0].size >= active.size and active.end_offset <= log.log_end


def holds_aborted(log: PartitionLog, base_offset: int) -> bool:
    """Whether the transaction index of a closed segment is the claimed one: it may have changed while the broker runs,
    and its content alone does not show that."""
    manifest = log.manifest.latest
    claim = None if manifest is None else manifest.claim(base_offset)
    if manifest is None or claim is None or claim is manifest.active:
        return True
    return file_crc(log.disk, file_stem(log.path, base_offset) + TXNINDEX_SUFFIX) == claim.txnindex_crc


def close(log: PartitionLog, written: Collection[str]) -> None:
    """The log is closed, and all of it is on the device: claim all of it. `written`: derived files that were just
    written."""
    old = log.manifest.latest or Manifest(log.log_start, topic_id=log.topic_id)
    claims = []
    recorded = {claim.base_offset: claim for claim in old.segments}
    for segment, end in closed_segments(log.segments, log.log_end):
        claim = _known(recorded, segment, end)
        stem = file_stem(log.path, segment.base_offset)
        if claim is None or claim.index_crc == NO_CRC or any(path.startswith(stem) for path in written):
            _sync_indexes(log.disk, segment)
            txnindex_crc = log.transactions.index_crc(segment.base_offset)
            if txnindex_crc is None and claim is not None:
                txnindex_crc = claim.txnindex_crc
            claim = claim_of(log.disk, log.path, segment.base_offset, end, segment.size, txnindex_crc)
        claims.append(claim)
    _restore_epochs(log)
    last = log.active
    txnindex_crc = log.transactions.index_crc(last.base_offset)
    active = claim_of(log.disk, log.path, last.base_offset, log.log_end, last.size, txnindex_crc)
    if active != old.active:
        _sync_indexes(log.disk, log.active)
    manifest = old._replace(
        log_start=log.log_start,
        segments=tuple(claims),
        active=active,
        topic_id=log.topic_id,
        epochs_crc=file_crc(log.disk, f"{log.path}/{EPOCHS_FILE}"),
        snapshots=log.snapshots.claims(),
    )
    log.manifest.save(manifest)


def _restore_epochs(log: PartitionLog) -> None:
    """The checkpoint may have changed while the log was open: the log in memory is right, and the file is claimed."""
    path, known = f"{log.path}/{EPOCHS_FILE}", log.epochs.encode()
    there = log.disk.read(path) if log.disk.exists(path) else None
    if there != known and (there is not None or log.epochs.entries):
        log.disk.write_atomic(path, known)


def _sync_indexes(disk: Disk, segment: Segment) -> None:
    """Flush indexes that a killed process may have written, or emptied: a truncated file is not durable either."""
    for index in (segment.offsets, segment.times):
        if disk.exists(index.file.path):
            index.file.sync()


def closed_segments(segments: Sequence[Segment], offset_max: int) -> list[tuple[Segment, int]]:
    """The segments before the active one that end at or before an offset, each with its end."""
    return [
        (segment, following.base_offset)
        for segment, following in pairwise(segments)
        if following.base_offset <= offset_max
    ]
