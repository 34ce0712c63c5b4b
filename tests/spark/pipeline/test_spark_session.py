"""The settings of a pipeline's Spark session."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger

from ottla.spark.pipeline import spark_session
from ottla.spark.pipeline.spark_session import checkpoint_settings

SETTING = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize("storage", ["file:///var/lib/orders", "/var/lib/orders"])
def test_checkpoints_on_this_machine_are_written_without_starting_processes(storage):
    assert checkpoint_settings(storage)[SETTING].endswith(".FileSystemBasedCheckpointFileManager")


@pytest.mark.parametrize("storage", ["hdfs://namenode/orders", "s3a://bucket/orders"])
def test_checkpoints_elsewhere_are_left_to_spark(storage):
    assert checkpoint_settings(storage) == {}


def test_a_spark_without_that_manager_keeps_its_own(monkeypatch):
    monkeypatch.setattr(spark_session, "MANAGER", "org.apache.spark.NotThere")
    assert checkpoint_settings("/var/lib/orders") == {}


def test_pysparks_log_lines_of_an_error_are_in_the_file_and_not_on_the_terminal(tmp_path, capfd):
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    before = [list(logger.handlers) for logger in loggers]
    with spark_session.logged_to(tmp_path / "spark.log"):
        for logger in loggers:
            logger.exception("no such column", errorClass="UNRESOLVED_COLUMN")
    assert [logger.handlers for logger in loggers] == before
    assert capfd.readouterr().err == ""
    assert (tmp_path / "spark.log").read_text().count("no such column") >= 2


class Builder:
    """Starts a Java that says why it does not."""

    def getOrCreate(self) -> None:
        os.write(2, b"Invalid maximum heap size: -Xmx2gigs\n")
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def test_the_error_of_a_java_that_does_not_start_is_shown(tmp_path):
    log = tmp_path / "spark.log"
    log.write_text("of the run before\n")
    why = f"Spark did not start: Invalid maximum heap size: -Xmx2gigs .*{log}"
    with pytest.raises(spark_session.NotStarted, match=why):
        spark_session._started(Builder(), log)
