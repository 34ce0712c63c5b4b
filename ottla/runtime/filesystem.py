"""syncfs: syncs a whole filesystem with one call (Linux)."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any


@cache
def _syncfs() -> Any | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def can_sync_filesystem() -> bool:
    return _syncfs() is not None


def sync_filesystem(path: str) -> None:
    """Block until everything that was written to the filesystem of `path` is durable. OSError when some was lost."""
    syncfs = _syncfs()
    assert syncfs is not None
    fd = os.open(path, os.O_RDONLY)
    try:
        if syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)
