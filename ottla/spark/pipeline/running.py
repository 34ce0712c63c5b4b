"""Running a pipeline: its queries are started, watched, told about line by line, and stopped cleanly."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline import graph, kept
from ottla.spark.pipeline.document import Pipeline
from ottla.spark.pipeline.idle import Idle, delay_s
from ottla.spark.pipeline.program import Span, backfill, program
from ottla.spark.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.5
Say = Callable[[str], None]


class Failed(RuntimeError):
    """A query ended by itself, with a reason."""


def run(pipeline: Pipeline, *, master: str | None, available_now: bool, only: tuple[str, ...], say: Say) -> None:
    log = kept.home(pipeline) / "spark.log"
    stopped = _Stopped()
    with stopped, session(pipeline.name, log, master, pipeline.configuration) as spark:
        namespace: dict[str, Any] = {"__name__": "ottla_pipeline"}
        exec(compile(program(pipeline), f"<{pipeline.path}>", "exec"), namespace)
        begin = {name: each for name, each in namespace["SINKS"].items() if not only or name in only}
        say(f"{pipeline.name}: {len(begin)} queries on Spark {spark.version}, {spark.sparkContext.master}; log: {log}")
        watched: list[_Watched] = []
        try:
            for name, each in begin.items():
                if name in pipeline.sinks:
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


def run_backfill(pipeline: Pipeline, sinks: tuple[str, ...], span: Span, *, master: str | None, say: Say) -> None:
    """Records of some time once more, through the queries of these sinks."""
    log = kept.home(pipeline) / "spark.log"
    with session(pipeline.name, log, master, pipeline.configuration) as spark:
        for name in sinks:
            namespace: dict[str, Any] = {"__name__": "ottla_backfill"}
            text = backfill(pipeline, pipeline.sinks[name], span)
            exec(compile(text, f"<{pipeline.path}>", "exec"), namespace)
            began = time.monotonic()
            try:
                namespace[f"backfill_{name}"](spark)
            except Exception as problem:
                raise Failed(f"{name}: {reason(str(problem))}") from problem
            say(f"{name}: done in {time.monotonic() - began:.1f} s")


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
        self._bad = 0
        source = graph.dead_letters(pipeline).get(sink)
        self._letters = pipeline.sources[source].dead_letters if source else None
        self._idle = _idle(pipeline, sink)

    def look(self) -> bool:
        """False when it has ended; raises when it failed."""
        active: bool = self._query.isActive
        for progress in self._query.recentProgress:
            key = (progress["batchId"], progress["timestamp"])
            if key > self._told and progress["numInputRows"]:
                self._rows += progress["numInputRows"]
                self._count_bad(progress)
                took = progress["durationMs"].get("triggerExecution", 0) / 1000
                self._say(f"{self._sink}: batch {progress['batchId']}, {progress['numInputRows']} rows in {took:.1f} s")
            self._told = max(self._told, key)
        self._warn_of_idle()
        problem = self._query.exception()
        self._keep("failed" if problem is not None else "running" if active else "done", problem)
        if problem is not None:
            raise Failed(f"{self._sink}: {reason(str(problem))}")
        return active

    def _warn_of_idle(self) -> None:
        progress = self._query.lastProgress
        if self._idle is None or progress is None:
            return
        for place in self._idle.seen(_ends(progress), time.monotonic()):
            self._say(
                f"{self._sink}: nothing comes of {place} while others go on; the watermark passes it by, and its rows "
                "may be dropped as too late"
            )

    def _count_bad(self, progress: Any) -> None:
        observed = progress["observedMetrics"].get("dead_letters") if self._letters is not None else None
        if observed is None or self._letters is None:
            return
        self._bad += observed["bad"]
        if self._bad > self._letters.ratio_max * self._rows:
            raise Failed(
                f"{self._sink}: {self._bad} of {self._rows} values do not fit the schema, more than max_ratio "
                f"{self._letters.ratio_max:g} allows; they are in the topic {self._letters.topic}"
            )

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
                "dead": self._bad,
                "problem": None if problem is None else reason(str(problem)),
                "progress": _plain(progress) if progress is not None else None,
            },
        )


def _idle(pipeline: Pipeline, query: str) -> Idle | None:
    """For queries with a watermark; the shortest counts."""
    if query not in pipeline.sinks:
        return None
    names = graph.origins(pipeline, pipeline.sinks[query].origin)
    marks = [pipeline.sources[name].watermark for name in names if name in pipeline.sources]
    delays = [delay_s(mark.delay) for mark in marks if mark is not None]
    return Idle(min(delays)) if delays else None


def _ends(progress: Any) -> dict[tuple[str, str], int]:
    """Of topics; other sources have positions of other forms."""
    ends: dict[tuple[str, str], int] = {}
    for source in progress["sources"]:
        told = json.loads(source["endOffset"] or "{}")
        for topic, partitions in told.items() if isinstance(told, dict) else ():
            if isinstance(partitions, dict):
                ends |= {(topic, partition): offset for partition, offset in partitions.items()}
    return ends


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
    """The line of a long Java story that says what happened: the last one that names a Python error, or the first. What
    Spark adds of the query's state is none."""
    story = told.partition("=== Streaming Query ===")[0]
    lines = [line.strip() for line in story.splitlines() if line.strip()]
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
