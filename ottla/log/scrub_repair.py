"""What is done about damage that a scrub has found, in the log itself. `quarantine` comes later, on a replica whose
leader has what is missing.

A damaged stretch of a segment becomes a range of offsets that is missing (`damage`), and the rest of the segment stays
readable: its bytes are kept aside (`.damaged`), the range is written into the manifest, and then the stretch gets the
header of one empty batch of its length, which holds its offsets. So every walk over the file finds its way, no byte
behind it moves, and no reader is led past it: reads end before a missing range. When the loss is accepted the segment
is written anew without it (`accept_loss`). A crash between these steps leaves a range that is named, and a stretch that
the next scrub finds again.

Derived files that are not what the manifest says are made anew from the batches, which have just been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from ottla.log import damage, rebuilding
from ottla.log.aside import keep, pieces
from ottla.log.index import OffsetIndex, TimeIndex
from ottla.log.manifest import NO_CRC, SegmentClaim, claim_of, file_crc
from ottla.log.scan import headers
from ottla.log.scrub import Found
from ottla.log.segment import IndexBuilder, Segment, file_stem
from ottla.log.transaction_index import SUFFIX as TXNINDEX_SUFFIX
from ottla.wire.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, NO_PRODUCER, NO_TIMESTAMP

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class Patch(NamedTuple):
    """Bytes to put over others in a file of batches."""

    position: int
    data: bytes


def prepare(log: PartitionLog, segment: Segment, found: Sequence[Found]) -> list[Patch]:
    """Keep the damaged bytes aside, and name their offsets in the manifest: durable on return. Returns the headers that
    are to stand there. Blocks; for a thread."""
    patches = []
    for each in found:
        if each.end - each.start >= HEADER_BYTES:
            keep(log.disk, segment.log, each.start, each.end)
            patches.append(Patch(each.start, _empty_batch(log, segment, each)))
    name(log, found)
    return patches


def name(log: PartitionLog, found: Sequence[Found]) -> None:
    """Name the offsets of what is damaged in the manifest. Durable on return."""
    ranges = [each.offsets for each in found if each.offsets[0] < each.offsets[1]]
    log.manifest.lose(ranges, log_start=log.log_start, topic_id=log.topic_id, unproven=log.given_up)


def _empty_batch(log: PartitionLog, segment: Segment, found: Found) -> bytes:
    """The header of a batch without records that is as long as the damaged stretch, and holds its offsets."""
    first, end = found.offsets
    length = found.end - found.start - LENGTH_OVERHEAD
    behind_crc = (0, end - first - 1, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER, -1, -1, 0)
    before_crc = (first, length, log.epochs.epoch_of(first), MAGIC)
    crc = crc32c(HEADER.pack(*before_crc, 0, *behind_crc)[CRC_FROM:])
    for piece in pieces(segment.log, found.start + HEADER_BYTES, found.end):
        crc = crc32c(piece, crc)
    return HEADER.pack(*before_crc, crc, *behind_crc)


def apply(log: PartitionLog, segment: Segment, found: Sequence[Found], patches: Sequence[Patch]) -> None:
    """Let nobody read what is damaged from now on. On the loop, if the segment is still the log's."""
    damage.note(log, [each.offsets for each in found])
    for patch in patches:
        log.disk.overwrite(segment.log.path, patch.data, patch.position)


# -- derived files -----------------------------------------------------------------------------------------------


def derived_damage(log: PartitionLog, claim: SegmentClaim) -> list[str]:
    """The derived files of a sealed segment that are not what the manifest says. Blocks; for a thread."""
    stem = file_stem(log.path, claim.base_offset)
    told = [(".index", claim.index_crc), (".timeindex", claim.timeindex_crc)]
    wrong = [stem + kind for kind, crc in told if crc != NO_CRC and file_crc(log.disk, stem + kind) != crc]
    if file_crc(log.disk, stem + TXNINDEX_SUFFIX) != claim.txnindex_crc:
        wrong.append(stem + TXNINDEX_SUFFIX)
    return wrong


def rebuild_derived(log: PartitionLog, segment: Segment, wrong: Sequence[str], truncations: int) -> None:
    """Make them anew from the batches, and claim them as they are then. Blocks; for a thread."""
    if any(not path.endswith(TXNINDEX_SUFFIX) for path in wrong):
        _rebuild_indexes(log, segment)
    if any(path.endswith(TXNINDEX_SUFFIX) for path in wrong):
        rebuilding.rewrite_transactions(log, segment.base_offset)
    following = log.segment_after(segment)
    if following is None:
        return
    claim = claim_of(log.disk, log.path, segment.base_offset, following.base_offset, segment.size)
    log.manifest.add(
        [claim],
        log_start=log.log_start,
        topic_id=log.topic_id,
        still=lambda: log.truncations == truncations and not log.dropped and not segment.deleted,
    )


def _rebuild_indexes(log: PartitionLog, segment: Segment) -> None:
    builder = IndexBuilder(segment.base_offset, log.config.index_interval_bytes)
    for position, header in headers(segment.log, 0, segment.size):
        builder.add(position, header)
    builder.finish()
    offsets, times = OffsetIndex(log.disk, segment.offsets.path), TimeIndex(log.disk, segment.times.path)
    offsets.replace(builder.offsets, builder.positions)
    times.replace(builder.timestamps, builder.timestamp_offsets)
    log.disk.write_atomic(offsets.path, offsets.encode(0))
    log.disk.write_atomic(times.path, times.encode(0))


def take_up(log: PartitionLog, segment: Segment, wrong: Sequence[str]) -> None:
    """Derived files were made anew: what was read from the old ones is forgotten. On the loop."""
    segment.drop_indexes()
    segment.offsets.close()
    segment.times.close()
    if any(path.endswith(TXNINDEX_SUFFIX) for path in wrong):
        log.transactions.look_for(segment.base_offset)
