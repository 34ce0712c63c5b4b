"""What the commands that talk to a cluster share: how it is named, how answers are printed, how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import click

from ottla.cli.failure import Failure, TryAgain
from ottla.client.admin import Admin, parse_bootstrap
from ottla.client.errors import ClientError

T = TypeVar("T")


def _checked_bootstrap(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        parse_bootstrap(value)
    except ValueError as problem:
        raise click.BadParameter(f"{problem}; for example localhost:9092") from None
    return value


bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT,...",
    envvar="OTTLA_BOOTSTRAP_SERVERS",
    default="localhost:9092",
    show_default=True,
    callback=_checked_bootstrap,
    help="Brokers to start from.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def administer(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Do something with an administrative client; what goes wrong ends the command."""

    async def session() -> T:
        async with Admin(bootstrap) as admin:
            return await work(admin)

    try:
        return asyncio.run(session())
    except ClientError as error:
        raise failure_of([error]) from None


def failure_of(errors: Sequence[ClientError]) -> Failure:
    """One failure for one or several errors; worth trying again only if all of them are."""
    kind = TryAgain if all(error.retriable for error in errors) else Failure
    message = "\n  ".join(str(error) for error in errors)
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return kind(message, hint="\n  ".join(hints) or None)


def print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as they need to be, two blanks apart."""
    lines = [tuple(header), *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
