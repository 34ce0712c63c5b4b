"""Lag of a pipeline's queries, from the consumer groups that mirror their progress. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.blocking import Admin
from ottla.client.errors import ClientError
from ottla.errors import ErrorCode
from ottla.spark.clients import ADMIN_SETTINGS
from ottla.spark.options import KAFKA
from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline
from ottla.spark.pipeline.failures import counted
from ottla.spark.pipeline.program import reading, source_of

TIMEOUT_MS: Final = 5_000
"""The status command does not wait longer for an unreachable cluster."""


class Mirror(NamedTuple):
    """A group that has the progress of a query."""

    group_id: str
    kafka: dict[str, str]


def mirrors(pipeline: Pipeline, query: str) -> Iterator[Mirror]:
    """Of the topics that a query reads."""
    letters = graph.dead_letters(pipeline)
    names = [letters[query]] if query in letters else graph.origins(pipeline, pipeline.sinks[query].origin)
    seen = set()
    for name in names:
        source = source_of(pipeline, name)
        if source.format != "ottla" or source.batch:
            continue
        given = {option.lower(): value for option, value in reading(pipeline, source, query).items()}
        kafka = {option.removeprefix(KAFKA): value for option, value in given.items() if option.startswith(KAFKA)}
        mirror = Mirror(given["groupid"], {option: kafka[option] for option in ADMIN_SETTINGS if option in kafka})
        if (mirror.group_id, kafka["bootstrap.servers"]) not in seen:
            seen.add((mirror.group_id, kafka["bootstrap.servers"]))
            yield mirror


class Lag(NamedTuple):
    """The offsets of a group, or why they could not be read."""

    group: str
    behind: int | None
    """Records; None if unknown, because nothing was committed yet, or no broker answers."""
    partitions: int
    problem: str | None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"group {self.group} cannot be asked: {self.problem}"
        if self.behind is None:
            return f"group {self.group}: no progress yet"
        behind, among = counted(self.behind, "record"), counted(self.partitions, "partition")
        return f"group {self.group}: {behind} behind in {among}"


def shown(mirror: Mirror) -> Lag:
    settings = {**mirror.kafka, "request.timeout.ms": TIMEOUT_MS, "default.api.timeout.ms": TIMEOUT_MS}
    try:
        with Admin(config=settings) as admin:
            lags = admin.group_lag(mirror.group_id)
    except ClientError as error:
        if error.code is ErrorCode.group_id_not_found:
            return Lag(mirror.group_id, None, 0, None)  # it is made with the first progress
        return Lag(mirror.group_id, None, 0, str(error))
    behind = sum(max(0, lag.lag) for lag in lags.values()) if lags else None
    return Lag(mirror.group_id, behind, len(lags), None)
