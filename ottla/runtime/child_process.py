"""Child processes for work that would block the loop: the broker's side. `child` is the other one.

The broker starts a new interpreter and keeps the child's standard input open as long as it wants the work done: one
line of JSON is the order, and the end of input, which also comes when the broker dies, ends the child. The child
answers with a line of JSON for every report, and one for a failure.

A child runs only when the processor is idle. On a machine that is always busy that means never, so a child that only
waits for a processor is ended, and may be started again at a normal priority.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.runtime import ChildFailed, ChildKilled, ChildStarved
from ottla.runtime.child import GIVE_WAY, INSIST

CHILD = "ottla.runtime.child"
LINE_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
WATCH_SECONDS = 1.0
STARVED_SECONDS = 5.0
STARVED_RATIO = 20
"""A child starves that waited so long for a processor, and so many times longer than it ran."""


async def run_in_child(
    work: str, job: Mapping[str, Any], *, bytes_per_second: float | None = None, insist: bool = False
) -> AsyncGenerator[dict[str, Any], None]:
    """See `Runtime.offload_process`."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", CHILD, INSIST if insist else GIVE_WAY),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,  # logged with its failure, as one event: the log may be JSON
            env=_environment(),
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for the broker, which stops it
        )
    except OSError as failure:
        raise ChildKilled(f"no process could be started for {work}: {failure.strerror or failure}") from failure
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = asyncio.create_task(_read_stderr(process.stderr))
    try:
        order = {"work": work, "job": job, "bytes_per_second": bytes_per_second}
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError):  # uvloop raises the latter
            pass  # it is dead already; see its exit code
        while line := await _next_line(process, watch=not insist):
            if not line.endswith(b"\n"):
                break  # killed while it wrote
            yield _report(json.loads(line))
        code, text = await process.wait(), await stderr
        cause = ChildStderr(text) if text else None
        if code < 0:
            raise ChildKilled(f"the process of {work} was killed ({signal.Signals(-code).name})") from cause
        if code > 0:
            raise ChildFailed(f"the process of {work} failed with exit code {code}") from cause
    finally:
        stderr.cancel()
        process.stdin.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


class ChildStderr(Exception):
    """The standard error of the process, usually a traceback: the cause of its failure."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


async def _read_stderr(errors: asyncio.StreamReader) -> str:
    """The end of its standard error. All of it is read, so that the process never blocks on the pipe."""
    end = b""
    while data := await errors.read(ERROR_BYTES_MAX):
        end = (end + data)[-ERROR_BYTES_MAX:]
    return end.decode(errors="replace").rstrip()


async def _next_line(process: Process, *, watch: bool) -> bytes:
    assert process.stdout is not None
    while True:
        try:
            return await asyncio.wait_for(process.stdout.readline(), WATCH_SECONDS)
        except TimeoutError:
            if watch and _starves(process.pid):
                raise ChildStarved("the machine is too busy for work that gives way to all other") from None


def _starves(pid: int) -> bool:
    """From the schedstat of Linux: how long a process ran and waited to run, in nanoseconds."""
    try:
        ran, waited, _ = map(int, Path(f"/proc/{pid}/schedstat").read_bytes().split())
    except (OSError, ValueError):
        return False
    return waited > max(STARVED_SECONDS * 1e9, STARVED_RATIO * ran)


def _report(message: dict[str, Any]) -> dict[str, Any]:
    if "refused" in message:
        code, text = message["refused"]
        raise Refused(ErrorCode(code), text)
    if "fault" in message:
        raise StorageFault(message["fault"])
    report: dict[str, Any] = message["report"]
    return report


def _environment() -> dict[str, str]:
    """The child has to import the same package."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}
