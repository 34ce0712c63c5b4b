"""Records against the builders and readers of two other clients, all codecs, and batches that lie."""

from __future__ import annotations

import random
import time
import tracemalloc

import aiokafka.record.default_records as aio
import cramjam
import kafka.record.default_records as kp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ErrorCode, Refused
from ottla.wire.batch import CODECS, HEADER_BYTES, check, check_produced, read_header
from ottla.wire.compression import compress, decompress
from ottla.wire.records import Record, build_batch, iterate, recompress, seal, validate

MEBIBYTE = 1 << 20
RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", ()),
    Record(1, 1_700_000_000_500, None, b"x" * 300, (("h", b"1"), ("h", None), ("é", b""))),
    Record(2, 1_699_999_999_000, b"", None, ()),
    Record(3, 1_700_000_000_000, b"k" * 70, b"", (("long" * 40, b"y" * 200),)),
]


def plain(records):
    return [(r.offset, r.timestamp, r.key, r.value, [tuple(header) for header in r.headers]) for r in records]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", [kp.DefaultRecordBatch, aio.DefaultRecordBatch], ids=["kafka-python", "aiokafka"])
def test_other_clients_read_what_we_build(client, codec):
    batch = build_batch(RECORDS, codec=codec, producer_id=9, producer_epoch=2, base_sequence=7, transactional=True)
    theirs = client(batch)
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (9, 2, 7)
    assert (theirs.first_timestamp, theirs.max_timestamp) == (RECORDS[0].timestamp, RECORDS[1].timestamp)
    assert theirs.is_transactional
    assert not theirs.is_control_batch
    assert theirs.compression_type == CODECS.index(codec)
    assert plain(theirs) == plain(RECORDS)


def built_by_kafka_python(codec):
    builder = kp.DefaultRecordBatchBuilder(2, CODECS.index(codec), False, -1, -1, -1, MEBIBYTE)
    for r in RECORDS:
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    return bytes(builder.build())


def built_by_aiokafka(codec):
    builder = aio.DefaultRecordBatchBuilder(2, CODECS.index(codec), 0, -1, -1, -1, MEBIBYTE)
    for r in RECORDS:
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    return bytes(builder.build())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("build", [built_by_kafka_python, built_by_aiokafka])
def test_we_read_what_other_clients_build(build, codec):
    batch = build(codec)
    check_produced(memoryview(batch))
    validate(batch, bytes_max=MEBIBYTE)
    assert list(iterate(batch, bytes_max=MEBIBYTE)) == RECORDS
    if codec == "none":
        assert build_batch(RECORDS, leader_epoch=read_header(batch).leader_epoch) == batch


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_recompressed_batches_hold_the_same_records(source, target):
    records = [Record(100 + n, n, str(n).encode(), b"some text " * 50) for n in range(500)]
    batch = build_batch(records, codec=source, leader_epoch=3, producer_id=4, producer_epoch=5, base_sequence=6)
    other = recompress(batch, target, bytes_max=MEBIBYTE)
    changed = {"length", "crc", "attributes"}
    before, after = read_header(batch)._asdict(), check(other)._asdict()
    assert {k: v for k, v in before.items() if k not in changed} == {k: v for k, v in after.items() if k not in changed}
    assert list(iterate(other, bytes_max=MEBIBYTE)) == records
    assert target == "none" or len(other) < len(build_batch(records)) / 4


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 15)])
def test_a_higher_level_compresses_better(codec, low, high):
    chance = random.Random(7)
    data = b" ".join(chance.choice((b"alpha", b"beta", b"gamma", b"delta")) for _ in range(50_000))
    assert len(compress(codec, data, high)) < len(compress(codec, data, low)) < len(data)
    assert decompress(codec, compress(codec, data, high), MEBIBYTE) == data


def test_lz4_blocks_are_independent_because_java_reads_no_others():
    frame = compress("lz4", bytes(300_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


def test_snappy_is_read_raw_too():
    data = b"raw as librdkafka writes it" * 9
    assert decompress("snappy", bytes(cramjam.snappy.compress_raw(data)), MEBIBYTE) == data


@pytest.mark.parametrize("codec", CODECS)
def test_incompressible_and_large_data_survive(codec):
    chance = random.Random(3)
    for size in (0, 1, 65_535, 65_536, 65_537, 700_000):
        data = chance.randbytes(size)
        assert decompress(codec, compress(codec, data), MEBIBYTE) == data


def bomb(codec):
    """A batch of a few kilobytes (snappy: more) that expands to 200 MiB."""
    library = getattr(cramjam, codec)
    if codec == "snappy":
        block = bytes(cramjam.snappy.compress_raw(bytes(MEBIBYTE)))
        return compress("snappy", b"") + (len(block).to_bytes(4, "big") + block) * 200
    compressor = library.Compressor()
    parts = []
    for _ in range(200):
        compressor.compress(bytes(MEBIBYTE))
        parts.append(bytes(compressor.flush()))
    return b"".join([*parts, bytes(compressor.finish())])


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_decompression_bomb_is_never_expanded_whole(codec):
    header = read_header(build_batch(RECORDS, codec=codec))
    batch = seal(header, bomb(codec))
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(Refused) as refused:
            list(iterate(batch, bytes_max=MEBIBYTE))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.code == ErrorCode.invalid_record
    assert peak < 4 * MEBIBYTE
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compression_is_corrupt(codec):
    whole = compress(codec, b"some text " * 5000)
    for damaged in (whole[:-5], whole[: len(whole) // 2], b"garbage" + whole, b"\xff" * 40):
        with pytest.raises(Refused) as refused:
            decompress(codec, damaged, MEBIBYTE)
        assert refused.value.code in (ErrorCode.corrupt_message, ErrorCode.invalid_record)


def test_a_snappy_length_that_cannot_be_true_is_not_allocated():
    lie = b"\xff\xff\xff\x07" + b"abc"
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="cannot come out"):
            decompress("snappy", lie, 1 << 30)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def with_records(data, **changes):
    """A batch with these bytes for records, under a header that claims one."""
    return seal(read_header(build_batch([Record()]))._replace(**changes), data)


LIES = {
    "more records than bytes": with_records(b"\x0c\0\0\0\1\1\0", record_count=2),
    "a billion records": with_records(b"\x0c\0\0\0\1\1\0", record_count=2**30),
    "a negative count": with_records(b"\x0c\0\0\0\1\1\0", record_count=-1),
    "fewer records than bytes": with_records(b"\x0c\0\0\0\1\1\0" * 2),
    "record longer than the batch": with_records(b"\x7e\0\0\0\1\1\0"),
    "record of negative length": with_records(b"\x0b\0\0\0\1\1\0"),
    "record longer than its parts": with_records(b"\x0e\0\0\0\1\1\0\0"),
    "key longer than the record": with_records(b"\x0c\0\0\0\x10\1\0"),
    "key of length -2": with_records(b"\x0c\0\0\0\x03\1\0"),
    "headers that are not there": with_records(b"\x0c\0\0\0\1\1\x02"),
    "a billion headers": with_records(b"\x14\0\0\0\1\1\xfe\xff\xff\xff\x0f"),
    "a header without key": with_records(b"\x10\0\0\0\1\1\x02\x01\x01"),
    "a number without end": with_records(b"\x20" + b"\xff" * 16),
    "offset beyond the last": with_records(b"\x0c\0\0\x04\1\1\0"),
    "negative offset": with_records(b"\x0c\0\0\x01\1\1\0"),
    "same offset twice": with_records(b"\x0c\0\0\0\1\1\0" * 2, record_count=2, last_offset_delta=1),
}


@pytest.mark.parametrize("batch", LIES.values(), ids=LIES)
def test_records_that_contradict_themselves_are_refused(batch):
    for use in (
        lambda: list(iterate(batch, bytes_max=MEBIBYTE)),
        lambda: validate(batch, bytes_max=MEBIBYTE),
    ):
        with pytest.raises(Refused) as refused:
            use()
        assert refused.value.code == ErrorCode.invalid_record


def test_full_validation_wants_offsets_without_gaps_and_keys_where_required():
    validate(build_batch(RECORDS), bytes_max=MEBIBYTE)
    gaps = build_batch([Record(0, key=b"k"), Record(2, key=b"k")])
    assert [r.offset for r in iterate(gaps, bytes_max=MEBIBYTE)] == [0, 2]
    short = build_batch([Record(0, key=b"k")], last_offset=1)
    keyless = build_batch([Record(0, key=b"k"), Record(1)])
    validate(keyless, bytes_max=MEBIBYTE)
    for batch, message in ((gaps, "gap"), (short, "disagree"), (keyless, "needs a key")):
        with pytest.raises(Refused, match=message) as refused:
            validate(batch, bytes_max=MEBIBYTE, keys_required=True)
        assert refused.value.code == ErrorCode.invalid_record


def test_batches_that_are_cut_or_of_another_kind_are_refused():
    batch = build_batch(RECORDS)
    for broken in (b"", batch[:60], batch[:-1]):
        with pytest.raises(Refused) as refused:
            list(iterate(broken, bytes_max=MEBIBYTE))
        assert refused.value.code == ErrorCode.corrupt_message
    unknown = with_records(b"\x0c\0\0\0\1\1\0", attributes=6)
    with pytest.raises(Refused) as refused:
        list(iterate(unknown, bytes_max=MEBIBYTE))
    assert refused.value.code == ErrorCode.unsupported_compression_type


@given(st.binary(max_size=60), st.integers(1, 5), st.sampled_from([0, 1, 2, 3, 4]))
def test_arbitrary_bytes_for_records_are_refused_or_read(data, count, codec):
    batch = with_records(data, record_count=count, last_offset_delta=count - 1, attributes=codec)
    try:
        assert len(list(iterate(batch, bytes_max=10_000))) == count
    except Refused:
        pass


headers = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
content = st.none() | st.binary(max_size=200)
timestamps = st.integers(-1, 2**62)


@given(
    st.lists(st.tuples(timestamps, content, content, headers), min_size=1, max_size=8),
    st.sampled_from(CODECS),
)
def test_records_come_back_as_they_were(parts, codec):
    records = [Record(1000 + n, *part) for n, part in enumerate(parts)]
    batch = build_batch(records, codec=codec)
    check(batch)
    assert list(iterate(batch, bytes_max=MEBIBYTE)) == records
    assert list(iterate(memoryview(batch + b"next batch"), bytes_max=MEBIBYTE)) == records


def test_log_append_time_applies_to_every_record():
    batch = build_batch(RECORDS, log_append_time_ms=42)
    assert {r.timestamp for r in iterate(batch, bytes_max=MEBIBYTE)} == {42}
    assert read_header(batch).max_timestamp == 42


def test_a_batch_without_records_keeps_its_offset():
    batch = build_batch(
        [], codec="zstd", base_offset=10, last_offset=14, producer_id=1, producer_epoch=0, base_sequence=0
    )
    header = check(batch)
    assert (header.base_offset, header.next_offset, header.record_count, len(batch)) == (
        10,
        15,
        0,
        HEADER_BYTES,
    )
    assert list(iterate(batch, bytes_max=MEBIBYTE)) == []
    assert recompress(batch, "gzip", bytes_max=MEBIBYTE)[HEADER_BYTES:] == b""


def test_header_keys_that_are_not_utf8_survive():
    batch = with_records(b"\x14\0\0\0\1\1\x02\x02\xff\x02v")
    (record,) = iterate(batch, bytes_max=MEBIBYTE)
    assert build_batch([record]) == build_batch([Record(0, -1, headers=(("\udcff", b"v"),))])
    assert build_batch([record]) == batch
