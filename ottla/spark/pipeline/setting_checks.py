"""What is wrong with a pipeline's `configuration`, of what Spark would find only when it starts. No Spark."""

from __future__ import annotations

import re
from typing import Final

from ottla.spark.pipeline.document import Pipeline, Problem

KINDS: Final = (
    (re.compile(r"spark\.sql\.shuffle\.partitions|spark\.default\.parallelism|spark\..*\.(cores|instances)"),
     re.compile(r"[1-9]\d*"), "a whole number"),
    (re.compile(r"spark\.driver\.memory"), re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE), "a size like 512m or 2g"),
    (re.compile(r"spark\..*\.(memory|memoryOverhead|maxResultSize)"),
     re.compile(r"\d+([kmgtp]b?|b)?", re.IGNORECASE), "a size like 512m or 2g"),
    (re.compile(r"spark\..*\.enabled"), re.compile(r"true|false", re.IGNORECASE), "true or false"),
)  # fmt: skip
"""Settings by their names, what they may be, and that in words. The first that fits counts."""


def problems(pipeline: Pipeline) -> list[Problem]:
    found = []
    for name, value in pipeline.configuration.items():
        kind = next((each for each in KINDS if each[0].fullmatch(name)), None)
        if kind is not None and not kind[1].fullmatch(value.strip()):
            found.append(Problem(pipeline.line_of(name), f"{name} is {value!r}; it is {kind[2]}"))
    return found
