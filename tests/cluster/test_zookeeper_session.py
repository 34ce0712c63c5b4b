"""The ZooKeeper session: a start that waits for ZooKeeper logs a warning."""

from __future__ import annotations

import pytest

from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.errors import Fault
from tests.cluster.helpers import run

pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'ottla[zookeeper]'")

from ottla.cluster import zookeeper_session
from ottla.cluster.zookeeper_store import ZooKeeperStore


def test_a_start_that_waits_for_zookeeper_logs_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(zookeeper_session, "WARN_SECONDS", 0.2)

    async def test(runtime):
        with pytest.raises(Fault, match="no ZooKeeper answers"):
            await ZooKeeperStore.open("127.0.0.1:1", runtime, ZooKeeperOptions(connection_timeout_ms=500))

    run(test)
    (reported,) = [each.getMessage() for each in caplog.records if "still trying" in each.getMessage()]
    assert reported.startswith("still trying: no ZooKeeper answers at 127.0.0.1:1 yet (")
    assert reported.endswith("the broker waits 0.5 s for it (zookeeper.connection.timeout.ms). Is it running there?")
