"""How answers are printed: tables for people, JSON for programs, colours on terminals only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    """For what goes on: whoever reads takes line by line."""
    import json

    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as they need to be, two blanks apart. click takes the colours away where no terminal is."""
    lines = [tuple(header), *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(click.unstyle(line[column])) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        padded = (cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(line, widths, strict=True))
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


def alarming(value: object, alarm: bool) -> str:
    """In red if that is something to look at."""
    return click.style(str(value), fg="red") if alarm else str(value)


def commas(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Progress:
    """A bar on standard error while long work goes on; nothing where that is no terminal."""

    def __init__(self, label: str, total: int) -> None:
        shown = sys.stderr.isatty() and total > 0
        self._bar = click.progressbar(length=total, label=label, file=sys.stderr) if shown else None
        if self._bar is not None:
            self._bar.render_progress()
        self._done = 0

    def reached(self, done: int) -> None:
        if self._bar is not None and done > self._done:
            self._bar.update(done - self._done)
        self._done = max(self._done, done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.render_finish()
