"""Log manager: an error of one partition does not stop the others."""

from __future__ import annotations

from ottla.cluster.requests import TopicSpec
from ottla.errors import StorageFault
from ottla.local.waiting import until
from ottla.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from ottla.replication.partition import ACKS_ALL
from ottla.replication.replicas import CHECKPOINTS
from ottla.runtime.disk import RealDisk
from tests.harness.failing_disk import FailingDisk
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import NOW_MS, batch


def test_one_broken_log_keeps_no_other_from_being_synced_and_retained(tmp_path):
    async def test():
        disk = FailingDisk()
        async with brokers(tmp_path, 1, [disk]) as (broker,):
            settings = {"retention.ms": "1", "flush.messages": "1000"}
            await broker.cluster.create_topics([TopicSpec("orders", 2, 1, configs=settings)])
            await until(lambda: broker.replicas.get("orders", 1))
            first, second = (broker.replica_manager.find("orders", index) for index in range(2))
            for partition in (first, second):
                partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
            disk.fail("orders-0", StorageFault("Input/output error"))
            await broker.log_manager._sync()
            await broker.log_manager._retain()
            disk.fail("orders-0", None)
            assert (first.log.recovery_point, first.log.log_start) == (0, 0)
            assert (second.log.recovery_point, second.log.log_start) == (1, 1)

    run(test)


class NotingDisk(RealDisk):
    """Notes the names of files that are written at once."""

    def __init__(self):
        super().__init__()
        self.written: list[str] = []

    def write_atomic(self, path, data):
        self.written.append(path.rpartition("/")[2])
        super().write_atomic(path, data)


def test_checkpoints_are_written_once_for_all_that_is_dropped_together(tmp_path):
    async def test():
        disk = NotingDisk()
        async with brokers(tmp_path, 1, [disk]) as (broker,):
            await broker.cluster.create_topics([TopicSpec("moved", 10, 1)])
            await until(lambda: len(broker.replicas) == 10)
            for partition in broker.replicas:
                partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
                partition.log.sync()
            broker.replicas.write_checkpoints()
            disk.written.clear()
            topic = broker.image.topic("moved")
            assert topic is not None
            deletion = broker.replica_manager.topic_deletion
            for index in range(10):
                deletion.begin(topic, broker.replicas.drop_partition(topic, index), deleted=False)
            await until(lambda: not deletion._running)
            written = [name for name in disk.written if name in CHECKPOINTS]
            assert {RECOVERY_POINTS, HIGH_WATERMARKS} <= {*written}
            assert len(written) == len({*written}), written
            assert not any("moved" in name for name in broker.runtime.disk.listdir(broker.config.data_dir))

    run(test)
