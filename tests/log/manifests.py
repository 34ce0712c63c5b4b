"""Compares the files of a log with its manifest."""

from __future__ import annotations

from ottla.log.manifest import NO_CRC, file_crc, read
from ottla.log.segment import file_stem
from ottla.runtime import Disk
from tests.log.batches import PATH


def contradictions(disk: Disk, path: str = PATH) -> list[str]:
    """What is not there as the manifest claims it."""
    manifest = read(disk, path)
    if manifest is None:
        return []
    found = []
    bases = [int(name[:20]) for name in disk.listdir(path) if name.endswith((".log", ".log.swap"))]
    if manifest.log_start > 0 and bases and min(bases) > manifest.log_start:  # one that is empty there needs no file
        found.append(f"log start {manifest.log_start}, first file {min(bases)}")
    for claim in (*manifest.segments, manifest.active):
        if claim is None or not claim.size:
            continue
        stem = file_stem(path, claim.base_offset)
        size = disk.open(f"{stem}.log").size()
        appended = claim is manifest.active and size > claim.size
        if claim.base_offset not in bases or (size != claim.size and not appended):
            found.append(f"{claim}: {size} bytes")
        if claim is not manifest.active:
            crcs = zip(("index", "timeindex", "txnindex"), claim[3:], strict=True)
            found += [f"{claim}: {k}" for k, crc in crcs if crc not in (NO_CRC, file_crc(disk, f"{stem}.{k}"))]
    return found
