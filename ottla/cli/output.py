"""How answers are printed: tables for people, JSON for programs, colours on terminals only."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

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
    lines = [tuple(header), *(tuple(printable(str(cell)) for cell in row) for row in rows)]
    widths = [max(len(click.unstyle(line[column])) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        padded = (cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(line, widths, strict=True))
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


_COLOURS: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t", 10: "\\n", 13: "\\r"
}  # fmt: skip


def printable(text: str) -> str:
    """Names come from others: a control character in one is shown, not obeyed. Colours are ours."""
    parts = _COLOURS.split(text)
    return "".join(part if number % 2 else part.translate(_ESCAPES) for number, part in enumerate(parts))


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


PATIENCE_S: Final = 2.0
"""Work that takes no longer needs no progress."""
LINE_EVERY_S: Final = 5.0


def _be_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[QUIET] = value


QUIET: Final = "ottla.quiet"
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_be_quiet, help="Show no progress."
)
"""For commands that show `Progress`, which asks for it itself."""


class Progress:
    """How far long work is, on standard error: a bar on a terminal, elsewhere a line now and then; nothing with
    --quiet."""

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
        """May be called as often as one likes. More than all is all: records come in batches."""
        done = min(done, self._total)
        if self._bar is not None and done > self._done:
            self._bar.update(done - self._done)
        self._done = max(self._done, done)
        if self._shown and self._bar is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            click.echo(f"{self._label}: {self._done:,} of {self._total:,}", err=True)

    def finish(self) -> None:
        """All is done, whatever was counted."""
        self.reached(self._total)
        self.close()

    def close(self) -> None:
        bar, self._bar = self._bar, None
        self._shown = False
        if bar is not None:
            bar.render_finish()
