"""Fetched records as Arrow columns: batches are taken whole, and decoded many at once.

Needs numpy and pyarrow, so it is imported only when columns are requested.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.client.consuming.completed_fetch import CompletedFetch, Piece
from ottla.client.consuming.fetcher import Fetcher
from ottla.client.consuming.subscription_state import RecordsDamaged
from ottla.client.errors import BadSetting
from ottla.client.values import TopicPartition
from ottla.errors import Refused
from ottla.wire.batch import read_header
from ottla.wire.columns import COLUMNS, record_batch, schema_of
from ottla.wire.columns.reading import OFFSET_MAX

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_MAX: Final = 4 * 2**20
"""So much is opened at once: enough that a batch more or less does not matter, and little enough for a cache."""

Pieces = dict[TopicPartition, list[Piece]]


def schema(columns: Sequence[str] | None) -> pa.Schema:
    try:
        return schema_of(COLUMNS if columns is None else columns)
    except ValueError as problem:
        raise BadSetting(str(problem)) from None


def take_pieces(fetcher: Fetcher, bytes_max: int, among: Collection[TopicPartition] = ()) -> Pieces:
    """What has come, and the position moves behind it."""
    return fetcher.take_by(CompletedFetch.take_batches, _size, bytes_max, among)


def opened(
    tp: TopicPartition, pieces: Sequence[Piece], wanted: pa.Schema, *, until: int = OFFSET_MAX, bytes_max: int
) -> tuple[list[pa.RecordBatch], RecordsDamaged | None]:
    """The records of the pieces up to an offset, and the reason if there are no more. The pieces are decoded together,
    or one by one if that fails: one of them may be damaged, or together they may expand to too much."""

    def open_(some: Sequence[Piece]) -> pa.RecordBatch:
        return record_batch(
            [piece.data for piece in some],
            wanted,
            topic=tp.topic,
            partition=tp.partition,
            start=some[0].start,
            stop=until,
            bytes_max=bytes_max,
        )

    try:
        return [open_(pieces)], None
    except Refused:
        batches: list[pa.RecordBatch] = []
        for piece in pieces:
            try:
                batches.append(open_([piece]))
            except Refused as refused:
                message = f"{tp} at offset {piece.start}: {refused.message}"
                return batches, RecordsDamaged(message, tp, piece.start, refused.code)
        return batches, None


def open_all(
    fetcher: Fetcher, taken: Pieces, wanted: pa.Schema, until: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[pa.RecordBatch]]:
    """By partition. Damaged batches are fetched again; RecordsDamaged if there are no other records."""
    shown: dict[TopicPartition, list[pa.RecordBatch]] = {}
    error: RecordsDamaged | None = None
    for tp, pieces in taken.items():
        limit = until.get(tp, OFFSET_MAX)
        batches, damage = opened(tp, pieces, wanted, until=limit, bytes_max=fetcher.settings.expanded_bytes_max)
        if damage is not None:
            error = error or damage
            fetcher.seek(tp, damage.offset)
        batches = [batch for batch in batches if batch.num_rows]
        if batches:
            shown[tp] = batches
    if error is not None and not shown:
        raise error
    return shown


def first_offsets(taken: Pieces) -> dict[TopicPartition, int]:
    """The first offset of the records that were taken."""
    return {tp: max(pieces[0].start, read_header(pieces[0].data).base_offset) for tp, pieces in taken.items()}


def _size(pieces: list[Piece]) -> int:
    return sum(len(piece.data) for piece in pieces)
