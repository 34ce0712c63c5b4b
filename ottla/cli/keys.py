"""Keys as they are pressed, for commands that somebody sits in front of."""

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
    """The terminal hands over each key at once, and shows none, until this ends; Ctrl-C still interrupts. Gives the
    descriptor to read keys from."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed_key(prompt: str) -> str:
    """Ask for one key, and wait for it; `q` when there will be none. What was typed before does not count."""
    with raw_keys() as descriptor:
        termios.tcflush(descriptor, termios.TCIFLUSH)
        click.echo(prompt, nl=False)
        return os.read(descriptor, 16).decode(errors="ignore")[:1] or "q"
