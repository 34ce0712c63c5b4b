"""Cell of columns: Arrow tables into topics and out of them, with Ottla's client and confluent-kafka."""

from __future__ import annotations

from bench import column_load
from bench.cell import Better, Cell, Metric, Settings, drop, fresh_topic
from bench.column_load import PARTITIONS, TABLE_ROWS, Job
from bench.peers import Peer
from bench.workers import run

OTHER = "confluent-kafka"
SIZES = {"100b": (100, 1), "1kb": (1_000, 5)}
"""Bytes of a record, and the part of the records of the cells about history that is enough of them."""


def _columns(peer: Peer, settings: Settings) -> dict[str, float]:
    found: dict[str, float] = {}
    for label, (size, part) in SIZES.items():
        rows = max(settings.history // part // TABLE_ROWS, 1) * TABLE_ROWS
        topics = [fresh_topic(peer, PARTITIONS) for _ in range(3)]
        job, other = (Job(peer.bootstrap, topic, topics[2], size, rows) for topic in topics[:2])
        for name, worker in (
            ("send", column_load.send(job)),
            ("take", column_load.take(job)),
            ("take_two", column_load.take(job, ["key", "value"])),
            ("confluent_take", column_load.confluent_take(job)),
            ("confluent_send", column_load.confluent_send(other)),
        ):
            outcome = run([worker], 0.0, peer.cpu_seconds)
            found[f"{name}_{label}_rows_s"] = outcome.tallies[0].records / outcome.elapsed
        for name in ("send", "take"):
            ours, theirs = found[f"{name}_{label}_rows_s"], found[f"confluent_{name}_{label}_rows_s"]
            found[f"{name}_{label}_to_confluent"] = ours / theirs
        drop(peer, *topics)
    return found


def _metrics() -> tuple[Metric, ...]:
    higher = Better.HIGHER
    ratios, rates = [], []
    for label, (size, _) in SIZES.items():
        of = f"{size:,} B"
        ratios += [
            Metric(f"take_{label}_to_confluent", f"Topic to table, {of}, to {OTHER}", "times", higher, limit=2.0),
            Metric(f"send_{label}_to_confluent", f"Table to topic, {of}, to {OTHER}", "times", higher),
        ]
        rates += [
            Metric(f"take_{label}_rows_s", f"Topic to table, {of}", "rows/s", higher),
            Metric(f"take_two_{label}_rows_s", f"Topic to table, key and value, {of}", "rows/s", higher),
            Metric(f"confluent_take_{label}_rows_s", f"Topic to table, {of}, {OTHER}", "rows/s", higher),
            Metric(f"send_{label}_rows_s", f"Table to topic, {of}", "rows/s", higher),
            Metric(f"confluent_send_{label}_rows_s", f"Table to topic, {of}, {OTHER}", "rows/s", higher),
        ]
    return (*ratios, *rates)


COLUMN_CELLS = (
    Cell(
        "columns",
        f"One process, Arrow tables of {TABLE_ROWS:,} rows with a key and a value of 100 B or 1,000 B into a topic of "
        f"{PARTITIONS} partitions (`send_arrow`), then all of it into one table (`getmany_arrow`): seven columns; "
        f"key and value only. {OTHER} does the same by its Python API: a call of `produce` for every row, and seven "
        "columns from the messages of `consume`.",
        _metrics(),
        _columns,
        peers=("ottla",),
        warms=False,
    ),
)
