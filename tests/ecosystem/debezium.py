"""Debezium: the changes of a PostgreSQL table become records of a topic, exactly once, while its worker is killed.

Rows are inserted, changed and deleted in transactions of several rows. The events of each row have to be its history,
in order; the images before and after a change have to fit, so that a change that is missing or doubled shows. Behind
each deletion comes its tombstone. Debezium gives both the same position in the source: where the last transaction of a
worker that is killed ends between the two, the next worker goes on behind both, and the tombstone does not come.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bench.maven import Unavailable
from examples.actors.local_postgres import LocalPostgres, NoPostgres
from tests.ecosystem import connect, needs
from tests.ecosystem.ring import Failed, Record, Ring, same

TITLE = "Debezium"
VERSION = "3.6.1.Final"
SNAPSHOT_ROWS = 500
STEPS = 6_000
PER_TRANSACTION = 20
KILLS = 2
TOPIC = "shop.public.orders"


class Event(NamedTuple):
    """What happened to a row: r(ead by the snapshot), c(reated), u(pdated), d(eleted), and its amount then."""

    operation: str
    amount: int | None


def prepare() -> str:
    connect.prepare()
    _plugins()
    if find_spec("psycopg") is None:
        raise Unavailable("psycopg is not installed: pip install 'ottla[postgres,pgserver]'")
    try:
        LocalPostgres(Path())
    except NoPostgres as missing:
        raise Unavailable(str(missing)) from None
    return VERSION


def _plugins() -> Path:
    """The directory whose subdirectories are plugins."""
    return needs.jars("debezium", f"io.debezium:debezium-connector-postgres:{VERSION}").parent


def run(ring: Ring) -> str:
    import psycopg

    folder = ring.directory / "postgres"
    with LocalPostgres(folder) as database, psycopg.connect(database.url) as connection:
        return _capture(ring, database, connection)


def _capture(ring: Ring, database: LocalPostgres, connection: Any) -> str:
    history: dict[int, list[Event]] = defaultdict(list)
    connection.execute("create table orders (id int primary key, amount int not null)")
    connection.execute("alter table orders replica identity full")
    for row in range(SNAPSHOT_ROWS):
        connection.execute("insert into orders values (%s, 0)", (row,))
        history[row].append(Event("r", 0))
    connection.commit()
    ring.topic(TOPIC, 3)
    worker = connect.Worker(ring, "debezium", 1, {"plugin.path": str(_plugins())})
    worker.put("orders", _connector(database))
    ring.until(lambda: ring.end(TOPIC) >= SNAPSHOT_ROWS, "the snapshot")
    ring.say(f"the snapshot of {SNAPSHOT_ROWS} rows is there")
    written = _changes(connection, history)
    total = SNAPSHOT_ROWS
    for part in range(1, KILLS + 2):
        for _ in range(STEPS // (KILLS + 1)):
            next(written)
        connection.commit()
        total += STEPS // (KILLS + 1)
        if part <= KILLS:
            some = total - STEPS // 4
            ring.until(lambda some=some: ring.end(TOPIC) > some, "changes")
            worker.program.kill()
            ring.say(f"killed the worker at {ring.end(TOPIC)} of {total} events")
            worker.start()
    deletions = sum(event.operation == "d" for events in history.values() for event in events)
    records = ring.until(lambda: _complete(ring, total, deletions), f"{total} changes, {deletions} tombstones")
    worker.program.stop()
    same("events after the end of the worker", ring.read(TOPIC), records)
    missing = _check(records, history)
    ring.say(f"{deletions} deletions, {missing} of them without a tombstone")
    return f"a snapshot of {SNAPSHOT_ROWS} rows and {STEPS:,} changes, with tombstones; the worker killed twice"


def _complete(ring: Ring, changes: int, deletions: int) -> list[Record] | None:
    """Everything that is committed, as soon as it is all that can be waited for: a kill may cost one tombstone."""
    if ring.end(TOPIC) < changes:
        return None
    records = ring.read(TOPIC)
    tombstones = sum(not record.value for record in records)
    return records if len(records) - tombstones >= changes and tombstones >= deletions - KILLS else None


def _connector(database: LocalPostgres) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "exactly.once.support": "required",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": "postgres",
        "database.password": (database.directory / "password").read_text(),
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "table.include.list": "public.orders",
        "plugin.name": "pgoutput",
        "slot.name": "ring",
        "tombstones.on.delete": "true",
        "max.batch.size": "100",
        "max.queue.size": "400",
        "poll.interval.ms": "50",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }


def _changes(connection: Any, history: dict[int, list[Event]]) -> Iterator[None]:
    """One change after the other, committed in transactions; each makes one record."""
    for step in range(STEPS):
        row = step * 7 % SNAPSHOT_ROWS if step % 3 else SNAPSHOT_ROWS + step
        if step % 3 == 0 or history[row][-1].operation == "d":
            connection.execute("insert into orders values (%s, %s)", (row, step))
            history[row].append(Event("c", step))
        elif step % 11 == 0:
            connection.execute("delete from orders where id = %s", (row,))
            history[row].append(Event("d", None))
        else:
            connection.execute("update orders set amount = %s where id = %s", (step, row))
            history[row].append(Event("u", step))
        if step % PER_TRANSACTION == 0:
            connection.commit()
        yield


def _check(records: list[Record], history: dict[int, list[Event]]) -> int:
    """Returns how many deletions are without a tombstone: no more than one for each kill."""
    events: dict[int, list[Event]] = defaultdict(list)
    before: dict[int, int | None] = {}
    buried: set[int] = set()
    missing = 0
    for record in records:
        row = json.loads(record.key)["id"]
        deleted = bool(events[row]) and events[row][-1].operation == "d"
        if not record.value:
            if not deleted or row in buried:
                raise Failed(f"a tombstone of row {row} at offset {record.offset}, behind no deletion")
            buried.add(row)
            continue
        missing += deleted and row not in buried
        buried.discard(row)
        change = json.loads(record.value)
        after = change["after"] and change["after"]["amount"]
        same(f"row {row} before {change['op']}", [change["before"] and change["before"]["amount"]], [before.get(row)])
        before[row] = after
        events[row].append(Event(change["op"], after))
    same("rows", sorted(events), sorted(history))
    for row, changes in history.items():
        same(f"history of row {row}", events[row], changes)
        missing += events[row][-1].operation == "d" and row not in buried
    if missing > KILLS:
        raise Failed(f"{missing} deletions are without a tombstone, and the worker was killed {KILLS} times")
    return missing
