"""The record filter of compaction, and `check_keys`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import Refused
from ottla.wire.batch import CODECS, CRC_FROM, DELETE_HORIZON, HEADER_BYTES, check, read_header
from ottla.wire.record_filter import RecordSpan, delete_horizon_ms, keep, keep_header, record_spans
from ottla.wire.records import Record, RecordsRefused, build_batch, check_keys, iterate, open_batch, validate

MEBIBYTE = 2**20
NOW = 1_700_000_000_000

records_of = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(-1, 2**60),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=100,
).map(lambda records: [record._replace(offset=at) for at, record in enumerate(records)])


def opened(batch):
    return open_batch(batch, MEBIBYTE)


def read(batch) -> list[Record]:
    check(batch)
    return list(iterate(batch, bytes_max=MEBIBYTE))


@given(records_of, st.sampled_from(CODECS), st.randoms(use_true_random=False), st.none() | st.integers(0, 2**50))
def test_kept_records_have_the_same_bytes(records, codec, random, horizon_ms):
    batch = build_batch(records, codec=codec, base_offset=100 - 100, producer_id=4, producer_epoch=1, base_sequence=9)
    header, data = opened(batch)
    found = [RecordSpan(*span) for span in record_spans(header, data)]
    assert [(span.key, span.has_value) for span in found] == [
        (record.key, record.value is not None) for record in records
    ]
    chosen = sorted(random.sample(range(len(records)), random.randint(1, len(records))))
    kept = keep(header, data, [found[at] for at in chosen], horizon_ms=horizon_ms)
    assert read(kept) == [records[at] for at in chosen]
    after = read_header(kept)
    assert (after.base_offset, after.last_offset, after.codec) == (header.base_offset, header.last_offset, header.codec)
    assert (after.producer_id, after.base_sequence, after.last_sequence) == (4, 9, header.last_sequence)
    assert after.max_timestamp == max(records[at].timestamp for at in chosen)
    assert delete_horizon_ms(after) == horizon_ms


def test_the_time_of_append_stays_when_records_go():
    batch = build_batch([Record(0, NOW, b"a"), Record(1, NOW, b"b")], log_append_time_ms=NOW + 5)
    header, data = opened(batch)
    first = RecordSpan(*next(record_spans(header, data)))
    assert [record.timestamp for record in read(keep(header, data, [first], horizon_ms=NOW + 99))] == [NOW + 5]


def test_a_batch_without_records_keeps_its_offsets_and_last_sequence():
    records = [Record(at, NOW, b"k", b"v") for at in range(10, 15)]
    batch = build_batch(records, codec="zstd", producer_id=4, producer_epoch=1, base_sequence=7, transactional=True)
    empty = keep_header(read_header(batch)._replace(attributes=read_header(batch).attributes | DELETE_HORIZON))
    header = check(empty)
    assert len(empty) == HEADER_BYTES
    assert read(empty) == []
    assert (header.base_offset, header.last_offset, header.last_sequence, header.max_timestamp) == (10, 14, 11, NOW)
    assert header.is_transactional
    assert (header.codec, delete_horizon_ms(header)) == (0, None)


@given(records_of, st.sampled_from(CODECS))
def test_the_quick_check_of_keys_says_what_full_validation_says(records, codec):
    batch = build_batch(records, codec=codec)
    keyless = [record.offset for record in records if record.key is None]
    for wanted in (
        lambda: check_keys(batch, bytes_max=MEBIBYTE),
        lambda: validate(batch, bytes_max=MEBIBYTE, keys_required=True),
    ):
        if keyless:
            with pytest.raises(RecordsRefused) as refused:
                wanted()
            assert [index for index, _ in refused.value.record_errors] == keyless
        else:
            wanted()


@given(records_of, st.data())
def test_batches_that_pass_check_keys_can_be_filtered(records, data):
    batch = bytearray(build_batch([record._replace(key=record.key or b"k") for record in records]))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_keys(bytes(batch), bytes_max=MEBIBYTE)
    except Refused:
        return
    found = [RecordSpan(*span) for span in record_spans(*opened(bytes(batch)))]
    assert [span.offset_delta for span in found] == list(range(len(records)))
    assert all(span.key is not None for span in found)


def test_a_filtered_batch_has_a_valid_checksum():
    header, data = opened(build_batch([Record(0, NOW, b"a"), Record(1, NOW, b"b")]))
    kept = bytearray(keep(header, data, [RecordSpan(*next(record_spans(header, data)))]))
    check(kept)
    kept[CRC_FROM + 30] ^= 1
    with pytest.raises(Refused):
        check(kept)
