"""Single key presses, for interactive commands."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click


@contextmanager
def raw_keys() -> Iterator[int]:
    """Terminal in cbreak mode: each key is readable at once and not echoed; Ctrl-C still interrupts. Yields the file
    descriptor to read from."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed_key(prompt: str) -> str:
    """Prompt, and wait for one key; `q` at end of input. Keys typed before the prompt are discarded."""
    with raw_keys() as descriptor:
        termios.tcflush(descriptor, termios.TCIFLUSH)
        click.echo(prompt, nl=False)
        return os.read(descriptor, 16).decode(errors="ignore")[:1] or "q"
