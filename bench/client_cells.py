"""Cell of Python clients: Ottla's and three others, record by record."""

from __future__ import annotations

import random

from bench import frames, load
from bench.cell import Better, Cell, Metric, Settings, drop, fresh_topic
from bench.client_load import BATCH_BYTES, CLIENTS, LINGER_MS, PARTITIONS, Job, worker
from bench.peers import Peer
from bench.workers import run

SIZES = {"100b": 100, "1kb": 1_000}
NAMES = {"ottla": "Ottla", "confluent": "confluent-kafka", "aiokafka": "aiokafka", "kafka_python": "kafka-python"}
SHARE = 0.2
"""Of the seconds of a saturated cell, for each client, size and direction."""
AIMS = {"kafka_python": 2.0, "aiokafka": 1.0, "confluent": None}
"""How many times faster Ottla's client has to be."""


def _fill(peer: Peer, topic: str, size: int, seconds: float) -> int:
    """Write more records than a client can read in the time of a run; returns their number."""
    count = BATCH_BYTES // size
    batch = frames.batch(size, count)
    writers = [load.producer(load.Target(peer.port, topic, n), batch, count) for n in range(PARTITIONS)]
    outcome = run(writers, seconds, peer.cpu_seconds)
    return sum(tally.records for tally in outcome.tallies)


def _clients(peer: Peer, settings: Settings) -> dict[str, float]:
    found: dict[str, float] = {}
    seconds = settings.seconds * SHARE
    for label, size in SIZES.items():
        value = random.Random(size).randbytes(size)
        topics = [full := fresh_topic(peer, PARTITIONS)]
        records = _fill(peer, full, size, seconds)
        for name, (produce, consume) in CLIENTS.items():
            topics.append(topic := fresh_topic(peer, PARTITIONS))
            for what, work, job in (
                ("produce", produce, Job(peer.bootstrap, topic, value, 0)),
                ("consume", consume, Job(peer.bootstrap, full, value, records)),
            ):
                outcome = run([worker(work, job)], seconds, peer.cpu_seconds)
                found[f"{what}_{label}_{name}"] = outcome.tallies[0].records / outcome.elapsed
        drop(peer, *topics)
    for label in SIZES:
        for what in ("produce", "consume"):
            for other in AIMS:
                ours, theirs = found[f"{what}_{label}_ottla"], found[f"{what}_{label}_{other}"]
                found[f"{what}_{label}_to_{other}"] = ours / theirs
    return found


def _metrics() -> tuple[Metric, ...]:
    sorts = [(what, label, size) for label, size in SIZES.items() for what in ("produce", "consume")]
    ratios = [
        Metric(
            f"{what}_{label}_to_{other}",
            f"{what.capitalize()} {size:,} B, Ottla's client to {NAMES[other]}",
            "times",
            Better.HIGHER,
            limit=aim,
        )
        for other, aim in AIMS.items()
        for what, label, size in sorts
    ]
    rates = [
        Metric(f"{what}_{label}_{name}", f"{what.capitalize()} {size:,} B, {title}", "records/s", Better.HIGHER)
        for what, label, size in sorts
        for name, title in NAMES.items()
    ]
    return (*ratios, *rates)


CLIENT_CELLS = (
    Cell(
        "clients",
        f"One process, one client: it sends records one by one to a topic of {PARTITIONS} partitions until the time is "
        "up and all are acknowledged, and takes others one by one from a topic that is full. All are idempotent, "
        f"linger for {LINGER_MS} ms and gather {BATCH_BYTES:,} B; the two that are asynchronous run on uvloop.",
        _metrics(),
        _clients,
        peers=("ottla",),
        warms=False,
    ),
)
