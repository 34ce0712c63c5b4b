"""A device that does not keep what it took ends the broker, whatever it was asked for: asking again proves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.errors import SyncFault
from ottla.log.checkpoints import take_clean_shutdown
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.runtime.disk import RealDisk
from tests.broker.clustered import brokers, run, until
from tests.replication.test_partition import NOW_MS, batch


async def cut(broker: Broker, partition: Partition) -> None:
    with pytest.raises(SyncFault):
        partition.log.truncate_to(1, NOW_MS)


async def retain(broker: Broker, partition: Partition) -> None:
    await broker.housekeeping._retain()


@pytest.mark.parametrize("act", [cut, retain])
def test_a_device_that_did_not_keep_something_ends_the_broker(tmp_path: Path, monkeypatch, act):
    kept = os.fsync

    def fail_once(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", kept)
        raise OSError(5, "Input/output error")

    async def test() -> None:
        async with brokers(tmp_path, 1) as (broker,):
            await broker.cluster.create_topics([TopicSpec("t", 1, 1, configs={"retention.ms": "1"})])
            await until(lambda: (found := broker.replicas.get("t", 0)) is not None and found.leads)
            partition = broker.replication.find("t", 0)
            for value in (b"a", b"b"):
                partition.append(batch(value), ACKS_ALL, NOW_MS)
            monkeypatch.setattr(os, "fsync", fail_once)
            await act(broker, partition)
            await until(broker.doom.done)
            assert isinstance(broker.doom.result(), SyncFault)
        assert take_clean_shutdown(RealDisk(), f"{tmp_path}/data-1") is None

    run(test)
