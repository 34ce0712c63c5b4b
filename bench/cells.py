"""The cells of the benchmark: what each one does to a broker, and which numbers it yields.

A cell is measured on a broker that is already warm, except the two that start a broker of their own. MB and
GB are powers of ten and count record values only, not what wraps them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bench import frames, load
from bench.connection import Connection, create_topic, delete_topic
from bench.peers import Peer
from bench.workers import Outcome, Tally, Worker, run

WORKERS = 4
PARTITIONS = 4
CONNECTIONS = 500
SMALL_RECORD = 100
BATCH_BYTES = 64_000
SETTLE_S = 2.0
DISK_FREED_BYTES = 64 << 20
DISK_FREED_TIMEOUT_S = 10.0


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Settings:
    """How long everything takes."""

    runs: int = 3
    seconds: float = 5.0
    warm_seconds: float = 60.0
    round_trips: int = 20_000


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a cell; `target` bounds its ratio to Apache Kafka's."""

    key: str
    label: str
    unit: str
    better: Better
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    does: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Peer, Settings], dict[str, float]]
    starts_broker: bool = False


def fresh_topic(peer: Peer, partitions: int) -> str:
    """A topic nobody used before, its name of one length so that frames are, too."""
    topic = f"bench-{time.monotonic_ns() // 1000:016d}"
    create_topic(peer.port, topic, partitions)
    return topic


def drop(peer: Peer, topic: str) -> None:
    """Delete a topic, and let neither its files nor its dirty pages reach into the next measurement."""
    delete_topic(peer.port, topic)
    deadline = time.monotonic() + DISK_FREED_TIMEOUT_S
    while _used_bytes(peer.directory) > DISK_FREED_BYTES and time.monotonic() < deadline:
        time.sleep(0.1)
    os.sync()


def _used_bytes(directory: Path) -> int:
    used = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                used += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return used


def _elapsed(tallies: list[Tally]) -> float:
    return max(tally.end for tally in tallies) - min(tally.begin for tally in tallies)


def _bytes(tallies: list[Tally], record_size: int) -> int:
    return sum(tally.records for tally in tallies) * record_size


def _generator_cores(outcome: Outcome) -> float:
    return sum(tally.cpu_seconds for tally in outcome.tallies) / _elapsed(outcome.tallies)


def _throughput(prefix: str, tallies: list[Tally], record_size: int) -> dict[str, float]:
    elapsed = _elapsed(tallies)
    return {
        f"{prefix}_mb_s": _bytes(tallies, record_size) / elapsed / 1e6,
        f"{prefix}_records_s": sum(tally.records for tally in tallies) / elapsed,
    }


def _saturated(record_size: int) -> Callable[[Peer, Settings], dict[str, float]]:
    count = BATCH_BYTES // record_size
    batch = frames.batch(record_size, count)

    def writers(peer: Peer, topic: str) -> list[Worker]:
        return [load.producer(load.Target(peer.port, topic, n), batch, count) for n in range(WORKERS)]

    def readers(peer: Peer, topic: str, *, again: bool) -> list[Worker]:
        return [load.consumer(load.Target(peer.port, topic, n), again=again) for n in range(WORKERS)]

    def measure(peer: Peer, settings: Settings) -> dict[str, float]:
        found: dict[str, float] = {}
        topic = fresh_topic(peer, PARTITIONS)
        written = run(writers(peer, topic), settings.seconds, peer.cpu_seconds)
        read = run(readers(peer, topic, again=True), settings.seconds, peer.cpu_seconds)
        drop(peer, topic)
        for name, outcome in (("produce", written), ("consume", read)):
            found |= _throughput(name, outcome.tallies, record_size)
            gigabytes = _bytes(outcome.tallies, record_size) / 1e9
            found[f"{name}_cpu_s_per_gb"] = outcome.broker_cpu_seconds / gigabytes
            found[f"{name}_generator_cores"] = _generator_cores(outcome)
        topic = fresh_topic(peer, PARTITIONS)
        both_ways = [*writers(peer, topic), *readers(peer, topic, again=False)]
        both = run(both_ways, settings.seconds, peer.cpu_seconds)
        drop(peer, topic)
        found |= _throughput("both_produce", both.tallies[:WORKERS], record_size)
        found |= _throughput("both_consume", both.tallies[WORKERS:], record_size)
        found["both_cpu_s_per_gb"] = both.broker_cpu_seconds / (_bytes(both.tallies, record_size) / 1e9)
        found["both_generator_cores"] = _generator_cores(both)
        return found

    return measure


def _latencies(outcome: Outcome) -> dict[str, float]:
    (tally,) = outcome.tallies
    found = {f"p{rank:g}_us": value for rank, value in tally.latencies_us.items()}
    found["requests_s"] = tally.requests / (tally.end - tally.begin)
    found["cpu_s_per_million"] = outcome.broker_cpu_seconds / tally.requests * 1e6
    found["generator_cores"] = _generator_cores(outcome)
    return found


def _many_connections(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, PARTITIONS)
    one = frames.batch(SMALL_RECORD, 1)
    worker = load.connections(load.Target(peer.port, topic), PARTITIONS, CONNECTIONS, one)
    outcome = run([worker], settings.seconds, peer.cpu_seconds)
    drop(peer, topic)
    return _latencies(outcome)


def _round_trip(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, 1)
    one = frames.batch(SMALL_RECORD, 1)
    worker = load.round_trips(load.Target(peer.port, topic), settings.round_trips, one)
    outcome = run([worker], 0.0, peer.cpu_seconds)
    drop(peer, topic)
    return _latencies(outcome)


def _end_to_end(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, 1)
    one = frames.batch(SMALL_RECORD, 1)
    worker = load.end_to_end(load.Target(peer.port, topic), settings.round_trips // 4, one)
    outcome = run([worker], 0.0, peer.cpu_seconds)
    drop(peer, topic)
    return _latencies(outcome)


def _start_up(peer: Peer, settings: Settings) -> dict[str, float]:
    frame = frames.produce("first", 0, frames.batch(SMALL_RECORD, 1))
    with peer:
        create_topic(peer.port, "first", 1)
        with Connection(peer.port) as connection:
            load.check_produced(connection.call(frame), frames.produce_error_at("first"))
        acknowledged = time.monotonic() - peer.exec_at
        return {"ready_s": peer.ready_seconds, "first_ack_s": acknowledged}


def _idle_memory(peer: Peer, settings: Settings) -> dict[str, float]:
    with peer:
        time.sleep(SETTLE_S)
        return {"idle_mb": peer.resident_bytes() / 1e6}


def _loaded_memory(peer: Peer, settings: Settings) -> dict[str, float]:
    return {"loaded_mb": peer.resident_bytes() / 1e6}


def _saturated_cell(label: str, record_size: int) -> Cell:
    higher, lower = Better.HIGHER, Better.LOWER
    count = BATCH_BYTES // record_size
    return Cell(
        f"saturated-{label}",
        f"{WORKERS} producers, then {WORKERS} consumers, then both at once; records of {record_size:,} B, "
        f"{count} in a batch.",
        (
            Metric("produce_mb_s", "Produce alone", "MB/s", higher, 1.0),
            Metric("consume_mb_s", "Consume what was produced", "MB/s", higher, 1.0),
            Metric("both_produce_mb_s", "Produce while consuming", "MB/s", higher, 1.0),
            Metric("both_consume_mb_s", "Consume while producing", "MB/s", higher, 1.0),
            Metric("produce_records_s", "Produce alone", "records/s", higher),
            Metric("consume_records_s", "Consume what was produced", "records/s", higher),
            Metric("produce_cpu_s_per_gb", "Broker CPU, produce alone", "s/GB", lower),
            Metric("consume_cpu_s_per_gb", "Broker CPU, consume what was produced", "s/GB", lower),
            Metric("both_cpu_s_per_gb", "Broker CPU, both at once", "s/GB", lower),
        ),
        _saturated(record_size),
    )


def _latency_metrics(target: float | None) -> tuple[Metric, ...]:
    return (
        Metric("p50_us", "Latency p50", "µs", Better.LOWER, target),
        Metric("p99_us", "Latency p99", "µs", Better.LOWER, target),
        Metric("p99.9_us", "Latency p99.9", "µs", Better.LOWER),
    )


CPU_PER_MILLION = Metric("cpu_s_per_million", "Broker CPU per million requests", "s", Better.LOWER, 1.0)

CELLS = (
    Cell(
        "start-up",
        "A broker on an empty data directory: exec until the port answers ApiVersions, and until the first "
        "record is acknowledged, creation of its topic included. Formatting Kafka's storage is not counted.",
        (
            Metric("ready_s", "Exec to ready", "s", Better.LOWER, 0.2),
            Metric("first_ack_s", "Exec to first acknowledged record", "s", Better.LOWER, 0.2),
        ),
        _start_up,
        starts_broker=True,
    ),
    Cell(
        "idle-memory",
        f"Resident memory of a new broker without topics, {SETTLE_S:g} s after it is ready.",
        (Metric("idle_mb", "Resident memory, idle", "MB", Better.LOWER, 0.2),),
        _idle_memory,
        starts_broker=True,
    ),
    _saturated_cell("100b", 100),
    _saturated_cell("1kb", 1_000),
    _saturated_cell("10kb", 10_000),
    Cell(
        f"connections-{CONNECTIONS}",
        f"{CONNECTIONS} connections of one process, each producing one record of {SMALL_RECORD} B and the "
        f"next when that is answered, on {PARTITIONS} partitions. As many requests as connections are always "
        "under way, so latency is the throughput seen from the other side and has no target of its own.",
        (
            Metric("requests_s", "Requests", "1/s", Better.HIGHER, 1.0),
            *_latency_metrics(None),
            CPU_PER_MILLION,
        ),
        _many_connections,
    ),
    Cell(
        "round-trip",
        f"One connection, one record of {SMALL_RECORD} B per request, the next when it is answered.",
        (*_latency_metrics(0.5), CPU_PER_MILLION),
        _round_trip,
    ),
    Cell(
        "end-to-end",
        f"One record of {SMALL_RECORD} B at a time, from sending it to having it on a second connection, "
        "whose Fetch was waiting for it.",
        _latency_metrics(0.5),
        _end_to_end,
    ),
    Cell(
        "loaded-memory",
        "Resident memory after the cells above.",
        (Metric("loaded_mb", "Resident memory, after load", "MB", Better.LOWER),),
        _loaded_memory,
    ),
)
