"""Order of a benchmark: A/B/A/B, every broker warm, and only the measured one running."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.cell import Cell, Settings
from bench.compare import number
from bench.maven import Unavailable
from bench.peers import ApacheKafka, Ottla, Peer

# A group does not wait for its first members, and compaction looks for work at once: what is measured is the work.
MEASURING = {"group.initial.rebalance.delay.ms": "0", "log.cleaner.backoff.ms": "100"}
PEERS: dict[str, Callable[[], Peer]] = {
    "ottla": lambda: Ottla(settings=MEASURING),
    "kafka": lambda: ApacheKafka(settings=MEASURING),
    "kafka-256m": lambda: ApacheKafka(heap="256m", settings=MEASURING),
}


WALL = "wall_s"
"""What every cell yields besides: how long measuring it took."""


@dataclass(slots=True)
class Results:
    """Results of a benchmark: values[cell][metric][peer] has one number for each run."""

    settings: Settings
    machine: dict[str, str]
    versions: dict[str, str]
    at: str
    notes: list[str] = field(default_factory=list)
    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, cell: str, peer: str, found: dict[str, float]) -> None:
        for metric, value in found.items():
            self.values.setdefault(cell, {}).setdefault(metric, {}).setdefault(peer, []).append(value)

    def of(self, cell: str, metric: str, peer: str) -> list[float]:
        return self.values.get(cell, {}).get(metric, {}).get(peer, [])

    def replace(self, newer: Results) -> None:
        """Replace the earlier results of these cells for all peers: only results of one run are compared."""
        for cell, found in newer.values.items():
            self.values[cell] = found
            self.notes = [note for note in self.notes if not note.startswith(_broken_note(cell))]
        self.versions |= newer.versions
        names = ", ".join(f"`{cell}`" for cell in newer.values)
        self.notes += [*newer.notes, f"Measured again on {newer.at}, in a run of their own: {names}."]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> Results:
        stored = json.loads(path.read_text())
        stored["settings"] = Settings(**stored["settings"])
        return cls(**stored)


class Progress:
    """One line per measurement, with the time since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"[{minutes:02d}:{seconds:02d}] {text}", flush=True)


def available(names: list[str], results: Results, progress: Progress) -> list[str]:
    """The peers that can run here; the notes say why others cannot."""
    usable = []
    for name in names:
        try:
            results.versions[name] = PEERS[name]().version()
        except Unavailable as reason:
            results.notes.append(f"{name} was not measured: {reason}.")
            progress.say(results.notes[-1])
        else:
            usable.append(name)
    return usable


def _broken_note(cell: str) -> str:
    return f"A run of {cell} on "


def measure(cell: Cell, peer: Peer, results: Results, progress: Progress) -> None:
    """One run of one cell; a run that breaks is noted, not counted."""
    os.sync()
    began = time.monotonic()
    try:
        found = cell.measure(peer, results.settings)
    except Exception as problem:  # noqa: BLE001 - the other cells are worth measuring whatever it was
        results.notes.append(f"{_broken_note(cell.name)}{peer.name} broke off: {problem}")
        progress.say(results.notes[-1])
        return
    if not found:
        return
    results.add(cell.name, peer.name, found | {WALL: time.monotonic() - began})
    aims = [metric for metric in cell.metrics if metric.target or metric.limit] or cell.metrics
    aims = [metric for metric in aims if metric.key in found]  # what needs a peer that is not there
    shown = [f"{metric.label.lower()} {number(found[metric.key])} {metric.unit}" for metric in aims]
    progress.say(f"{cell.name:<16} {peer.name:<11} {' · '.join(shown)}")


@contextmanager
def thawed(peer: Peer) -> Iterator[Peer]:
    peer.resume()
    try:
        yield peer
    finally:
        peer.pause()


def warm(peer: Peer, cells: list[Cell], settings: Settings, progress: Progress) -> None:
    """Run every cell once or more until the time is over, so that JIT compilers and caches are warm."""
    if not cells or settings.warm_seconds <= 0:
        return
    progress.say(f"warming {peer.name} for {settings.warm_seconds:g} s")
    brief = Settings(runs=1, seconds=settings.warm_seconds / 30, round_trips=settings.round_trips // 10)
    deadline = time.monotonic() + settings.warm_seconds
    cells = [cell for cell in cells if cell.warms and peer.name in (cell.peers or PEERS)]
    while cells:
        for cell in list(cells):
            try:
                cell.measure(peer, brief)
            except Exception as problem:  # noqa: BLE001 - as when it is measured
                progress.say(f"warming {peer.name} with {cell.name} broke off: {problem}")
                cells.remove(cell)
            if time.monotonic() > deadline:
                return


def run(cells: list[Cell], names: list[str], results: Results, path: Path, progress: Progress) -> None:
    """Measure every cell on every peer, round by round, and save after each round."""
    settings = results.settings
    starting = [cell for cell in cells if cell.starts_broker]
    loading = [cell for cell in cells if not cell.starts_broker]
    for round_ in range(settings.runs):
        for cell in starting:
            for name in names:
                if name in (cell.peers or names) and round_ < cell.runs_max:
                    measure(cell, PEERS[name](), results, progress)
    results.save(path)
    if not loading:
        return
    with ExitStack() as stack:
        peers = []
        for name in names:
            peer = stack.enter_context(PEERS[name]())
            warm(peer, loading, settings, progress)
            peer.pause()
            peers.append(peer)
        for round_ in range(settings.runs):
            progress.say(f"round {round_ + 1} of {settings.runs}")
            for cell in loading:
                for peer in peers:
                    if peer.name in (cell.peers or names) and round_ < cell.runs_max:
                        with thawed(peer):
                            measure(cell, peer, results, progress)
            results.save(path)
