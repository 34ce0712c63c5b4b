"""Stray partitions: files of topics that are missing in the metadata are kept."""

from __future__ import annotations

import sqlite3

from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import NOW_MS, batch


def test_files_of_a_topic_missing_in_the_metadata_are_quarantined(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,):
            await broker.cluster.create_topics([TopicSpec("orders", 1, 1)])
            await until(lambda: broker.replicas.get("orders", 0))
            broker.replica_manager.find("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
            with sqlite3.connect(tmp_path / "store.db") as db:  # as an operator might who restores an old store
                db.execute("DELETE FROM node WHERE parent || '/' || name LIKE '%/topics/orders%'")
            db.close()
            await broker.cluster._view.reload()
            assert broker.replicas.get("orders", 0) is None
            await until(lambda: not broker.replica_manager.topic_deletion._running)
            (stray,) = [path for path in (tmp_path / "data-1").iterdir() if path.name.startswith("orders-0")]
            assert stray.name.endswith("-stray")
            assert any(path.stat().st_size for path in stray.glob("*.log"))

    run(test)
