"""What the manifest of a log claims when the log is opened, and when it is closed (`manifest` has the rules)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.manifest import NO_CRC, Manifest, SegmentClaim, claim_of, file_crc
from ottla.log.segment import Segment, file_stem
from ottla.log.transaction_index import SUFFIX as TXNINDEX_SUFFIX

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def rebuild(log: PartitionLog) -> None:
    """The log was opened: claim what is there and on the device, as far as it is known without reading it."""
    if not log.disk.exists(log.path):
        return
    old = log.manifest.latest
    manifest = old or Manifest(log.log_start, topic_id=log.topic_id, given_up=log.given_up)
    found = sealed(log.segments, log.recovery_point)
    told = {claim.base_offset: claim for claim in manifest.segments}
    claims = tuple(_known(told, segment, end) or _unread(log, segment, end) for segment, end in found)
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
        log.manifest.save(manifest)  # or followers would not hear where it starts, as far as that is proven
    else:
        log.manifest.rebuilt(manifest)


def _known(told: Mapping[int, SegmentClaim], segment: Segment, end: int) -> SegmentClaim | None:
    """What is claimed of a sealed segment, if that is how it is."""
    claim = told.get(segment.base_offset)
    return claim if claim is not None and (claim.end_offset, claim.size) == (end, segment.size) else None


def _unread(log: PartitionLog, segment: Segment, end: int) -> SegmentClaim:
    """Nothing is known of the indexes, which can do no harm. What was aborted can, and has few files."""
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
    """Whether the index of aborted transactions of a sealed segment is what is claimed: it may have changed while the
    broker runs, and what it says cannot be told from what it should say."""
    manifest = log.manifest.latest
    claim = None if manifest is None else manifest.claim(base_offset)
    if manifest is None or claim is None or claim is manifest.active:
        return True
    return file_crc(log.disk, file_stem(log.path, base_offset) + TXNINDEX_SUFFIX) == claim.txnindex_crc


def close(log: PartitionLog, written: Collection[str]) -> None:
    """The log is closed, and all of it is on the device: claim all of it. `written`: derived files that were just
    written, perhaps anew."""
    old = log.manifest.latest or Manifest(log.log_start, topic_id=log.topic_id)
    claims = []
    told = {claim.base_offset: claim for claim in old.segments}
    for segment, end in sealed(log.segments, log.log_end):
        claim = _known(told, segment, end)
        stem = file_stem(log.path, segment.base_offset)
        if claim is None or claim.index_crc == NO_CRC or any(path.startswith(stem) for path in written):
            _sync_indexes(segment)
            txnindex_crc = log.transactions.index_crc(segment.base_offset)
            claim = claim_of(log.disk, log.path, segment.base_offset, end, segment.size, txnindex_crc)
        claims.append(claim)
    _restore_epochs(log)
    last = log.active
    txnindex_crc = log.transactions.index_crc(last.base_offset)
    active = claim_of(log.disk, log.path, last.base_offset, log.log_end, last.size, txnindex_crc)
    if active != old.active:
        _sync_indexes(log.active)
    manifest = old._replace(
        log_start=log.log_start,
        segments=tuple(claims),
        active=active,
        topic_id=log.topic_id,
        epochs_crc=file_crc(log.disk, f"{log.path}/{EPOCHS_FILE}"),
        snapshots=tuple(log.snapshots.offsets),
    )
    log.manifest.save(manifest)


def _restore_epochs(log: PartitionLog) -> None:
    """The checkpoint may have changed while the log was open: what the log knows is right, and the file is claimed."""
    path, known = f"{log.path}/{EPOCHS_FILE}", log.epochs.encode()
    there = log.disk.read(path) if log.disk.exists(path) else None
    if there != known and (there is not None or log.epochs.entries):
        log.disk.write_atomic(path, known)


def _sync_indexes(segment: Segment) -> None:
    """A process that was killed may have written them, and nobody knows."""
    for index in (segment.offsets, segment.times):
        if index.file.size():
            index.file.sync()


def sealed(segments: Sequence[Segment], offset_max: int) -> list[tuple[Segment, int]]:
    """The segments before the active one that end at or before an offset, each with its end."""
    return [
        (segment, following.base_offset)
        for segment, following in pairwise(segments)
        if following.base_offset <= offset_max
    ]
