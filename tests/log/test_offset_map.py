"""Offset map: correct for any keys, and bounded for any number of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.log.offset_map import NOT_FOUND, SLOT_BYTES, OffsetMap


@given(st.lists(st.binary(max_size=6), max_size=200))
def test_the_offset_map_has_the_last_offset_of_every_key(keys):
    offsets = OffsetMap(keys_max=len(keys), buffer_bytes=2**20, load_factor=0.9)
    for offset, key in enumerate(keys):
        offsets.put(key, offset)
    expected = {key: offset for offset, key in enumerate(keys)}
    assert offsets.size == len(expected)
    assert {key: offsets.get(key) for key in expected} == expected
    assert offsets.get(b"none of them") == NOT_FOUND


def test_the_offset_map_is_full_when_its_memory_is_used():
    offsets = OffsetMap(keys_max=10**9, buffer_bytes=1000 * SLOT_BYTES, load_factor=0.9)
    count = 0
    while not offsets.full:
        offsets.put(b"key %d" % count, count)
        count += 1
    assert 850 < count <= 900
    assert all(offsets.get(b"key %d" % at) == at for at in range(count))
    assert offsets.get(b"another") == NOT_FOUND


def test_the_offset_map_needs_no_more_memory_than_the_number_of_keys():
    offsets = OffsetMap(keys_max=10, buffer_bytes=2**30, load_factor=0.9)
    for at in range(10):
        assert not offsets.full
        offsets.put(b"%d" % at, at)


def test_the_smallest_offset_map_holds_one_key():
    offsets = OffsetMap(keys_max=5, buffer_bytes=0, load_factor=0.01)
    assert not offsets.full
    offsets.put(b"a", 0)
    assert offsets.full
    assert offsets.get(b"a") == 0
