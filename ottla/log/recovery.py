"""Opening a log: take a clean one on trust, check and repair any other.

After a clean close everything is where it belongs: the end of the last segment is looked at, nothing else.
After anything else the segment that holds the recovery point and all later ones are read batch by batch,
checksums and all; what lies before was on the device already. So the cost is bounded by what was not yet
synced plus one segment, not by the size of the log. The first batch that is torn, damaged or out of order
ends the log: what is behind it in that file is cut off, and whole segments behind it are set aside as
`.damaged`, for a log without a middle is no log. No checksum covers the offset of a batch: it is compared with the
batches before and behind it, the next segment, and the end that the manifest claims. Indexes, leader epochs and
producer state of what was read are rebuilt from the headers on the way.

Files that an interrupted change left behind are finished or removed:
    .deleted .cleaned .tmp      removed
    .swap                       a compacted segment about to replace others: it does so now (see `swap`)
    indexes without a log       removed: they index nothing
Missing or damaged metadata (index, epochs, snapshot, recovery point) only ever costs time: records are not
touched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from ottla.errors import ErrorCode, Fault, Refused
from ottla.log import claims, damage, manifest, scrub_repair, traces, undecided
from ottla.log.cleaned_transactions import AbortedTransaction
from ottla.log.damage import DAMAGED_SUFFIX, NOT_KNOWN, Evidence
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.epochs import LeaderEpochs
from ottla.log.rebuilding import check_transaction_indexes, load_producers, rebuild_transactions, reload_producers
from ottla.log.scan import headers, whole
from ottla.log.scrub import SegmentScrub
from ottla.log.segment import RELATIVE_OFFSET_MAX, IndexBuilder, Segment, file_stem
from ottla.log.transaction_index import SUFFIX as INDEX_SUFFIX
from ottla.log.transaction_index import TransactionIndexDamaged, decode, write
from ottla.runtime import Disk
from ottla.wire.batch import BatchHeader

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

_NUMBERED = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)((?:\.swap)?)")
_OFFSET_MAX = 2**63 - 1
_OFFSET_BYTES = 8  # a batch begins with its base offset


class Recovery(NamedTuple):
    """What opening a log took, for whoever writes it into the broker's log."""

    clean: bool
    """Nothing had to be checked."""
    checked_bytes: int = 0
    cut_bytes: int = 0
    notes: tuple[str, ...] = ()
    """What was found wrong, and what was done about it."""


def load(log: PartitionLog, evidence: Evidence, *, log_start: int, clean: bool, now_ms: int) -> None:
    """Fill a log that knows nothing yet from its directory. Leaves no descriptor open: many logs are opened before
    anybody uses one, and in a thread, where the disk takes none away."""
    _load(log, evidence, log_start, clean, now_ms)
    log.manifest.opened()
    for segment in log.segments:
        segment.close()


def _load(log: PartitionLog, evidence: Evidence, log_start: int, clean: bool, now_ms: int) -> None:
    recovery_point = evidence.recovery_point
    notes: list[str] = []
    log_start = _read_manifest(log, log_start, evidence.closed_end if clean else NOT_KNOWN, notes)
    claimed, indexes = log.manifest.latest, dict[int, bytes]()
    bases, snapshot_offsets = _tidy(log, indexes)
    segments = [Segment(log.disk, log.path, base, created_ms=now_ms) for base in bases]
    for offset in snapshot_offsets:
        log.snapshots.found(offset)
    for base in bases:
        log.transactions.look_for(base)
    restored = _take_back(log, segments, notes)
    found = damage.missing_segments(log, segments, evidence, clean=clean, notes=notes)
    missing = manifest.without(((max(start, log_start), end) for start, end in found), log.given_up)
    if missing:
        log.damage = damage.Damage(log.path, missing, -1, missing[-1][1])
    log.adopt(segments or [Segment(log.disk, log.path, log_start, created_ms=now_ms)])
    log.epochs = _read_epochs(log, clean, notes)
    derived = damage.derived_ends(log)
    log_end = _trusted_end(log) if clean else None
    if log_end is not None:
        log.manifest.closed_cleanly = True
        log.log_end = log_end
        log.recovery_point = log_end
        log.recovery = Recovery(clean=True, notes=tuple(notes))
    else:
        if clean:
            notes.append("it was closed cleanly, yet its last segment does not end as it did")
            recovery_point = log.active.base_offset
        log.recovery = _Repair(log, recovery_point, now_ms, notes, indexes).run()
        log.made_files = True  # perhaps: whoever made them may not have lived to sync the directory
        log.recovery_point = min(recovery_point, log.log_end)
    first = log.segments[0].base_offset
    log.log_start = log_start if missing and log_start < first else max(log_start, first)
    end = damage.proven_end(log, evidence, derived, clean=clean, notes=notes)
    log.recovery = log.recovery._replace(notes=tuple(notes))
    ranges = manifest.merged([*missing, (max(log.log_end, log.log_start), end)])
    if ranges:
        ends = undecided.lost_ends(log, ranges, claimed, indexes, load_producers)
        damage.go_on_behind(log, ranges, max(end, log.log_end), ends, now_ms)
        if log_end is None:
            reload_producers(log, now_ms)
    undecided.take_up(log)
    if log.log_start > log.log_end:
        _start_over(log, now_ms)
        return
    log.epochs.truncate_from_end(log.log_end)
    log.epochs.truncate_from_start(log.log_start)
    log.latest_epoch = log.epochs.latest
    log.snapshots.truncate(log.log_end)
    if log_end is not None:
        reload_producers(log, now_ms)
    newest = log.snapshots.offsets[-1:]
    log.snapshots.prune([*(segment.base_offset for segment in log.segments), *newest])
    check_transaction_indexes(log, evidence, clean=clean, check=lambda segment: _check_batches(log, segment))
    for base in restored:
        rebuild_transactions(log, base)
    claims.rebuild(log)


def _take_back(log: PartitionLog, segments: list[Segment], notes: list[str]) -> list[int]:
    """Files that were missing may have been put back. Returns which."""
    claimed = log.manifest.latest
    if claimed is None or not claimed.missing:
        return []
    left, bases = traces.put_back(log, segments, claimed)
    if bases:
        log.manifest.save(left)
        notes += [f"{file_stem(log.path, base)}.log has what was missing" for base in bases]
    return bases


def _read_manifest(log: PartitionLog, checkpointed: int, closed_end: int, notes: list[str]) -> int:
    """Returns the log start: the checkpoint may be newer than the manifest (DeleteRecords), and the other way round. A
    manifest that a clean stop did not leave (`closed_end`, where the mark knows) is an older one that was put back."""
    data = manifest.read_bytes(log.disk, log.path)
    found = None
    try:
        found = None if data is None else manifest.Manifest.decode(data)
    except manifest.ManifestDamaged as damaged:
        notes.append(f"{log.path}/{manifest.FILE_NAME} is damaged: {damaged}. It proves nothing, and was rebuilt.")
    if found is not None and log.topic_id is not None and found.topic_id not in (None, log.topic_id):
        found = None
        notes.append(f"{log.path}/{manifest.FILE_NAME} is another topic's. It proves nothing, and was rebuilt.")
    if found is not None and closed_end > 0 and (found.active is None or found.active.end_offset != closed_end):
        found = None
        notes.append(f"{log.path}/{manifest.FILE_NAME} is older than the last clean stop. It proves nothing.")
    log.manifest.found(found, data or b"")
    log.given_up = () if found is None else found.given_up
    return checkpointed if found is None else max(checkpointed, found.log_start)


def _start_over(log: PartitionLog, now_ms: int) -> None:
    """Everything the log still has was deleted before, by DeleteRecords, and what followed is lost. The files are set
    aside all the same: if the checkpoint is wrong about it, they are all there is."""
    note = f"it ends at {log.log_end} but starts at {log.log_start}: what is left was deleted already"
    for segment in reversed(log.segments):
        if segment.size:
            segment.close()
            log.disk.rename(segment.log.path, segment.log.path + DAMAGED_SUFFIX)
            note += f", and set aside as {segment.log.path}{DAMAGED_SUFFIX}"
    dropped = log.truncate_fully_and_start_at(log.log_start, now_ms)
    for segment in dropped:
        segment.unlink()
    log.recovery = log.recovery._replace(notes=(*log.recovery.notes, note))


def header_at(segment: Segment, position: int) -> BatchHeader:
    """The header of the batch that begins at `position`."""
    for _, header in headers(segment.log, position, segment.size):
        return header
    raise Refused(ErrorCode.corrupt_message, f"{segment.log.path} has no whole batch at {position}")


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _check_batches(log: PartitionLog, segment: Segment) -> None:
    """A batch of a sealed segment is damaged: find out which, as the scrub does, and name it."""
    walk = SegmentScrub(log, segment, again=True)
    while not walk.done:
        walk.step()
    patches = scrub_repair.prepare(log, segment, walk.found)
    ranges = [each.offsets for each in walk.found]
    scrub_repair.apply(log, segment, walk.found, patches)
    ends = undecided.lost_ends(log, ranges, None, {}, load_producers)
    damage.lose(log, ranges, ends)


def _tidy(log: PartitionLog, orphans: dict[int, bytes]) -> tuple[list[int], list[int]]:
    """Finish or undo what was interrupted. Returns the offsets of segments, and of snapshots. `orphans`: takes the
    indexes of aborted transactions whose segments are gone."""
    disk, path = log.disk, log.path
    names = [name for name in disk.listdir(path) if name != manifest.FILE_NAME]
    changed = False
    for name in names:
        if name.endswith((".deleted", ".cleaned", ".tmp")):
            disk.remove(f"{path}/{name}")
            changed = True
    found = [(int(m[1]), m[2], m[3]) for m in map(_NUMBERED.fullmatch, names) if m]
    bases = [base for base, kind, swap in found if kind == "log" and not swap]
    indexes = [base for base, kind, swap in found if kind == "txnindex" and not swap]
    for base, kind, swap in found:
        if not swap:
            continue
        changed = True
        stem = file_stem(path, base)
        if kind == "log":
            bases = _finish_swap(log, base, bases, indexes)
        else:
            disk.remove(f"{stem}.{kind}{swap}")  # an index comes back from its log
    for base, kind, swap in found:
        if not swap and kind not in ("log", "snapshot") and base not in bases:
            if kind == "txnindex" and (data := undecided.read_index(disk, path, base)) is not None:
                orphans[base] = data
            disk.remove(f"{file_stem(path, base)}.{kind}")
            changed = True
    if changed:
        disk.sync_dir(path)
    return sorted(bases), [base for base, kind, swap in found if kind == "snapshot" and not swap]


def _finish_swap(log: PartitionLog, base: int, bases: list[int], indexes: list[int]) -> list[int]:
    """A compacted segment takes the place of those it was made from: they go before it gets its name."""
    disk, path = log.disk, log.path
    stem = file_stem(path, base)
    swap = disk.open(f"{stem}.log.swap")
    next_offset = base + 1
    markers = set()
    for _, header in headers(swap, 0, swap.size()):
        next_offset = header.next_offset
        if header.is_control and header.record_count:
            markers.add(header.base_offset)
    swap.close()
    replaced = [old for old in bases if base <= old < next_offset]
    log.manifest.replacing(range(base, next_offset))
    log.manifest.replaced()
    # Also of those that have gone already.
    _merge_transactions(disk, path, base, [old for old in indexes if base <= old < next_offset], markers)
    for old in replaced:
        for kind in ("index", "timeindex") if old == base else ("log", "index", "timeindex", "txnindex"):
            disk.remove(f"{file_stem(path, old)}.{kind}")
    disk.rename(f"{stem}.log.swap", f"{stem}.log")
    return [*(old for old in bases if old not in replaced), base]


def _merge_transactions(disk: Disk, path: str, base: int, indexes: list[int], markers: set[int]) -> None:
    """What was aborted in the old segments was aborted in the new one, unless the marker has gone: then no record was
    left of it, and nothing would tell where it ended. The swap may have got as far as writing the first of them
    anew."""
    entries: set[AbortedTransaction] = set()
    for old in indexes:
        name = file_stem(path, old) + INDEX_SUFFIX
        try:
            entries.update(decode(disk.read(name)))
        except TransactionIndexDamaged:
            disk.remove(name)
    if entries:
        there = (entry for entry in entries if entry.last_offset in markers)
        merged = sorted(there, key=lambda entry: entry.last_offset)
        write(disk, file_stem(path, base) + INDEX_SUFFIX, merged)


def _trusted_end(log: PartitionLog) -> int | None:
    """Where the log ends, judged by the last batches of its last segment; None when they are not whole, or end
    elsewhere than the manifest says of a file of this size."""
    segment = log.active
    if not segment.size:
        return segment.base_offset
    position, log_end = segment.offsets.peek_last_position(segment.size), segment.base_offset
    try:
        for at, header in headers(segment.log, position, segment.size):
            if header.base_offset < log_end:
                return None
            log_end = header.next_offset
            position = at + header.size
    except Refused:
        return None
    if position != segment.size:
        return None
    claimed = log.manifest.latest
    active = None if claimed is None else claimed.active
    if active is not None and (active.base_offset, active.size) == (segment.base_offset, segment.size):
        return log_end if log_end == active.end_offset else None
    return log_end


def _read_epochs(log: PartitionLog, clean: bool, notes: list[str]) -> LeaderEpochs:
    claimed = log.manifest.latest
    path = f"{log.path}/{EPOCHS_FILE}"
    try:
        epochs = LeaderEpochs.read(log.disk, log.path)
        if clean and claimed is not None and claimed.active is not None:
            crc = manifest.NO_CRC if epochs is None else crc32c(epochs.encode())
            if crc != claimed.epochs_crc:
                raise Fault(f"The checkpoint {path} is not what a clean stop left.")
    except Fault as fault:
        if log.disk.is_directory(path):
            raise
        notes.append(f"{fault} It was rebuilt.")
        epochs = None
    return epochs if epochs is not None else _rebuild_epochs(log)


def _rebuild_epochs(log: PartitionLog) -> LeaderEpochs:
    """From batch headers. Epochs only rise, so a segment that begins and ends in one is not read through."""
    epochs = LeaderEpochs()
    firsts = [_first_header(segment) for segment in log.segments]
    for segment, first, following in zip(log.segments, firsts, [*firsts[1:], None], strict=True):
        if first is None:
            continue
        epochs.assign(max(first.leader_epoch, epochs.latest), first.base_offset)
        if following is not None and following.leader_epoch == first.leader_epoch:
            continue
        try:
            for _, header in headers(segment.log, 0, segment.size):
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        except Refused:
            break  # recovery will come to that batch
        finally:
            segment.close()
    epochs.dirty = bool(epochs.entries)
    return epochs


def _first_header(segment: Segment) -> BatchHeader | None:
    try:
        return header_at(segment, 0)
    except Refused:
        return None
    finally:
        segment.close()


class _Repair:
    """Reads a log from the recovery point's segment on, and ends it where it stops making sense."""

    def __init__(
        self, log: PartitionLog, recovery_point: int, now_ms: int, notes: list[str], indexes: dict[int, bytes]
    ) -> None:
        self._log = log
        self._indexes = indexes
        self._recovery_point = recovery_point
        self._now_ms = now_ms
        self._notes = notes
        self._next_offset = 0
        claimed = log.manifest.latest
        self._claimed = None if claimed is None else claimed.active
        self._gaps = () if claimed is None else manifest.merged([*claimed.missing, *claimed.given_up])
        self._told_epochs: dict[int, int] = {}
        self._checked_bytes = 0
        self._cut_bytes = 0

    def run(self) -> Recovery:
        log = self._log
        segments = log.segments
        first = max(bisect_right(segments, self._recovery_point, key=_base_offset) - 1, 0)
        self._begin(segments[first].base_offset)
        for at in range(first, len(segments)):
            segment = segments[at]
            following = segments[at + 1].base_offset if at + 1 < len(segments) else _OFFSET_MAX
            if at > first:
                log.snapshots.write(segment.base_offset, log.producers)
            problem = self._check(segment, following)
            segment.close()
            if problem is not None:
                self._end_log(at, problem)
                break
        else:
            self._next_offset = max(self._next_offset, log.active.base_offset)
        log.log_end = self._next_offset
        return Recovery(False, self._checked_bytes, self._cut_bytes, tuple(self._notes))

    def _begin(self, start: int) -> None:
        """Epochs and producers as they were at `start`; what follows comes from the batches."""
        log = self._log
        self._next_offset = start
        self._told_epochs = dict(log.epochs.entries)
        log.epochs.truncate_from_end(start)
        load_producers(log, log.producers, log.transactions, start, self._now_ms)
        log.snapshots.truncate(start)

    def _check(self, segment: Segment, following: int) -> str | None:
        """Read one segment through. Says what is wrong behind the last good batch, at which it is cut."""
        log = self._log
        following = min(following, segment.base_offset + RELATIVE_OFFSET_MAX + 1)  # no checksum covers an offset
        hole = segment.base_offset - max(self._next_offset, self._recovery_point)
        # A larger one is a follower's: no segment can span it. And one may be known, and named.
        if 0 < hole <= RELATIVE_OFFSET_MAX and not self._known_gap(segment.base_offset):
            return f"offsets {self._next_offset}..{segment.base_offset} before it are missing"
        if self._known_gap(segment.base_offset):
            log.producers.close_transactions()
            log.transactions.load()
        self._next_offset = max(self._next_offset, segment.base_offset)
        if (index := undecided.read_index(log.disk, log.path, segment.base_offset)) is not None:
            self._indexes[segment.base_offset] = index
        builder = IndexBuilder(segment.base_offset, log.config.index_interval_bytes)
        log.transactions.begin_again(segment.base_offset)
        claimed_size, claimed_end = self._claim(segment)
        end = 0
        problem = None
        try:
            for position, header, batch in whole(segment.log, 0, segment.size):
                limit = min(following, claimed_end) if position < claimed_size else following
                fits = self._next_offset <= header.base_offset <= header.last_offset < limit
                if not fits or (header.base_offset > self._next_offset and self._moved(segment, position, header)):
                    problem = f"offset {header.base_offset} stands where {self._next_offset} was expected"
                    break
                builder.add(position, header)
                self._note(segment, header, batch)
                end = position + header.size
        except Refused as refused:
            problem = str(refused)
        self._checked_bytes += end
        if end < segment.size:
            problem = problem or "the last batch is not whole"
            self._notes.append(f"{segment.log.path} was cut at {end} of {segment.size} bytes: {problem}")
            self._cut_bytes += segment.size - end
            segment.log.truncate(end)
            segment.size = end
            segment.log.sync()
        segment.adopt(builder)
        segment.renew_indexes()
        log.transactions.finish(segment.base_offset)
        return problem

    def _known_gap(self, end: int) -> bool:
        """Whether what is missing before this offset is in the manifest."""
        gaps = self._gaps if self._next_offset < end else ()
        return any(first <= self._next_offset and last >= end for first, last in gaps)

    def _claim(self, segment: Segment) -> tuple[int, int]:
        """How many bytes of the segment the manifest knows as the active one's, and the offset at which they end. A
        sealed one ends where the next begins."""
        claimed = self._claimed
        if claimed is None or claimed.base_offset != segment.base_offset:
            return 0, 0
        return claimed.size, claimed.end_offset

    def _moved(self, segment: Segment, position: int, header: BatchHeader) -> bool:
        """Whether a batch behind a gap stands at a wrong offset: compaction leaves gaps, but the batch behind this one
        goes on as if there were none."""
        behind = segment.log.pread(_OFFSET_BYTES, position + header.size)
        without_gap = self._next_offset + header.next_offset - header.base_offset
        return len(behind) == _OFFSET_BYTES and int.from_bytes(behind, "big", signed=True) == without_gap

    def _note(self, segment: Segment, header: BatchHeader, batch: memoryview) -> None:
        log = self._log
        if header.leader_epoch > log.epochs.latest:
            log.epochs.assign(header.leader_epoch, self._epoch_start(header))
        if header.producer_id >= 0:
            log.transactions.record(header, batch, header.base_offset, self._now_ms, segment_base=segment.base_offset)
        self._next_offset = header.next_offset

    def _epoch_start(self, header: BatchHeader) -> int:
        """Where its epoch began: before it, if compaction took the first batches and the checkpoint knows of them."""
        told = self._told_epochs.get(header.leader_epoch, header.base_offset)
        return told if self._next_offset <= told <= header.base_offset else header.base_offset

    def _end_log(self, at: int, problem: str) -> None:
        """The log ends in or before segment `at`; later ones are set aside."""
        log = self._log
        segments = log.segments
        if segments[at].base_offset > self._next_offset:
            at -= 1  # it begins behind a hole: it is not part of the log either
        for segment in reversed(segments[at + 1 :]):
            path = segment.log.path
            segment.close()
            self._cut_bytes += segment.size
            log.disk.rename(path, path + DAMAGED_SUFFIX)
            log.disk.remove(segment.offsets.path)
            log.disk.remove(segment.times.path)
            self._notes.append(f"{path} was set aside as {path}{DAMAGED_SUFFIX}: {problem}")
        log.adopt(segments[: at + 1])
        log.disk.sync_dir(log.path)
