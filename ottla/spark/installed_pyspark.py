"""Python workers import PySpark from where it is installed, compiled, and not from the zip that Spark puts first.

Spark starts its workers with `pyspark.zip` at the head of their path. Python keeps no compiled files for a zip, so a
worker would compile some hundred modules: seconds on a busy machine, of the ten that Spark gives it. The zip lies
inside the installed package (`pyspark/python/lib`), so both are the same release, and the zip can go.

`ottla_workers.pth`, which the wheel brings, calls this as an interpreter starts: so it holds in every PySpark program,
and for workers only, because no other process has such a zip in its path. Nothing of PySpark is imported here.
"""

from __future__ import annotations

import os
from typing import Final

ZIP: Final = os.path.join("pyspark", "python", "lib", "pyspark.zip")


def prefer(path: list[str]) -> None:
    """Drop from a module search path each zip of PySpark that belongs to an installed package on the same path."""
    path[:] = [entry for entry in path if not _is_installed(entry, path)]


def _is_installed(entry: str, path: list[str]) -> bool:
    if not entry.endswith(os.sep + ZIP):
        return False
    folder = entry.removesuffix(os.sep + ZIP)
    at = os.path.realpath(folder)
    return os.path.exists(os.path.join(at, "pyspark", "__init__.py")) and any(
        os.path.realpath(other) == at for other in path if other != entry
    )
