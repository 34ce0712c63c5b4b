"""The same copy on a Spark cluster, with a master and two workers: an executor that is killed takes nothing with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test-spark installs it")

from ottla import blocking
from ottla.client.admin import NewTopic
from tests.serving import BrokerProcess, wait_for
from tests.spark.standalone import Standalone
from tests.spark.test_kills import Copy
from tests.spark.test_sink import fill, numbers, once

ROWS = 9_000
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SPARK_TESTS") != "all", reason="takes minutes: make test-spark runs it"),
]


def test_a_cluster_whose_executor_is_killed_copies_every_record_once(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
):
    broker = start_broker()
    with blocking.Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("source", 2), NewTopic("sink", 2)])
    fill(broker.bootstrap, "source", ROWS)
    with Standalone(tmp_path / "cluster") as cluster:
        running = Copy(broker, tmp_path, cluster.url).start()
        try:
            running.wait_for_batches(2)
            executors = wait_for(lambda: executors if len(executors := cluster.executors()) == 2 else None, "executors")
            os.kill(executors[0], signal.SIGKILL)
            if running.process.wait(300) != 0:
                running.start().finish()
        finally:
            if running.process.poll() is None:
                running.kill()
    assert numbers(broker.bootstrap, "sink") == once(ROWS)
