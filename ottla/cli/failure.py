"""How a command fails: a line that says what happened, what to do next, and an exit status for scripts."""

from __future__ import annotations

from typing import IO, Any

import click


class Failure(click.ClickException):
    """Ends the command with status 1. Lines after the first are indented below it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        lines = [f"ottla: error: {self.message}"]
        if self.hint:
            lines.append(f"  {self.hint}")
        click.echo("\n".join(lines), file=file, err=file is None)


class Misused(Failure):
    """The command was given what it cannot use."""

    exit_code = 2


class TryAgain(Failure):
    """The same command may succeed later; the status is EX_TEMPFAIL of sysexits.h."""

    exit_code = 75


def split_pair(text: str, option: str) -> tuple[str, str]:
    """`name=value` of an option that may be given many times."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"{option} takes name=value, not {name.strip() or text!r}")
    return name.strip(), value
