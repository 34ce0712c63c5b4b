"""Whatever is killed in the middle of a copy, the copy is exact: nothing is missing, nothing is there twice.

Each needs a driver of its own, and that takes its time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.spark.conftest import REPOSITORY
from tests.spark.test_sink import fill, numbers, once

ROWS = 5_000
pytestmark = pytest.mark.timeout(600)


class Copy:
    """The driver, and what it left behind."""

    def __init__(self, broker: WatchedBroker, directory: Path, master: str) -> None:
        self.broker = broker
        self.checkpoint = directory / "checkpoint"
        self._master = master
        self._log = directory / "driver.log"
        self.process: subprocess.Popen[bytes]

    def command(self) -> list[str]:
        copying = ["tests.spark.copying", self.broker.bootstrap, "source", "sink", str(self.checkpoint), self._master]
        return [sys.executable, "-m", *copying]

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def batches(self) -> int:
        return len(list((self.checkpoint / "offsets").glob("[0-9]*")))

    def wait_for_batches(self, count: int) -> None:
        wait_for(lambda: self.batches() >= count or self.process.poll() is not None, f"{count} batches", 240)
        assert self.process.poll() is None, self._log.read_text()[-3000:]

    def kill(self) -> None:
        """The driver and everything it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def workers(self) -> list[int]:
        listed = subprocess.run(["ps", "-eww", "-o", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
        return [int(pid) for pid, sid, args in rows if sid == str(self.process.pid) and "pyspark.daemon" in args]

    def finish(self) -> None:
        assert self.process.wait(300) == 0, self._log.read_text()[-5000:]


@pytest.fixture
def copy(start_broker: Callable[..., WatchedBroker], tmp_path: Path):
    copies: list[Copy] = []

    def copy(master: str = "local[2,4]") -> Copy:
        broker = start_broker()
        with blocking.Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic("source", 2), NewTopic("sink", 2)])
        fill(broker.bootstrap, "source", ROWS)
        copies.append(Copy(broker, tmp_path, master))
        return copies[-1]

    yield copy
    for each in copies:
        if each.process.poll() is None:
            each.kill()


def test_a_killed_driver_continues_at_its_checkpoint(copy):
    running = copy().start()
    running.wait_for_batches(2)
    running.kill()
    running.start().finish()
    assert numbers(running.broker.bootstrap, "sink") == once(ROWS)
    with blocking.Admin(running.broker.bootstrap) as admin:
        assert admin.list_transactions(["Ongoing"]) == []


def test_workers_that_are_killed_are_replaced(copy):
    running = copy().start()
    running.wait_for_batches(2)
    workers = wait_for(running.workers, "workers")
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    if running.process.wait(300) != 0:
        running.start().finish()
    assert numbers(running.broker.bootstrap, "sink") == once(ROWS)


@pytest.mark.broker_may_log(".*")
def test_a_broker_that_is_killed_and_comes_back_loses_nothing(copy):
    running = copy().start()
    running.wait_for_batches(2)
    running.broker.kill()
    running.broker.start()
    if running.process.wait(300) != 0:
        running.start().finish()
    assert numbers(running.broker.bootstrap, "sink") == once(ROWS)
