"""The walk of a Spark micro-batch in docs/ARCHITECTURE.md: planner, task and driver on a real broker, without a JVM."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla import blocking
from ottla.spark import exactly_once
from ottla.spark.exactly_once import WriteIdentity
from tests.harness import walks
from tests.harness.call_trace import Trace, traced
from tests.spark.conftest import Create
from tests.spark.test_fencing import plan_of, rows
from tests.spark.test_prefetch import reader_of


def micro_batches(broker, source: str, sink: str) -> Trace:
    """The last of three, as Spark runs it: plan, read, write in a task, commit in the driver."""
    plan = plan_of(broker, sink, app_id=sink)
    reader = reader_of(broker, source)
    begun = {source: {"0": 0}}
    for version in range(3):
        with blocking.Producer(broker.bootstrap) as producer:
            producer.send_and_wait(source, b"%d" % version, partition=0)
        with traced() as trace:
            ended = reader.latestOffset(begun, ReadAllAvailable())
            for part in reader.partitions(begun, ended):
                list(reader.read(part))
            written = exactly_once.write(plan, WriteIdentity(sink, version), 0, rows(version))
            exactly_once.commit(plan, WriteIdentity(sink, version), [written])
        begun = ended
    return trace


def test_a_micro_batch_goes_through_the_functions_that_its_walk_names(broker, create: Create):
    walks.check("Spark micro-batch", micro_batches(broker, create(1), create(1)))
