"""Cells of a cluster: three brokers, three replicas, acks=all with two in sync; and many partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bench import frames, load
from bench.cell import COMPARED, Better, Cell, Metric, Settings
from bench.connection import Broken, Connection
from bench.peers import Peer
from bench.trio import BROKERS, Trio, quiet_disk
from bench.workers import run

RECORD = 1_000
BATCH_BYTES = 64_000
SMALL_RECORD = 100
SETTLE_S = 2.0
IDLE_S = 5.0
FAILOVER_TIMEOUT_S = 60.0
SIZES = (1_000, 5_000, 10_000)
WARM_SHARE = 0.4


def _replicated(peer: Peer, settings: Settings) -> dict[str, float]:
    with Trio(peer) as trio:
        time.sleep(SETTLE_S)
        found = {"ready_s": trio.ready_s, "memory_mb": trio.resident_bytes() / 1e6}
        leaders = trio.create_topic("bench", len(BROKERS))
        targets = {
            partition: load.Target(trio.members[leader.broker].port, "bench", partition)
            for partition, leader in leaders.items()
        }
        count = BATCH_BYTES // RECORD
        batch = frames.batch(RECORD, count)
        writers = [load.producer(target, batch, count) for target in targets.values()]
        run(writers, settings.warm_seconds * WARM_SHARE, trio.cpu_seconds)  # a Java broker compiles meanwhile
        quiet_disk()
        outcome = run(writers, settings.seconds, trio.cpu_seconds)
        records = sum(tally.records for tally in outcome.tallies)
        found["produce_mb_s"] = records * RECORD / outcome.elapsed / 1e6
        found["cpu_s_per_gb"] = outcome.broker_cpu_seconds / (records * RECORD / 1e9)
        quiet_disk()
        one = frames.batch(SMALL_RECORD, 1)
        trips = run([load.round_trips(targets[0], settings.round_trips // 4, one)], 0.0, trio.cpu_seconds)
        found |= {f"p{rank:g}_us": value for rank, value in trips.tallies[0].latencies_us.items()}
        found["failover_s"] = _failover(trio, "bench", leaders[0].broker)
        return found


def _failover(trio: Trio, topic: str, victim: int) -> float:
    """kill -9 of a broker: seconds until a record with acks=all is acknowledged in every partition that it led."""
    orphans = {partition for partition, leader in trio.leaders(topic).items() if leader.broker == victim}
    trio.members[victim].kill()
    began = time.monotonic()
    record = frames.batch(SMALL_RECORD, 1)
    error_at = frames.produce_error_at(topic)
    links = {number: Connection(trio.members[number].port) for number in trio.alive}
    try:
        while orphans:
            if time.monotonic() - began > FAILOVER_TIMEOUT_S:
                raise Broken(f"{len(orphans)} partitions take no records {FAILOVER_TIMEOUT_S:g} s after a broker died")
            leaders = trio.leaders(topic)
            for number, link in links.items():
                here = [partition for partition in orphans if leaders[partition].broker == number]
                orphans.difference_update(_accepted(link, topic, here, record, error_at))
            time.sleep(0.005)
    finally:
        for link in links.values():
            link.socket.close()
    return time.monotonic() - began


def _accepted(link: Connection, topic: str, partitions: Iterable[int], record: bytes, error_at: int) -> list[int]:
    """Partitions that acknowledged a record; all are tried, a few at a time."""
    asked = list(partitions)
    taken = []
    for at in range(0, len(asked), 100):
        some = asked[at : at + 100]
        link.socket.sendall(b"".join(frames.produce(topic, partition, record) for partition in some))
        for partition in some:
            (error,) = frames.I16.unpack_from(link.answer(), error_at)
            if not error:
                taken.append(partition)
    return taken


def _many(peer: Peer, settings: Settings) -> dict[str, float]:
    found: dict[str, float] = {}
    for size in SIZES:
        with Trio(peer) as trio:
            began = time.monotonic()
            leaders = trio.create_topic("bench", size)
            found[f"create_{size}_s"] = time.monotonic() - began
            began = time.monotonic()
            trio.leaders("bench")
            found[f"metadata_{size}_ms"] = (time.monotonic() - began) * 1000
            with_link = {number: Connection(trio.members[number].port) for number in BROKERS}
            record, error_at = frames.batch(SMALL_RECORD, 1), frames.produce_error_at("bench")
            for number, link in with_link.items():
                here = [partition for partition, leader in leaders.items() if leader.broker == number]
                _accepted(link, "bench", here, record, error_at)
                link.socket.close()
            time.sleep(SETTLE_S)
            found[f"memory_{size}_mb"] = trio.resident_bytes() / 1e6 / len(BROKERS)
            cpu = trio.cpu_seconds()
            time.sleep(IDLE_S)
            found[f"idle_{size}_cores"] = (trio.cpu_seconds() - cpu) / IDLE_S
            found[f"failover_{size}_s"] = _failover(trio, "bench", leaders[0].broker)
            member = trio.members[leaders[0].broker]
            member.start()
            found[f"start_{size}_s"] = member.ready_seconds
    return found


def _many_metrics() -> tuple[Metric, ...]:
    lower = Better.LOWER
    metrics = []
    for size in SIZES:
        limit = 5.0 if size == SIZES[-1] else None
        metrics += [
            Metric(f"create_{size}_s", f"Create {size:,} partitions, all led and in sync", "s", lower),
            Metric(f"metadata_{size}_ms", f"Metadata of {size:,} partitions", "ms", lower),
            Metric(f"failover_{size}_s", f"Loss of the leader of {size // 3:,} partitions", "s", lower, limit=limit),
            Metric(f"start_{size}_s", f"Start after kill -9 with {size:,} partitions", "s", lower),
            Metric(f"memory_{size}_mb", f"Memory of one broker, {size:,} partitions", "MB", lower),
            Metric(f"idle_{size}_cores", f"Idle CPU of three brokers, {size:,} partitions", "cores", lower),
        ]
    return tuple(metrics)


CLUSTER_CELLS = (
    Cell(
        "cluster",
        "Three brokers, a topic of three partitions with three replicas and min.insync.replicas=2, acks=all: a "
        f"producer for each leader, records of {RECORD:,} B; then one record of {SMALL_RECORD} B at a time; then "
        "kill -9 of a leader, until a record is acknowledged again on what it led.",
        (
            Metric("produce_mb_s", "Produce, three replicas", "MB/s", Better.HIGHER, 1.0),
            Metric("p50_us", "Latency p50, three replicas", "µs", Better.LOWER, 0.7),
            Metric("p99_us", "Latency p99, three replicas", "µs", Better.LOWER, 0.7),
            Metric("failover_s", "Leader killed to next acknowledgement", "s", Better.LOWER, 0.7),
            Metric("cpu_s_per_gb", "CPU of all brokers", "s/GB", Better.LOWER),
            Metric("ready_s", "First exec to three brokers that know each other", "s", Better.LOWER, 0.5),
            Metric("memory_mb", "Memory of all three, idle", "MB", Better.LOWER, 0.2),
        ),
        _replicated,
        starts_broker=True,
        peers=COMPARED,
    ),
    Cell(
        "partitions",
        "Three brokers, one topic with three replicas, a record in every partition.",
        _many_metrics(),
        _many,
        starts_broker=True,
        peers=("ottla",),
        runs_max=1,
    ),
)
