"""Changes of a real PostgreSQL, captured without Spark: nothing lost, nothing twice, and what the records say."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: make test installs it")

import psycopg

from ottla.spark.connectors.capture import Capture, LostSlot, connect
from ottla.spark.connectors.envelope import UNAVAILABLE, Captured
from ottla.spark.connectors.postgres_options import CaptureOptions
from ottla.spark.options import BadOption


def options_of(database: str, *tables: str, **more: Any) -> CaptureOptions:
    slot = "s" + database.rsplit("_", 1)[1]
    return CaptureOptions(database, tuple(("public", table) for table in tables), slot, slot, "db", **more)


def run(database: str, *statements: str) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        for statement in statements:
            db.execute(statement)


class Follower:
    """What a query does with the capture, batch by batch."""

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        with connect(options.url) as db:
            capture = Capture(options, db)
            capture.prepare()
            self.at = capture.make_slot()

    def batch(self, changes_max: int | None = None) -> list[Captured]:
        with connect(self.options.url) as db:
            capture = Capture(self.options, db)
            end = capture.end_after(self.at, changes_max, None)
            found = list(capture.changes(self.at, end)) if end > self.at else []
            self.at = end
        return found


def values(records: list[Captured]) -> list[dict[str, Any] | None]:
    return [None if record.value is None else json.loads(record.value) for record in records]


def test_changes_are_captured_in_order_with_their_keys(database):
    run(database, "create table actors (id int primary key, name text, born date, height numeric(3,2), alive bool)")
    follower = Follower(options_of(database, "actors"))
    run(
        database,
        "insert into actors values (1, 'Meryl', '1949-06-22', 1.68, true)",
        "update actors set name = 'Meryl Streep'",
        "delete from actors",
    )
    created, updated, deleted, tombstone = follower.batch()
    assert {record.key for record in (created, updated, deleted, tombstone)} == {'{"id":1}'}
    assert created.topic == "db.public.actors"
    first = json.loads(created.value or "")
    assert first["op"] == "c"
    assert first["before"] is None
    assert first["after"] == {"id": 1, "name": "Meryl", "born": "1949-06-22", "height": "1.68", "alive": True}
    assert first["source"]["table"] == "actors"
    assert json.loads(updated.value or "")["after"]["name"] == "Meryl Streep"
    assert json.loads(deleted.value or "")["op"] == "d"
    assert json.loads(deleted.value or "")["before"]["id"] == 1
    assert tombstone.value is None
    assert follower.batch() == []


def test_single_row_transactions_are_each_captured_once_while_they_are_written(database):
    rows = 4000
    run(database, "create table t (id int primary key)")
    follower = Follower(options_of(database, "t"))

    def write(writer: int) -> None:
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("set synchronous_commit = off")
            for number in range(writer, rows, 4):
                db.execute("insert into t values (%s)", (number,))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for each in writers:
        each.start()
    seen: list[int] = []
    while any(each.is_alive() for each in writers):
        seen += [value["after"]["id"] for value in values(follower.batch(150)) if value]
    while found := follower.batch(150):
        seen += [value["after"]["id"] for value in values(found) if value]
    assert len(seen) == rows
    assert set(seen) == set(range(rows))


def test_a_batch_can_be_read_again_until_it_is_committed(database):
    run(database, "create table t (id int primary key)")
    follower = Follower(options_of(database, "t"))
    begin = follower.at
    run(database, *(f"insert into t values ({number})" for number in range(10)))
    first = follower.batch()
    run(database, "insert into t values (10)")
    with connect(database) as db:
        assert list(Capture(follower.options, db).changes(begin, follower.at)) == first


def test_a_change_of_the_key_is_a_delete_and_a_creation(database):
    run(database, "create table t (id int primary key, v text)", "insert into t values (1, 'x')")
    follower = Follower(options_of(database, "t"))
    run(database, "update t set id = 2")
    records = follower.batch()
    assert [(record.op, record.key, record.value is None) for record in records] == [
        ("d", '{"id":1}', False),
        ("d", '{"id":1}', True),
        ("c", '{"id":2}', False),
    ]


def test_big_values_that_did_not_change_are_marked_or_taken_from_the_old_row(database):
    big = "create table {0} (id int primary key, n int, big text); alter table {0} alter big set storage external"
    run(
        database,
        big.format("plain"),
        big.format("whole"),
        "alter table whole replica identity full",
        "insert into plain values (1, 1, repeat('x', 9000))",
        "insert into whole values (1, 1, repeat('x', 9000))",
    )
    follower = Follower(options_of(database, "plain", "whole"))
    run(database, "update plain set n = 2", "update whole set n = 2")
    plain, whole = values(follower.batch())
    assert plain is not None
    assert whole is not None
    assert plain["after"] == {"id": 1, "n": 2, "big": UNAVAILABLE}
    assert whole["after"] == {"id": 1, "n": 2, "big": "x" * 9000}
    assert whole["before"]["n"] == 1


def test_columns_may_come_and_go(database):
    run(database, "create table t (id int primary key, a text)")
    follower = Follower(options_of(database, "t"))
    run(
        database,
        "insert into t values (1, 'a')",
        "alter table t add b int default 7",
        "insert into t values (2, 'a', 8)",
        "alter table t drop a",
        "insert into t values (3, 9)",
    )
    assert [value["after"] for value in values(follower.batch()) if value] == [
        {"id": 1, "a": "a"},
        {"id": 2, "a": "a", "b": 8},
        {"id": 3, "b": 9},
    ]


def test_values_keep_their_types(database):
    run(
        database, "create table t (id bigint primary key, f float8, b bytea, j jsonb, n int[], s text[], t timestamptz)"
    )
    follower = Follower(options_of(database, "t"))
    run(
        database,
        "insert into t values (9007199254740993, 'NaN', '\\x00ff', '{\"a\": 1}', '{1,NULL,3}', "
        "array['a \"b\"', 'c,d', 'NULL'], '2026-11-15 12:00:00+02')",
    )
    (value,) = values(follower.batch())
    assert value is not None
    assert value["after"] == {
        "id": 9007199254740993,
        "f": "NaN",
        "b": "AP8=",
        "j": '{"a": 1}',
        "n": [1, None, 3],
        "s": ['a "b"', "c,d", "NULL"],
        "t": "2026-11-15T10:00:00Z",
    }


def test_a_table_without_a_replica_identity_is_refused(database):
    run(database, "create table nameless (a int)")
    with pytest.raises(BadOption, match="nameless has no replica identity"):
        Follower(options_of(database, "nameless"))


def test_a_missing_or_moved_slot_is_reported(database):
    run(database, "create table t (id int primary key)")
    follower = Follower(options_of(database, "t"))
    other = Follower.__new__(Follower)
    other.options, other.at = follower.options, follower.at
    run(database, "insert into t values (1)")
    assert len(follower.batch()) == 1
    assert follower.batch() == []  # moves the slot on
    with pytest.raises(LostSlot, match="another query reads it too"):
        other.batch()
    run(database, f"select pg_drop_replication_slot('{follower.options.slot}')")
    with pytest.raises(LostSlot, match="is gone, and with it all changes"):
        follower.batch()


@pytest.mark.parametrize("exported", [True, False], ids=["exported", "read again later"])
def test_snapshot_and_changes_fit_together_while_writers_are_active(database, exported):
    run(
        database,
        "create table t (id int primary key, n int)",
        "insert into t select g, 0 from generate_series(1, 500) g",
    )
    options = options_of(database, "t")
    stop = threading.Event()
    written = {"inserted": 500}

    def write() -> None:
        with psycopg.connect(database, autocommit=True) as db:
            number = 500
            while not stop.is_set():
                number += 1
                db.execute("insert into t values (%s, 0)", (number,))
                db.execute("update t set n = n + 1 where id = %s", (number % 300 + 1,))
                db.execute("delete from t where id = %s", (number - 100,))
            written["inserted"] = number

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with connect(database) as db, connect(database) as reading:
            capture = Capture(options, db)
            capture.prepare()
            made = capture.make_slot_exporting()
            if not exported:
                made.close()
                run(database, *(f"update t set n = n + 1 where id = {number}" for number in range(1, 50)))
            records = list(Capture(options, reading).snapshot(made.name, made.lsn, datetime.now(UTC)))
            made.close()
    finally:
        stop.set()
        writer.join()
    follower = Follower.__new__(Follower)
    follower.options, follower.at = options, made.lsn
    while found := follower.batch(100):
        records += found

    brought = [record.key for record in records if record.op in "rc"]
    assert len(brought) == len(set(brought))
    assert len(brought) <= written["inserted"]
    table: dict[str | None, Any] = {}
    for record in records:
        if record.value is None:
            continue
        reported = json.loads(record.value)
        if reported["op"] == "d":
            table.pop(record.key, None)
        else:
            table[record.key] = reported["after"]
    with psycopg.connect(database) as plain:
        expected = {f'{{"id":{row[0]}}}': {"id": row[0], "n": row[1]} for row in plain.execute("select id, n from t")}
    assert table == expected
