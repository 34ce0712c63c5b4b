"""Cells of the benchmark: the load that each puts on a broker, and the numbers it measures.

A cell runs on a warm broker, except those that start their own broker. MB and GB are powers of ten and count record
values only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import frames, load
from bench.cell import COMPARED, Better, Cell, Metric, Settings, drop, fresh_topic, latencies
from bench.client_cells import CLIENT_CELLS
from bench.cluster_cells import CLUSTER_CELLS
from bench.column_cells import COLUMN_CELLS
from bench.connection import Connection, create_topic
from bench.group_cells import GROUP_CELLS
from bench.peers import Peer
from bench.spark_cells import SPARK_CELLS
from bench.transaction_cells import TRANSACTION_CELLS
from bench.workers import Tally, Worker, elapsed, run

WORKERS = 4
PARTITIONS = 4
CONNECTIONS = 500
SMALL_RECORD = 100
BATCH_BYTES = 64_000
SETTLE_S = 2.0


def _bytes(tallies: list[Tally], record_size: int) -> int:
    return sum(tally.records for tally in tallies) * record_size


def _throughput(prefix: str, tallies: list[Tally], record_size: int) -> dict[str, float]:
    seconds = elapsed(tallies)
    return {
        f"{prefix}_mb_s": _bytes(tallies, record_size) / seconds / 1e6,
        f"{prefix}_records_s": sum(tally.records for tally in tallies) / seconds,
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
            found[f"{name}_generator_cores"] = outcome.generator_cores
        topic = fresh_topic(peer, PARTITIONS)
        both_ways = [*writers(peer, topic), *readers(peer, topic, again=False)]
        both = run(both_ways, settings.seconds, peer.cpu_seconds)
        drop(peer, topic)
        found |= _throughput("both_produce", both.tallies[:WORKERS], record_size)
        found |= _throughput("both_consume", both.tallies[WORKERS:], record_size)
        found["both_cpu_s_per_gb"] = both.broker_cpu_seconds / (_bytes(both.tallies, record_size) / 1e9)
        found["both_generator_cores"] = both.generator_cores
        return found

    return measure


def _many_connections(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, PARTITIONS)
    one = frames.batch(SMALL_RECORD, 1)
    worker = load.connections(load.Target(peer.port, topic), PARTITIONS, CONNECTIONS, one)
    outcome = run([worker], settings.seconds, peer.cpu_seconds)
    drop(peer, topic)
    return latencies(outcome)


def _round_trip(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, 1)
    one = frames.batch(SMALL_RECORD, 1)
    worker = load.round_trips(load.Target(peer.port, topic), settings.round_trips, one)
    outcome = run([worker], 0.0, peer.cpu_seconds)
    drop(peer, topic)
    return latencies(outcome)


def _end_to_end(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, 1)
    one = frames.batch(SMALL_RECORD, 1)
    worker = load.end_to_end(load.Target(peer.port, topic), settings.round_trips // 4, one)
    outcome = run([worker], 0.0, peer.cpu_seconds)
    drop(peer, topic)
    return latencies(outcome)


def _start_up(peer: Peer, settings: Settings) -> dict[str, float]:
    frame = frames.produce("first", 0, frames.batch(SMALL_RECORD, 1))
    with peer:
        create_topic(peer.port, "first", 1)
        with Connection(peer.port) as connection:
            load.check_produced(connection.call(frame), frames.produce_error_at("first"))
        acknowledged = time.monotonic() - peer.launched_at
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
        peers=COMPARED,
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
    *GROUP_CELLS,
    *TRANSACTION_CELLS,
    *CLUSTER_CELLS,
    *CLIENT_CELLS,
    *COLUMN_CELLS,
    *SPARK_CELLS,
    Cell(
        "loaded-memory",
        "Resident memory after the cells above.",
        (Metric("loaded_mb", "Resident memory, after load", "MB", Better.LOWER),),
        _loaded_memory,
    ),
)
