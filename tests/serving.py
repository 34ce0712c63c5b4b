"""A broker as a real process: start it, wait for its ready line, kill it, start it again on the same data."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ottla.cluster.ensemble import free_ports

T = TypeVar("T")

READY = re.compile(
    r'^(?:ottla: broker|\{"broker":) (\d+)(?: ready on |, "ready": \[")([^\s:]+):(\d+)(, \S+|".*\})*$', re.MULTILINE
)
"""As text, or as JSON."""
COMPLAINT = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|never retrieved|was destroyed|never awaited")
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 15.0) -> T:
    """Poll until the condition holds; its value is the answer."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.01)
    return value


class BrokerProcess:
    """One `ottla serve`. Its port is chosen at the first start and kept over restarts."""

    def __init__(self, directory: Path, *arguments: str, command: tuple[str, ...] = (), port: int | None = 0) -> None:
        """`port=None`: the arguments say where to listen."""
        self.directory = directory
        self.data = directory / "data"
        self.arguments = arguments
        self.command = command or (sys.executable, "-m", "ottla")
        self.host = "127.0.0.1"
        self.port = port or free_ports(1)[0]
        self.names_port = port is not None
        self.allowed: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.stdout_path = directory / "stdout"
        self.stderr_path = directory / "stderr"

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker has not been started"
        return self.process.pid

    def serve_command(self) -> list[str]:
        port = ["--port", str(self.port)] if self.names_port else []
        return [*self.command, "serve", *port, "--data", str(self.data), *self.arguments]

    def start(self) -> BrokerProcess:
        with self.stdout_path.open("wb") as out, self.stderr_path.open("ab") as err:
            self.process = subprocess.Popen(self.serve_command(), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            ready = wait_for(self._ready_or_dead, "the ready line", READY_TIMEOUT_S)
        except AssertionError:
            self.kill()
            raise
        assert isinstance(ready, re.Match), f"exited with {self.process.poll()}:\n{self.stderr_text()}"
        self.host, self.port = ready[2], int(ready[3])
        return self

    def _ready_or_dead(self) -> re.Match[str] | bool | None:
        assert self.process is not None
        dead = self.process.poll() is not None
        return READY.search(self.stdout_path.read_text()) or (True if dead else None)

    def stop(self) -> int:
        """SIGTERM, as an operator would; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9: nothing is flushed, nothing is closed."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """SIGSTOP: it lives, and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def stderr_text(self) -> str:
        return self.stderr_path.read_text(errors="replace") if self.stderr_path.exists() else ""

    def times_said(self, text: str) -> int:
        """How often the log has a line with this text, those included that were only counted."""
        lines = [line for line in self.stderr_text().splitlines() if text in line]
        more = [re.search(r" \((once|\d+) more(?: times)? within \d+ s\)$", line) for line in lines]
        return sum(1 if found is None else 1 if found[1] == "once" else int(found[1]) for found in more)

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def complaints(self, since: int = 0, allowed: list[str] | None = None) -> list[str]:
        """Lines of the log, from a byte position on, that nobody said to expect."""
        expected = [*self.allowed, *(allowed or [])]
        lines = self.stderr_text()[since:].splitlines()
        return [
            line
            for line in lines
            if COMPLAINT.search(line) and not any(re.search(pattern, line) for pattern in expected)
        ]
