"""Processes that hang: a session of the embedded store expires after its lease, although its lock is held."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.embedded_file import StoreFile
from ottla.cluster.store import Create, SessionState
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, registration, run

LEASE = 1.0

# Registers as broker 2, tells of its session, and on a line of input blocks its loop for so many seconds.
MEMBER = """
import asyncio, sys, threading, time
from ottla.cluster.cluster import Cluster
from ottla.cluster.requests import RegistrationRequest
from ottla.runtime.real import RealRuntime

async def main(path, lease):
    loop = asyncio.get_running_loop()
    cluster = await Cluster(f"embedded:{path}", RealRuntime(), data_dir=".", lease_seconds=float(lease)).open()
    cluster._view.store.on_state(lambda state: print(state.value, flush=True))
    await cluster.register(RegistrationRequest(2, [("PLAINTEXT", "127.0.0.1", 9094, "PLAINTEXT")]))
    print("ready", flush=True)
    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(time.sleep, float(line))
    threading.Thread(target=read, daemon=True).start()
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def member(path):
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(path), str(LEASE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def epoch_of(store, broker):
    node = await store.read(layout.broker_path(broker))
    return None if node is None else layout.broker_of(broker, node.data).epoch


def watched_through(tmp_path, hang, *, wake=None):
    """The epochs under which broker 2 was seen by a bystander, None while it was away, and what it said itself."""

    async def test(runtime):
        path = tmp_path / "store.db"
        store = await EmbeddedStore.open(str(path), runtime, lease_seconds=LEASE)
        with member(path) as process:
            seen = [await epoch_of(store, 2)]
            hung = time.monotonic()
            hang(process)
            while len(seen) < 3 and time.monotonic() - hung < (20 if wake is None else wake + 3 * LEASE):
                await asyncio.sleep(0.02)
                now = await epoch_of(store, 2)
                if now != seen[-1]:
                    seen.append(now)
                    if now is None:
                        assert time.monotonic() - hung >= LEASE * 0.9, "the lease was not over"
                if (wake is None and now is None) or (wake is not None and time.monotonic() - hung > wake):
                    os.kill(process.pid, signal.SIGCONT)
            process.kill()
            said = process.communicate()[0].split()
        await store.close()
        return seen, said

    return run(test)


def test_a_process_paused_for_longer_than_its_lease_loses_its_session_and_registers_again(tmp_path):
    seen, said = watched_through(tmp_path, lambda process: os.kill(process.pid, signal.SIGSTOP))
    first, away, second = seen
    assert away is None
    assert second > first, "a new registration has a new broker epoch"
    assert said == ["lost", "connected"]


def test_a_process_paused_for_less_than_its_lease_keeps_its_session(tmp_path):
    seen, said = watched_through(tmp_path, lambda process: os.kill(process.pid, signal.SIGSTOP), wake=LEASE / 2)
    assert len(seen) == 1
    assert said == []


def test_a_session_expires_when_the_loop_hangs_while_other_threads_run(tmp_path):
    def hang(process):
        process.stdin.write(f"{5 * LEASE}\n")
        process.stdin.flush()

    (first, away, second), said = watched_through(tmp_path, hang)
    assert away is None
    assert second > first
    assert said == ["lost", "connected"]


def test_a_broker_whose_session_expired_before_it_registered_registers(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        from ottla.cluster.cluster import Cluster

        with member(path):
            cluster = await Cluster(f"embedded:{path}", runtime, data_dir=str(tmp_path), lease_seconds=LEASE).open()
            sessions = sqlite3.connect(path)
            time.sleep(LEASE * 3)  # noqa: ASYNC251 (what opening large logs does to the loop)
            assert sessions.execute("SELECT count(*) FROM session").fetchone() == (1,)
            sessions.close()
            assert await cluster.register(registration(1)) > 0
            await cluster.close()

    run(test)


def test_sessions_of_a_release_without_leases_live_by_their_locks(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        await (await EmbeddedStore.open(str(path), runtime)).close()
        with sqlite3.connect(path) as db:
            db.execute("ALTER TABLE session DROP COLUMN beat")
            db.execute("ALTER TABLE session DROP COLUMN lease_ms")
            db.execute("DROP TABLE tally")
            db.execute("INSERT INTO session (id) VALUES (7)")
        db.close()
        held = runtime.disk.lock(f"{path}-session-{7:016x}")
        store = await EmbeddedStore.open(str(path), runtime, lease_seconds=0.1)
        await store.commit([Create("/mine", ephemeral=True)])
        await asyncio.sleep(1)
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT id FROM session WHERE id=7").fetchone() == (7,)
            notified = asyncio.Event()
            store.watch("/", notified.set)
            await asyncio.sleep(0.3)
            notified.clear()
            db.execute("INSERT INTO node (parent, name, data) VALUES ('/', 'theirs', x'')")
            db.commit()
            await asyncio.wait_for(notified.wait(), 10)  # though nobody counted it
            held.release()

            def buried():
                return db.execute("SELECT id FROM session WHERE id=7").fetchone() is None

            await until(buried)
        db.close()
        assert store.state is SessionState.connected
        assert await store.children("/") == ["mine", "theirs"]
        await store.close()

    run(test)


def test_brokers_on_one_loop_do_not_expire_each_other_after_it_hung(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        lost: list[SessionState] = []
        stores = [await EmbeddedStore.open(str(path), runtime, lease_seconds=LEASE) for _ in range(3)]
        for store in stores:
            store.on_state(lost.append)
        await asyncio.sleep(0.3)
        time.sleep(3 * LEASE)  # noqa: ASYNC251 (a machine that was suspended)
        await asyncio.sleep(2 * LEASE)
        assert lost == []
        for store in stores:
            await store.close()

    run(test)


def test_a_controller_that_hangs_is_replaced(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        with member(path) as process:
            async with cluster_on(path, runtime, 1) as cluster:
                assert not cluster.is_controller
                os.kill(process.pid, signal.SIGSTOP)
                await until(lambda: cluster.is_controller)
                assert list(cluster.image.brokers) == [1]

    run(test)


def test_heartbeats_trigger_no_watches(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        store = await EmbeddedStore.open(str(path), runtime, lease_seconds=LEASE)
        with member(path):
            notified: list[int] = []
            await until(lambda: store._file._others != [])
            await asyncio.sleep(0.3)  # until everything that the member wrote was told
            store.watch("/", lambda: notified.append(1))
            with sqlite3.connect(path) as db:
                (before,) = db.execute("SELECT max(beat) FROM session").fetchone()

                def counted():
                    return db.execute("SELECT max(beat) FROM session").fetchone()[0] > before + 3

                await until(counted)
                assert notified == []
            db.close()
        await until(lambda: notified != [])
        await store.close()

    run(test)


def test_changes_seen_by_a_failed_poll_are_reported_by_the_next(tmp_path):
    path = str(tmp_path / "store.db")

    async def test(runtime):
        here, there = StoreFile(path, runtime, LEASE), StoreFile(path, runtime, LEASE)
        here.open()
        there.open()
        here.poll(1.0)
        there.commit([Create("/news")])
        here._db.execute("PRAGMA busy_timeout=0")
        with sqlite3.connect(path, isolation_level=None) as busy:
            busy.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                here.poll(1.0 + LEASE)  # the others were to see that we live
            busy.execute("ROLLBACK")
        busy.close()
        assert here.poll(1.0 + LEASE).changed
        assert not here.poll(1.0 + LEASE).changed
        here.close()
        there.close()

    run(test)


def test_a_busy_disk_does_not_delay_heartbeats(tmp_path):
    async def test(runtime):
        store = await EmbeddedStore.open(str(tmp_path / "store.db"), runtime, lease_seconds=LEASE)
        other = await EmbeddedStore.open(str(tmp_path / "store.db"), runtime, lease_seconds=LEASE)
        await store.commit([Create("/here", ephemeral=True)])
        disk = threading.Event()
        reads = [asyncio.ensure_future(runtime.offload(disk.wait)) for _ in range(100)]
        try:
            await asyncio.sleep(2 * LEASE)  # others would have ended the session by now
            assert await other.read("/here") is not None
            assert store.state is SessionState.connected
        finally:
            disk.set()
            await asyncio.gather(*reads)
        await store.close()
        await other.close()

    run(test)
