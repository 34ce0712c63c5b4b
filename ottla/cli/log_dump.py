"""`ottla log dump`: the batches or records of a partition's files.

Records of internal topics are decoded: committed offsets, group members, transactions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from ottla.cli.failure import Failure, Misused
from ottla.cli.output import json_option, print_json, print_table
from ottla.cli.quantities import shown_ms
from ottla.coordinator import group_records, transaction_records
from ottla.errors import BadFrame, Refused
from ottla.log.scan import whole
from ottla.runtime.disk import RealDisk
from ottla.wire.batch import CODECS, BatchHeader
from ottla.wire.marker import ABORT
from ottla.wire.records import Record, iterate

RECORDS_BYTES_MAX: Final = 256 * 2**20
LOG: Final = ".log"
SHOWN_MAX: Final = 120

Entry = dict[str, Any]
Decoder = Callable[[Record], tuple[Any, Any]]


@click.command("dump")
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...")
@click.option("--records", "deep", is_flag=True, help="Print records instead of batches.")
@click.option("--from-offset", type=click.IntRange(min=0), default=0, metavar="N")
@click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N lines.")
@json_option
def dump(paths: tuple[str, ...], deep: bool, from_offset: int, count: int | None, as_json: bool) -> None:
    """Print the batches or records of segments: .log files, or partition directories. Nothing is changed.

    \b
    Example:
      ottla log dump ottla-data/orders-0 --records
      ottla log dump ottla-data/__consumer_offsets-7 --records
    """
    entries: list[Entry] = []
    damage: str | None = None
    for path in (segment for each in paths for segment in _segments(each)):
        try:
            for entry in _entries(path, deep):
                if entry["last_offset" if not deep else "offset"] >= from_offset:
                    entries.append(entry)
                if count is not None and len(entries) >= count:
                    break
        except Refused as refused:
            damage = f"{path}: {refused.message}"
            break
        if count is not None and len(entries) >= count:
            break
    if as_json:
        print_json(entries)
    elif deep:
        header = ("OFFSET", "TIME", "KEY", "VALUE", "HEADERS")
        rows = [
            (e["offset"], shown_ms(e["timestamp"]), _cell(e["key"]), _cell(e["value"]), _cell(e["headers"] or ""))
            for e in entries
        ]
        print_table(header, rows)
    else:
        _print_batches(entries)
    if damage is not None:
        raise Failure(damage, hint="`ottla log verify` explains it, and what to do.")


def _print_batches(entries: list[Entry]) -> None:
    header = ("OFFSETS", "RECORDS", "BYTES", "AT", "TIME", "CODEC", "EPOCH", "PRODUCER", "SEQUENCE", "")
    rows = []
    for each in entries:
        producer = f"{each['producer_id']}/{each['producer_epoch']}" if each["producer_id"] >= 0 else "-"
        sequence = each["base_sequence"] if each["base_sequence"] >= 0 else "-"
        marks = [name for name in ("transactional", "control") if each[name]]
        rows.append(
            (
                f"{each['base_offset']}..{each['last_offset']}",
                each["records"],
                each["size"],
                each["position"],
                shown_ms(each["max_timestamp"]),
                each["codec"],
                each["leader_epoch"],
                producer,
                sequence,
                " ".join(marks),
            )
        )
    print_table(header, rows)


def _segments(path: str) -> list[str]:
    if os.path.isdir(path):
        found = sorted(name for name in os.listdir(path) if name.endswith(LOG))
        if not found:
            raise Misused(f"{path} has no segments", hint="Name the directory of a partition, such as DATA/orders-0.")
        return [os.path.join(path, name) for name in found]
    if not path.endswith(LOG) or not os.path.exists(path):
        raise Misused(f"{path} is not a segment", hint="Name a .log file, or the directory of a partition.")
    return [path]


def _entries(path: str, deep: bool) -> Iterator[Entry]:
    file = RealDisk().open(path)
    decode = _decoder(os.path.basename(os.path.dirname(os.path.abspath(path))))
    try:
        for position, header, batch in whole(file, 0, file.size()):
            if not deep:
                yield _batch(path, position, header)
                continue
            for record in iterate(batch, bytes_max=RECORDS_BYTES_MAX):
                key, value = _marker(record) if header.is_control else decode(record)
                yield {
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "key": key,
                    "value": value,
                    "headers": {name: _text(each) for name, each in record.headers},
                }
    finally:
        file.close()


def _batch(path: str, position: int, header: BatchHeader) -> Entry:
    return {
        "file": os.path.basename(path),
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size": header.size,
        "codec": CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec),
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }


def _decoder(directory: str) -> Decoder:
    topic = directory.rpartition("-")[0]
    coders: dict[str, Any] = {"__consumer_offsets": group_records, "__transaction_state": transaction_records}
    coder = coders.get(topic)
    return _plain if coder is None else lambda record: _decoded(coder, record)


def _plain(record: Record) -> tuple[Any, Any]:
    return _text(record.key), _text(record.value)


def _decoded(coder: Any, record: Record) -> tuple[Any, Any]:
    """Decoded as the coordinator decodes it; the bytes, if this release does not know the type of record."""
    try:
        key = coder.decode_key(record.key or b"")
        if key is None:
            return _plain(record)
        value = None if record.value is None else str(coder.decode_value(key, record.value))
    except (BadFrame, Refused, ValueError, IndexError):
        return _plain(record)
    return str(key), value


def _marker(record: Record) -> tuple[str, str]:
    kind = int.from_bytes((record.key or b"")[2:4], "big")
    return "transaction marker", "aborted" if kind == ABORT else "committed"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _cell(value: Any) -> str:
    shown = "null" if value is None else str(value).replace("\n", "\\n")
    return shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 1] + "…"
