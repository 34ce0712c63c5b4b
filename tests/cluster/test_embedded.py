"""The embedded store: files that are refused, sessions that end with their process, crashes between commits."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from ottla.cluster import embedded, layout
from ottla.cluster.changes import decoded
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.image import Image
from ottla.cluster.store import Create, SessionLost, SessionState
from ottla.errors import Fault, StorageFault
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, run


def refused(path):
    async def test(runtime):
        await EmbeddedStore.open(str(path), runtime)

    with pytest.raises(Fault) as caught:
        run(test)
    return caught.value


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(b"these are notes, not a database\n" * 100)
    assert "is not a store" in str(refused(path))
    assert sorted(os.listdir(tmp_path)) == ["store.db"]


def test_another_programs_database_is_refused(tmp_path):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (id)")
    db.close()
    assert "another program's database" in str(refused(path))


@pytest.mark.parametrize("statement", ["PRAGMA user_version", "PRAGMA application_id", "SELECT 1 FROM sqlite_master"])
def test_a_store_that_another_broker_is_creating_is_not_refused(tmp_path, monkeypatch, statement):
    path = str(tmp_path / "store.db")
    others: list[threading.Thread] = []

    class Overtaken(sqlite3.Connection):
        """Another process creates the store just before one of our first statements."""

        def execute(self, sql, *args):
            if sql == statement and not others:
                others.append(threading.Thread(target=lambda: run(open_and_close)))
                others[0].start()
                others[0].join(0.5)  # it may have to wait for us
            return super().execute(sql, *args)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Overtaken))

    async def open_and_close(runtime):
        await (await EmbeddedStore.open(path, runtime)).close()

    run(open_and_close)
    others[0].join()


def test_a_store_of_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        await (await EmbeddedStore.open(str(path), runtime)).close()

    run(test)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=2")
    db.close()
    assert "newer Ottla (format 2" in str(refused(path))


def test_a_path_that_is_a_directory_is_refused(tmp_path):
    assert str(tmp_path) in str(refused(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        assert isinstance(refused(tmp_path / "store.db"), StorageFault)
    finally:
        tmp_path.chmod(0o700)


def descriptors():
    return len(os.listdir("/dev/fd"))


def test_a_closed_store_leaves_one_file_and_no_descriptor(tmp_path):
    async def test(runtime):
        before = descriptors()
        for _ in range(3):
            store = await EmbeddedStore.open(str(tmp_path / "store.db"), runtime)
            await store.commit([Create("/mine", ephemeral=True)])
            await store.close()
        assert descriptors() == before

    run(test)
    assert os.listdir(tmp_path) == ["store.db"]


WRITER = """
import asyncio, sys
from ottla.cluster.cluster import Cluster
from ottla.cluster.requests import RegistrationRequest, PartitionsSpec, TopicSpec
from ottla.runtime.real import RealRuntime

async def main(path):
    cluster = await Cluster(f"embedded:{path}", RealRuntime(), data_dir=".").open()
    await cluster.register(RegistrationRequest(1, [("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")]))
    print("ready", flush=True)
    n = 0
    while True:
        # large topics: several commits each, so a kill often falls between two of them
        await cluster.create_topics([TopicSpec(f"t{n}", 600, 1), TopicSpec(f"small{n}", 1, 1)])
        await cluster.create_partitions([PartitionsSpec(f"t{n}", 900)])
        if n % 2:
            await cluster.delete_topics([f"t{n}", f"small{n - 1}"])
        print(n, flush=True)
        n += 1

asyncio.run(main(sys.argv[1]))
"""


STARTER = """
import asyncio, sys
from ottla.cluster.cluster import Cluster
from ottla.cluster.requests import RegistrationRequest
from ottla.runtime.real import RealRuntime

async def main(path, broker):
    runtime = RealRuntime()
    cluster = await Cluster(f"embedded:{path}", runtime, data_dir=".").open()
    await cluster.register(RegistrationRequest(int(broker), [("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")]))
    print(cluster.cluster_id, cluster.is_controller, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await cluster.close()
    await runtime.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_brokers_that_start_together_create_one_cluster_with_one_controller(tmp_path):
    path = tmp_path / "store.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(path), str(broker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for broker in range(1, 5)
    ]
    said = [process.stdout.readline().split() for process in processes if process.stdout]
    errors = [process.communicate()[1] for process in processes]
    assert errors == [""] * 4
    assert len({cluster_id for cluster_id, _ in said}) == 1
    assert sorted(controls for _, controls in said) == ["False"] * 3 + ["True"]
    assert os.listdir(tmp_path) == ["store.db"]


def test_a_conflict_after_its_caller_was_cancelled_is_not_logged(tmp_path):
    complaints = []

    async def test(runtime):
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        store = await EmbeddedStore.open(str(tmp_path / "store.db"), runtime)
        await store.commit([Create("/a", b"")])
        commit = asyncio.create_task(store.commit([Create("/a", b"")]))
        await asyncio.sleep(0)  # it is on its way
        commit.cancel()
        await asyncio.wait([commit])
        assert commit.cancelled()
        await store.close()
        gc.collect()

    run(test)
    assert complaints == []


def writer(path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1]
    return process


def test_a_writer_killed_at_any_moment_leaves_a_valid_image_which_the_next_controller_completes(tmp_path):
    path = tmp_path / "store.db"
    for round_ in range(4):
        process = writer(path)
        for _ in range(round_):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()

        async def test(runtime):
            store = await EmbeddedStore.open(str(path), runtime)
            assert await store.children(layout.BROKERS) == [], "the dead broker's registration went with it"
            assert await store.read(layout.CONTROLLER) is None
            left = Image.load(await store.tree(*layout.IMAGE_PATHS))
            for node in await store.children_from(layout.CHANGES, ""):
                decoded(node.data)
            await store.close()
            async with cluster_on(path, runtime) as cluster:
                image = cluster.image
                assert image.topics.keys() == left.topics.keys(), "nothing that was created is lost"
                assert not image.deleting
                for topic in image.topics.values():
                    assert [p.leader for p in topic.partitions] == [1] * len(topic.partitions)
                    for was, now in zip(left.topics[topic.name].partitions, topic.partitions, strict=True):
                        assert now.leader_epoch == was.leader_epoch + 1
                await cluster.delete_topics(list(image.topics))
                await cluster.replicas_deleted(list(cluster.image.tombstones))

        run(test)


def test_the_death_of_a_process_is_noticed_by_other_sessions(tmp_path):
    path = tmp_path / "store.db"
    process = writer(path)

    async def test(runtime):
        store = await EmbeddedStore.open(str(path), runtime)
        assert await store.children(layout.BROKERS) == ["1"]
        notified = asyncio.Event()
        store.watch(layout.BROKERS, notified.set)
        process.send_signal(signal.SIGKILL)
        process.communicate()

        async def gone():
            return await store.children(layout.BROKERS) == []

        await until(gone)
        await asyncio.wait_for(notified.wait(), 10)
        await store.close()

    run(test)


def test_an_expedited_poll_finds_a_dead_session_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "POLL_SECONDS", 60)
    path = tmp_path / "store.db"
    process = writer(path)

    async def test(runtime):
        store = await EmbeddedStore.open(str(path), runtime)
        store.expedite()  # the first look, which finds the other session
        notified = asyncio.Event()
        store.watch(layout.BROKERS, notified.set)
        await asyncio.wait_for(notified.wait(), 10)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        store.expedite()

        async def gone():
            return await store.children(layout.BROKERS) == []

        await until(gone)
        await store.close()

    run(test)


def test_an_expired_session_commits_nothing_and_another_begins(tmp_path, caplog):
    path = tmp_path / "store.db"

    async def test(runtime):
        store = await EmbeddedStore.open(str(path), runtime)
        seen: list[SessionState] = []
        store.on_state(seen.append)
        await store.commit([Create("/mine", ephemeral=True)])
        with sqlite3.connect(path) as db:
            db.execute("DELETE FROM node WHERE session IS NOT NULL")
            db.execute("DELETE FROM session")
        db.close()
        with pytest.raises(SessionLost):
            await store.commit([Create("/late")])
        await until(lambda: seen == [SessionState.lost, SessionState.connected])
        notified = "its session has expired, it registers again"
        assert sum(notified in record.getMessage() for record in caplog.records) == 1
        assert await store.children("/") == []
        await store.commit([Create("/mine", ephemeral=True)])
        await store.close()

    run(test)


def test_a_full_disk_is_a_storage_fault_and_the_store_recovers(tmp_path):
    path = tmp_path / "store.db"

    async def test(runtime):
        store = await EmbeddedStore.open(str(path), runtime)
        await store.commit([Create("/a")])
        (pages,) = store._file._db.execute("PRAGMA page_count").fetchone()
        store._file._db.execute(f"PRAGMA max_page_count={pages}")  # as full as a disk can be made without root
        with pytest.raises(StorageFault, match="disk is full; make room on its disk"):
            await store.commit([Create(f"/n{i}", b"x" * 4000) for i in range(50)])
        assert await store.children("/") == ["a"]
        store._file._db.execute("PRAGMA max_page_count=1073741823")
        await store.commit([Create("/b")])
        assert await store.children("/") == ["a", "b"]
        await store.close()

    run(test)


def test_only_its_owner_can_read_the_store_file(tmp_path):
    """The secret by which brokers know each other lies in it."""

    async def test(runtime):
        store = await EmbeddedStore.open(str(tmp_path / "store.db"), runtime)
        await store.commit([Create("/a")])
        made = [path for path in tmp_path.iterdir() if path.name in ("store.db", "store.db-wal", "store.db-shm")]
        assert {path.stat().st_mode & 0o077 for path in made} == {0}
        assert len(made) == 3
        await store.close()

    run(test)
