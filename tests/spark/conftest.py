"""One Spark session for all tests: it takes ten seconds to come up. Skipped where PySpark is not installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.spark.pipeline.session import quick_python
from tests.conftest import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
Create = Callable[..., str]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = str(quick_python(tmp_path_factory.mktemp("python")))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
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
