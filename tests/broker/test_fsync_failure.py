"""A failed fsync ends the broker: a second fsync would prove nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.errors import SyncFault
from ottla.local.waiting import until
from ottla.log.checkpoints import take_clean_shutdown
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.runtime.disk import RealDisk
from ottla.runtime.real import RealRuntime
from tests.harness.in_process import run, start_broker, stop_broker
from tests.replication.test_partition import NOW_MS, batch


def fail_once(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """The next sync of something in there."""
    sound = os.fsync

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not path.startswith(str(directory)) or path.endswith(".tmp"):  # such a file has lost nothing yet
            return sound(fd)
        monkeypatch.setattr(os, "fsync", sound)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)


async def cut(broker: Broker, partition: Partition) -> None:
    with pytest.raises(SyncFault):
        partition.log.truncate_to(1, NOW_MS)


async def retain(broker: Broker, partition: Partition) -> None:
    await broker.log_manager._retain()


async def end(broker: Broker) -> None:
    await broker.abandon()
    assert isinstance(broker.runtime, RealRuntime)
    await broker.runtime.close()


@pytest.mark.parametrize("act", [cut, retain])
def test_a_failed_fsync_ends_the_broker(tmp_path: Path, monkeypatch, act):
    async def test() -> None:
        broker = await start_broker(tmp_path, 1)
        await broker.cluster.create_topics([TopicSpec("t", 1, 1, configs={"retention.ms": "1"})])
        await until(lambda: (found := broker.replicas.get("t", 0)) is not None and found.leads)
        partition = broker.replica_manager.find("t", 0)
        for value in (b"a", b"b"):
            partition.append(batch(value), ACKS_ALL, NOW_MS)
        fail_once(monkeypatch, tmp_path)
        await act(broker, partition)
        await until(broker.fatal_error.done)
        assert isinstance(broker.fatal_error.result(), SyncFault)
        with pytest.raises(SyncFault):
            await broker.stop()
        assert take_clean_shutdown(RealDisk(), broker.config.data_dir) is None
        await end(broker)

    run(test)


def test_a_follower_with_a_failed_fsync_does_not_confirm_the_records(tmp_path: Path, monkeypatch):
    async def test() -> None:
        one, two = [await start_broker(tmp_path, number) for number in (1, 2)]
        await until(lambda: len(one.image.brokers) == 2)
        spec = TopicSpec("t", assignments=[(0, [1, 2])], configs={"flush.messages": "1"})
        await one.cluster.create_topics([spec])
        await until(lambda: (found := one.replicas.get("t", 0)) is not None and found.leads and len(two.replicas))
        leader, follower = one.replica_manager.find("t", 0), two.replica_manager.find("t", 0)
        leader.append(batch(b"a"), ACKS_ALL, NOW_MS)
        await until(lambda: leader.high_watermark == 1)
        fail_once(monkeypatch, tmp_path / "data-2")
        leader.append(batch(b"b"), ACKS_ALL, NOW_MS)
        await until(two.fatal_error.done)
        with pytest.raises(SyncFault):
            await two.replica_manager.flusher.sync(follower)
        assert leader.high_watermark == 1
        await end(two)
        await stop_broker(one)

    run(test)
