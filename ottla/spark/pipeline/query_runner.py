"""Running a pipeline: its queries are started, watched, reported line by line, restarted and stopped.

A query that fails is started again after a while, and the others continue. An error that would occur again (an option,
the SQL, a batch with other rows) is not retried. The run has failed if a query has, but it continues until no query is
left, or until it is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline import ddl, failures, graph, storage
from ottla.spark.pipeline.document import Pipeline, Restart
from ottla.spark.pipeline.failures import counted, is_busy, is_permanent, reason
from ottla.spark.pipeline.program import Span, backfill, program
from ottla.spark.pipeline.spark_session import checkpoint_settings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.5
SOURCE: Final = ("description", "endOffset", "latestOffset")
"""The stored part of a source's progress."""
Say = Callable[[str], None]
Begin = Callable[[], "StreamingQuery"]

BACKOFF_MAX_S: Final = 300.0
BUSY_FACTOR: Final = 10
"""So many times as often a query is started again that failed only because the machine was busy."""
Ends = Mapping[tuple[str, str], int]
"""How far partitions were read."""


class QueriesFailed(RuntimeError):
    """Queries ended by themselves, with reasons."""


def run(pipeline: Pipeline, *, master: str | None, available_now: bool, only: tuple[str, ...], say: Say) -> None:
    log = storage.home(pipeline) / "spark.log"
    stopped = _Stopped()
    settings = {**checkpoint_settings(pipeline.storage), **pipeline.configuration}
    queries: list[_Query] = []
    try:
        with stopped, ExitStack() as stack:
            for name in (*graph.dead_letters(pipeline), *pipeline.sinks):
                if not only or name in only:
                    stack.enter_context(storage.running(pipeline, name))
            spark = stack.enter_context(session(pipeline.name, log, master, settings))
            queries = _queries(pipeline, spark, available_now, only, say)
            at = f"Spark {spark.version}, {spark.sparkContext.master}"
            say(f"{pipeline.name}: {_counted(pipeline, queries)} on {at}; log: {log}")
            try:
                # availableNow: queries run one after the other, so that each reads the output of the one before.
                for some in [[query] for query in queries] if available_now else [queries]:
                    _watch(some, stopped)
            finally:
                for query in queries:
                    query.stop()
    except Exception:
        if not stopped.asked:
            raise
        say(f"{pipeline.name}: stopped")  # Spark's own processes had been asked, too
    failed = [query.failure for query in queries if query.failure is not None]
    if failed:
        raise QueriesFailed("\n".join(failed))


def _counted(pipeline: Pipeline, queries: list[_Query]) -> str:
    """Sinks, as they are in the file, and queries that are not."""
    others = sum(query.name not in pipeline.sinks for query in queries)
    reported = counted(len(queries), "query", "queries")
    return f"{reported} ({counted(len(queries) - others, 'sink')}, {others} for dead letters)" if others else reported


def _queries(
    pipeline: Pipeline, spark: SparkSession, available_now: bool, only: tuple[str, ...], say: Say
) -> list[_Query]:
    text = program(pipeline)
    return [
        _Query(pipeline, name, text, partial(begin, spark, available_now), say)
        for name, begin in failures.executed(pipeline, text)["SINKS"].items()
        if not only or name in only
    ]


def run_backfill(pipeline: Pipeline, sinks: tuple[str, ...], span: Span, *, master: str | None, say: Say) -> None:
    """Records of some time once more, through the queries of these sinks."""
    log = storage.home(pipeline) / "spark.log"
    with session(pipeline.name, log, master, pipeline.configuration) as spark:
        for name in sinks:
            text = backfill(pipeline, pipeline.sinks[name], span)
            namespace = failures.executed(pipeline, text)
            began = time.monotonic()
            try:
                namespace[f"backfill_{name}"](spark)
            except Exception as problem:
                line = failures.line_of(pipeline, text, problem)
                raise QueriesFailed(f"{name}: {reason(str(problem))} ({pipeline.path}:{line})") from problem
            say(f"{name}: done in {time.monotonic() - began:.1f} s")


def _watch(queries: list[_Query], stopped: _Stopped) -> None:
    for query in queries:
        if not stopped.asked:
            query.start()
    while not stopped.asked:
        looks = [query.look(time.monotonic()) for query in queries]
        if not any(looks):
            return
        time.sleep(POLL_S)


class _Query:
    """One query, through all its restarts: reports its progress, and stores it for `ottla pipeline status`."""

    def __init__(self, pipeline: Pipeline, name: str, text: str, begin: Begin, say: Say) -> None:
        self.name = name
        self.failure: str | None = None
        """Why it has failed for good."""
        self._pipeline = pipeline
        self._text = text
        self._begin = begin
        self._say = say
        self._query: StreamingQuery | None = None
        self._restarts = Restarts(pipeline.restart)
        self._restart_at: float | None = None
        self._reported: tuple[object, ...] = ()
        self._rows = 0
        self._bad = 0
        self._late = 0
        source = graph.dead_letters(pipeline).get(name)
        self._dead_letters = pipeline.sources[source].dead_letters if source else None
        self._idle = _idle(pipeline, name)

    def start(self) -> None:
        self._restart_at = None
        try:
            if self.name in self._pipeline.sinks:
                storage.keep_plan(self._pipeline, self.name)
            self._query = self._begin()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the other queries go on
            line = failures.line_of(self._pipeline, self._text, problem)
            self._failed(
                str(problem), line, permanent=type(problem).__name__ in ("AnalysisException", "ParseException")
            )

    def look(self, now: float) -> bool:
        """False when the query has ended."""
        if self._restart_at is not None and now >= self._restart_at:
            self.start()
        if self._restart_at is not None or self.failure is not None or self._query is None:
            return self._restart_at is not None
        active: bool = self._query.isActive
        too_bad = self._report_progress(self._query)
        self._warn_of_idle(self._query)
        if too_bad is not None:
            self._query.stop()
            self._failed(too_bad, failures.sink_line(self._pipeline, self.name), permanent=True)
        elif (problem := self._query.exception()) is not None:
            self._failed(str(problem), failures.query_line(self._pipeline, self.name, str(problem)))
        else:
            self._keep("running" if active else "done")
        return (active and self.failure is None) or self._restart_at is not None

    def _failed(self, problem: str, line: int, *, permanent: bool = False) -> None:
        why = f"{reason(problem)} ({self._pipeline.path}:{line})"
        now = time.monotonic()
        permanent = permanent or is_permanent(problem)
        delay = None if permanent else self._restarts.failed(now, busy=is_busy(problem))
        if delay is None:
            why += "" if permanent else self._restarts.spent
            self.failure = f"{self.name}: {why}"
            self._say(f"{self.name}: failed: {why}")
            self._keep("failed", why)
            return
        self._restart_at = now + delay
        self._say(f"{self.name}: {why}; it is started again in {delay:g} s")
        self._keep("restarting", why)

    def _report_progress(self, query: StreamingQuery) -> str | None:
        """Report new progress. Returns why the query has to be stopped, if too many records do not fit."""
        for progress in query.recentProgress:
            key = (progress["timestamp"], progress["batchId"])
            if key > self._reported:
                self._late += sum(each["numRowsDroppedByWatermark"] for each in progress["stateOperators"])
            if key > self._reported and progress["numInputRows"]:
                self._rows += progress["numInputRows"]
                took = progress["durationMs"].get("triggerExecution", 0) / 1000
                rows = counted(progress["numInputRows"], "row")
                self._say(f"{self.name}: batch {progress['batchId']}, {rows} in {took:.1f} s")
                if (problem := self._count_bad(progress)) is not None:
                    return problem
            self._reported = max(self._reported, key)
        return None

    def _warn_of_idle(self, query: StreamingQuery) -> None:
        progress = query.lastProgress
        if self._idle is None or progress is None:
            return
        for partition in self._idle.seen(_ends(progress), time.monotonic()):
            self._say(
                f"{self.name}: {partition} has no new records while others have; the watermark advances without it, "
                "and its rows may be dropped as too late"
            )

    def _count_bad(self, progress: Any) -> str | None:
        letters = self._dead_letters
        observed = progress["observedMetrics"].get("dead_letters") if letters is not None else None
        if observed is None or letters is None:
            return None
        self._bad += observed["bad"]
        if not letters.too_many(self._bad, self._rows):
            return None
        return (
            f"{self._bad} of {self._rows} values do not fit the schema, more than max_ratio {letters.ratio_max:g} "
            f"allows; they are in the topic {letters.topic}"
        )

    def stop(self) -> None:
        """It may have failed already, because a signal to all processes ends Spark's workers, too."""
        if self.failure is not None or self._query is None:
            return
        done = not self._query.isActive and self._query.exception() is None and self._restart_at is None
        if self._query.isActive:
            self._query.stop()
        self._keep("done" if done else "stopped")

    def _keep(self, state: str, problem: str | None = None) -> None:
        progress = None if self._query is None else self._query.lastProgress
        storage.keep_status(
            self._pipeline,
            self.name,
            {
                "at": time.time(),
                "pid": os.getpid(),
                "state": state,
                "rows": self._rows,
                "dead": self._bad,
                "late": self._late,
                "problem": problem,
                "progress": _plain(progress) if progress is not None else None,
            },
        )


class Restarts:
    """Restart policy of one failed query: growing delays, and a limit within some time."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._limit = policy.limit
        """For the reason of the last failure."""
        self._failed_at: dict[bool, deque[float]] = {False: deque(), True: deque()}
        """By whether the machine was busy: that does not use up the restarts for other reasons."""

    @property
    def spent(self) -> str:
        """Why it is not started again, as an addition to the reason; empty where it never is."""
        if self._limit == 0:
            return ""
        times = counted(self._limit, "restart")
        return f"; it is not started again: {times} within {self._policy.within_s:g} s, which is the limit (restart)"

    def failed(self, now: float, *, busy: bool = False) -> float | None:
        """How long to wait before it is started again; None: it has failed too often, and stays as it is."""
        failed_at = self._failed_at[busy]
        while failed_at and failed_at[0] <= now - self._policy.within_s:
            failed_at.popleft()
        self._limit = self._policy.limit * (BUSY_FACTOR if busy else 1)
        if len(failed_at) >= self._limit:
            return None
        delay: float = min(self._policy.backoff_s * 2 ** len(failed_at), BACKOFF_MAX_S)
        failed_at.append(now)
        return delay


class IdlePartitions:
    """Idle partitions of one query: the watermark advances without them while others have records.

    A watermark is the latest event time that a query has seen, in whatever partition, less a delay. Rows of a partition
    that was idle while others had records come too late, and are dropped. So each idle partition is reported once,
    until it has records again.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._ends: dict[tuple[str, str], int] = {}
        self._moved_at: dict[tuple[str, str], float] = {}
        self._reported: set[tuple[str, str]] = set()

    def seen(self, ends: Ends, now: float) -> list[str]:
        """Partitions that have become idle, as topic-number, while at least one other moved within the limit."""
        for tp, end in ends.items():
            if self._ends.get(tp) != end:
                self._moved_at[tp] = now
                self._reported.discard(tp)
            self._ends[tp] = end
        others_move = any(now - at < self._limit_s for at in self._moved_at.values())
        idle = [
            tp for tp in sorted(ends)
            if others_move and now - self._moved_at[tp] >= self._limit_s and tp not in self._reported
        ]  # fmt: skip
        self._reported.update(idle)
        return [f"{topic}-{partition}" for topic, partition in idle]


def _idle(pipeline: Pipeline, query: str) -> IdlePartitions | None:
    """For queries with a watermark; the shortest counts."""
    if query not in pipeline.sinks:
        return None
    names = graph.origins(pipeline, pipeline.sinks[query].origin)
    marks = [pipeline.sources[name].watermark for name in names if name in pipeline.sources]
    delays = [ddl.seconds(mark.delay) for mark in marks if mark is not None]
    return IdlePartitions(min(delays)) if delays else None


def _ends(progress: Any) -> dict[tuple[str, str], int]:
    """Of topics; other sources have positions of other forms."""
    ends: dict[tuple[str, str], int] = {}
    for source in progress["sources"]:
        reported = json.loads(source["endOffset"] or "{}")
        for topic, partitions in reported.items() if isinstance(reported, dict) else ():
            if isinstance(partitions, dict):
                ends |= {(topic, partition): offset for partition, offset in partitions.items()}
    return ends


def _plain(progress: Any) -> dict[str, Any]:
    return {
        "batchId": progress["batchId"],
        "timestamp": progress["timestamp"],
        "numInputRows": progress["numInputRows"],
        "sources": [
            {name: None if source[name] == "null" else source[name] for name in SOURCE}
            for source in progress["sources"]
        ],
        "state": [{"numRowsTotal": each["numRowsTotal"]} for each in progress["stateOperators"]],
    }


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
