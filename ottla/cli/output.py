"""Output of commands: tables for people, JSON for programs, colours on terminals only, progress bars."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def answer(as_json: bool, value: object, text: str | Callable[[], object]) -> None:
    """Print the answer of a command: `value` with --json, otherwise `text` (which may be empty, or print by itself)."""
    if as_json:
        print_json(value)
    elif callable(text):
        text()
    elif text:
        click.echo(text)


def print_json_line(value: object) -> None:
    """One line for each event, of a command that keeps running."""
    import json

    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their cells, two blanks apart. click removes colours where there is no terminal."""
    lines = [tuple(header), *(tuple(printable(str(cell)) for cell in row) for row in rows)]
    widths = [max(len(click.unstyle(line[column])) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        padded = (cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(line, widths, strict=True))
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


def print_blocks(items: Iterable[tuple[Any, ...]], print_block: Callable[..., None]) -> None:
    """Several descriptions, with an empty line between."""
    for position, item in enumerate(items):
        if position:
            click.echo()
        print_block(*item)


def print_rows(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table, or nothing if it has no rows."""
    if rows:
        print_table(header, rows)


_COLOURS: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t", 10: "\\n", 13: "\\r"
}  # fmt: skip


def printable(text: str) -> str:
    """Show control characters instead of sending them to the terminal: names come from other people."""
    parts = _COLOURS.split(text)
    return "".join(part if number % 2 else part.translate(_ESCAPES) for number, part in enumerate(parts))


def alarming(value: object, alarm: bool) -> str:
    """In red if it needs attention."""
    return click.style(str(value), fg="red") if alarm else str(value)


def commas(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


PATIENCE_S: Final = 2.0
"""Work that takes less time shows no progress."""
LINE_EVERY_S: Final = 5.0


def _set_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[QUIET] = value


QUIET: Final = "ottla.quiet"
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Show no progress."
)
"""For commands that show `ProgressBar`, which reads it from the context."""


class ProgressBar:
    """Progress of long work, on standard error: a bar on a terminal, a line every few seconds elsewhere, nothing
    with --quiet."""

    def __init__(self, label: str, total: int) -> None:
        context = click.get_current_context(silent=True)
        self._label = label
        self._total = total
        self._shown = total > 0 and not (context is not None and context.meta.get(QUIET))
        self._bar = None
        if self._shown and sys.stderr.isatty():
            self._bar = click.progressbar(length=total, label=label, file=sys.stderr)
            self._bar.render_progress()
            if context is not None:  # also when the command is interrupted: a bar hides the cursor
                context.call_on_close(self.close)
        self._done = 0
        self._next = time.monotonic() + PATIENCE_S

    def reached(self, done: int) -> None:
        """Cheap: call it for every step. `done` may exceed the total, because records come in batches."""
        done = min(done, self._total)
        if self._bar is not None and done > self._done:
            self._bar.update(done - self._done)
        self._done = max(self._done, done)
        if self._shown and self._bar is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            click.echo(f"{self._label}: {self._done:,} of {self._total:,}", err=True)

    def finish(self) -> None:
        """Show the bar as complete, and close it."""
        self.reached(self._total)
        self.close()

    def close(self) -> None:
        bar, self._bar = self._bar, None
        self._shown = False
        if bar is not None:
            bar.render_finish()
