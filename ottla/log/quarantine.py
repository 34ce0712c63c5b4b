"""Quarantine: bytes that are removed from a file of a log are copied to a `.damaged` file first.

What is durable: on return the copy is on the device, under a name that ends with `.damaged`. No broker reads, changes
or removes such a file: it is evidence, and may be the last copy of acknowledged records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ottla.runtime import Disk, File

DAMAGED_SUFFIX = ".damaged"

_COPY_BYTES = 1024 * 1024
_UNFINISHED = ".tmp"


def pieces(file: File, start: int, end: int) -> Iterator[bytes]:
    while start < end and (piece := file.pread(min(_COPY_BYTES, end - start), start)):
        yield piece
        start += len(piece)


def quarantine_bytes(disk: Disk, file: File, start: int, end: int) -> str:
    """Copy these bytes of a file. Returns the name of the copy, which is `FILE.START.damaged`; with a number if that is
    there and has other bytes. Blocks."""
    stem = f"{file.path}.{start}"
    for number in count(1):
        quarantined = f"{stem}{f'.{number}' if number > 1 else ''}{DAMAGED_SUFFIX}"
        if not disk.exists(quarantined):
            break
        if not disk.is_directory(quarantined) and _same(disk.open(quarantined), file, start, end):
            return quarantined  # from an attempt that a crash cut off
    fresh = disk.open(quarantined + _UNFINISHED, create=True)
    fresh.truncate(0)
    for piece in pieces(file, start, end):
        fresh.append(piece)
    fresh.sync()
    fresh.close()
    disk.rename(quarantined + _UNFINISHED, quarantined)
    disk.sync_dir(quarantined.rpartition("/")[0])
    return quarantined


def quarantine_file(disk: Disk, path: str) -> str:
    """Rename a file, or a directory in its place, to a name that ends with `.damaged`. Returns that name. The caller
    syncs the directory."""
    for number in count(1):
        quarantined = f"{path}{f'.{number}' if number > 1 else ''}{DAMAGED_SUFFIX}"
        if not disk.exists(quarantined):
            break
    disk.rename(path, quarantined)
    return quarantined


def _same(copy: File, file: File, start: int, end: int) -> bool:
    if copy.size() != end - start:
        return False
    same = all(a == b for a, b in zip(pieces(copy, 0, end - start), pieces(file, start, end), strict=True))
    copy.close()
    return same


def quarantine_directories(disk: Disk, path: str) -> list[str]:
    """Quarantine directories that have names of files. Returns notes of what was done."""
    paths = [f"{path}/{name}" for name in disk.listdir(path) if not name.endswith(DAMAGED_SUFFIX)]
    return [
        f"{each} is a directory: quarantined as {quarantine_file(disk, each)}"
        for each in paths
        if disk.is_directory(each)
    ]
