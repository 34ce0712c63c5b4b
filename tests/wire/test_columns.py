"""Columns and records: each reads the batches of the other, and both refuse the same."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("numpy", reason="columns need numpy and pyarrow: pip install 'ottla[arrow]'")
pytest.importorskip("pyarrow", reason="columns need numpy and pyarrow: pip install 'ottla[arrow]'")

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import Refused
from ottla.wire.batch import CODECS, HEADER_BYTES, check, check_produced, read_header
from ottla.wire.columns import COLUMNS, Rows, cut, record_batch, schema_of
from ottla.wire.records import Record, build_batch, iterate, validate

BYTES_MAX = 1 << 26
EVERYTHING = schema_of([*COLUMNS, "headers"])

payloads = st.none() | st.binary(max_size=200) | st.sampled_from([b"", b"x" * 63, b"x" * 64, b"x" * 9000])
header_lists = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=70)), max_size=4)
times = st.integers(-1, 2**44)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches as a compacted log has them: with gaps between them, and in them."""
    built = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 4))):
        first = offset + draw(st.integers(0, 3))
        records = []
        offset = first
        for _ in range(draw(st.integers(0, 5))):
            offset += draw(st.sampled_from([0, 1, 70, 9000]))
            records.append(Record(offset, draw(times), draw(payloads), draw(payloads), tuple(draw(header_lists))))
            offset += 1
        offset += draw(st.integers(0, 2))
        built.append(
            build_batch(
                records,
                codec=draw(st.sampled_from(CODECS)),
                base_offset=first,
                last_offset=max(offset - 1, first),
                log_append_time_ms=draw(st.none() | st.integers(0, 2**42)),
            )
        )
        offset = max(offset, first + 1)
    return built


def rows_of(batch: pa.RecordBatch) -> list[Record]:
    micros = batch["timestamp"].cast(pa.int64()).to_pylist()
    return [
        Record(
            row["offset"],
            time // 1000,
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row, time in zip(batch.drop_columns(["timestamp"]).to_pylist(), micros, strict=True)
    ]


def read(batches: list[bytes], schema: pa.Schema = EVERYTHING, **range_: int) -> pa.RecordBatch:
    batch = record_batch(batches, schema, topic="orders", partition=7, bytes_max=BYTES_MAX, **range_)
    batch.validate(full=True)
    assert batch.schema == schema
    return batch


@settings(deadline=None)
@given(logs())
def test_columns_have_the_values_of_the_records(batches):
    expected = [record for batch in batches for record in iterate(batch, bytes_max=BYTES_MAX)]
    batch = read(batches)
    assert rows_of(batch) == expected
    assert set(batch["topic"].to_pylist()) <= {"orders"}
    assert set(batch["partition"].to_pylist()) <= {7}
    appended = [read_header(data).is_log_append_time for data in batches for _ in iterate(data, bytes_max=BYTES_MAX)]
    assert batch["timestampType"].to_pylist() == [int(flag) for flag in appended]


@settings(deadline=None)
@given(logs(), st.integers(0, 30000), st.integers(0, 30000))
def test_a_range_of_offsets_is_half_open(batches, start, length):
    everything = [record for batch in batches for record in iterate(batch, bytes_max=BYTES_MAX)]
    start += everything[0].offset - 100 if everything else 0
    stop = start + length
    assert rows_of(read(batches, start=start, stop=stop)) == [r for r in everything if start <= r.offset < stop]


def test_only_the_wanted_columns_are_there_in_the_wanted_order():
    batch = read([build_batch([Record(5, 1, b"k", b"v")])], schema_of(["value", "offset"]))
    assert batch.to_pylist() == [{"value": b"v", "offset": 5}]


@pytest.mark.parametrize("columns", [["key", "colour"], [], ["key", "key"]])
def test_an_unknown_column_is_refused(columns):
    with pytest.raises(ValueError, match="column"):
        schema_of(columns)


def test_header_names_that_are_no_text_are_replaced():
    batch = build_batch([Record(0, 1, None, b"v", (("a\udcff", b"1"), ("b", None)))])
    assert read([batch])["headers"].to_pylist() == [[{"key": "a\ufffd", "value": b"1"}, {"key": "b", "value": None}]]


def test_a_time_beyond_microseconds_is_the_last_there_is():
    batch = build_batch([Record(0, 2**62, None, b"v")])
    assert read([batch])["timestamp"].cast(pa.int64()).to_pylist() == [(2**63 - 1) // 1000 * 1000]


def outcome(batch: bytes, schema: pa.Schema) -> object:
    try:
        return rows_of(read([batch], schema))
    except Refused as refused:
        return refused.code


def expected(batch: bytes) -> object:
    try:
        return list(iterate(batch, bytes_max=BYTES_MAX))
    except Refused as refused:
        return refused.code


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_inconsistent_records_are_refused_by_both_readers(data):
    records = [
        Record(at, at, data.draw(payloads), data.draw(payloads), tuple(data.draw(header_lists)))
        for at in range(data.draw(st.integers(1, 4)))
    ]
    batch = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    reported = expected(bytes(batch))
    if isinstance(reported, list):
        # Names that are no UTF-8 are shown otherwise; they are not what this is about.
        if all(name.isprintable() for record in reported for name, _ in record.headers):
            assert outcome(bytes(batch), EVERYTHING) == reported
    else:
        assert outcome(bytes(batch), EVERYTHING) == reported


def test_batches_that_expand_beyond_the_limit_are_refused():
    batches = [build_batch([Record(at, 1, None, bytes(1000))], codec="zstd") for at in range(3)]
    with pytest.raises(Refused):
        record_batch(batches, EVERYTHING, topic="t", partition=0, bytes_max=2500)


tables = st.lists(st.tuples(payloads, payloads, st.none() | header_lists, times), min_size=1, max_size=9)
HEADERS = EVERYTHING.field("headers").type


def columns_of(rows: list) -> Rows:
    keys, values, headers, timestamps = zip(*rows, strict=True)
    named = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in headers]
    return Rows(
        pa.array(values, pa.binary()),
        key=pa.array(keys, pa.binary()),
        headers=pa.array(named, HEADERS),
        timestamps=np.array(timestamps, np.int64),
    )


@settings(deadline=None)
@given(tables, st.integers(100, 3000), st.sampled_from(CODECS))
def test_batches_made_of_columns_are_those_that_records_make(rows, bytes_max, codec):
    columns = columns_of(rows)
    bounds = cut(columns.sizes(), bytes_max)
    made = [batch.encode(codec=codec) for batch in columns.batches(bounds)]
    for batch, (start, stop) in zip(made, pairwise(bounds), strict=True):
        records = [
            Record(at, timestamp, key, value, tuple(headers or ()))
            for at, (key, value, headers, timestamp) in enumerate(rows[start:stop])
        ]
        assert batch == build_batch(records, codec=codec)
        check(batch)
        check_produced(memoryview(batch))
        validate(batch, bytes_max=BYTES_MAX)
        if codec == "none":
            assert stop - start == 1 or len(batch) <= bytes_max


@settings(deadline=None)
@given(tables, st.data())
def test_rows_can_be_taken_in_another_order_and_in_part(rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    picked = columns_of(rows).take(np.array(order)).part(start, stop)
    same = columns_of([rows[at] for at in order][start:stop])
    assert [b.plain for b in picked.batches([0, stop - start])] == [b.plain for b in same.batches([0, stop - start])]


def test_text_and_missing_columns_are_written_as_they_are():
    rows = Rows(pa.array(["grüße", None]), timestamps=np.array([5, 6]))
    (batch,) = rows.batches([0, 2])
    records = [Record(0, 5, None, "grüße".encode()), Record(1, 6, None, None)]
    assert batch.encode() == build_batch(records)


def test_no_batch_crosses_an_edge():
    assert cut(np.full(10, 100), 361, edges=(4, 5)) == [0, 3, 4, 5, 8, 10]


def test_the_numbers_of_a_producer_are_in_the_header():
    (batch,) = Rows(pa.array([b"v"]), timestamps=np.array([5])).batches([0, 1])
    encode = batch.encode(producer_id=9, producer_epoch=2, base_sequence=40, transactional=True)
    record = [Record(0, 5, None, b"v")]
    assert encode == build_batch(record, producer_id=9, producer_epoch=2, base_sequence=40, transactional=True)
