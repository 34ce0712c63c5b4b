"""Kill drivers, executors and the broker at random while a pipeline runs, and count what came of it.

    python -m tests.spark.soak --kills 20 [--seed 7] [--local]

A topic is written to all the time, and copied into another topic, a table of PostgreSQL and Parquet, on a Spark cluster
of a master and two workers (or inside the driver: --local). At the end each of the three has every number once. Two
queries in update mode count the numbers by their last digits into a topic and into a table: no count may be missing,
wrong, or there twice. The broker is killed and comes back at once, or is stopped for some seconds. No query may end but
by a kill of its driver.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds

from examples.actors.local_postgres import LocalPostgres
from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.client.errors import ClientError
from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.spark.conftest import REPOSITORY
from tests.spark.standalone import Standalone
from tests.spark.test_sink import committed, numbers

BATCH_S = 240.0
LAST_S = 600.0
BACKLOG_MAX = 8_000
"""So many numbers the slowest query may be behind; then the input waits for it."""


class Input:
    """Writes 0, 1, 2… into the source, each once: in transactions, so that a broker may be killed meanwhile."""

    def __init__(self, bootstrap: str, read: Callable[[], int]) -> None:
        self._bootstrap = bootstrap
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                self._write()
            except ClientError:
                self.count = self._there()  # it may have counted, or not

    def _write(self) -> None:
        with blocking.Producer(self._bootstrap, transactional_id="input") as producer:
            while not self._stop.wait(0.2):
                if self.count - self._read() > BACKLOG_MAX:
                    continue
                texts = [b"%d" % number for number in range(self.count, self.count + 40)]
                with producer.transaction():
                    for text in texts:
                        producer.send("source", key=text, value=text)
                self.count += len(texts)

    def _there(self) -> int:
        while True:
            try:
                with blocking.Producer(self._bootstrap, transactional_id="input"):
                    pass  # what was under way is decided
                found = numbers(self._bootstrap, "source")
            except ClientError:
                continue
            assert found == Counter(range(len(found))), "the input itself is not what it should be"
            return len(found)


class Driver:
    def __init__(self, broker: WatchedBroker, database: str, storage: Path, master: str) -> None:
        self._command = [sys.executable, "-m", "tests.spark.soaking", broker.bootstrap, database, str(storage), master]
        self._storage = storage
        self._log = storage / "driver.log"
        self._killed = False
        self.ended = 0
        """How many times it ended without having been killed."""
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        self._killed = False
        with self._log.open("ab") as log:
            environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
            self.process = subprocess.Popen(
                self._command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        if self.process.poll() is None:
            self._killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _start_again(self) -> None:
        if not self._killed:
            self.ended += 1
            reported = self._log.read_text(errors="replace").splitlines()[-15:]
            print("the driver ended by itself:", *reported, sep="\n    ", flush=True)
        self.start()

    def batches(self) -> int:
        """That were planned, of all queries. Spark keeps the last hundred of each."""
        return sum(int(newest.name) + 1 for newest in self._newest())

    def read(self) -> int:
        """How many offsets the slowest query has planned to read."""
        offsets = [json.loads(newest.read_text().splitlines()[-1])["source"] for newest in self._newest()]
        return min((sum(each.values()) for each in offsets), default=0)

    def _newest(self) -> list[Path]:
        logs = (self._storage / "checkpoints").glob("*/offsets")
        entries = [[entry for entry in log.iterdir() if entry.name.isdecimal()] for log in logs]
        return [max(each, key=lambda entry: int(entry.name)) for each in entries if each]

    def wait_for_batches(self, count: int) -> None:
        """A failed query ends the driver, and its supervisor starts it again."""
        target = self.batches() + count

        def there() -> bool:
            if self.process.poll() is not None:
                self._start_again()
            return self.batches() >= target

        wait_for(there, f"{count} batches", BATCH_S)

    def finish(self) -> None:
        (self._storage / "last").touch()
        for _ in range(5):
            if self._wait_while_batches_come() == 0:
                return
            self._start_again()
        raise AssertionError(f"the driver does not end well:\n{self._log.read_text(errors='replace')[-4000:]}")

    def _wait_while_batches_come(self) -> int:
        before = -1
        while self.batches() > before:
            before = self.batches()
            try:
                return self.process.wait(LAST_S)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"no batch came within {LAST_S:g} s, and the driver did not end")


def workers(session: int) -> list[int]:
    """Spark's Python processes inside of a driver."""
    listed = subprocess.run(["ps", "-eww", "-o", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    return [int(pid) for pid, sid, args in rows if sid == str(session) and "pyspark.daemon" in args]


def kill_some(pids: list[int], chance: random.Random) -> None:
    for pid in chance.sample(pids, min(1, len(pids))):
        os.kill(pid, signal.SIGKILL)


def counted(name: str, found: Counter[int], count: int) -> bool:
    missing = [number for number in range(count) if number not in found]
    twice = [number for number, times in found.items() if times > 1]
    strange = [number for number in found if not 0 <= number < count]
    print(f"  {name:8} {sum(found.values())} rows, missing {len(missing)}, twice {len(twice)}, strange {len(strange)}")
    return not (missing or twice or strange)


def counts_are_right(reported: list[Any], totals: dict[int, int], count: int) -> bool:
    """In update mode: the counts of a digit grow, none is told twice, and the last one is right."""
    expected = {digit: len(range(digit, count, 10)) for digit in range(10)}
    by_digit: dict[int, list[int]] = {digit: [] for digit in range(10)}
    for _, key, value, _ in reported:
        by_digit[int(key)].append(int(value))
    twice = sum(len(each) - len(set(each)) for each in by_digit.values())
    back = sum(later < earlier for each in by_digit.values() for earlier, later in pairwise(each))
    last = {digit: each[-1] for digit, each in by_digit.items() if each}
    wrong = [sum(found.get(digit) != expected[digit] for digit in range(10)) for found in (last, totals)]
    print(
        f"  update   {len(reported)} counts, twice {twice}, back {back}, wrong in topic {wrong[0]}, in table {wrong[1]}"
    )
    return not (twice or back or any(wrong))


def soak(kills: int, seed: int, *, local: bool, directory: Path) -> bool:
    chance = random.Random(seed)
    storage = directory / "storage"
    storage.mkdir()
    with ExitStack() as stack:
        broker = WatchedBroker(directory / "broker").start()
        stack.callback(broker.close)
        database = stack.enter_context(LocalPostgres(directory / "postgres", settings={"fsync": "off"})).url
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("create table sink (number int)")
            db.execute("create table totals (digit int primary key, total bigint)")
        with blocking.Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic("source", 3), NewTopic("sink", 2), NewTopic("counts", 1)])
        cluster = None if local else stack.enter_context(Standalone(directory / "cluster"))
        driver = Driver(broker, database, storage, "local[2,4]" if cluster is None else cluster.url)
        written = Input(broker.bootstrap, driver.read)
        written.start()
        stack.callback(written.stop)
        driver.start()
        stack.callback(driver.kill)

        def executor() -> None:
            kill_some(workers(driver.process.pid) if cluster is None else cluster.executors(), chance)

        def restart_broker() -> None:
            broker.kill()
            broker.start()

        def outage() -> None:
            broker.stop()
            time.sleep(chance.uniform(1, 5))
            broker.start()

        means: dict[str, Callable[[], None]] = {
            "driver": driver.kill,
            "executor": executor,
            "broker": restart_broker,
            "outage": outage,
        }
        for number in range(kills):
            driver.wait_for_batches(chance.randint(1, 6))
            time.sleep(chance.uniform(0, 1.5))  # anywhere within a batch
            name = [*means][number] if number < len(means) else chance.choice([*means])
            print(f"kill {number + 1} of {kills}: {name}, after {driver.batches()} batches", flush=True)
            means[name]()
        written.stop()
        driver.wait_for_batches(0)
        driver.finish()
        print(f"{written.count} numbers were written, seed {seed}:")
        with psycopg.connect(database) as db:
            table = Counter(row[0] for row in db.execute("select number from sink"))
            totals: dict[int, int] = dict(db.execute("select digit, total from totals").fetchall())
        files = Counter(ds.dataset(storage / "files", partitioning="hive").to_table()["number"].to_pylist())
        found = {"topic": numbers(broker.bootstrap, "sink"), "table": table, "Parquet": files}
        exact = [counted(name, each, written.count) for name, each in found.items()]
        exact.append(counts_are_right(committed(broker.bootstrap, "counts"), totals, written.count))
        print(f"  {driver.ended} times a query ended without a kill of its driver")
        return all(exact) and driver.ended == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--local", action="store_true")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ottla-soak-spark-"))
    directory.chmod(0o755)  # the database may run as somebody else
    if not soak(given.kills, given.seed, local=given.local, directory=directory):
        sys.exit(f"not exact; everything is left in {directory}")
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
