"""Recovery of producer state and transactions from batches, and of transactions whose marker was lost.

The producer state at an offset comes from the newest snapshot before it and the headers after that; the transaction
index of a segment comes from its batches. After a lost range, no transaction that began before it is open.

A transaction that was open before a lost range may have ended in it, and its marker is lost. What is known then:
    a transaction index names it (`.txnindex`, also one whose segment is lost)                  it was aborted
    a later producer snapshot has it open                                                       it is open
    the manifest proves the indexes of the whole range, and none of them names it               it was committed, or is
                                                                                                open still
    none of these                                                                               it is undecided
`read_committed` readers get KAFKA_STORAGE_ERROR for records of an undecided transaction, until the range is given up:
then it counts as aborted. After the range it is not open in any case: otherwise the last stable offset would never
advance.

The result is stored in the manifest, with the range, because its proofs may be removed with the next change. Readers
get the aborted transaction as long as they read before the range. No response reaches across a lost range, because
clients skip the records of an aborted producer up to its marker, or to the end of the response (`PartitionLog.read`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused
from ottla.log.evidence import NOT_KNOWN, Evidence
from ottla.log.manifest import NO_CRC, LostEnd, LostEnds, Manifest, Range, file_crc, merged, without
from ottla.log.producers import NO_OFFSET, Producers
from ottla.log.scan import headers, whole
from ottla.log.segment import Segment, file_stem
from ottla.log.transaction_index import SUFFIX, TransactionIndexDamaged, decode
from ottla.log.transactions import Transactions
from ottla.runtime import Disk

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


def rebuild_index(log: PartitionLog, base_offset: int) -> None:
    """The transaction index of a segment cannot be read: it is rebuilt from the segment."""
    rewrite_index(log, base_offset)
    log.transactions.look_for(base_offset)


def rewrite_index(log: PartitionLog, base_offset: int) -> None:
    """The file of it, that is; may run in a thread."""
    producers = Producers(log.config.producer_ids_max)
    reader = Transactions(log.disk, log.path, producers)
    load_producers(log, producers, reader, base_offset, now_ms=0)
    reader.begin_again(base_offset)
    segment = log.segments[bisect_right(log.segments, base_offset, key=_base_offset) - 1]
    crossing = Crossing(log, producers, reader, base_offset)
    following = log.segment_after(segment)
    expected, end = base_offset, log.log_end if following is None else following.base_offset
    read = 0
    for position, header, batch in whole(segment.log, 0, segment.size):
        read = position + header.size
        if not expected <= header.base_offset <= header.last_offset < end:  # no checksum covers that
            raise Refused(
                ErrorCode.corrupt_message, f"offset {header.base_offset} stands where {expected} was expected"
            )
        expected = header.next_offset
        crossing.reach(header.base_offset)
        if header.producer_id >= 0:
            reader.record(header, batch, header.base_offset, 0, segment_base=base_offset)
    if read < segment.size:  # a damaged length ends the scan: the index keeps aborted transactions after it
        raise Refused(ErrorCode.corrupt_message, f"{segment.log.path} has no whole batch at {read}")
    reader.finish(base_offset)


def check_indexes(log: PartitionLog, evidence: Evidence, *, clean: bool, check: Callable[[Segment], None]) -> None:
    """Aborted records must not be returned: a transaction index that differs from the manifest is rebuilt from the log.
    The indexes of segments that were just read are rebuilt already. `check` reads a segment with a damaged batch
    completely, and finds that batch."""
    claimed = log.manifest.latest
    if claimed is not None:
        _rebuild_what_differs(log, claimed, check, clean=clean)
    elif evidence.closed_start != NOT_KNOWN:
        _rebuild_without_manifest(log, check)
    log.transactions.keep_index(log.active.base_offset)


def _rebuild_what_differs(
    log: PartitionLog, claimed: Manifest, check: Callable[[Segment], None], *, clean: bool
) -> None:
    here = {segment.base_offset for segment in log.segments if segment.base_offset <= log.recovery_point}
    recorded = [*claimed.segments, *([claimed.active] if clean and claimed.active is not None else [])]
    for claim in recorded:
        if claim.base_offset not in here:
            continue
        path = file_stem(log.path, claim.base_offset) + SUFFIX
        known = log.transactions.has_index(claim.base_offset)
        if not known and claim.txnindex_crc == NO_CRC:
            continue
        if file_crc(log.disk, path) != claim.txnindex_crc:
            try:
                rebuild_index(log, claim.base_offset)
            except Refused:
                check(next(segment for segment in log.segments if segment.base_offset == claim.base_offset))
                rebuild_index(log, claim.base_offset)
            note = f"{path} was not what its manifest says: rebuilt from the log"
            log.recovery = log.recovery._replace(notes=(*log.recovery.notes, note))


def _rebuild_without_manifest(log: PartitionLog, check: Callable[[Segment], None]) -> None:
    """This release has closed the log, so it had a manifest, and the manifest is lost. Only the log shows whether a
    transaction index is lost as well: segments with transactions are read. A segment with a damaged batch is checked:
    without its index its aborted records would be returned."""
    for segment in log.segments:
        try:
            if not any(header.is_transactional for _, header in headers(segment.log, 0, segment.size)):
                continue
            rebuild_index(log, segment.base_offset)
        except Refused:
            check(segment)
            rebuild_index(log, segment.base_offset)
        finally:
            segment.close()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def gaps_of(log: PartitionLog) -> tuple[Range, ...]:
    return merged([*(() if log.damage is None else log.damage.missing), *log.given_up])


class Crossing:
    """A scan of the batches of a log from an offset on. A transaction that was open before a gap is not open after
    it."""

    def __init__(self, log: PartitionLog, producers: Producers, transactions: Transactions, start: int) -> None:
        self._producers = producers
        self._transactions = transactions
        self._gaps = deque(gap for gap in gaps_of(log) if gap[1] > start)

    def reach(self, offset: int) -> None:
        """The next batch begins there, or the walk ends."""
        while self._gaps and offset >= self._gaps[0][1]:
            self._gaps.popleft()
            self._producers.close_transactions()
            self._transactions.load()


def read_index(disk: Disk, path: str, base_offset: int) -> bytes | None:
    name = file_stem(path, base_offset) + SUFFIX
    return disk.read(name) if disk.exists(name) else None


def lost_ends(
    log: PartitionLog, ranges: Sequence[Range], manifest: Manifest | None, indexes: Mapping[int, bytes]
) -> LostEnds:
    """What can be found out of ranges that are missing now. `manifest`: as it was found; `indexes`: the files of
    segments that are gone, or were cut, as they were found."""
    aborted: list[LostEnd] = []
    undecided: list[LostEnd] = []
    fresh = without(ranges, () if manifest is None else manifest.decided)
    for start, end in fresh:
        was_open = _open_at(log, start)
        if not was_open:
            continue
        still = _open_in_snapshot(log, end)
        recorded, known = _recorded_aborts(log, (start, end), manifest, indexes)
        for producer_id, first in was_open.items():
            if still.get(producer_id) == first:
                continue
            if (producer_id, first) in recorded:
                aborted.append(LostEnd(producer_id, first, recorded[producer_id, first]))
            elif not known:
                undecided.append(LostEnd(producer_id, first, end - 1))
    return LostEnds(tuple(aborted), tuple(undecided), fresh)


def _open_at(log: PartitionLog, offset: int) -> dict[int, int]:
    """Producers with an open transaction at that offset, and its first offset."""
    if offset <= log.log_start:
        return {}
    producers = Producers(log.config.producer_ids_max)
    reader = Transactions(log.disk, log.path, producers)
    try:
        load_producers(log, producers, reader, offset, 0)
    except Refused:  # a batch before it is damaged: the state up to there
        reader.load()
    return reader.open_since


def _open_in_snapshot(log: PartitionLog, offset: int) -> dict[int, int]:
    """According to the first snapshot after it; none, if there is no snapshot."""
    later = [each for each in log.snapshots.offsets if each >= offset]
    producers = Producers(log.config.producer_ids_max)
    if not later or log.snapshots.load(producers, later[0], 0) != later[0]:
        return {}
    starts = ((each, producer.transaction_start) for each, producer in producers.items())
    return {each: start for each, start in starts if start != NO_OFFSET}


def _recorded_aborts(
    log: PartitionLog, lost: Range, manifest: Manifest | None, indexes: Mapping[int, bytes]
) -> tuple[dict[tuple[int, int], int], bool]:
    """The transactions that indexes say were aborted in the range, with the offset of their marker; and whether these
    are all."""
    start, end = lost
    claims = [] if manifest is None else [*manifest.segments]
    if manifest is not None and manifest.active is not None:  # if its index is as it was claimed nothing was added
        claims.append(manifest.active)
    bases = {*indexes, *(claim.base_offset for claim in claims), *(segment.base_offset for segment in log.segments)}
    files = {base: indexes.get(base) or read_index(log.disk, log.path, base) for base in bases if base < end}
    proven = [
        (claim.base_offset, claim.end_offset)
        for claim in claims
        if claim.base_offset in files and _crc(files[claim.base_offset]) == claim.txnindex_crc
    ]
    recorded: dict[tuple[int, int], int] = {}
    for data in files.values():
        try:
            entries = [] if data is None else decode(data)
        except TransactionIndexDamaged:
            continue
        recorded.update(((e.producer_id, e.first_offset), e.last_offset) for e in entries if start <= e.last_offset)
    return recorded, not without([lost], proven)


def _crc(data: bytes | None) -> int:
    return NO_CRC if data is None else crc32c(data)


def take_up(log: PartitionLog) -> None:
    """From now on the results in the manifest count."""
    manifest = log.manifest.latest
    if manifest is not None:
        log.transactions.lost = manifest.aborted
        log.transactions.undecided = manifest.undecided
