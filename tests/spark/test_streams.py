"""Several streams in one Spark program: a stream that starts adds nothing to the map that all streams share."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from ottla.spark import prepare
from ottla.spark.streams import SOURCES, VARIABLES
from tests.conftest import Served
from tests.spark.conftest import Create

pytestmark = pytest.mark.timeout(120)


def shared(spark, source: str) -> set[str]:
    found = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(source)
    return set(found.dataSourceCls().envVars())


def test_a_prepared_program_has_all_variables_of_a_stream(spark, broker: Served, create: Create, tmp_path):
    prepare(spark)
    before = {source: shared(spark, source) for source in SOURCES}
    assert before == dict.fromkeys(SOURCES, before["ottla"])
    assert before["ottla"] >= set(VARIABLES)
    stream = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    query = (
        stream.option("subscribe", create(1))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert shared(spark, "ottla") == before["ottla"]
    assert shared(spark, "ottla-postgres-cdc") == before["ottla"], "no stream of it has run: it has the same variables"


def test_what_is_not_a_session_of_this_process_is_left_alone():
    prepare(object())
