"""Producers, and the indexes of aborted transactions, made anew from the batches of a log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, Refused
from ottla.log import manifest
from ottla.log.damage import NOT_KNOWN, Evidence
from ottla.log.producers import Producers
from ottla.log.scan import headers, whole
from ottla.log.segment import Segment, file_stem
from ottla.log.transaction_index import SUFFIX as INDEX_SUFFIX
from ottla.log.transactions import Transactions
from ottla.log.undecided import Crossing

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def reload_producers(log: PartitionLog, now_ms: int) -> None:
    """The producers as of the log end: the newest snapshot, and the headers behind it."""
    load_producers(log, log.producers, log.transactions, log.log_end, now_ms)


def load_producers(log: PartitionLog, producers: Producers, transactions: Transactions, end: int, now_ms: int) -> None:
    """The producers as of `end`, and what they had open."""
    start = log.snapshots.load(producers, end, now_ms)
    if start < log.segments[0].base_offset:
        producers.close_transactions()  # their markers may have been in segments that are gone by now
    transactions.load()
    if start >= end:
        return
    crossing = Crossing(log, producers, transactions, start)
    for segment in log.segments[max(bisect_right(log.segments, start, key=_base_offset) - 1, 0) :]:
        if segment.base_offset >= end or not segment.size:
            continue
        position = max(segment.find(start), 0) if start > segment.base_offset else 0
        for at, header in headers(segment.log, position, segment.size):
            if header.base_offset < end:
                crossing.reach(header.base_offset)
            if header.producer_id >= 0 and start <= header.base_offset < end:
                batch = segment.log.pread(header.size, at) if header.is_control else b""
                transactions.replay(header, batch, now_ms)
    crossing.reach(end)


def rebuild_transactions(log: PartitionLog, base_offset: int) -> None:
    """The index of a segment's aborted transactions cannot be read: the segment tells what was in it."""
    rewrite_transactions(log, base_offset)
    log.transactions.look_for(base_offset)


def rewrite_transactions(log: PartitionLog, base_offset: int) -> None:
    """The file of it, that is; may run in a thread."""
    producers = Producers(log.config.producer_ids_max)
    reader = Transactions(log.disk, log.path, producers)
    load_producers(log, producers, reader, base_offset, now_ms=0)
    reader.begin_again(base_offset)
    segment = log.segments[bisect_right(log.segments, base_offset, key=_base_offset) - 1]
    crossing = Crossing(log, producers, reader, base_offset)
    following = log.segment_after(segment)
    expected, end = base_offset, log.log_end if following is None else following.base_offset
    for _, header, batch in whole(segment.log, 0, segment.size):
        if not expected <= header.base_offset <= header.last_offset < end:  # no checksum covers that
            raise Refused(
                ErrorCode.corrupt_message, f"offset {header.base_offset} stands where {expected} was expected"
            )
        expected = header.next_offset
        crossing.reach(header.base_offset)
        if header.producer_id >= 0:
            reader.record(header, batch, header.base_offset, 0, segment_base=base_offset)
    reader.finish(base_offset)


def check_transaction_indexes(
    log: PartitionLog, evidence: Evidence, *, clean: bool, check: Callable[[Segment], None]
) -> None:
    """What was aborted must not be shown: an index that is not as the manifest has it is made anew from the log. Those
    of segments that were just read are, already. `check` reads a segment through in which a batch is damaged, and finds
    out which."""
    claimed = log.manifest.latest
    if claimed is not None:
        _rebuild_what_differs(log, claimed, check, clean=clean)
    elif evidence.closed_start != NOT_KNOWN:
        _rebuild_without_manifest(log, check)
    log.transactions.keep_index(log.active.base_offset)


def _rebuild_what_differs(
    log: PartitionLog, claimed: manifest.Manifest, check: Callable[[Segment], None], *, clean: bool
) -> None:
    here = {segment.base_offset for segment in log.segments if segment.base_offset <= log.recovery_point}
    told = [*claimed.segments, *([claimed.active] if clean and claimed.active is not None else [])]
    for claim in told:
        if claim.base_offset not in here:
            continue
        path = file_stem(log.path, claim.base_offset) + INDEX_SUFFIX
        known = log.transactions.has_index(claim.base_offset)
        if not known and claim.txnindex_crc == manifest.NO_CRC:
            continue
        if manifest.file_crc(log.disk, path) != claim.txnindex_crc:
            try:
                rebuild_transactions(log, claim.base_offset)
            except Refused:
                check(next(segment for segment in log.segments if segment.base_offset == claim.base_offset))
                rebuild_transactions(log, claim.base_offset)
            note = f"{path} was not what its manifest says: rebuilt from the log"
            log.recovery = log.recovery._replace(notes=(*log.recovery.notes, note))


def _rebuild_without_manifest(log: PartitionLog, check: Callable[[Segment], None]) -> None:
    """This release has closed the log, so there was a manifest, and it is lost. Whether an index is lost as well only
    the log tells: the segments with transactions in them are read. One in which a batch is damaged is checked: without
    its index what was aborted in it would be shown."""
    for segment in log.segments:
        try:
            if not any(header.is_transactional for _, header in headers(segment.log, 0, segment.size)):
                continue
            rebuild_transactions(log, segment.base_offset)
        except Refused:
            check(segment)
            rebuild_transactions(log, segment.base_offset)
        finally:
            segment.close()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
