"""The live view of `ottla dev`, drawn with rich, and the keys that go with it.

A row for each partition, a column for each broker: leaders red, replicas blue, a full dot for a live replica in sync;
then log start, high watermark, log end and write rate. Below are the consumer groups: members, partitions, offsets and
lag. Keys kill, pause and restart brokers, write records, and start and stop consumers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.console import Group as Stacked
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ottla.cli.keys import raw_keys
from ottla.local.detail import UNKNOWN, Detail, GroupDetail, Offsets
from ottla.local.playground import GROUP, RECORDS, TOPIC
from ottla.local.processes import State
from ottla.local.session import megabytes, not_eligible
from ottla.local.snapshot import NO_BROKER, PartitionReplicas, in_sync_summary

if TYPE_CHECKING:
    from ottla.local.session import DevSession

LINES_BESIDE: Final = 14
"""Lines of the window that show neither brokers, nor partitions, nor groups."""
ROWS_MIN: Final = 4
HIDDEN_FIRST: Final = ("memory", "pid")
"""Columns that a narrow window hides, in this order."""
HIDDEN_FIRST_OF_PARTITIONS: Final = ("records/s", "log start")
ELIGIBLE_WHY: Final = (
    "may lead: out of sync, but an eligible leader replica (ELR). It has every committed record: it went out of sync "
    "when fewer than min.insync.replicas were left, and since then nothing was committed."
)
BROKER_KEYS: Final = (
    "k kill -9", "p pause", "c continue", "r restart", "s stop", "·  1-9 choose a broker", "·  q quit"
)  # fmt: skip
CLIENT_KEYS: Final = (
    f"w write {RECORDS} records to {TOPIC}", f"g start a consumer of group {GROUP}", "x stop it"
)  # fmt: skip
VERBS: Final = {"k": "kill", "p": "pause", "c": "resume", "r": "restart", "s": "stop"}
STATE_COLOURS: Final = {
    State.READY: "green",
    State.PAUSED: "yellow",
    State.STARTING: "yellow",
    State.STOPPING: "yellow",
    State.KILLED: "bold red",
    State.FAILED: "bold red",
}


class LiveView:
    """Draws a session below the lines of events, and redraws it in place."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.session: DevSession | None = None
        self._selected = 1
        self._live = Live(console=self.console, auto_refresh=False, transient=True)

    def report(self, line: str) -> None:
        self._live.console.print(Text(line))

    def draw(self) -> None:
        if self.session is not None:
            self._live.update(self.picture(self.session), refresh=True)

    @contextmanager
    def open(self, session: DevSession) -> Iterator[None]:
        self.session = session
        with self._live, _keys(self._pressed):
            yield

    def _pressed(self, key: str) -> None:
        session = self.session
        if session is None:
            return
        if key == "q":
            session.stop.set()
        elif key.isdecimal() and int(key) in session.cluster.brokers:
            self._selected = int(key)
            self.draw()
        elif key in VERBS:
            session.command_soon(VERBS[key], self._selected)
        elif key == "w":
            session.playground.write_soon()
        elif key == "g":
            session.playground.start_consumer_soon()
        elif key == "x":
            session.playground.stop_consumer_soon()

    def picture(self, session: DevSession) -> RenderableType:
        """Brokers, partitions, groups, keys."""
        parts: list[RenderableType] = [self._brokers(session)]
        room = max(ROWS_MIN, self.console.height - len(session.cluster.brokers) - LINES_BESIDE)
        reading = sum(2 + len(group.partitions()) for group in session.detail.groups)
        if session.snapshot.partitions:
            parts.append(self._partitions(session, max(ROWS_MIN, room - reading)))
        parts += [groups(session.detail, max(ROWS_MIN, room // 2))] if session.detail.groups else []
        width = self.console.width
        parts.append(keys_line(f"broker {self._selected}:", BROKER_KEYS, width))
        parts.append(keys_line("clients:", CLIENT_KEYS, width))
        return Stacked(*parts)

    def _brokers(self, session: DevSession) -> Table:
        led = Counter(state.leader for state in session.snapshot.partitions.values())
        held = Counter(broker for state in session.snapshot.partitions.values() for broker in state.replicas)
        columns = {
            name: Column(name, name in ("pid", "memory", "leads", "replicas"))
            for name in ("", "broker", "address", "pid", "memory", "state", "leads", "replicas", "role")
        }
        columns["role"].heading = ""
        for broker in session.cluster.brokers.values():
            state = broker.state
            row = (
                "›" if broker.id == self._selected else "",
                str(broker.id),
                broker.bootstrap,
                str(broker.pid or "-"),
                megabytes(broker.resident_bytes()),
                Text(state.value, STATE_COLOURS.get(state, "dim")),
                str(led[broker.id]),
                str(held[broker.id]),
                Text("controller", "dim") if session.snapshot.controller == broker.id else "",
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.cells.append(value)
        hide(columns, HIDDEN_FIRST, self.console.width)
        return table_of(columns.values())

    def _partitions(self, session: DevSession, room: int) -> RenderableType:
        snapshot, detail, brokers = session.snapshot, session.detail, list(session.cluster.brokers)
        running = {broker.id for broker in session.cluster.brokers.values() if broker.running}
        columns = {"partition": Column("partition")}
        columns |= {f"broker {broker_id}": Column(f"broker {broker_id}") for broker_id in brokers}
        for name in ("log start", "high watermark", "log end", "records/s"):
            columns[name] = Column(name, right=True)
        shown = {key: state for key, state in snapshot.partitions.items() if key[0] not in snapshot.internal}
        for key, state in list(shown.items())[:room]:
            offsets = detail.offsets.get(key, Offsets())
            high = Text("no leader", "bold red") if state.leader == NO_BROKER else number(offsets.high_watermark)
            row = (
                f"{key[0]}-{key[1]}",
                *(cell(state, broker_id, session.may_lead(key), running) for broker_id in brokers),
                number(offsets.start),
                high,
                number(offsets.end),
                f"{detail.rates.get(key, 0.0):,.0f}",
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.cells.append(value)
        hidden = hide(columns, HIDDEN_FIRST_OF_PARTITIONS, self.console.width)
        below = [f"and {len(shown) - room} more partitions"] if len(shown) > room else []
        below += in_sync_summary(
            (key[0], *state[:3]) for key, state in snapshot.partitions.items() if key[0] in snapshot.internal
        )
        below += [f"a wider window shows {' and '.join(hidden)} too"] if hidden else []
        if any(session.may_lead(key) for key in shown):
            below.append(ELIGIBLE_WHY)
        if killed := session.will_not_lead():
            below.append(not_eligible(killed))
        return Stacked(table_of(columns.values()), *(note(line, self.console.width) for line in below))


class Column:
    """The heading and the rows of a table."""

    def __init__(self, heading: str, right: bool = False) -> None:
        self.heading = heading
        self.right = right
        self.cells: list[str | Text] = []

    @property
    def width(self) -> int:
        """With a space on either side."""
        return 2 + max(cell_len(each if isinstance(each, str) else each.plain) for each in (self.heading, *self.cells))


def hide(columns: dict[str, Column], names: Sequence[str], width: int) -> list[str]:
    """Remove columns, in the order of `names`, until the rest fits into the window; returns the removed names."""
    hidden: list[str] = []
    for name in names:
        if sum(column.width for column in columns.values()) <= width:
            break
        del columns[name]
        hidden.insert(0, name)
    return hidden


def table_of(columns: Iterable[Column]) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    own = list(columns)
    for column in own:
        table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for row in zip(*(column.cells for column in own), strict=True):
        table.add_row(*row)
    return table


def note(words: str, width: int) -> Text:
    """A sentence below a table, wrapped to the width of the window."""
    return Text("\n".join(f" {line}" for line in textwrap.wrap(words, width - 2)), "dim")


def keys_line(label: str, keys: Sequence[str], width: int) -> Text:
    """The keys and their effects, wrapped to the width of the window."""
    lines = [f" {label} {keys[0]}"]
    for key in keys[1:]:
        if cell_len(longer := f"{lines[-1]}  {key}") < width:
            lines[-1] = longer
        else:
            lines.append(" " * (len(label) + 2) + key.removeprefix("·  "))
    text = Text("\n".join(lines))
    text.stylize("bold", 0, len(label) + 1)
    return text


def cell(state: PartitionReplicas, broker_id: int, eligible: Sequence[int], running: Container[int]) -> Text:
    """The replica of one partition on one broker."""
    if broker_id == state.leader:
        return Text("● leader", "bold red")
    if broker_id not in state.replicas:
        return Text("")
    if broker_id in state.in_sync:
        return Text("● in sync", "bold blue") if broker_id in running else Text("○ in sync, down", "blue")
    if broker_id in eligible:
        return Text("○ may lead", "blue")
    return Text("○ out of sync", "blue dim")


def number(offset: int) -> str:
    return "-" if offset == UNKNOWN else str(offset)


def groups(detail: Detail, room: int) -> RenderableType:
    """A line for each group, and one for each of its partitions and idle members."""
    table = Table(box=None, pad_edge=True, header_style="dim")
    for name in ("group", "member", "partition"):
        table.add_column(name)
    for name in ("offset", "lag"):
        table.add_column(name, justify="right")
    rows = [row for group in detail.groups for row in _group_rows(group, detail)]
    for row in rows[:room]:
        table.add_row(*row)
    below = [f"and {len(rows) - room} more lines"] if len(rows) > room else []
    return Stacked(table, *(Text(f" {line}", "dim") for line in below))


def _group_rows(group: GroupDetail, detail: Detail) -> Iterator[tuple[str | Text, ...]]:
    owners = {key: member.client_id for member in group.members for key in member.partitions}
    count = len(group.members)
    yield Text(group.name, "bold"), Text(f"{group.state}, {count} member{'' if count == 1 else 's'}", "dim"), "", "", ""
    for key in group.partitions():
        committed = group.committed.get(key, UNKNOWN)
        lag = group.lag(key, detail.offsets)
        owner = owners.get(key)
        yield "", owner or Text("none", "dim"), f"{key[0]}-{key[1]}", number(committed), number(lag)
    for member in group.members:
        if not member.partitions:
            yield "", member.client_id, Text("idle: no partition is left for it", "dim"), "", ""


@contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Calls `pressed` for each key; a closed terminal counts as `q`. Does nothing without a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    loop = asyncio.get_running_loop()
    with raw_keys() as descriptor:

        def read() -> None:
            try:
                keys = os.read(descriptor, 64)
            except OSError:
                keys = b""
            if not keys:
                loop.remove_reader(descriptor)  # end of file: it would stay readable
                keys = b"q"
            for key in keys.decode(errors="ignore"):
                pressed(key)

        loop.add_reader(descriptor, read)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
