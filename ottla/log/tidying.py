"""Finishing or undoing what a process was about to do with the files of a log when it ended.

.deleted .cleaned .tmp      removed
.swap                       a compacted segment about to replace others: it does so now (see `swap`)
indexes without a log       removed: they index nothing. That they were there is told: a segment may be lost
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.log import manifest, undecided
from ottla.log.cleaned_transactions import AbortedTransaction
from ottla.log.scan import headers
from ottla.log.segment import file_stem
from ottla.log.transaction_index import SUFFIX as INDEX_SUFFIX
from ottla.log.transaction_index import TransactionIndexDamaged, decode, write
from ottla.runtime import Disk

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

_NUMBERED = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)((?:\.swap)?)")
DELETED = re.compile(r"(\d{20})\.log\.deleted")


class Files(NamedTuple):
    """What was there, by base offset."""

    segments: list[int]
    snapshots: list[int]
    orphans: list[int]
    """Segments of which only indexes were there, though nobody was about to delete them."""
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
            if kind == "txnindex" and (data := undecided.read_index(disk, path, base)) is not None:
                indexes[base] = data
            disk.remove(f"{file_stem(path, base)}.{kind}")
            changed = True
    if changed:
        disk.sync_dir(path)
    snapshots = [base for base, kind, swap in found if kind == "snapshot" and not swap]
    return Files(sorted(bases), snapshots, orphans, any(map(DELETED.fullmatch, names)), indexes)


def orphaned(names: Sequence[str]) -> list[int]:
    """Segments of which only indexes are there. Whoever deletes or replaces a segment renames its log first, and leaves
    that for a while: then its indexes tell of nothing."""
    found = [(int(m[1]), m[2], m[3]) for m in map(_NUMBERED.fullmatch, names) if m]
    going = {int(m[1]) for m in map(DELETED.fullmatch, names) if m}
    swaps = any(swap for _, _, swap in found)
    logs = {base for base, kind, _ in found if kind == "log"}
    bases = {base for base, kind, _ in found if kind in ("index", "timeindex", "txnindex")} - logs - going
    return [] if swaps else sorted(bases)


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
