"""Errors raised on purpose reach the user of Spark without the stack frames of this package.

Spark shows the whole traceback of a Python error, from the method that it called to the line that raised. For an error
with a message of its own (an option that is wrong, a broker that does not answer) these frames hide the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)

CALLED: Final = (
    "__call__",
    "schema", "reader", "streamReader", "writer", "streamWriter",
    "partitions", "read", "write", "commit", "abort", "stop",
    "initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow",
)  # fmt: skip
"""Methods of data sources, readers and writers that Spark calls."""
DELIBERATE: Final = ("ottla.", "psycopg.")
"""Modules whose errors explain themselves. For other errors the frames are needed to find a defect."""


def short_tracebacks(kind: C) -> C:
    """A class decorator: methods that Spark calls raise our errors again, without the traceback."""
    for name in CALLED:
        method = kind.__dict__.get(name)
        if callable(method):
            setattr(kind, name, _short(method))
    return kind


def _short(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            given = method(*arguments, **named)
        except Exception as problem:
            if not _deliberate(problem):
                raise
            raise problem.with_traceback(None) from None
        return _iterated(given) if isinstance(given, Iterator) else given

    return called


def _iterated(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except Exception as problem:
        if not _deliberate(problem):
            raise
        raise problem.with_traceback(None) from None


def _deliberate(problem: Exception) -> bool:
    return type(problem).__module__.startswith(DELIBERATE)
