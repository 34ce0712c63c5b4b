"""Metrics of this process from the operating system; 0 where it has none."""

from __future__ import annotations

import os
import sys
import time


def resident_bytes() -> int:
    """Resident memory, or its peak where only that is known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def cpu_seconds() -> float:
    """Of this process with its threads, without its children."""
    return time.process_time()


def open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0
