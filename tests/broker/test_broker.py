"""Start of a broker: the loop runs while logs are opened; no requests are served."""

from __future__ import annotations

import asyncio
import threading

from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicSpec
from ottla.config.load import load_broker_config
from ottla.errors import StorageFault
from ottla.local.waiting import until
from ottla.replication.replica_manager import RETRY_SECONDS
from ottla.runtime.disk import RealDisk
from ottla.runtime.real import RealRuntime
from tests.harness.in_process import run, start_broker, stop_broker

PATIENCE_S = 10.0


class HeldDisk(RealDisk):
    """A disk that takes its time over one directory."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.reached, self.go = threading.Event(), threading.Event()
        self.in_vain = False
        self._directory = directory

    def listdir(self, path: str) -> list[str]:
        if path == self._directory:
            self.reached.set()
            if not self.go.wait(PATIENCE_S):
                self.in_vain = True
        return super().listdir(path)


async def healthy(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200")


def test_the_loop_runs_while_logs_are_opened_and_changes_meanwhile_are_applied(tmp_path):
    async def test():
        one, two = [await start_broker(tmp_path, number) for number in (1, 2)]
        await until(lambda: all(len(each.image.brokers) == 2 for each in (one, two)))
        await one.cluster.create_topics([TopicSpec(name, assignments=[(0, [2])]) for name in ("kept", "deleted")])
        await until(lambda: len(two.replicas) == 2)
        await stop_broker(two)
        runtime = RealRuntime()
        disk = runtime.disk = HeldDisk(f"{tmp_path}/data-2/kept-0")
        flags = {
            "broker.id": "2",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": f"{tmp_path}/data-2",
            "ottla.store": f"embedded:{tmp_path}/store.db",
            "ottla.metrics.port": "0",
        }
        again = Broker(load_broker_config(flags=flags), runtime)
        starting = asyncio.ensure_future(again.start())
        await until(disk.reached.is_set)
        assert again._status is not None
        assert await healthy(again._status.port)
        await one.cluster.create_topics([TopicSpec("made", assignments=[(0, [1])])])  # broker 2 is not registered
        await one.cluster.delete_topics(["deleted"])
        await until(lambda: again.image.topic("made") is not None and again.image.topic("deleted") is None)
        assert not again.listeners
        disk.go.set()
        await starting
        assert not disk.in_vain
        await until(lambda: (kept := again.replicas.get("kept", 0)) is not None and kept.leads)
        assert len(again.replicas) == 1
        await until(lambda: not one.image.tombstones)
        await stop_broker(again)
        await stop_broker(one)

    run(test)


class RefusingDisk(RealDisk):
    """A disk that does not list one directory, for as long as a test says so."""

    refusing = True

    def listdir(self, path: str) -> list[str]:
        if self.refusing and path.endswith("/t-0"):
            raise StorageFault(f"cannot list {path}: Too many open files")
        return super().listdir(path)


def test_a_partition_whose_directory_cannot_be_read_at_first_is_opened_later(tmp_path):
    async def test():
        disk = RefusingDisk()
        one = await start_broker(tmp_path, 1, disk, RETRY_SECONDS / 0.2)
        await one.cluster.create_topics([TopicSpec("t", 2, 1)])
        assert (one.replicas.get("t", 0), one.replicas.get("t", 1) is not None) == (None, True)
        disk.refusing = False
        await until(lambda: (found := one.replicas.get("t", 0)) is not None and found.leads)
        await stop_broker(one)

    run(test)
