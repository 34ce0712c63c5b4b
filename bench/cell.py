"""Cell of the benchmark: its type, its metrics, and the topics that it creates and deletes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bench.connection import create_topic, delete_topic
from bench.peers import Peer
from bench.workers import Outcome

COMPARED = ("ottla", "kafka")  # a small heap changes nothing in most cells, and each broker costs its time
DISK_FREED_BYTES = 64 << 20
DISK_FREED_TIMEOUT_S = 10.0


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations and sizes of a run."""

    runs: int = 3
    seconds: float = 5.0
    warm_seconds: float = 60.0
    round_trips: int = 20_000
    history: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a cell. `target` bounds its ratio to that of Apache Kafka, `limit` bounds the number itself."""

    key: str
    label: str
    unit: str
    better: Better
    target: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    does: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Peer, Settings], dict[str, float]]
    starts_broker: bool = False
    peers: tuple[str, ...] = ()  # the only ones it is measured on; empty: all
    warms: bool = True  # false: it is about clients, or too long for a broker to get warm by
    runs_max: int = 100  # a cell that takes minutes is not repeated as often as the others


def fresh_topic(peer: Peer, partitions: int, configs: Mapping[str, str] | None = None) -> str:
    """A new topic; all names have one length, so that all frames have one length."""
    topic = f"bench-{time.monotonic_ns() // 1000:016d}"
    create_topic(peer.port, topic, partitions, configs)
    return topic


def drop(peer: Peer, *topics: str) -> None:
    """Delete topics, and wait until their files and dirty pages are gone, so that they do not affect the next
    measurement."""
    for topic in topics:
        delete_topic(peer.port, topic)
    deadline = time.monotonic() + DISK_FREED_TIMEOUT_S
    while _used_bytes(peer.directory) > DISK_FREED_BYTES and time.monotonic() < deadline:
        time.sleep(0.1)
    os.sync()


def _used_bytes(directory: Path) -> int:
    """Without internal topics, which no cell deletes."""
    used = 0
    for parent, _, names in os.walk(directory):
        if Path(parent).name.startswith("__"):
            continue
        for name in names:
            try:
                used += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return used


def latencies(outcome: Outcome) -> dict[str, float]:
    """Metrics of a cell with one worker that waits for each response."""
    (tally,) = outcome.tallies
    found = {f"p{rank:g}_us": value for rank, value in tally.latencies_us.items()}
    found["requests_s"] = tally.requests / outcome.elapsed
    found["cpu_s_per_million"] = outcome.broker_cpu_seconds / tally.requests * 1e6
    found["generator_cores"] = outcome.generator_cores
    return found
