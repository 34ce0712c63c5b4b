"""A disk that refuses appends: one log line for each partition and minute, and an error for the producer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.broker.disk_errors import LINE_SECONDS, DiskErrors
from ottla.client.errors import TimedOut
from ottla.client.producing.producer import Producer
from ottla.cluster.requests import TopicSpec
from ottla.errors import Refused, StorageFault
from ottla.local.waiting import until
from ottla.replication.partition import ACKS_ALL
from tests.harness.full_disk import FULL, FullDisk
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import NOW_MS, batch


class Clock:
    """A runtime of which only the time and the timers matter."""

    def __init__(self):
        self.seconds = 100.0
        self.timers = []

    def now(self):
        return self.seconds

    def call_at(self, when, act, *args):
        self.timers.append((when, act))
        return self

    def cancel(self):
        pass

    def run_timers(self):
        due, self.timers = self.timers, []
        for _, act in due:
            act()


class Replica:
    def __init__(self, name):
        self.name = name
        self.log_end = 7

    def __str__(self):
        return self.name


def lines(caplog, logger="ottla.disk"):
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == logger]


def test_one_line_for_each_partition_and_minute_with_the_number_of_errors(caplog):
    caplog.set_level(logging.INFO)
    clock: Any = Clock()
    errors = DiskErrors(clock)
    first: Any = Replica("orders-0")
    second: Any = Replica("orders-1")
    fault = StorageFault("cannot write x: No space left on device")
    for _ in range(100):
        errors.write_refused(first, fault)
        errors.read_refused(second, fault)
    assert lines(caplog) == [
        ("ERROR", f"orders-0: the disk refuses writes (KAFKA_STORAGE_ERROR): {fault}"),
        ("ERROR", f"orders-1: the disk refuses reads (KAFKA_STORAGE_ERROR): {fault}"),
    ]
    caplog.clear()
    clock.seconds += LINE_SECONDS
    errors.write_refused(first, fault)
    errors.write_refused(first, fault)
    (line,) = lines(caplog)
    assert line[1].endswith("No space left on device; 100 times in the last 60 s")


def test_successful_writes_are_logged_and_the_entry_is_removed(caplog):
    caplog.set_level(logging.INFO)
    clock: Any = Clock()
    errors = DiskErrors(clock)
    partition: Any = Replica("orders-0")
    errors.write_refused(partition, StorageFault("full"))
    clock.run_timers()
    assert [level for level, _ in lines(caplog)] == ["ERROR"], "nothing was written since"
    partition.log_end += 1
    clock.run_timers()
    assert lines(caplog)[-1] == ("INFO", "orders-0: the disk accepts writes again")
    assert not clock.timers, "there is nothing left to look at"


def test_every_failed_append_is_noted_whatever_its_origin(tmp_path, caplog):
    async def test():
        disk = FullDisk()
        async with brokers(tmp_path, 1, [disk]) as (broker,):
            await broker.cluster.create_topics([TopicSpec("orders", 1, 1)])
            await until(lambda: broker.replicas.get("orders", 0))
            partition = broker.replica_manager.find("orders", 0)
            partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
            disk.fill("/orders-0/")
            with pytest.raises(Refused, match=FULL):
                partition.append(batch(b"b"), ACKS_ALL, NOW_MS)
            disk.make_room()
            partition.append(batch(b"b"), ACKS_ALL, NOW_MS)
            await until(lambda: ("INFO", "orders-0: the disk accepts writes again") in lines(caplog))

    caplog.set_level(logging.INFO)
    run(test)
    assert [level for level, _ in lines(caplog)] == ["ERROR", "INFO"]


def test_the_producer_reports_a_storage_error_and_continues_when_the_disk_has_space(tmp_path):
    async def test():
        disk = FullDisk()
        async with brokers(tmp_path, 1, [disk]) as (broker,):
            await broker.cluster.create_topics([TopicSpec("orders", 1, 1)])
            await until(lambda: broker.replicas.get("orders", 0))
            bootstrap = f"127.0.0.1:{broker.listeners[0].port}"
            async with Producer(bootstrap, delivery_timeout_ms=900, batch_size=1, request_timeout_ms=500) as producer:
                await producer.send_and_wait("orders", b"first")
                disk.fill("/orders-0/")
                # A batch each, and so many that the broker calls those behind the first out of order.
                refused = [await producer.send("orders", b"refused") for _ in range(30)]
                for promise in refused:
                    with pytest.raises(TimedOut, match=f"kafka storage error: cannot write .*{FULL}; make room"):
                        await promise
                disk.make_room()
                assert (await producer.send_and_wait("orders", b"second")).offset == 1

    run(test)
