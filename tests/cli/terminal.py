"""A pseudo-terminal for interactive commands, and the content of its screen.

The screen understands what Ottla's commands send: text, carriage return, new line, and the sequences of rich and click
that move the cursor, erase, and colour. Anything else fails the test, so that a screen is never guessed.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from typing import Self

SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class Screen:
    """Lines of text; the window is the last `height` of them."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                assert found is not None, f"a sequence that this screen does not know: {text[at : at + 10]!r}"
                self._obey(found[3], int(found[2].split(";")[0] or 0), private=bool(found[1]))
                at = found.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
            while len(self._lines) <= self._row:
                self._lines.append([])
        else:
            if self._column == self.width:
                self._put("\n")
                self._column = 0
            line = self._lines[self._row]
            line += [" "] * (self._column + 1 - len(line))
            line[self._column] = character
            self._column += 1

    def _obey(self, char: str, number: int, *, private: bool) -> None:
        if char == "m" or private:  # colours; showing and hiding the cursor
            return
        if char == "A":
            self._row = max(0, self._row - (number or 1))
        elif char == "K":
            kept = [] if number == 2 else self._lines[self._row][: self._column]
            self._lines[self._row] = kept
        elif char == "J" and number == 2:
            self._row = len(self._lines)
            self._lines.append([])
        elif char == "H":
            self._column = 0
        else:
            raise AssertionError(f"a sequence that this screen does not know: {number}{char}")

    def text(self) -> str:
        lines = ["".join(line).rstrip() for line in self._lines]
        return "\n".join(lines[-self.height :]).rstrip("\n")


class Terminal:
    """A command on a pseudo-terminal of a certain size."""

    def __init__(self, *command: str, width: int = 100, height: int = 40, **environment: str) -> None:
        self.said = ""
        self.screen = Screen(width, height)
        self._feeding = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.descriptor, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        own = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment}
        own.pop("COLUMNS", None)
        own.pop("LINES", None)
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=own, start_new_session=True
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nothing is left running."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def until(self, text: str, seconds: float = 30.0) -> str:
        """Wait for what the command says next; what it said up to then."""
        self._wait(lambda: text in self.said, repr(text), seconds)
        before, self.said = self.said, ""
        return before

    def until_screen(self, holds, what: str, seconds: float = 30.0) -> str:
        """Wait until the screen is as it should be, and give it back."""
        self._wait(lambda: holds(self.screen.text()), what, seconds)
        return self.screen.text()

    def _wait(self, holds, what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"waited for {what}, seen:\n{self.screen.text()}"
            if not self._read(0.1):
                break
        assert holds(), f"waited for {what}, seen:\n{self.screen.text()}"

    def _read(self, seconds: float) -> bool:
        """Whether there may be more."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            return False
        text = self._decoder.decode(data)
        whole = self._feeding + text
        # A sequence that is not whole yet comes with the next read.
        found = re.search(r"\x1b(\[[?\d;]*)?$", whole)
        cut = found.start() if found else len(whole)
        self._feeding = whole[cut:]
        self.said += whole[:cut]
        self.screen.feed(whole[:cut])
        return True

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def close(self) -> int:
        """Its exit status; what it still says is read, or it could not end."""
        while self._read(0.1):
            pass
        status = self.process.wait(30)
        os.close(self.descriptor)
        return status
