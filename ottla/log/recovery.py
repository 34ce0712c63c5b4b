"""Recovery: opens a log. After a clean close it is trusted, otherwise it is checked and repaired.

After a clean close only the end of the last segment is read. Otherwise the segment with the recovery point and all
later ones are read batch by batch, with checksums (`repair`); everything before was on the device already. So recovery
reads what was not flushed plus one segment, not the whole log. Damaged bytes are quarantined and reported, and whole
batches on both sides stay. Only an end of the log without a whole batch after it is truncated, and quarantined as well.

File operations that were interrupted are completed or undone (`tidy`):
    .deleted .cleaned .tmp      removed
    .swap                       a compacted segment: it now replaces the old segments (`swap`)
    indexes without a log       removed. They are evidence of a segment that may be lost

Missing or damaged metadata (index, epochs, snapshot, recovery point) costs only time: no record is changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from ottla.errors import ErrorCode, Fault, Refused
from ottla.log import damage, manifest, manifest_file, scrub
from ottla.log import evidence as evidences
from ottla.log import transaction_recovery as transactions
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.epochs import LeaderEpochs
from ottla.log.evidence import NOT_KNOWN, Evidence
from ottla.log.quarantine import quarantine_file
from ottla.log.repair import Repair
from ottla.log.scan import headers
from ottla.log.scrub import SegmentScrub
from ottla.log.segment import Segment, file_stem
from ottla.log.transaction_index import SUFFIX as INDEX_SUFFIX
from ottla.log.transaction_index import AbortedTransaction, TransactionIndexDamaged, decode, write
from ottla.runtime import Disk
from ottla.wire.batch import BatchHeader

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class Recovery(NamedTuple):
    """The result of opening a log, for the broker's log file."""

    clean: bool
    """Nothing had to be checked."""
    checked_bytes: int = 0
    cut_bytes: int = 0
    notes: tuple[str, ...] = ()
    """Notes: damage that was found, and repairs."""


def load(log: PartitionLog, evidence: Evidence, *, log_start: int, clean: bool, now_ms: int) -> None:
    """Fill an empty log object from its directory. Leaves no descriptor open: many logs are opened before one is used,
    and in a thread, where the disk cannot close descriptors."""
    _load(log, evidence, log_start, clean, now_ms)
    log.manifest.opened()
    for segment in log.segments:
        segment.close()


def _load(log: PartitionLog, evidence: Evidence, log_start: int, clean: bool, now_ms: int) -> None:
    recovery_point = evidence.recovery_point
    notes: list[str] = []
    log_start = _read_manifest(log, log_start, evidence.closed_end if clean else NOT_KNOWN, notes)
    claimed = log.manifest.latest
    files = tidy(log)
    segments = [Segment(log.disk, log.path, base, created_ms=now_ms) for base in files.segments]
    for offset in files.snapshots:
        log.snapshots.found(offset)
    log.snapshots.expect(() if claimed is None else claimed.snapshots)
    for base in files.segments:
        log.transactions.look_for(base)
    restored = _take_back(log, segments, notes)
    epochs = _read_epochs(log, clean, notes)
    began = evidences.StartEvidence(log_start, [] if epochs is None else epochs.entries, files.orphans, files.deleting)
    found = evidences.missing_segments(log, segments, evidence, began, clean=clean, notes=notes)
    missing = manifest.without(((max(start, log_start), end) for start, end in found), log.given_up)
    if missing:
        log.damage = damage.Damage(log.path, missing, -1, missing[-1][1])
    log.adopt(segments or [Segment(log.disk, log.path, log_start, created_ms=now_ms)])
    log.epochs = _rebuild_epochs(log) if epochs is None else epochs
    derived = evidences.derived_ends(log)
    log.log_start = evidences.start_of(log, log_start, missing)
    if claimed is None:
        log.given_up = evidences.unproven_before(log.log_start, evidence, began)
    log_end = _trusted_end(log, evidence.closed_end) if clean else None
    if log_end is not None:
        log.manifest.closed_cleanly = True
        log.log_end = log_end
        log.recovery_point = log_end
        log.recovery = Recovery(clean=True, notes=tuple(notes))
    else:
        if clean:
            notes.append("it was closed cleanly, yet its last segment does not end as it did")
            recovery_point = log.active.base_offset
        repaired = Repair(log, recovery_point, now_ms, notes, files.indexes).run()
        log.recovery = Recovery(False, repaired.checked_bytes, repaired.cut_bytes)
        log.made_files = True  # the process that created them may have died before it synced the directory
        log.recovery_point = min(recovery_point, log.log_end)
        within = ((max(start, log.log_start), end) for start, end in repaired.missing)
        missing = manifest.merged([*missing, *manifest.without(within, log.given_up)])
        log.log_start = evidences.start_of(log, log_start, missing)
    end = evidences.proven_end(log, evidence, derived, clean=clean, notes=notes)
    log.recovery = log.recovery._replace(notes=tuple(notes))
    lost = [*missing, (max(log.log_end, log.log_start), end)]
    ranges = manifest.without(lost, log.given_up)  # a loss of the very end that was accepted is none
    if ranges or manifest.merged(lost):
        if ranges:
            log.damage = damage.Damage(log.path, ranges, -1, ranges[-1][1])
        ends = transactions.lost_ends(log, ranges, claimed, files.indexes)
        damage.go_on_behind(log, ranges, max(end, log.log_end), ends, now_ms)
    if log_end is None and transactions.gaps_of(log):  # no transaction is open after a range that was given up
        transactions.reload_producers(log, now_ms)
    transactions.take_up(log)
    if log.log_start > log.log_end:
        _start_over(log, now_ms)
        return
    log.epochs.truncate_from_end(log.log_end)
    log.epochs.truncate_from_start(log.log_start)
    log.latest_epoch = log.epochs.latest
    log.snapshots.truncate(log.log_end)
    if log_end is not None:
        transactions.reload_producers(log, now_ms)
    newest = log.snapshots.offsets[-1:]
    log.snapshots.prune([*(segment.base_offset for segment in log.segments), *newest])
    transactions.check_indexes(log, evidence, clean=clean, check=lambda segment: _check_batches(log, segment))
    for base in restored:
        transactions.rebuild_index(log, base)
    manifest_file.rebuild(log)


def _take_back(log: PartitionLog, segments: list[Segment], notes: list[str]) -> list[int]:
    """Files that were missing may have been put back. Returns which."""
    claimed = log.manifest.latest
    if claimed is None or not claimed.missing:
        return []
    left, bases = evidences.put_back(log, segments, claimed)
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
    """Everything that is left of the log was deleted before by DeleteRecords, and the records after it are lost. The
    files are quarantined nevertheless: if the checkpoint is wrong, they are the only copy."""
    note = f"it ends at {log.log_end} but starts at {log.log_start}: what is left was deleted already"
    for segment in reversed(log.segments):
        if segment.size:
            segment.close()
            note += f", and quarantined as {quarantine_file(log.disk, segment.log.path)}"
    dropped = log.truncate_fully_and_start_at(log.log_start, now_ms)
    for segment in dropped:
        segment.unlink()
    log.recovery = log.recovery._replace(notes=(*log.recovery.notes, note))


def header_at(segment: Segment, position: int) -> BatchHeader:
    """The header of the batch that begins at `position`."""
    for _, header in headers(segment.log, position, segment.size):
        return header
    raise Refused(ErrorCode.corrupt_message, f"{segment.log.path} has no whole batch at {position}")


def _check_batches(log: PartitionLog, segment: Segment) -> None:
    """A batch of a closed segment is damaged: find out which, as the scrub does, and name it."""
    walk = SegmentScrub(log, segment, again=True)
    while not walk.done:
        walk.step()
    patches = scrub.prepare(log, segment, walk.found)
    ranges = [each.offsets for each in walk.found]
    scrub.apply(log, segment, walk.found, patches)
    ends = transactions.lost_ends(log, ranges, None, {})
    damage.lose(log, ranges, ends)


def _trusted_end(log: PartitionLog, closed_end: int) -> int | None:
    """Where the log ends, judged by the last batches of its last segment; None when they are not whole, or end
    elsewhere than the manifest says of a file of this size, or behind the end that the mark of the clean stop has."""
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
    return None if NOT_KNOWN < closed_end < log_end else log_end


def _read_epochs(log: PartitionLog, clean: bool, notes: list[str]) -> LeaderEpochs | None:
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
    return epochs


def _rebuild_epochs(log: PartitionLog) -> LeaderEpochs:
    """From batch headers. Epochs only rise, so a segment that begins and ends in one is not read through."""
    epochs = LeaderEpochs()
    firsts = [evidences.first_header(segment) for segment in log.segments]
    for segment, first, following in zip(log.segments, firsts, [*firsts[1:], None], strict=True):
        if first is None:
            continue
        epochs.assign(max(first.leader_epoch, epochs.latest), first.base_offset)
        if following is not None and following.leader_epoch == first.leader_epoch:
            continue
        for _, header in evidences.readable_headers(segment):  # recovery, or the scrub, will come to one that is not
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
    epochs.dirty = bool(epochs.entries)
    return epochs


_NUMBERED = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)((?:\.swap)?)")
DELETED = re.compile(r"(\d{20})\.log\.deleted")


class Files(NamedTuple):
    """The segments that were found, by base offset."""

    segments: list[int]
    snapshots: list[int]
    orphans: list[int]
    """Segments of which only the indexes exist, and that were not being deleted."""
    deleting: bool
    """Segments were about to be deleted."""
    indexes: dict[int, bytes]
    """The indexes of aborted transactions of segments that are gone."""


def tidy(log: PartitionLog) -> Files:
    disk, path = log.disk, log.path
    names = [name for name in disk.listdir(path) if name != manifest.FILE_NAME]
    found = [(int(m[1]), m[2], m[3]) for m in map(_NUMBERED.fullmatch, names) if m]
    orphans = orphaned(names)
    changed = False
    for name in names:
        if name.endswith((".deleted", ".cleaned", ".tmp")):
            disk.remove(f"{path}/{name}")
            changed = True
    bases = [base for base, kind, swap in found if kind == "log" and not swap]
    txnindexes = [base for base, kind, swap in found if kind == "txnindex" and not swap]
    indexes: dict[int, bytes] = {}
    for base, kind, swap in found:
        if not swap:
            continue
        changed = True
        if kind == "log":
            bases = _finish_swap(log, base, bases, txnindexes)
        else:
            disk.remove(f"{file_stem(path, base)}.{kind}{swap}")  # an index comes back from its log
    for base, kind, swap in found:
        if not swap and kind not in ("log", "snapshot") and base not in bases:
            if kind == "txnindex" and (data := transactions.read_index(disk, path, base)) is not None:
                indexes[base] = data
            disk.remove(f"{file_stem(path, base)}.{kind}")
            changed = True
    if changed:
        disk.sync_dir(path)
    snapshots = [base for base, kind, swap in found if kind == "snapshot" and not swap]
    return Files(sorted(bases), snapshots, orphans, any(map(DELETED.fullmatch, names)), indexes)


def orphaned(names: Sequence[str]) -> list[int]:
    """Segments of which only the indexes exist. Deleting or replacing a segment renames its log first, and keeps the
    renamed file for a while: then its indexes are no evidence."""
    found = [(int(m[1]), m[2], m[3]) for m in map(_NUMBERED.fullmatch, names) if m]
    going = {int(m[1]) for m in map(DELETED.fullmatch, names) if m}
    swaps = any(swap for _, _, swap in found)
    logs = {base for base, kind, _ in found if kind == "log"}
    bases = {base for base, kind, _ in found if kind in ("index", "timeindex", "txnindex")} - logs - going
    return [] if swaps else sorted(bases)


def _finish_swap(log: PartitionLog, base: int, bases: list[int], indexes: list[int]) -> list[int]:
    """A compacted segment replaces the segments it was made from: they are removed before it gets its name."""
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
    """Transactions aborted in the old segments are aborted in the new one, unless their marker was removed: then they
    have no records left, and no end. The swap may already have rewritten the first of them."""
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
