"""One broker as a child process: launched, seen to be ready, killed, paused, stopped, launched again on its data.

The child has a session of its own, so that Ctrl-C reaches only us, and on Linux it is killed when the thread that
launched it ends, however that happens: launch brokers from a thread that lives on, such as the main one. Elsewhere a
kill -9 of this process leaves its brokers running.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from ottla.cluster.ensemble import HOST, end_with
from ottla.errors import Fault

READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.005
LOG_LINES_SHOWN: Final = 15

_READY: Final = re.compile(
    rb'^(?:ottla: broker \d+ ready on |\{"broker": \d+, "ready": \[")[^\s,]+?:(\d+)\b.*$', re.MULTILINE
)
"""As text, or as JSON where that was asked for (OTTLA_LOG_FORMAT)."""


class State(Enum):
    """What can be seen of a broker process from outside."""

    IDLE = "not started"
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"


class BrokerProcess:
    """One `ottla serve`. A port of 0 becomes the one it chose at its first start, and stays that; if the settings name
    listeners, the port is that of the first."""

    def __init__(
        self, broker_id: int, directory: Path, store: str, *, port: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.id = broker_id
        self.port = port
        self.data = directory / f"broker-{broker_id}"
        self.log = directory / f"broker-{broker_id}.log"
        self.settings = dict(settings or {})
        self.ready_seconds = 0.0
        """From exec to the ready line, at the last start."""
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        self._launched = 0.0
        self._log_from = 0
        self._ready = False
        self._paused = False
        self._ending: State | None = None

    def __str__(self) -> str:
        return f"broker {self.id}"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def running(self) -> bool:
        return self.pid != 0

    @property
    def state(self) -> State:
        if self._process is None:
            return State.IDLE
        status = self._process.poll()
        if status is not None:
            return self._ending or (State.KILLED if status == -signal.SIGKILL else State.FAILED)
        if self._paused:
            return State.PAUSED
        if self._ending is not None:
            return State.STOPPING
        return State.READY if self._seen_ready() else State.STARTING

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        assert not self.running
        command = [sys.executable, "-m", "ottla", "serve", "--id", str(self.id)]
        command += ["--data", str(self.data), "--store", self._store]
        if "listeners" not in self.settings:
            command += ["--host", HOST, "--port", str(self.port)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_from = out.tell()
            self._launched = time.monotonic()
            self._ready = self._paused = False
            self._ending = None
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )

    def _seen_ready(self) -> bool:
        if not self._ready:
            with self.log.open("rb") as said:
                said.seek(self._log_from)
                found = _READY.search(said.read())
            if found is not None:
                self.port = int(found[1])
                self.ready_seconds = time.monotonic() - self._launched
                self._ready = True
        return self._ready

    def check_start(self, seconds: float = READY_SECONDS) -> bool:
        """Whether it serves by now; a Fault when it never will."""
        if self.state is State.READY:
            return True
        if not self.running:
            raise Fault(f"{self} ended while it started; its log ({self.log}) says:\n{self.last_words()}")
        if time.monotonic() - self._launched > seconds:
            raise Fault(f"{self} did not serve within {seconds:g} s; its log ({self.log}) says:\n{self.last_words()}")
        return False

    def start(self) -> None:
        """Launch it and wait until it serves."""
        self.launch()
        while not self.check_start():
            time.sleep(LOOK_SECONDS)

    async def until_ready(self) -> None:
        await _until(self.check_start)

    def kill(self) -> None:
        """kill -9: nothing is flushed, nothing is said to anybody."""
        if self._process is not None and self.running:
            self._ending = State.KILLED
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        if self.running:
            os.kill(self.pid, signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        if self.running:
            os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def tell_to_stop(self) -> None:
        """SIGTERM, as an operator would: it hands over what it leads and leaves."""
        if self._process is not None and self.running:
            self.resume()
            self._ending = State.STOPPED
            self._process.terminate()

    def ended(self, deadline: float) -> bool:
        """Whether a broker that was told to stop has done so; after the deadline it is killed."""
        if self.running and time.monotonic() > deadline:
            self.kill()
        return not self.running

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        self.tell_to_stop()
        deadline = time.monotonic() + seconds
        while not self.ended(deadline):
            time.sleep(LOOK_SECONDS)

    async def until_stopped(self, seconds: float = STOP_SECONDS) -> None:
        self.tell_to_stop()
        deadline = time.monotonic() + seconds
        await _until(lambda: self.ended(deadline))

    def resident_bytes(self) -> int:
        """Its memory; 0 when that cannot be said."""
        pid = self.pid
        if not pid:
            return 0
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            shown = subprocess.run(
                ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
            ).stdout.strip()
            return int(shown) * 1024 if shown.isdecimal() else 0
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    def last_words(self) -> str:
        """The end of what it said since its last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as said:
            said.seek(self._log_from)
            lines = said.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES_SHOWN:])


async def _until(holds: Callable[[], bool]) -> None:
    """What becomes of a process is seen by looking."""
    while True:
        if holds():
            return
        await asyncio.sleep(LOOK_SECONDS)
