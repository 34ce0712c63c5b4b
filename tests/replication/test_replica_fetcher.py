"""Replica fetcher: an error of one partition does not affect the others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ottla.cluster.requests import TopicSpec
from ottla.config.load import load_broker_config
from ottla.errors import Fault, StorageFault
from ottla.local.waiting import until
from ottla.replication.partition import Partition
from ottla.replication.replica_fetcher import ReplicaFetcher
from ottla.replication.throttle import Throttle
from ottla.runtime.real import RealRuntime
from ottla.wire import messages
from ottla.wire.batch import read_header
from ottla.wire.fetch import PartitionFetched
from ottla.wire.replica_fetch import VERSION
from ottla.wire.schema.fetch import FetchResponse
from tests.harness.failing_disk import FailingDisk
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import NOW_MS, batch, leading, partition

__all__ = ["partition"]

CONFIG = load_broker_config(flags={"broker.id": "1"})


def test_an_unexpected_error_in_one_partition_does_not_stop_the_others(tmp_path):
    async def test():
        disks = FailingDisk(), FailingDisk()
        async with brokers(tmp_path, 2, disks) as (first, second):
            await first.cluster.create_topics([TopicSpec(name, 1, 2) for name in ("good", "bad")])
            await until(lambda: all(b.replicas.get(t, 0) for b in (first, second) for t in ("good", "bad")))
            bad = replica(first, second, "bad", leads=False)
            disks[bad.broker_id - 1].fail("bad-0", ZeroDivisionError())
            for name in ("bad", "good"):
                leader = replica(first, second, name, leads=True)
                leader.append(batch(b"a"), 1, NOW_MS)
            good = replica(first, second, "good", leads=False)
            await until(lambda: good.log.log_end == 1)
            leader = replica(first, second, "good", leads=True)
            await until(lambda: leader.high_watermark == 1)
            assert bad.log.log_end == 0
            disks[bad.broker_id - 1].fail("bad-0", None)
            await until(lambda: bad.log.log_end == 1)

    run(test)


def replica(first, second, topic: str, *, leads: bool) -> Partition:
    found = [broker.replica_manager.find(topic, 0) for broker in (first, second)]
    (one,) = [partition for partition in found if partition.leads is leads]
    return one


class Leader:
    """A connection on which nothing is ever answered."""

    def __init__(self):
        self.asked = 0

    def call_raw(self, *_):
        self.asked += 1
        return asyncio.get_running_loop().create_future()

    def close(self):
        pass


class Context:
    broker_epoch = 1
    follower_throttle = Throttle()

    def __init__(self, leader):
        self._leader = leader
        self.synced = asyncio.Event()
        self.waiting = 0

    async def open_link(self, _):
        return self._leader

    async def sync(self, partition):
        self.waiting += 1
        await self.synced.wait()
        partition.log.sync()

    def make_whole(self, partition):
        raise AssertionError("nothing is missing here")

    async def was_cut(self, partition, dropped):
        raise AssertionError("nothing is to be cut here")


def test_with_flush_messages_1_a_follower_fetches_only_from_what_is_synced(partition):
    async def test():
        p = partition(synced=True)
        p.append(batch(b"a"), 1, NOW_MS)  # while it led itself, and never synced
        p.become(leading(in_sync=(1, 2), epoch=1, leader=2)._replace(partition_epoch=1))
        runtime, leader = RealRuntime(), Leader()
        around = Context(leader)
        follower = ReplicaFetcher(2, runtime, around, CONFIG)
        follower.add(p)
        await until(lambda: around.waiting)
        assert leader.asked == 0
        around.synced.set()
        await until(lambda: leader.asked)
        assert p.log.recovery_point == 1
        await follower.stop()
        await runtime.close()

    run(test)


class Unreadable:
    """A source on a disk that cannot be read."""

    def read(self, *_, **__):
        raise StorageFault("Input/output error")


def test_a_partition_that_its_leader_cannot_read_does_not_stop_the_others(tmp_path):
    async def test():
        async with brokers(tmp_path, 2) as (first, second):
            await first.cluster.create_topics([TopicSpec(name, 4, 2) for name in ("good", "bad")])
            await until(lambda: all(b.replicas.get(t, 3) for b in (first, second) for t in ("good", "bad")))
            leaders = {name: [p for p in first.replicas if p.topic == name and p.leads] for name in ("good", "bad")}
            assert all(leaders.values())
            for partition in leaders["bad"]:
                partition.source = Unreadable()
            for partition in (*leaders["bad"], *leaders["good"]):
                partition.append(batch(b"a"), 1, NOW_MS)
            await until(lambda: all(partition.high_watermark == 1 for partition in leaders["good"]))
            assert all(partition.high_watermark == 0 for partition in leaders["bad"])
            for partition in leaders["bad"]:
                partition.source = partition.log
            await until(lambda: all(partition.high_watermark == 1 for partition in leaders["bad"]))

    run(test)


def test_a_failed_fsync_of_a_truncation_ends_the_broker(tmp_path, monkeypatch):
    def failing(fd):
        raise OSError(5, "Input/output error")

    async def test():
        async with brokers(tmp_path, 2) as (first, second):
            await first.cluster.create_topics([TopicSpec("t", 1, 2)])
            await until(lambda: all(broker.replicas.get("t", 0) for broker in (first, second)))
            leader, follower = replica(first, second, "t", leads=True), replica(first, second, "t", leads=False)
            for value in (b"a", b"b"):
                leader.append(batch(value), 1, NOW_MS)
            await until(lambda: follower.log.log_end == 2)
            with monkeypatch.context() as device:
                device.setattr("os.fsync", failing)
                diverging = batch(b"c")  # which the leader has not got, and has cut off
                follower.log.append(
                    diverging, read_header(diverging), leader_epoch=leader.leader_epoch, now_ms=NOW_MS
                )
                await until(lambda: any(broker.fatal_error.done() for broker in (first, second)))

    run(test)


class AroundCut(Context):
    async def was_cut(self, partition, dropped):
        pass


NOTHING = "the removed records were not committed, so no record acknowledged with acks=all is affected"
AFFECTED = "records acknowledged with acks=all are affected, offsets 3 to 3 were committed"
NOT_KNOWN = "it is not known whether records acknowledged with acks=all are affected. They are if broker 2"


@pytest.mark.parametrize(
    ("committed", "in_sync", "known", "level", "said"),
    [
        (3, (1, 2), True, "INFO", NOTHING),
        (4, (1, 2), True, "ERROR", AFFECTED),
        (3, (2,), True, "INFO", NOTHING),  # it led until now
        (3, (2,), False, "WARNING", NOT_KNOWN),  # killed: the high watermark is that of a checkpoint
        (3, (1, 2), False, "INFO", NOTHING),  # the one who leads was elected among those in sync, as we are
        (4, (2,), False, "ERROR", AFFECTED),
    ],
)
def test_a_truncation_logs_whether_acknowledged_records_are_affected_and_keeps_a_copy(
    partition, caplog, committed, in_sync, known, level, said
):
    p = partition()

    async def test():
        for value in (b"a", b"b", b"c", b"d", b"e"):
            p.append(batch(value), 1, NOW_MS)
        position = p.log.active.find(3)
        cut.append(p.log.active.log.pread(p.log.active.size - position, position))
        p.become(leading(in_sync=in_sync, epoch=1, leader=2)._replace(partition_epoch=1, replicas=(1, 2)))
        p.high_watermark, p.follower.watermark_known = committed, known
        runtime = RealRuntime()
        follower = ReplicaFetcher(2, runtime, AroundCut(Leader()), CONFIG)
        fetched = PartitionFetched(0, 0, 0, 0, 0, None, -1, memoryview(b""), diverging=(0, 3))
        await follower._realign(p, fetched)
        await follower.stop()
        await runtime.close()

    cut: list[bytes] = []
    caplog.set_level(logging.INFO)
    run(test)
    disk, path = p.log.disk, p.log.path
    quarantined = [f"{path}/{name}" for name in disk.listdir(path) if name.endswith(".damaged")]
    assert [disk.read(name) for name in quarantined] == (cut if level != "INFO" else [])
    (record,) = (each for each in caplog.records if "truncated from 5 to 3 to match broker 2" in each.getMessage())
    assert record.levelname == level
    assert said in record.getMessage()
    assert all(name in record.getMessage() for name in quarantined)


def test_a_followers_high_watermark_is_not_certain_after_records_of_another_leader(partition):
    p = partition()
    p.append(batch(b"a"), 1, NOW_MS)
    p.become(leading(in_sync=(1, 2), epoch=1, leader=2)._replace(partition_epoch=1))
    p.replicate(memoryview(b""), 1, 0, NOW_MS)
    assert p.follower.watermark_known, "it led, and has taken nothing since"
    sent = bytearray(batch(b"b"))
    sent[:8] = p.log.log_end.to_bytes(8, "big")
    p.replicate(memoryview(sent), 1, 0, NOW_MS)
    assert p.log.log_end == 2
    assert not p.follower.watermark_known


class LeaderLost(Leader):
    """A connection that ends when the test says so."""

    def __init__(self):
        super().__init__()
        self.answers = []

    def call_raw(self, *_):
        self.answers.append(super().call_raw())
        return self.answers[-1]


def test_time_in_which_the_process_was_paused_counts_as_time_without_the_leader(partition, caplog):
    async def test():
        p = partition()
        p.become(leading(in_sync=(1, 2), epoch=1, leader=2)._replace(partition_epoch=1))
        runtime, leader = RealRuntime(), LeaderLost()
        around = AroundCut(leader)
        around.synced.set()
        follower = ReplicaFetcher(2, runtime, around, CONFIG)
        follower.add(p)
        await until(lambda: leader.answers)
        real_now = runtime.now
        runtime.now = lambda: real_now() + 24  # time passes while nothing runs
        leader.answers[0].set_exception(Fault("it closed the connection"))
        await until(lambda: len(leader.answers) > 1)
        await follower.stop()
        await runtime.close()

    caplog.set_level(logging.INFO)
    run(test)
    (said,) = (each.getMessage() for each in caplog.records if "following broker 2 again" in each.getMessage())
    assert float(said.removeprefix("following broker 2 again, after ").removesuffix(" s")) >= 24


def test_a_new_registration_restarts_the_fetcher_without_a_log_line(partition, caplog):
    async def test():
        p = partition()
        p.become(leading(in_sync=(1, 2), epoch=1, leader=2)._replace(partition_epoch=1))
        runtime, leader = RealRuntime(), LeaderLost()
        around = AroundCut(leader)
        around.synced.set()
        follower = ReplicaFetcher(2, runtime, around, CONFIG)
        follower.add(p)
        await until(lambda: leader.answers)
        around.broker_epoch += 1
        answer = messages.encode(FetchResponse(), VERSION)
        leader.answers[0].set_result(memoryview(answer))
        await until(lambda: len(leader.answers) > 1)
        await follower.stop()
        await runtime.close()

    caplog.set_level(logging.INFO)
    run(test)
    assert not [each.getMessage() for each in caplog.records if "again" in each.getMessage()]
