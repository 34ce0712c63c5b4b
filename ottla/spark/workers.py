"""The Python workers that Spark starts, and uses again and again: what one of them has imported stays.

After each use Spark has a worker collect its garbage. That looks at every object there is, and PySpark, pandas and
pyarrow have a hundred thousand: 30 ms each time, on a core that the micro-batch needs, in the process that plans a
write, in the task's and in the one that commits. What is there after the first use is taken out of the count.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_settled = False


def settle() -> None:
    """Called in workers only, when they have done their first work, and so have imported what it takes."""
    global _settled
    if not _settled:
        _settled = True
        gc.freeze()


def settling(method: Callable[..., T]) -> Callable[..., T]:
    """For methods that Spark calls in its workers and nowhere else."""

    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> T:
        try:
            return method(*arguments, **named)
        finally:
            settle()

    return called
