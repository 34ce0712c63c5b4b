"""Control socket of `ottla dev`: a Unix socket for commands from another terminal, and a file that names it.

One JSON object on a line each way: {"do": "kill", "broker": 2} is answered with {"ok": true, "said": "..."}. The socket
and the file `control.json` are in the data directory; a socket whose path would be too long is in /tmp. Only its owner
may connect.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from ottla.errors import Fault

CONTROL_FILE: Final = "control.json"
SOCKET: Final = "control.socket"
SOCKET_PATH_BYTES_MAX: Final = 100
"""Operating systems allow 104 bytes or a few more."""
SHORT: Final = "/tmp"
"""Directory with a short path, independent of TMPDIR. Only the owner can read the directory made there."""
LINE_BYTES_MAX: Final = 1 << 20
ANSWER_SECONDS: Final = 60.0

Answer = dict[str, Any]
Execute = Callable[[Answer], Awaitable[Answer]]


class ControlServer:
    """Receives commands while it is open."""

    def __init__(self, directory: Path, execute: Execute) -> None:
        self._file = directory / CONTROL_FILE
        self._execute = execute
        self._server: asyncio.Server | None = None
        self._socket = self._file
        self._home = ""

    async def open(self) -> None:
        path = str(self._file.with_name(SOCKET))
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            self._home = tempfile.mkdtemp(prefix="ottla-", dir=SHORT)
            path = f"{self._home}/{SOCKET}"
        self._socket = Path(path)
        self._socket.unlink(missing_ok=True)  # left by an `ottla dev` that was killed
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LINE_BYTES_MAX)
        self._socket.chmod(0o600)
        self._file.write_text(json.dumps({"socket": path, "pid": os.getpid()}) + "\n")

    async def close(self) -> None:
        self._file.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
            self._socket.unlink(missing_ok=True)
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the client is gone, or its line is too long
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Answer:
        try:
            command = json.loads(line)
        except ValueError:
            command = None
        if not isinstance(command, dict):
            return {"ok": False, "said": "a command is a JSON object on one line"}
        return await self._execute(command)


def send_command(directory: Path, command: Answer) -> Answer:
    """Send a command to the `ottla dev` that runs on this directory."""
    try:
        path = str(json.loads((directory / CONTROL_FILE).read_text())["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Fault(f"no `ottla dev` is running on {directory}: start one, or name its directory with --data") from None
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(path)
            connection.sendall(json.dumps(command).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
    except (OSError, ValueError):
        raise Fault(f"the `ottla dev` that ran on {directory} does not answer: start it again") from None
    assert isinstance(answer, dict)
    return answer
