"""Output of the demo: lines, and progress after some seconds without a line.

A separate process prints, so that it is on time: a thread would wait for the interpreter while that imports Spark or
copies records. It ends with its standard input.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Self

SILENCE_S = 3.0
"""A line at least every five seconds, on a machine that may be two seconds late."""
CLEAR_LINE = "\r\x1b[K"
"""On a terminal, progress is redrawn in one line."""
SAY, DOING, PROGRESS = "say", "doing", "progress"


class Voice:
    """Lines on standard output; `during` names the work in progress."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdin is not None
        self._words: IO[str] = self._process.stdin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.close()
        self._process.wait()

    def say(self, line: str) -> None:
        self._send(SAY, line)

    def progress(self, words: str) -> None:
        """Progress of the current work, printed when it is due."""
        self._send(PROGRESS, words)

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        self._send(DOING, doing)
        try:
            yield
        finally:
            self._send(DOING, "")

    def _send(self, what: str, words: str) -> None:
        for line in words.split("\n"):
            self._words.write(f"{what} {line}\n")
        self._words.flush()


class _SpeechSynthesis:
    """The printing process: lines of `say`, and progress after a silence."""

    def __init__(self) -> None:
        self._said = self._since = time.monotonic()
        self._doing = self._progress = ""
        self._clear, self._end = (CLEAR_LINE, "") if sys.stdout.isatty() else ("", "\n")

    def speak(self) -> None:
        heard = b""
        while True:
            left = self._said + SILENCE_S - time.monotonic()
            if not select.select([sys.stdin], [], [], max(left, 0))[0]:
                self._fill_silence()
                continue
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                print(end=self._clear, flush=True)
                return
            *lines, heard = (heard + data).split(b"\n")
            for line in lines:
                what, _, words = line.decode().partition(" ")
                self._take(what, words)

    def _take(self, what: str, words: str) -> None:
        if what == SAY:
            self._said = time.monotonic()
            print(f"{self._clear}{words}", flush=True)
        elif what == PROGRESS:
            self._progress = words
        else:
            self._doing, self._since, self._progress = words, time.monotonic(), ""

    def _fill_silence(self) -> None:
        self._said = time.monotonic()
        passed = f" for {self._said - self._since:.0f} s" if self._doing else ""
        progress = f": {self._progress}" if self._progress else ""
        print(f"{self._clear}  … {self._doing or 'working'}{passed}{progress}", end=self._end, flush=True)


if __name__ == "__main__":
    _SpeechSynthesis().speak()
