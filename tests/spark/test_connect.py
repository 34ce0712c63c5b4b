"""Spark Connect: foreachBatch sinks work without a JVM in the program's process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow.dataset as ds

from tests.spark.conftest import REPOSITORY, Create
from tests.spark.test_sink import fill, numbers, once

pytestmark = pytest.mark.timeout(1800)


def test_topics_and_parquet_are_written_once_over_spark_connect(broker, create: Create, tmp_path):
    source, sink = create(2), create(2)
    for first in (0, 100):
        fill(broker.bootstrap, source, 100, first=first)
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.connecting", broker.bootstrap, source, sink, str(tmp_path)],
            cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=560, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert numbers(broker.bootstrap, sink) == once(200)
    table = ds.dataset(tmp_path / "files", partitioning="hive").to_table()
    assert Counter(map(int, table["value"].to_pylist())) == once(200)
    assert set(table["third"].to_pylist()) == {0, 1, 2}
