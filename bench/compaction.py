"""Effect of compaction on a producer: the same keyed load on a compacted topic and on another."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from bench import frames, load
from bench.cell import Settings, drop, fresh_topic
from bench.connection import Broken, Connection
from bench.peers import Peer
from bench.workers import Start, Tally, Worker, run

KEYS = 100_000
RECORD_BYTES = 100
RECORDS_PER_BATCH = 500
FEED_BYTES_S = 4_000_000
MEASURED, FED = 0, 1  # partitions
CLEANED_TIMEOUT_S = 15.0
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20)}
COMPACTED = SMALL_SEGMENTS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def batches() -> list[bytes]:
    """Batches with every key once."""
    return [frames.batch(RECORD_BYTES, RECORDS_PER_BATCH, key) for key in range(0, KEYS, RECORDS_PER_BATCH)]


def log_bytes(peer: Peer, topic: str, partition: int) -> int:
    """Bytes of the current segments; segments that are being replaced have another suffix."""
    total = 0
    for path in Path(peer.directory, "data", f"{topic}-{partition}").glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def fill(target: load.Target, dirt: list[bytes]) -> int:
    """Write all keys twice, so that the cleaner has work; returns the bytes."""
    with Connection(target.port) as connection:
        for records in dirt * 2:
            answer = connection.call(frames.produce(target.topic, target.partition, records))
            load.check_produced(answer, frames.produce_error_at(target.topic))
    return 2 * sum(map(len, dirt))


def feed(target: load.Target, dirt: list[bytes]) -> Worker:
    """Write one batch after the other at a steady rate."""

    def work(start: Start) -> Tally:
        error_at = frames.produce_error_at(target.topic)
        with Connection(target.port) as connection:
            stop = start()
            tally = Tally(begin=time.monotonic())
            due = tally.begin
            for records in itertools.cycle(dirt):
                due += len(records) / FEED_BYTES_S
                if due > stop:
                    break
                time.sleep(max(0.0, due - time.monotonic()))
                answer = connection.call(frames.produce(target.topic, target.partition, records))
                load.check_produced(answer, error_at)
                tally.requests += 1
                tally.records += RECORDS_PER_BATCH
            tally.end = time.monotonic()
        return tally

    return work


def wait_until_cleaned(peer: Peer, topic: str, written: int) -> None:
    deadline = time.monotonic() + CLEANED_TIMEOUT_S
    while log_bytes(peer, topic, FED) > written * 3 // 4:
        if time.monotonic() > deadline:
            raise Broken(f"nothing was compacted within {CLEANED_TIMEOUT_S:g} s")
        time.sleep(0.05)


def under(peer: Peer, seconds: float, dirt: list[bytes], configs: dict[str, str]) -> tuple[Tally, int]:
    """One run on a topic with these settings: the tally of the measured producer, and the bytes that compaction
    removed."""
    topic = fresh_topic(peer, 2, configs)
    fed = load.Target(peer.port, topic, FED)
    written = fill(fed, dirt)
    compacted = "cleanup.policy" in configs
    if compacted:
        wait_until_cleaned(peer, topic, written)
    before = log_bytes(peer, topic, FED)
    one = frames.batch(RECORD_BYTES, 1, 0)
    workers = [load.round_trips(load.Target(peer.port, topic, MEASURED), None, one), feed(fed, dirt)]
    measured, fed_more = run(workers, seconds, peer.cpu_seconds).tallies
    arrived = fed_more.requests * len(dirt[0])
    gone = before + arrived - log_bytes(peer, topic, FED)
    if compacted and gone <= 0:
        raise Broken("compaction did not go on while it was measured")
    drop(peer, topic)
    return measured, gone


def measure(peer: Peer, settings: Settings) -> dict[str, float]:
    dirt = batches()
    found: dict[str, float] = {}
    quiet, _ = under(peer, settings.seconds, dirt, SMALL_SEGMENTS)
    compacting, gone = under(peer, settings.seconds, dirt, COMPACTED)
    for name, tally in (("quiet", quiet), ("compacting", compacting)):
        found |= {f"{name}_p{rank:g}_us": value for rank, value in tally.latencies_us.items()}
    found["slowdown"] = found["compacting_p99_us"] / found["quiet_p99_us"]
    found["compacted_mb"] = gone / 1e6
    return found
