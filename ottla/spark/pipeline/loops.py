"""Queries that would read what they write, without end: their own topic, or what they put aside. No Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ottla.spark.options import BOOTSTRAP
from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline, Problem, Source


def problems(pipeline: Pipeline) -> list[Problem]:
    found = []
    for name, source in pipeline.sources.items():
        letters = source.dead_letters
        if letters is not None and _reads(source, source.options, letters.topic):
            text = f"the source {name}: dead_letters go to {letters.topic}, which it reads: they would come back"
            found.append(Problem(source.line_of("dead_letters"), f"{text} without end; name another topic"))
    for name, sink in pipeline.sinks.items():
        topic = _lower(sink.options).get("topic")
        if sink.format != "ottla" or topic is None:
            continue
        for each in graph.origins(pipeline, sink.origin):
            if each in pipeline.sources and _reads(pipeline.sources[each], sink.options, topic):
                text = f"the sink {name} writes {topic}, which its source {each} reads: its records would come back"
                found.append(Problem(sink.line_of("topic"), f"{text} without end; name another topic"))
    return found


def _reads(source: Source, other: Mapping[str, str], topic: str) -> bool:
    """Whether a stream reads this topic, in the cluster that the other options name."""
    given = _lower(source.options)
    if source.format != "ottla" or source.batch or given.get(BOOTSTRAP) != _lower(other).get(BOOTSTRAP):
        return False
    try:
        return (
            topic in [name.strip() for name in given.get("subscribe", "").split(",")]
            or re.fullmatch(given.get("subscribepattern", "(?!)"), topic) is not None
            or topic in json.loads(given.get("assign", "{}"))
        )
    except (ValueError, TypeError, re.error):
        return False  # it is told by itself


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
