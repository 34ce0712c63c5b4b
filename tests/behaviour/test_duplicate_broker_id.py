"""Duplicate broker id: a process whose session expired finds another one registered, and ends."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager

import pytest

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until, wait_for
from tests.harness.brokers import WatchedBroker
from tests.harness.in_process import run, start_broker, stop_broker


def end_session(directory, session: int) -> None:
    """As others do with one they hold for dead."""
    db = sqlite3.connect(directory / "store.db", isolation_level=None)
    db.execute("DELETE FROM session WHERE id=?", (session,))
    db.execute("DELETE FROM node WHERE session=?", (session,))
    db.execute("UPDATE tally SET commits=commits+1")
    db.close()


def leads(broker) -> bool:
    partition = broker.replicas.get("orders", 0)
    return partition is not None and partition.leads


def test_a_process_with_a_duplicate_broker_id_leads_nothing_and_ends(tmp_path):
    async def test():
        other = await start_broker(tmp_path, 2)  # the controller
        old = await start_broker(tmp_path, 1)
        await until(lambda: len(other.image.brokers) == 2)
        await other.cluster.create_topics([TopicSpec("orders", assignments=[(0, [1])])])
        await until(lambda: leads(old))
        led = []
        old.cluster.subscribe(lambda *_: led.append(leads(old)))
        store = old.cluster._view.store
        assert isinstance(store, EmbeddedStore)
        async with store._connection_lock:  # it hangs, as far as the store can see
            end_session(tmp_path, store._file._session)
            await until(lambda: 1 not in other.image.brokers)
            new = await start_broker(tmp_path, 1, log_dirs=f"{tmp_path}/elsewhere")
            await until(lambda: leads(new))
        await until(lambda: old.fatal_error.done())
        assert "another process is broker 1 of this cluster" in str(old.fatal_error.result())
        assert new.cluster.registration is not None
        endpoint = new.cluster.registration.endpoints[0]
        assert f"{endpoint.host}:{endpoint.port}" in str(old.fatal_error.result())
        assert led
        assert not any(led), "one of both, at every moment"
        assert not leads(old)
        assert (old.serving, old.cluster.is_controller) == (False, False)
        assert old.replicas.broker_epoch < new.replicas.broker_epoch
        await until(lambda: not old.cluster.has_session_lease)
        assert leads(new)
        assert other.image.brokers[1] == new.cluster.registration
        for each in (old, new, other):
            await stop_broker(each)

    run(test)


@contextmanager
def served(directory, store, broker_id):
    settings = ("--set", "broker.session.timeout.ms=1000", "--set", "offsets.topic.replication.factor=1")
    process = WatchedBroker(directory, "--store", f"embedded:{store}", "--id", str(broker_id), *settings).start()
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("controls", [1, 2])
def test_a_paused_process_whose_broker_id_was_taken_logs_it_and_ends(tmp_path, controls):
    store = tmp_path / "store.db"
    with served(tmp_path / "1st", store, controls) as first, served(tmp_path / "2nd", store, 3 - controls) as second:
        old, other = (first, second) if controls == 1 else (second, first)
        old.pause()
        wait_for(lambda: "has hung" in other.log_text(), "the session of the stopped process to end")
        with served(tmp_path / "new", store, 1) as new:
            old.resume()
            assert old.wait(20) == 1
            reported = old.log_text()
            assert "another process is broker 1 of this cluster by now" in reported
            assert "device" not in reported
            assert (new.stop(), other.stop()) == (0, 0)
