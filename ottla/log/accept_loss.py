"""`ottla log accept-loss`: gives up the missing offsets of a log. The log must not be open.

The missing ranges are removed from the manifest, and the damage becomes a gap: a reader of an offset in the gap gets
the next offset that exists, as after compaction. A log that has lost its first offsets starts after them. The manifest
remembers the ranges that were given up, since other replicas may have them: no replica deletes them because they are
lost here. If a scrub found damage in the middle of a segment, the segment is rewritten without the empty batch that the
scrub has put there.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.log.manifest import NO_CRC, Manifest, Range, SegmentClaim, give_up, read
from ottla.log.manifest_file import ManifestFile
from ottla.log.scan import headers
from ottla.log.segment import file_stem
from ottla.runtime import Disk

_COPY_BYTES = 1024 * 1024
_UNFINISHED = ".log.tmp"

Reached = Callable[[int, int], None]


def accept_loss(disk: Disk, path: str, reached: Reached = lambda done, total: None) -> tuple[Range, ...]:
    """Returns the ranges that were given up. Durable on return. ManifestDamaged if the manifest cannot be read.
    `reached` is called with the bytes that are done and the bytes in total."""
    manifest = read(disk, path)
    if manifest is None or not manifest.missing:
        return ()
    log_start = manifest.log_start
    for start, end in manifest.missing:
        if start <= log_start:
            log_start = max(log_start, end)
    file = ManifestFile(disk, path)
    file.found(manifest)
    given_up = manifest.missing
    concerned = [
        claim
        for claim in (*manifest.segments, manifest.active)
        if claim is not None and any(claim.base_offset <= start < claim.end_offset for start, _ in given_up)
    ]
    done, total = 0, 2 * sum(claim.size for claim in concerned)
    for claim in concerned:
        manifest = _without_lost(disk, path, claim, file, manifest, _beyond(done, total, reached))
        done += 2 * claim.size
        reached(done, total)
    file.save(give_up(manifest, given_up)._replace(log_start=log_start))
    return given_up


def _beyond(done: int, total: int, reached: Reached) -> Callable[[int], None]:
    return lambda more: reached(done + more, total)


def _without_lost(
    disk: Disk, path: str, claim: SegmentClaim, file: ManifestFile, manifest: Manifest, reached: Callable[[int], None]
) -> Manifest:
    """Rewrite a segment without the batches of missing ranges. Its indexes are rebuilt."""
    stem = file_stem(path, claim.base_offset)
    old = disk.open(f"{stem}.log")
    kept: list[tuple[int, int]] = []
    lost = False
    for position, header in headers(old, 0, claim.size):
        reached(position)
        if any(start <= header.base_offset and header.next_offset <= end for start, end in manifest.missing):
            lost = True
        else:
            kept.append((position, header.size))
    if not lost:
        old.close()
        return manifest
    fresh = disk.open(stem + _UNFINISHED, create=True)
    fresh.truncate(0)
    for position, size in kept:
        while size:
            piece = old.pread(min(_COPY_BYTES, size), position)
            fresh.append(piece)
            position, size = position + len(piece), size - len(piece)
            reached(claim.size + position)
    fresh.sync()
    fresh.close()
    old.close()
    file.save(manifest.without({claim.base_offset}))  # which of the two a crash leaves is not known
    for kind in ("index", "timeindex"):
        disk.remove(f"{stem}.{kind}")
    disk.rename(stem + _UNFINISHED, f"{stem}.log")
    disk.sync_dir(path)
    new = claim._replace(size=sum(size for _, size in kept), index_crc=NO_CRC, timeindex_crc=NO_CRC)
    if claim is manifest.active:
        return manifest._replace(active=new)
    return manifest.with_segments([new])
