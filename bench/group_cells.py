"""Cells of consumer groups and of compaction."""

from __future__ import annotations

import time

from bench import compaction, group_load, history
from bench.cell import COMPARED, Better, Cell, Metric, Settings, drop, fresh_topic, latencies
from bench.peers import Peer
from bench.workers import run

COMMITTERS = 20
MANY_PARTITIONS = 50
GROUP_SIZES = (2, 20, 100)


def _commits(peer: Peer, settings: Settings, partitions: int) -> dict[str, float]:
    topic = fresh_topic(peer, partitions)
    groups = [f"bench-commits-{number:02d}" for number in range(COMMITTERS)]
    worker = group_load.commits(peer.port, groups, topic, partitions)
    outcome = run([worker], settings.seconds * 0.6, peer.cpu_seconds)
    drop(peer, topic)
    return latencies(outcome)


def _rebalances(peer: Peer, settings: Settings) -> dict[str, float]:
    topic = fresh_topic(peer, 1)
    found = {}
    for size in GROUP_SIZES:
        group = f"bench-{time.monotonic_ns() // 1000:016d}"
        worker = group_load.rebalances(peer.port, group, topic, size)
        outcome = run([worker], settings.seconds * 0.4, peer.cpu_seconds)
        found[f"settled_{size}_ms"] = outcome.tallies[0].latencies_us[50.0] / 1000
        found[f"{size}_generator_cores"] = outcome.generator_cores
    drop(peer, topic)
    return found


def _commit_cell(partitions: int) -> Cell:
    several = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return Cell(
        f"commits-{partitions}",
        f"{COMMITTERS} connections of one process, each committing offsets of {several} for a group of its own, "
        "and the next when that is answered.",
        (
            Metric("requests_s", "Commits", "1/s", Better.HIGHER, 1.0),
            Metric("p50_us", "Latency p50", "µs", Better.LOWER),
            Metric("p99_us", "Latency p99", "µs", Better.LOWER),
            Metric("cpu_s_per_million", "Broker CPU per million commits", "s", Better.LOWER),
        ),
        lambda peer, settings: _commits(peer, settings, partitions),
        peers=COMPARED,
    )


GROUP_CELLS = (
    _commit_cell(1),
    _commit_cell(MANY_PARTITIONS),
    Cell(
        "rebalance",
        "One more member joins a stable group of the classic protocol, of so many members with it: from its first "
        "JoinGroup until all have their new assignment. All members are connections of one process, and ask by "
        "Heartbeat whether to rejoin as soon as the new one has joined. The median of all rebalances of a run.",
        tuple(
            Metric(f"settled_{size}_ms", f"Rebalance of {size} members", "ms", Better.LOWER, 1.0)
            for size in GROUP_SIZES
        ),
        _rebalances,
        peers=COMPARED,
    ),
    Cell(
        "compaction",
        f"One connection, one record with a key per request, the next when it is answered, while another sends "
        f"{compaction.FEED_BYTES_S / 1e6:g} MB/s of {compaction.KEYS:,} keys to a second partition of small segments: "
        "with cleanup.policy=delete, and with compact, while that partition is cleaned over and over.",
        (
            Metric("slowdown", "Produce p99 while compacting, to that without", "times", Better.LOWER, limit=1.5),
            Metric("compacting_p50_us", "Produce p50 while compacting", "µs", Better.LOWER),
            Metric("compacting_p99_us", "Produce p99 while compacting", "µs", Better.LOWER),
            Metric("quiet_p50_us", "Produce p50 without compaction", "µs", Better.LOWER),
            Metric("quiet_p99_us", "Produce p99 without compaction", "µs", Better.LOWER),
            Metric("compacted_mb", "Log that compaction took away meanwhile", "MB", Better.HIGHER),
        ),
        compaction.measure,
        peers=COMPARED,
    ),
    Cell(
        "reload",
        f"A million commits ({history.GROUPS} groups of {history.PARTITIONS} partitions each, over and over) in one "
        "partition of the offsets topic, nothing compacted; kill -9; from exec until a group's offset is served "
        "again. Stall: the longest that any answer took from the moment the broker answers at all.",
        (
            Metric("reload_s", "Exec to offsets served", "s", Better.LOWER, limit=10.0),
            Metric("stall_ms", "Longest stall meanwhile", "ms", Better.LOWER, limit=50.0),
            Metric("ready_s", "Exec to ready", "s", Better.LOWER),
            Metric("commits_s", "Offsets committed while filling", "1/s", Better.HIGHER),
        ),
        history.measure,
        starts_broker=True,
        peers=COMPARED,
    ),
)
