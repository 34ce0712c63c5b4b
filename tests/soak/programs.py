"""Client programs as processes of their own: started, listened to, killed, held, and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

END_SECONDS = 45.0

Heard = Callable[[list[str]], None]
"""Takes a line, word by word."""


class Program:
    """A role that one process after the other plays. `command` gives the arguments for its so-manieth life."""

    def __init__(
        self, name: str, command: Callable[[int], list[str]], log: Path, heard: Heard, failed: Callable[[str], None]
    ) -> None:
        self.name = name
        self.lives = 0
        self._command = command
        self._log = log
        self._heard = heard
        self._failed = failed
        self._lock = threading.Lock()
        self._held = False
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._replaced: list[subprocess.Popen[bytes]] = []
        self._paused: list[subprocess.Popen[bytes]] = []
        self._listeners: list[threading.Thread] = []

    def start(self) -> None:
        with self._lock:
            self._launch()

    def _launch(self) -> None:
        self.lives += 1
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *self._command(self.lives)],
                stdin=subprocess.PIPE,  # which ends with us, and the program with it
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._process = process
        listener = threading.Thread(target=self._listen, args=(process,), name=self.name, daemon=True)
        self._listeners = [each for each in self._listeners if each.is_alive()] + [listener]
        listener.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard(line.decode().split())
        status = process.wait()
        if status not in (0, -signal.SIGKILL):
            self._failed(f"{self.name} ended with {status}, see {self._log}")
        with self._lock:
            if process is self._process and not self._held and not self._ended:
                self._launch()

    def kill(self, *, hold: bool = False) -> None:
        """Held, it stays away until it is released."""
        with self._lock:
            self._held = hold
            assert self._process is not None
            self._process.kill()

    def release(self) -> None:
        with self._lock:
            if self._held and not self._ended:
                self._held = False
                self._launch()

    def replace(self) -> None:
        """Another process takes over while it hangs."""
        with self._lock:
            assert self._process is not None
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGSTOP)
                self._paused.append(self._process)
                self._replaced.append(self._process)
                self._launch()

    def resume(self) -> None:
        with self._lock:
            for process in self._paused:
                process.send_signal(signal.SIGCONT)
            self._paused.clear()

    def end(self, *, kill: bool = False) -> None:
        """After what it has begun, or at once."""
        self.resume()
        with self._lock:
            self._ended = True
        for process in self._all():
            if kill:
                process.kill()
            assert process.stdin is not None
            process.stdin.close()

    def join(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        for listener in self._listeners:
            listener.join(max(deadline - time.monotonic(), 0))
        for process in self._all():
            if process.poll() is None:
                self._failed(f"{self.name} did not end within {END_SECONDS:g} s")
                process.kill()

    def _all(self) -> list[subprocess.Popen[bytes]]:
        assert self._process is not None
        return [*self._replaced, self._process]
