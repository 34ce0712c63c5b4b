"""Server processes: launch, wait until ready, kill, pause, stop, launch again on the same data.

A child has its own session, so that Ctrl-C does not reach it. On Linux it is killed when the thread that launched it
ends: launch servers from a thread that keeps running, such as the main one. On other systems a kill -9 of this process
leaves its children running.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final, Self

from ottla.cluster.ensemble import HOST, end_with
from ottla.errors import Fault
from ottla.local.waiting import until

STOP_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.002
LOG_LINES_SHOWN: Final = 15

_READY: Final = re.compile(
    rb'^(?:ottla: broker \d+ ready on |\{"broker": \d+, "ready": \[")([^\s,]+?):(\d+)\b.*$', re.MULTILINE
)
"""The ready line, as text or as JSON (OTTLA_LOG_FORMAT)."""


class State(Enum):
    """State of a server process, seen from outside."""

    IDLE = "not started"
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"


class ServerProcess(ABC):
    """One server. Its output goes to the file `log`; standard output goes to `output` if that is given."""

    READY_SECONDS: ClassVar[float] = 30.0

    def __init__(self, log: Path, output: Path | None = None) -> None:
        self.log = log
        self.output = output
        self.ready_seconds = 0.0
        """Duration of the last start, until it served."""
        self.launched_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        self._ready = False
        self._paused = False
        self._ending: State | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether the running process serves."""

    @property
    def pid(self) -> int:
        """0 if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def running(self) -> bool:
        return self.pid != 0

    @property
    def exit_status(self) -> int | None:
        """Of a process that has ended."""
        return self._process.poll() if self._process is not None else None

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
        if not self._ready and self.serves():
            self.ready_seconds = time.monotonic() - self.launched_at
            self._ready = True
        return State.READY if self._ready else State.STARTING

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert not self.running
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log, (self.output or self.log).open("wb" if self.output else "ab") as output:
            self._log_from = log.tell()
            self._ready = self._paused = False
            self._ending = None
            self.launched_at = time.monotonic()
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )

    def printed(self) -> bytes:
        """Output since the last start."""
        return self.output.read_bytes() if self.output else self._logged()

    def _logged(self) -> bytes:
        return self.log.read_bytes()[self._log_from :] if self.log.exists() else b""

    def check_start(self) -> bool:
        """Whether it serves; Fault if it ended or took too long."""
        if self.state is State.READY:
            return True
        if not self.running:
            why = "ended during its start"
        elif time.monotonic() - self.launched_at > self.READY_SECONDS:
            why = f"did not serve within {self.READY_SECONDS:g} s"
        else:
            return False
        raise Fault(f"{self} {why}; its log ({self.log}) says:\n{self.last_words()}")

    def start(self) -> Self:
        """Launch it, and wait until it serves."""
        self.launch()
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        while not self.check_start():
            time.sleep(LOOK_SECONDS)

    async def until_ready(self) -> None:
        await until(self.check_start, f"{self} to serve", 2 * self.READY_SECONDS)

    def kill(self) -> None:
        """kill -9: it flushes nothing and closes nothing."""
        if self._process is not None and self.running:
            self._ending = State.KILLED
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        if self.running:
            self.send_signal(signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        if self.running:
            self.send_signal(signal.SIGCONT)
        self._paused = False

    def send_signal(self, number: int) -> None:
        if pid := self.pid:
            os.kill(pid, number)

    def request_stop(self) -> None:
        """SIGTERM: controlled shutdown, the broker moves its leaders away and ends."""
        if self._process is not None and self.running:
            self.resume()
            self._ending = State.STOPPED
            self._process.terminate()

    def has_ended(self, deadline: float) -> bool:
        """Whether the server has ended; after the deadline it is killed."""
        if self.running and time.monotonic() > deadline:
            self.kill()
        return not self.running

    def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        """Stop it, or kill it after `seconds`; returns the exit status."""
        self.request_stop()
        return self.wait(seconds)

    def wait(self, seconds: float = STOP_SECONDS) -> int | None:
        """Wait until it has ended, or kill it after `seconds`; returns the exit status."""
        deadline = time.monotonic() + seconds
        while not self.has_ended(deadline):
            time.sleep(LOOK_SECONDS)
        return self.exit_status

    async def until_stopped(self, seconds: float = STOP_SECONDS) -> None:
        self.request_stop()
        deadline = time.monotonic() + seconds
        await until(lambda: self.has_ended(deadline), f"{self} to end", 2 * seconds)

    def resident_bytes(self) -> int:
        """Resident memory; 0 if it is unknown."""
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
        """The last log lines since the last start."""
        return "\n".join(self._logged().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:])


class BrokerProcess(ServerProcess):
    """One `ottla serve`. With port 0 the broker picks a port at its first start and keeps it; with `port=None` settings
    or arguments name the listeners, and `port` is that of the first."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        broker_id: int = 1,
        port: int | None = 0,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
        output: Path | None = None,
        program: Sequence[str] = (),
    ) -> None:
        """`program`: the `ottla` to run instead of this one. `arguments`: more options of `ottla serve`."""
        super().__init__(log or data.with_name(f"{data.name}.log"), output)
        self.id = broker_id
        self.host = HOST
        self.port = port or 0
        self.data = data
        self.arguments = arguments
        self.settings = dict(settings or {})
        self.program = program or (sys.executable, "-m", "ottla")
        self._names_port = port is not None

    def __str__(self) -> str:
        return f"broker {self.id}"

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        command = [*self.program, "serve", "--data", str(self.data), *self.arguments]
        if self._names_port and "listeners" not in self.settings:
            command += ["--host", HOST, "--port", str(self.port)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def serves(self) -> bool:
        found = _READY.search(self.printed())
        if found is not None:
            self.host, self.port = found[1].decode(), int(found[2])
        return found is not None
