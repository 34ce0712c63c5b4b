"""The live view of `ottla dev`, drawn with rich, and the keys that go with it.

A row for each partition, a column for each broker: leaders red, replicas blue, a full dot for those in sync.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ottla.local.process import State
from ottla.local.session import megabytes
from ottla.local.sight import NOBODY, Replicas

if TYPE_CHECKING:
    from ottla.local.session import Session

LINES_BESIDE_PARTITIONS: Final = 12
PARTITIONS_MIN: Final = 4
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
    """Draws a session in place, below the lines of what happened."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.session: Session | None = None
        self._selected = 1
        self._live = Live(console=self.console, auto_refresh=False, transient=True)

    def told(self, line: str) -> None:
        self._live.console.print(Text(line))

    def drawn(self) -> None:
        if self.session is not None:
            self._live.update(self.picture(self.session), refresh=True)

    @contextmanager
    def open(self, session: Session) -> Iterator[None]:
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
            self.drawn()
        elif key in VERBS:
            session.command_soon(VERBS[key], self._selected)

    def picture(self, session: Session) -> RenderableType:
        """What is drawn: brokers, partitions, keys."""
        parts: list[RenderableType] = [self._brokers(session)]
        if session.sight.partitions:
            parts.append(self._partitions(session))
        parts.append(
            Text.assemble(
                (f" broker {self._selected}: ", "bold"),
                "k kill -9  p pause  c continue  r restart  s stop",
                ("  ·  1-9 choose a broker  ·  q quit", "dim"),
            )
        )
        return Group(*parts)

    def _brokers(self, session: Session) -> Table:
        led = Counter(state.leader for state in session.sight.partitions.values())
        held = Counter(broker for state in session.sight.partitions.values() for broker in state.replicas)
        table = Table(box=None, pad_edge=True, header_style="dim")
        for name in ("", "broker", "address", "pid", "memory", "state", "leads", "replicas", ""):
            table.add_column(name, justify="right" if name in ("pid", "memory", "leads", "replicas") else "left")
        for broker in session.cluster.brokers.values():
            state = broker.state
            table.add_row(
                "›" if broker.id == self._selected else "",
                str(broker.id),
                broker.address,
                str(broker.pid or "-"),
                megabytes(broker),
                Text(state.value, STATE_COLOURS.get(state, "dim")),
                str(led[broker.id]),
                str(held[broker.id]),
                Text("controller", "dim") if session.sight.controller == broker.id else "",
            )
        return table

    def _partitions(self, session: Session) -> RenderableType:
        sight, brokers = session.sight, list(session.cluster.brokers)
        table = Table(box=None, pad_edge=True, header_style="dim")
        table.add_column("partition")
        for broker_id in brokers:
            table.add_column(f"broker {broker_id}")
        shown = {place: state for place, state in sight.partitions.items() if place[0] not in sight.internal}
        room = max(PARTITIONS_MIN, self.console.height - len(brokers) - LINES_BESIDE_PARTITIONS)
        for (topic, index), state in list(shown.items())[:room]:
            table.add_row(f"{topic}-{index}", *(cell(state, broker_id) for broker_id in brokers))
        below = [f"and {len(shown) - room} partitions more"] if len(shown) > room else []
        for topic in sorted(sight.internal):
            states = [state for place, state in sight.partitions.items() if place[0] == topic]
            whole = sum(state.leader != NOBODY and len(state.in_sync) == len(state.replicas) for state in states)
            below.append(f"{topic}: {len(states)} partitions, {whole} of them fully in sync")
        return Group(table, *(Text(f" {line}", "dim") for line in below))


def cell(state: Replicas, broker_id: int) -> Text:
    """What one broker has of one partition."""
    if broker_id == state.leader:
        return Text("● leader", "bold red")
    if broker_id not in state.replicas:
        return Text("")
    if broker_id in state.in_sync:
        return Text("● in sync", "bold blue")
    return Text("○ behind", "blue dim")


@contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Hand over each key as it is pressed; nothing when there is no keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor)

    def read() -> None:
        for key in os.read(descriptor, 64).decode(errors="ignore"):
            pressed(key)

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
