"""A pipeline on a Spark cluster with a master and two workers: an executor that is killed takes nothing with it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.spark.conftest import REPOSITORY
from tests.spark.copying import ROWS_PER_BATCH
from tests.spark.standalone import Standalone
from tests.spark.test_kills import Copy
from tests.spark.test_sink import fill, numbers, once

ROWS = 4_000
pytestmark = pytest.mark.timeout(600)

PIPELINE = """\
name: copy
storage: file://{storage}
configuration:
  spark.driver.host: 127.0.0.1
  spark.driver.bindAddress: 127.0.0.1
  spark.executor.memory: 512m
  spark.executorEnv.PYTHONPATH: {repository}
  spark.executor.extraJavaOptions: -XX:+UseSerialGC -XX:TieredStopAtLevel=1
sources:
  source:
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", subscribe: source, maxOffsetsPerTrigger: "{portion}"}}
transforms:
  copied: select key, value from source
sinks:
  sink: {{from: copied, format: ottla, options: {{kafka.bootstrap.servers: "{bootstrap}", topic: sink}}}}
"""


class Run(Copy):
    """`ottla pipeline run` as it is typed."""

    def __init__(self, broker: WatchedBroker, directory: Path, master: str) -> None:
        super().__init__(broker, directory, master)
        storage = directory / "data"
        self.checkpoint = storage / "checkpoints" / "sink"
        self._file = directory / "pipeline.yaml"
        self._file.write_text(
            PIPELINE.format(storage=storage, repository=REPOSITORY, bootstrap=broker.bootstrap, portion=ROWS_PER_BATCH)
        )

    def command(self) -> list[str]:
        run = ["ottla", "pipeline", "run", str(self._file), "--available-now", "--master", self._master]
        return [sys.executable, "-m", *run]


def test_a_pipeline_on_a_cluster_whose_executor_is_killed_copies_every_record_once(
    start_broker: Callable[..., WatchedBroker], tmp_path: Path
):
    broker = start_broker()
    with blocking.Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("source", 2), NewTopic("sink", 2)])
    fill(broker.bootstrap, "source", ROWS)
    with Standalone(tmp_path / "cluster") as cluster:
        running = Run(broker, tmp_path, cluster.url).start()
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
