"""Python workers of Spark: imported modules stay for the tasks that use a worker again, and answers leave at once.

After each use Spark has a worker collect its garbage. That looks at every object there is, and PySpark, pandas and
pyarrow have a hundred thousand: 30 ms each time, on a core that the micro-batch needs, in the process that plans a
write, in the task's and in the one that commits. What is there after the first uses is left out from then on.

Spark leaves Nagle's algorithm on for a worker's connection to the JVM. The end of an answer that is longer than one TCP
segment then waits for the JVM's delayed acknowledgement, 40 ms in each micro-batch: TCP_NODELAY ends that.

glibc returns freed memory to the system as soon as there are a few hundred kilobytes of it. A task that writes needs
and frees some megabytes for each Arrow batch, and the system then has to hand out the same pages again and again: ten
to thirty thousand page faults for a million records, and three thousand where the memory stays (`keep_memory`).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import socket
import stat
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SETTLING: Final = 2
"""So many uses import modules: PySpark imports pandas when it passes on the result of the first."""

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 64 * 2**20
MAPPED_BYTES: Final = 32 * 2**20
"""The largest value that glibc accepts: larger blocks are mapped, and unmapped when they are freed."""

_uses = 0


def settle() -> None:
    """Called in workers only, at the end of each use."""
    global _uses
    if _uses < SETTLING:
        _uses += 1
        gc.freeze()
        answer_at_once()


@functools.cache
def keep_memory() -> None:
    """Called in workers only, before a task writes. With another C library than glibc it does nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def answer_at_once() -> None:
    """TCP_NODELAY for every TCP connection of this process: a worker does not know which one is Spark's."""
    try:
        descriptors = os.listdir("/dev/fd")
    except OSError:
        return  # then it only takes longer
    for name in descriptors:
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            connection = socket.socket(fileno=int(name))
        except OSError:
            continue  # closed meanwhile
        try:
            if connection.family != socket.AF_UNIX and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            pass
        finally:
            connection.detach()


def settling(method: Callable[..., T]) -> Callable[..., T]:
    """For methods that Spark calls in its workers and nowhere else."""

    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> T:
        try:
            return method(*arguments, **named)
        finally:
            settle()

    return called
