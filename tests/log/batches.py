"""Batches for the log's tests."""

from __future__ import annotations

from ottla.errors import ErrorCode, Refused
from ottla.log.partition_log import PartitionLog
from ottla.wire.batch import BatchHeader, batches, check
from ottla.wire.records import Record, build_batch

NOW = 1_700_000_000_000
PATH = "data/topic-0"


def make(
    values: int | list[bytes] = 1,
    *,
    timestamp: int = NOW,
    timestamps: list[int] | None = None,
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
    **options,
) -> tuple[memoryview, BatchHeader]:
    """A batch as a producer sends it, writable as the network hands it over, and its header."""
    if isinstance(values, int):
        values = [b"value"] * values
    times = timestamps or [timestamp] * len(values)
    records = [
        Record(offset, time, None, value) for offset, (value, time) in enumerate(zip(values, times, strict=True))
    ]
    data = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=producer_epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
        **options,
    )
    view = memoryview(bytearray(data))
    return view, check(view)


def append(log: PartitionLog, values: int | list[bytes] = 1, *, epoch: int = 0, now_ms: int = NOW, **options) -> bytes:
    """Append one batch, and return it as it stands in the log."""
    view, header = make(values, **options)
    log.append(view, header, leader_epoch=epoch, now_ms=now_ms)
    return bytes(view)


def fill(log: PartitionLog, count: int, **options) -> list[bytes]:
    return [append(log, [b"value %d" % at], **options) for at in range(count)]


def stored(log: PartitionLog, *, bytes_max: int = 10_000, limit: int | None = None) -> list[bytes]:
    """Every whole batch a reader sees who reads from the log start on."""
    offset = log.log_start
    seen: list[bytes] = []
    while (piece := log.read(offset, bytes_max, limit=log.log_end if limit is None else limit)) is not None:
        data = piece.load_nowait()
        if data is None:
            data = piece.load()
        whole = [(at, header) for at, header in batches(data)]
        assert whole, "a reader must get on"
        for at, header in whole:
            check(data, at)
            seen.append(bytes(data[at : at + header.size]))
            offset = header.next_offset
    return seen


def served(log: PartitionLog) -> dict[int, bytes]:
    """Every batch that a reader sees who asks for each offset; those who are told of damage see none."""
    seen: dict[int, bytes] = {}
    for offset in range(log.log_start, log.log_end):
        try:
            piece = log.read(offset, 1, limit=log.log_end)
            assert piece is not None, "the records are missing without an error"
            data = piece.load()
        except Refused as refused:
            if refused.code is ErrorCode.kafka_storage_error and log.damage is not None:
                continue
            raise
        position, header = next(batches(data))
        assert header.base_offset <= offset <= header.last_offset, "offsets were skipped in silence"
        seen[header.base_offset] = bytes(data[position : position + header.size])
    return seen


def cut_unsynced_damage(log: PartitionLog, synced: int) -> None:
    """A power cut may take a sector or a file that was not synced and leave what was written behind it. Recovery names
    what is missing then: the log is cut there, as before it is copied again from another replica."""
    if log.damage is None:
        return
    first = log.damage.missing[0][0]
    assert first >= synced, "what was synced is missing"
    for segment in log.truncate_to(first, NOW):
        segment.unlink()
    log.manifest.checkpointed(log.manifest.cuts)
    assert log.damage is None
    assert log.log_end == first
