"""The driver is killed while it captures changes that go on: every change is in the table once, in order by key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")
pytest.importorskip("psycopg", reason="needs psycopg: make test installs it")

import psycopg

from ottla.local.waiting import wait_for
from tests.spark.connectors.test_capture import run
from tests.spark.connectors.test_postgres import rows

pytestmark = pytest.mark.timeout(600)

KILLS = int(os.environ.get("KILLS", "2"))


def test_changes_are_stored_once_though_the_driver_is_killed(database, tmp_path):
    run(database, "create table t (id int primary key, n int)", "create table events (key text, op text, lsn bigint)")
    run(database, "insert into t select g, 0 from generate_series(1, 50) g")
    stop = threading.Event()
    written = {"last": 50}

    def write() -> None:
        with psycopg.connect(database, autocommit=True) as db:
            # Changes before there is a slot are not captured.
            slots = "select count(*) from pg_replication_slots where database = current_database()"
            while not stop.is_set() and db.execute(slots).fetchone() == (0,):
                stop.wait(0.05)
            while not stop.wait(0.1):
                written["last"] += 1
                number = written["last"]
                db.execute("insert into t values (%s, 0)", (number,))
                db.execute("update t set n = 1 where id = %s", (number,))
                db.execute("delete from t where id = %s", (number,))

    slot = "kills_" + database.rsplit("_", 1)[1]
    command = [sys.executable, "-m", "tests.spark.connectors.copying", database, slot, str(tmp_path / "checkpoint")]
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(KILLS):
            before = stored(database)
            killed_while_storing(command, database, before, tmp_path)
    finally:
        stop.set()
        writer.join()
    subprocess.run([*command, "once"], check=True, timeout=200, capture_output=True)

    last = written["last"]
    assert rows(database, "select count(*), count(distinct key) from events where op in ('r', 'c')") == [(last, last)]
    assert rows(database, "select count(*), count(distinct key) from events where op = 'd'") == [(last - 50, last - 50)]
    ordered = (
        "select count(*) from events c join events d using (key) where c.op = 'c' and d.op = 'd' and c.lsn > d.lsn"
    )
    assert rows(database, ordered) == [(0,)]


def stored(database: str) -> int:
    count: int = rows(database, "select count(*) from events")[0][0]
    return count


def killed_while_storing(command: list[str], database: str, before: int, folder: Path) -> None:
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: driver.poll() is not None or stored(database) > before + 60, "rows of this driver", 200.0)
        assert driver.poll() is None, (folder / "driver.log").read_text()[-2000:]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
