"""Description of this machine for the results, and the limit of two cores."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

CORES = 2


def keep_to_two_cores() -> int:
    """Bind this process and its children to two cores; returns the number of cores of the machine."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    return len(cores)


def _first(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else "unknown"


def _filesystem(directory: Path) -> str:
    """The type of the file system that holds a directory: the longest mount point above it."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if directory.is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def _java() -> str:
    if shutil.which("java") is None:
        return "none"
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else "unknown"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def describe(directory: Path) -> dict[str, str]:
    """The facts about the machine that the numbers depend on; `directory` is where the brokers store their data."""
    memory_kb = int(_first("/proc/meminfo", r"^MemTotal:\s+(\d+)"))
    return {
        "Cores used": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "Processor": _first("/proc/cpuinfo", r"^model name\s*:(.*)$"),
        "Memory": f"{memory_kb / (1 << 20):.1f} GiB",
        "Kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "File system": _filesystem(directory),
        "Python": f"{platform.python_version()}, uvloop {_installed('uvloop')}",
        "Java": _java(),
    }
