"""What a broker does while nobody asks: trouble with one partition is no trouble for the others."""

from __future__ import annotations

from ottla.cluster.requests import TopicSpec
from ottla.errors import StorageFault
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from ottla.replication.replicas import CHECKPOINTS
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import NOW_MS, batch


class Broken:
    """A log on a disk that gives up."""

    def __init__(self, log):
        self._log = log

    def __getattr__(self, name):
        return getattr(self._log, name)

    def retain(self, *_):
        raise StorageFault("Input/output error")

    def prepare_sync(self, **_):
        raise StorageFault("Input/output error")


def test_one_broken_log_keeps_no_other_from_being_synced_and_retained(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,):
            settings = {"retention.ms": "1", "flush.messages": "1000"}
            await broker.cluster.create_topics([TopicSpec("orders", 2, 1, configs=settings)])
            await until(lambda: broker.replicas.get("orders", 1))
            first, second = (broker.replica_manager.find("orders", index) for index in range(2))
            for partition in (first, second):
                partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
            sound = first.log
            object.__setattr__(first, "log", Broken(sound))
            await broker.log_manager._sync()
            await broker.log_manager._retain()
            first.log = sound
            assert (first.log.recovery_point, first.log.log_start) == (0, 0)
            assert (second.log.recovery_point, second.log.log_start) == (1, 1)

    run(test)


def test_checkpoints_are_written_once_for_all_that_is_dropped_together(tmp_path, monkeypatch):
    async def test():
        async with brokers(tmp_path, 1) as (broker,):
            await broker.cluster.create_topics([TopicSpec("moved", 10, 1)])
            await until(lambda: len(broker.replicas) == 10)
            for partition in broker.replicas:
                partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
            handed_out: list[str] = []
            checkpoint = broker.replicas.checkpoint

            def noted(name):
                handed_out.append(name)
                return checkpoint(name)

            monkeypatch.setattr(broker.replicas, "checkpoint", noted)
            topic = broker.image.topic("moved")
            assert topic is not None
            deletion = broker.replica_manager.topic_deletion
            for index in range(10):
                deletion.begin(topic, broker.replicas.drop_partition(topic, index), deleted=False)
            await until(lambda: not deletion._running)
            assert handed_out == list(CHECKPOINTS)
            assert not any("moved" in name for name in broker.runtime.disk.listdir(broker.config.data_dir))

    run(test)
