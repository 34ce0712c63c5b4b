"""Partitions of rows: keys are hashed as for single records, rows without a key as the partitioner says."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy", reason="columns need numpy and pyarrow: pip install 'ottla[arrow]'")
pytest.importorskip("pyarrow", reason="columns need numpy and pyarrow: pip install 'ottla[arrow]'")

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.core.metadata import Leader, TopicMetadata
from ottla.client.errors import BadSetting
from ottla.client.producing.arrow_batches import RowPartitioner, murmur2
from ottla.client.producing.partitioners import murmur2 as murmur2_of_one
from ottla.client.producing.partitioners import partition_of_key
from ottla.wire.columns import Rows


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=23), min_size=1), st.integers(0, 3))
def test_all_keys_at_once_have_the_hashes_they_have_one_by_one(keys, skip):
    column = pa.array([b"abc"] * skip + keys, pa.binary()).slice(skip)
    hashes = murmur2(column).tolist()
    assert [each for each, key in zip(hashes, keys, strict=True) if key is not None] == [
        murmur2_of_one(key) for key in keys if key is not None
    ]


def dealt(how: str, count: int) -> list[int]:
    topic = TopicMetadata("t", bytes(16), {at: Leader(1, 0) for at in range(4)}, (0, 1, 2, 3))
    rows = Rows(pa.array([b"x"] * count), timestamps=np.zeros(count, np.int64))
    return RowPartitioner(how, seed=4).partitions(rows, topic, np.full(count, 10), 30).tolist()


def test_rows_without_a_key_are_dealt_out_as_the_partitioner_says():
    assert dealt("sticky", 7) == [0, 0, 0, 1, 1, 1, 2]
    assert dealt("round_robin", 5) == [0, 1, 2, 3, 0]
    assert set(dealt("random", 200)) == {0, 1, 2, 3}
    assert set(dealt("hash", 9)) == {partition_of_key(b"", 4)}
    with pytest.raises(BadSetting, match="one by one"):
        dealt("priority", 1)
