"""Python workers of Spark: imported modules stay for the tasks that use a worker again.

After each use Spark has a worker collect its garbage. That looks at every object there is, and PySpark, pandas and
pyarrow have a hundred thousand: 30 ms each time, on a core that the micro-batch needs, in the process that plans a
write, in the task's and in the one that commits. What is there after the first uses is left out from then on.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SETTLING: Final = 2
"""So many uses import something: PySpark imports pandas when it passes on what the first has given."""

_uses = 0


def settle() -> None:
    """Called in workers only, at the end of each use."""
    global _uses
    if _uses < SETTLING:
        _uses += 1
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
