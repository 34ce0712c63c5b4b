"""Transactions whose ends may be among offsets that a log has lost.

A transaction that was open before a lost range may have ended in it, and its marker is gone. What is known of that:
    an index of aborted transactions names it (`.txnindex`, also one whose segment is lost)     it was aborted
    a later producer snapshot has it open                                                       it is open
    the manifest proves the indexes of the whole range, and none of them names it               it was committed, or is
                                                                                                open still
    none of these                                                                               it is undecided
Of what is undecided nobody is shown anything who reads committed records only (KAFKA_STORAGE_ERROR), until the range
is given up: then it counts as aborted. Behind the range it is not open in any case, or nothing would be stable again.

What was found out is in the manifest, with the range, for what proves it may go with the next change. Readers are told
of an aborted transaction as long as they read before the range: no answer reaches across one, since clients pass over
what a producer sent up to its marker, or to the end of the answer (`PartitionLog.read`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from ottla.errors import Refused
from ottla.log.manifest import NO_CRC, LostEnd, Manifest, Range, merged, without
from ottla.log.producers import NO_OFFSET, Producers
from ottla.log.segment import file_stem
from ottla.log.transaction_index import SUFFIX, TransactionIndexDamaged, decode
from ottla.log.transactions import Transactions
from ottla.runtime import Disk

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

Load = Callable[["PartitionLog", Producers, Transactions, int, int], None]


class Ends(NamedTuple):
    """What became of transactions whose ends are lost, and of which ranges that was found out."""

    aborted: tuple[LostEnd, ...] = ()
    undecided: tuple[LostEnd, ...] = ()
    decided: tuple[Range, ...] = ()


def gaps_of(log: PartitionLog) -> tuple[Range, ...]:
    return merged([*(() if log.damage is None else log.damage.missing), *log.given_up])


class Crossing:
    """A walk over the batches of a log, from an offset on. Whoever was inside a transaction before a gap is not behind
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
    log: PartitionLog,
    ranges: Sequence[Range],
    manifest: Manifest | None,
    indexes: Mapping[int, bytes],
    load: Load,
) -> Ends:
    """What can be found out of ranges that are missing now. `manifest`: as it was found; `indexes`: the files of
    segments that are gone, or were cut, as they were found."""
    aborted: list[LostEnd] = []
    undecided: list[LostEnd] = []
    fresh = without(ranges, () if manifest is None else manifest.decided)
    for start, end in fresh:
        was_open = _open_at(log, start, load)
        if not was_open:
            continue
        still = _open_in_snapshot(log, end)
        told, known = _told(log, (start, end), manifest, indexes)
        for producer_id, first in was_open.items():
            if still.get(producer_id) == first:
                continue
            if (producer_id, first) in told:
                aborted.append(LostEnd(producer_id, first, told[producer_id, first]))
            elif not known:
                undecided.append(LostEnd(producer_id, first, end - 1))
    return Ends(tuple(aborted), tuple(undecided), fresh)


def _open_at(log: PartitionLog, offset: int, load: Load) -> dict[int, int]:
    """Who was inside a transaction there, and since when."""
    if offset <= log.log_start:
        return {}
    producers = Producers(log.config.producer_ids_max)
    reader = Transactions(log.disk, log.path, producers)
    try:
        load(log, producers, reader, offset, 0)
    except Refused:  # a batch before it cannot be believed: what is known up to there
        reader.load()
    return reader.open_since


def _open_in_snapshot(log: PartitionLog, offset: int) -> dict[int, int]:
    """As the first snapshot behind it tells; nobody, if there is none."""
    later = [each for each in log.snapshots.offsets if each >= offset]
    producers = Producers(log.config.producer_ids_max)
    if not later or log.snapshots.load(producers, later[0], 0) != later[0]:
        return {}
    starts = ((each, producer.transaction_start) for each, producer in producers.items())
    return {each: start for each, start in starts if start != NO_OFFSET}


def _told(
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
    told: dict[tuple[int, int], int] = {}
    for data in files.values():
        try:
            entries = [] if data is None else decode(data)
        except TransactionIndexDamaged:
            continue
        told.update(((e.producer_id, e.first_offset), e.last_offset) for e in entries if start <= e.last_offset)
    return told, not without([lost], proven)


def _crc(data: bytes | None) -> int:
    return NO_CRC if data is None else crc32c(data)


def take_up(log: PartitionLog) -> None:
    """What the manifest tells counts from now on."""
    manifest = log.manifest.latest
    if manifest is not None:
        log.transactions.lost = manifest.aborted
        log.transactions.undecided = manifest.undecided
