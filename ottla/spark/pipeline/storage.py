"""Files of a pipeline beside its checkpoints: what each depends on, and the state of its query. No Spark.

    <storage>/plans/<sink>.json     what the checkpoint depends on; another program on it is refused
    <storage>/status/<sink>.json    the last progress, for `ottla pipeline status`
    <storage>/status/<sink>.lock    held by the process that runs the query

Spark writes the entries of a checkpoint (`offsets/N`, `commits/N`) to temporary files and renames them, without
syncing: when the power fails, the newest can be empty or cut, and Spark refuses to start. A batch whose entry of
`commits` is gone is run again, just as it was, which exactly-once sinks notice: a broken newest entry there may go. A
broken entry of `offsets` may not: the batch would be planned again, with other rows, and a sink that has it already
would skip them.

A storage that is no directory of this machine (hdfs:, s3a:) keeps its checkpoints there; these files then lie in
`.ottla/<name>/` beside the pipeline's file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.spark.options import local_path
from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline, Problem, Sink

IDENTITY: Final = ("subscribe", "subscribePattern", "assign", "tables", "slot", "table", "query", "incrementingColumn")
"""Options that define the input; with other values a checkpoint's positions mean something else."""

TARGET: Final = ("topic", "table", "path", "txnappid")
"""Options that say where a sink writes, and under which name it keeps count."""

LIVING: Final = ("running", "restarting")
"""States that only a process that is there can be in."""
LOCK_WAIT_S: Final = 1.0
"""The status command also holds the lock, for a moment."""


class AlreadyRunning(RuntimeError):
    """Another process holds a query."""


def home(pipeline: Pipeline) -> Path:
    local = local_path(pipeline.storage)
    return local if local is not None else Path(pipeline.path).resolve().parent / ".ottla" / pipeline.name


def plan(pipeline: Pipeline, sink: str) -> dict[str, Any]:
    """The properties that the checkpoint of a sink depends on."""
    origin = pipeline.sinks[sink].origin
    sources: dict[str, Any] = {}
    for name in graph.origins(pipeline, origin):
        source = pipeline.sources.get(name)
        if source is None:
            written = {key.lower(): value for key, value in pipeline.sinks[name].options.items()}
            sources[name] = {"format": "ottla", "subscribe": written.get("topic")}
        elif not source.batch:
            given = {key.lower(): value for key, value in source.options.items()}
            parsed = {key: given[key.lower()] for key in IDENTITY if key.lower() in given}
            sources[name] = {"format": source.format, **parsed}
    texts = [pipeline.transforms[name].sql for name in graph.ordered_transforms(pipeline, origin)]
    stateful = [" ".join(text.split()) for text in texts if _keeps_state(pipeline, text)]
    schemas = {name: pipeline.schemas[name].columns for name in sources if name in pipeline.schemas}
    stateful += [
        f"deduplicate {name}: {', '.join(pipeline.sources[name].deduplicate)}"
        for name in sources
        if name in pipeline.sources and pipeline.sources[name].deduplicate
    ]
    return {"sources": sources, "stateful": stateful, "schemas": schemas, "sink": _target(pipeline.sinks[sink])}


def _target(sink: Sink) -> dict[str, Any]:
    """Where the markers are that show which batches were written."""
    given = {key.lower(): value for key, value in sink.options.items()}
    return {"format": sink.format} | {key: given[key] for key in TARGET if key in given}


def _keeps_state(pipeline: Pipeline, text: str) -> bool:
    stripped = graph.stripped(text)
    streams = [
        name
        for name in graph.reads(text)
        if any(graph.is_stream(pipeline, each) for each in graph.origins(pipeline, name))
    ]
    joins_streams = re.search(r"\bjoin\b", stripped, re.IGNORECASE) is not None and len(streams) > 1
    return joins_streams or re.search(r"\bgroup\s+by\b|\bselect\s+distinct\b", stripped, re.IGNORECASE) is not None


def broken_checkpoints(pipeline: Pipeline) -> list[Problem]:
    """Edits after which a checkpoint cannot be continued."""
    found = []
    for name, sink in pipeline.sinks.items():
        before = _read(home(pipeline) / "plans" / f"{name}.json")
        if before is None:
            continue
        now = plan(pipeline, name)
        again = f"undo the change, or start it again: ottla pipeline run --full-refresh {name}"
        if before["sources"] != now["sources"]:
            text = (
                f"the checkpoint of {name} was made with other sources ({_names(before)}; now {_names(now)}): {again}"
            )
            found.append(Problem(sink.line, text))
        if before["stateful"] != now["stateful"]:
            text = f"the state that {name} keeps was made by another query (its joins or groups were edited): {again}"
            found.append(Problem(sink.line, text))
        found += _moved(sink, before.get("sink"), now["sink"])
        for column, was, is_now in _retyped(before["schemas"], now["schemas"]):
            found.append(Problem(sink.line, f"{name}: {column} was {was} and is {is_now} now: {again}"))
    return found


def _moved(sink: Sink, before: dict[str, Any] | None, now: dict[str, Any]) -> list[Problem]:
    """Whether a sink writes elsewhere than its checkpoint did. Plans of earlier versions do not say where that was."""
    if before is None or before == now:
        return []
    key = next((each for each in (*TARGET, "format") if before.get(each) != now.get(each)), "format")
    text = (
        f"the checkpoint of {sink.name} has written {key} {before.get(key)}, where its marker stands, and now it is "
        f"{now.get(key)}: no batch is known to be written there. Undo the change, give the sink another name, or start "
        f"it again: ottla pipeline run --full-refresh {sink.name}"
    )
    return [Problem(sink.line_of(key), text)]


def _names(parsed: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {' '.join(str(part) for part in each.values())}" for name, each in parsed["sources"].items()
    )


def _retyped(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Columns of schemas that have another type; new and dropped ones are fine."""
    found = []
    for name in before.keys() & now.keys():
        was, are = before[name], now[name]
        found += [
            (f"{name}.{each}", was[each], are[each]) for each in was.keys() & are.keys() if was[each] != are[each]
        ]
    return sorted(found)


def keep_plan(pipeline: Pipeline, sink: str) -> None:
    write(home(pipeline) / "plans" / f"{sink}.json", plan(pipeline, sink))


def keep_status(pipeline: Pipeline, sink: str, status: dict[str, Any]) -> None:
    write(home(pipeline) / "status" / f"{sink}.json", status)


def status(pipeline: Pipeline, sink: str) -> dict[str, Any] | None:
    """The last report of a query; if its process has ended without one, that it has ended."""
    parsed = _read(home(pipeline) / "status" / f"{sink}.json")
    if parsed is not None and parsed["state"] in LIVING and not _is_running(pipeline, sink):
        parsed["state"] = "ended"
    return parsed


@contextmanager
def running(pipeline: Pipeline, sink: str) -> Iterator[None]:
    """A lock that lasts as long as the process: it shows `status` whether the query runs."""
    import fcntl  # not on Windows, as with brokers

    path = _lock(pipeline, sink)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise AlreadyRunning(f"{sink} is run by another process already; --sink runs others") from None
                time.sleep(LOCK_WAIT_S / 20)
        yield


def _is_running(pipeline: Pipeline, sink: str) -> bool:
    import fcntl

    try:
        with _lock(pipeline, sink).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock(pipeline: Pipeline, sink: str) -> Path:
    return home(pipeline) / "status" / f"{sink}.lock"


def forget(pipeline: Pipeline, sink: str) -> list[str]:
    """Remove the checkpoint of a sink, or of a query for dead letters, with the ids of its topics, and Parquet that was
    made with it; what was removed."""
    if _is_running(pipeline, sink):
        raise AlreadyRunning(f"{sink} is running; stop it first")
    gone = []
    addresses = [pipeline.checkpoint(sink)]
    if sink in pipeline.sinks and pipeline.sinks[sink].format == "parquet":
        addresses.append(pipeline.sinks[sink].options["path"])
    for address in addresses:
        local = local_path(address)
        if local is None:
            raise ValueError(f"{address} is not on this machine: remove it with the tools of its filesystem")
        if local.exists():
            shutil.rmtree(local)
            gone.append(str(local))
    for kind in ("plans", "status"):
        (home(pipeline) / kind / f"{sink}.json").unlink(missing_ok=True)
    return gone


def write(path: Path, content: dict[str, Any]) -> None:
    """A reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(content, indent=1))
    fresh.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        parsed = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    assert isinstance(parsed, dict)
    return parsed


# Broken checkpoints.


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """An entry of a checkpoint that a crash of the machine left empty or cut."""

    sink: str
    path: Path
    removable: bool


def broken_entries(pipeline: Pipeline) -> Iterator[BrokenEntry]:
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
                    yield BrokenEntry(sink, path, kind == "commits" and number == newest_batch)


def remove_entry(entry: BrokenEntry) -> None:
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
