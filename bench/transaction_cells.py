"""Cells of transactions: transactions per second, and the latency of a record through an exactly-once copy."""

from __future__ import annotations

import time

from bench import frames, transaction_load
from bench.cell import COMPARED, Better, Cell, Metric, Settings, drop, fresh_topic
from bench.load import Target
from bench.peers import Peer
from bench.workers import run

PRODUCERS = 10
PARTITIONS = 4
RECORD = 100
RECORDS = (1, 10, 100)
SHARE = 0.4
"""Of the seconds of a saturated cell, for each number of records."""
COPIES_SHARE = 40
"""One copy for so many round trips of the cell of that name."""


def _name() -> str:
    return f"bench-{time.monotonic_ns() // 1000:016d}"


def _transactions(peer: Peer, settings: Settings, version: int) -> dict[str, float]:
    found: dict[str, float] = {}
    topic = fresh_topic(peer, PARTITIONS)
    targets = [Target(peer.port, topic, partition) for partition in range(PARTITIONS)]
    for count in RECORDS:
        names = [f"bench-{version}-{count}-{number}" for number in range(PRODUCERS)]
        batch = frames.batch(RECORD, count)
        worker = transaction_load.transactions(targets, names, batch, count, version)
        outcome = run([worker], settings.seconds * SHARE, peer.cpu_seconds)
        (tally,) = outcome.tallies
        found[f"of_{count}_s"] = tally.requests / outcome.elapsed
        found[f"of_{count}_p50_us"] = tally.latencies_us[50.0]
        found[f"of_{count}_cpu_us"] = outcome.broker_cpu_seconds / tally.requests * 1e6
        found[f"of_{count}_waits"] = tally.waits / tally.requests
        found[f"of_{count}_generator_cores"] = outcome.generator_cores
    drop(peer, topic)
    return found


def _copies(peer: Peer, settings: Settings, version: int) -> dict[str, float]:
    source, sink = fresh_topic(peer, 1), fresh_topic(peer, 1)
    record = frames.batch(RECORD, 1)
    runs = settings.round_trips // COPIES_SHARE
    worker = transaction_load.copies(Target(peer.port, source), Target(peer.port, sink), _name(), runs, record, version)
    outcome = run([worker], 0.0, peer.cpu_seconds)
    drop(peer, source, sink)
    (tally,) = outcome.tallies
    return {
        "p50_us": tally.latencies_us[50.0],
        "p99_us": tally.latencies_us[99.0],
        "cpu_us": outcome.broker_cpu_seconds / tally.requests * 1e6,
    }


def _transactions_cell(version: int, how: str) -> Cell:
    higher, lower = Better.HIGHER, Better.LOWER
    return Cell(
        f"transactions-v{version}",
        f"{PRODUCERS} transactional producers, a connection each, of one process: a transaction is one batch of 1, 10 "
        f"or 100 records of {RECORD} B for one of {PARTITIONS} partitions, and the next begins when it is committed. "
        f"By version {version} of the protocol: {how}. Told that the transaction before is not complete yet, they wait "
        f"{transaction_load.BACKOFF_S * 1000:g} ms, as clients do.",
        (
            *(Metric(f"of_{n}_s", f"Transactions of {n} records", "1/s", higher, 1.0) for n in RECORDS),
            *(Metric(f"of_{n}_p50_us", f"Transaction of {n} records, p50", "µs", lower) for n in RECORDS),
            *(Metric(f"of_{n}_waits", f"Waits in a transaction of {n} records", "times", lower) for n in RECORDS),
            *(Metric(f"of_{n}_cpu_us", f"Broker CPU, transaction of {n} records", "µs", lower) for n in RECORDS),
        ),
        lambda peer, settings: _transactions(peer, settings, version),
        peers=COMPARED,
    )


def _copy_cell(version: int) -> Cell:
    return Cell(
        f"copy-v{version}",
        f"One record of {RECORD} B at a time, read, copied to another topic and committed with the offset it was read "
        f"at, in a transaction of its own by version {version} of the protocol: from sending it to having the copy on "
        "another connection, which reads only what is committed.",
        (
            Metric("p50_us", "Consume, transform, produce p50", "µs", Better.LOWER, 1.0),
            Metric("p99_us", "Consume, transform, produce p99", "µs", Better.LOWER, 1.0),
            Metric("cpu_us", "Broker CPU per copy", "µs", Better.LOWER),
        ),
        lambda peer, settings: _copies(peer, settings, version),
        peers=COMPARED,
    )


TRANSACTION_CELLS = (
    _transactions_cell(1, "AddPartitionsToTxn, Produce, EndTxn (librdkafka, kafka-python, aiokafka)"),
    _transactions_cell(2, "Produce, EndTxn, and a new epoch every time (the Java client, Ottla's client)"),
    _copy_cell(1),
    _copy_cell(2),
)
