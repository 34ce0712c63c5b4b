"""Repair of checkpoints after a crash of the machine: unfinished entries are removed. No Spark.

Spark writes the entries of a checkpoint (`offsets/N`, `commits/N`) aside and renames them, without syncing: when the
power fails, the newest can be empty or cut, and Spark refuses to start. A batch whose entry of `commits` is gone is run
again, just as it was, which exactly-once sinks notice: a broken newest entry there may go. A broken entry of `offsets`
may not: the batch would be planned anew, with other rows, and a sink that has it already would take them for the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ottla.spark.options import local_path
from ottla.spark.pipeline.document import Pipeline


@dataclass(frozen=True, slots=True)
class Broken:
    sink: str
    path: Path
    removable: bool


def broken(pipeline: Pipeline) -> Iterator[Broken]:
    for sink in pipeline.sinks:
        checkpoint = local_path(pipeline.checkpoint(sink))
        if checkpoint is None:
            raise ValueError(f"{pipeline.checkpoint(sink)} is not on this machine")
        newest_batch = _newest(checkpoint / "offsets")
        for kind in ("offsets", "commits"):
            numbers = sorted(int(path.name) for path in (checkpoint / kind).glob("[0-9]*") if path.name.isdecimal())
            for number in numbers:
                path = checkpoint / kind / str(number)
                if not _whole(path):
                    yield Broken(sink, path, kind == "commits" and number == newest_batch)


def remove(entry: Broken) -> None:
    assert entry.removable
    entry.path.unlink()
    entry.path.with_name(f".{entry.path.name}.crc").unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), default=-1)


def _whole(path: Path) -> bool:
    """A version line, and lines of JSON (or `-`, for a source that has no position yet)."""
    lines = path.read_text(errors="replace").splitlines()
    if len(lines) < 2 or not lines[0].startswith("v"):
        return False
    try:
        for line in lines[1:]:
            if line != "-":
                json.loads(line)
    except ValueError:
        return False
    return True
