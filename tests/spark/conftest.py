"""One Spark session for all tests: it takes ten seconds to come up. Skipped where PySpark is not installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.spark.pipeline.spark_session import quick_python
from tests.conftest import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]
IN_MAKE_TEST = {
    "test_a_batch_has_the_columns_of_the_connector",
    "test_an_available_now_stream_reads_in_portions_and_continues_at_its_checkpoint",
    "test_a_write_with_an_identity_is_done_once",
    "test_missing_markers_stop_the_stream_unless_txn_missing_marker_is_write",
    "test_two_topics_in_one_batch_need_names_of_their_own",
    "test_changes_reach_a_table_by_key",
    "test_counts_in_update_mode_are_written_once_each",
    "test_mistakes_in_the_sql_are_found_in_their_lines_by_spark",
    "test_epochs_are_whole_and_a_batch_that_comes_again_replaces_its_own",
    "test_a_killed_driver_continues_at_its_checkpoint",
    "test_workers_that_are_killed_are_replaced",
    "test_a_broker_that_is_killed_and_comes_back_loses_nothing",
    "test_a_pipeline_on_a_cluster_whose_executor_is_killed_copies_every_record_once",
}
"""One test of every kind that starts Spark; all the others take minutes, and `make test-spark` runs them, too."""
STARTS_SPARK = (
    "test_kills",
    "test_standalone",
    "test_capture_kills",
    "test_actors",
    "test_pipeline_runs",
    "test_tutorial",
    "test_connect",
)
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
FOREVER = {"retention.ms": "-1"}
"""For topics with records of long ago, which a broker would delete when it next looks."""
Create = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SPARK_TESTS"):
        return
    for item in items:
        if not isinstance(item, pytest.Function) or "tests/spark/" not in item.nodeid:
            continue
        starts_spark = "spark" in item.fixturenames or item.path.stem in STARTS_SPARK
        if starts_spark and item.originalname not in IN_MAKE_TEST:
            item.add_marker(pytest.mark.skip(reason="make test-spark runs it"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = str(quick_python(tmp_path_factory.mktemp("python")))
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]  # for the planner, which Spark starts with this
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ottla tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", JAVA)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def create(broker: Served, fresh_name: Callable[[], str]) -> Create:
    """A new topic with so many partitions, and these settings."""

    def create(partitions: int = 2, **configs: str) -> str:
        name = fresh_name()
        with blocking.Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions, 1, configs)])
        return name

    return create
