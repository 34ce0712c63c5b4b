"""Dependency graph of a pipeline, from the names after FROM and JOIN in its SQL. No Spark."""

from __future__ import annotations

import re
from typing import Final

from ottla.spark.pipeline.document import Pipeline

WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMENTS_AND_TEXTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_READS: Final = re.compile(r"\b(?:from|join)\s+`?([A-Za-z_][A-Za-z0-9_]*)`?", re.IGNORECASE)
_LIST: Final = re.compile(
    r"\bfrom\s+(`?\w+`?(?:\s+(?:as\s+)?\w+)?(?:\s*,\s*`?\w+`?(?:\s+(?:as\s+)?\w+)?)+)", re.IGNORECASE
)
_WITH: Final = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)\s+as\s*\(", re.IGNORECASE)


def stripped(sql: str) -> str:
    """Without comments and texts in quotes."""
    return _COMMENTS_AND_TEXTS.sub(" '' ", sql)


def reads(sql: str) -> list[str]:
    """Names of relations that a query reads, those that it defines itself left out."""
    text = stripped(sql)
    own = {name.lower() for name in _WITH.findall(text)}
    found = list(_READS.findall(text))
    for listed in _LIST.findall(text):
        found += [part.strip().split()[0].strip("`") for part in listed.split(",")]
    return [name for name in dict.fromkeys(found) if name.lower() not in own]


def origins(pipeline: Pipeline, name: str, path: tuple[str, ...] = ()) -> list[str]:
    """Sources (and sinks' topics) that a name goes back to."""
    if name in pipeline.transforms and name not in path:
        found: list[str] = []
        for each in reads(pipeline.transforms[name].sql):
            found += origins(pipeline, each, (*path, name))
        return list(dict.fromkeys(found))
    return [name]


def ordered_transforms(pipeline: Pipeline, name: str, done: list[str] | None = None) -> list[str]:
    """Transforms that a name needs, each after those that it reads."""
    done = [] if done is None else done
    if name in pipeline.transforms and name not in done:
        for each in reads(pipeline.transforms[name].sql):
            if each != name:
                ordered_transforms(pipeline, each, done)
        done.append(name)
    return done


def ordered_sinks(pipeline: Pipeline) -> list[str]:
    """Each sink after those whose topics it reads."""
    done: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        for each in origins(pipeline, pipeline.sinks[name].origin):
            if each in pipeline.sinks and each != name:
                visit(each)
        done.append(name)

    for name in pipeline.sinks:
        visit(name)
    return done


def dead_letters(pipeline: Pipeline) -> dict[str, str]:
    """Queries that send values to the dead letters, and their sources."""
    return {f"{name}_dead_letters": name for name, source in pipeline.sources.items() if source.dead_letters}


def is_stream(pipeline: Pipeline, name: str) -> bool:
    return name in pipeline.sinks or (name in pipeline.sources and not pipeline.sources[name].batch)
