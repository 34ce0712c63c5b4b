"""One round: a cluster under load, faults for a while, then peace, and a verdict.

safety     faults at random, one after the other, while producers write and a consumer reads along, and beside
           them transactions copy a topic and move money
liveness   everything runs again: within a limit every replica is in sync and every partition is written to, all is
           copied, and no transaction is open
verdict    the log is read from start to end and compared with what clients were told, the copy with its original;
           then the brokers stop and the logs of all replicas are compared with each other
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ottla.blocking.thread import LoopThread
from ottla.local.cluster import LocalCluster
from ottla.local.history import Findings, History, Kind
from ottla.local.proxy import ClusterProxies
from ottla.wire.batch import batches
from tests.soak import exactly_once, faults
from tests.soak.exactly_once import ExactlyOnce, TransactionStats
from tests.soak.load import READER, TOPIC, Reader, Writer, read_log
from tests.soak.sharing import GROUP, Member
from tests.soak.transactional import BANK

PARTITIONS = 6
WRITERS = 2
RATE = 1000
LIVENESS_SECONDS = 60.0
CATCH_UP_SECONDS = 30.0
SESSION_S = 4.0
MEMBERS = 2
VIOLATIONS_SHOWN = 15
TOPICS = {TOPIC: PARTITIONS, **exactly_once.TOPICS}

SETTINGS = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "broker.session.timeout.ms": str(int(SESSION_S * 1000)),
    "leader.imbalance.check.interval.seconds": "10",
    "offsets.topic.num.partitions": "3",
    "auto.create.topics.enable": "false",
    "log.segment.bytes": str(1 << 20),
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "ottla.scrub.interval.ms": "3000",
    **exactly_once.SETTINGS,
}

Said = Callable[[str], None]


@dataclass
class Report:
    seed: int
    store: str
    injected: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    read: int = 0
    shared: int = 0
    commits: int = 0
    findings: Findings = field(default_factory=Findings)
    transactions: TransactionStats = field(default_factory=TransactionStats)
    violations: list[str] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.violations and self.acknowledged > 0

    def lines(self) -> list[str]:
        lines = [f"{self.store}, seed {self.seed}: {sum(self.injected.values())} faults"]
        lines[0] += "".join(f" · {name.replace('_', ' ')} {times}" for name, times in sorted(self.injected.items()))
        lines.append(f"  acknowledged {self.acknowledged:,} · read along {self.read:,} · {self.findings}")
        lines.append(f"  a group of {MEMBERS} saw {self.shared:,} of them and committed {self.commits:,} offsets")
        lines.append(f"  {self.transactions.line()}")
        if self.failovers_s:
            middle = sorted(self.failovers_s)[len(self.failovers_s) // 2]
            lines.append(
                f"  from kill -9 of a leader until every partition was written to again: {max(self.failovers_s):.2f} s "
                f"at worst, {middle:.2f} s in the middle of {len(self.failovers_s)}"
            )
        lines += [f"  {each}" for each in self.violations[:VIOLATIONS_SHOWN]]
        return lines


class Round:
    """Runs in the thread that lives as long as its brokers."""

    def __init__(self, cluster: LocalCluster, seed: int, said: Said = lambda _: None) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.history = History()
        self.transactions = ExactlyOnce(cluster.directory, self.history, self.random)
        self.report = Report(seed, "ZooKeeper" if cluster.ensemble else "embedded store")
        self._thread = LoopThread("proxies")
        self.proxies = ClusterProxies(cluster, self._thread, clients=False)
        self._said = said
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        self._said(f"{time.monotonic() - self._began:7.2f} {self.report.store}: {line}")

    def run(self, seconds: float, chosen: Sequence[faults.Fault] = ()) -> Report:
        """Faults for so many seconds, then the verdict."""
        self.cluster.start()
        for topic, partitions in TOPICS.items():
            self._create(topic, partitions, exactly_once.COMPACTED if topic == BANK else {})
        bootstrap = self.cluster.bootstrap_all
        writers = [Writer(n, bootstrap, PARTITIONS, RATE // WRITERS, self.history) for n in range(WRITERS)]
        reader = Reader(bootstrap, PARTITIONS, self.history)
        members = [Member(n, bootstrap, self.history) for n in range(MEMBERS)]
        arena = faults.Arena(
            self.cluster, writers, self.transactions, self.random, SESSION_S, self.proxies, self.history, self.say
        )
        for thread in (*writers, reader, *members):
            thread.start()
        self.transactions.start(bootstrap)
        try:
            self._safety(arena, seconds, chosen)
            self._liveness(arena)
            self.transactions.settle()
        finally:
            self.transactions.close()
            for writer in writers:
                writer.ended.set()
            for writer in writers:
                writer.join()
            self._catch_up(reader, members)
        self.report.failovers_s = arena.failovers_s
        self._verdict(bootstrap)
        return self.report

    def _create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        command = [sys.executable, "-m", "ottla", "topics", "create", topic, "--partitions", str(partitions)]
        command += ["--replication-factor", "3", "--bootstrap-server", self.cluster.bootstrap]
        for name, value in settings.items():
            command += ["--config", f"{name}={value}"]
        deadline = time.monotonic() + 20
        while (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
            assert time.monotonic() < deadline, done.stderr

    def _safety(self, arena: faults.Arena, seconds: float, chosen: Sequence[faults.Fault]) -> None:
        possible = list(chosen or faults.OF_BROKERS + faults.OF_NETWORK + faults.OF_FILES)
        if self.cluster.ensemble is not None and not chosen:
            possible += faults.OF_ZOOKEEPER
        bag: list[faults.Fault] = []
        ending = time.monotonic() + seconds
        while time.monotonic() < ending and not self.history.violations:
            if not bag:  # each once before any comes again
                bag = self.random.sample(possible, len(possible))
            fault = bag.pop()
            self.say(fault.__name__.replace("_", " "))
            fault(arena)
            self.report.injected[fault.__name__] += 1
            faults.heal(arena)
            arena.rest(0, 3)

    def _liveness(self, arena: faults.Arena) -> None:
        self.say("peace")
        self.transactions.dismiss_tellers()
        peace = time.monotonic()
        deadline = peace + LIVENESS_SECONDS
        copied = self.transactions.progressed()
        while not (arena.whole() and arena.acknowledged_since(peace + 0.5) and copied()):
            if self.history.violations:
                return
            if time.monotonic() > deadline:
                snapshot = arena.snapshot()
                behind = {
                    f"{topic}-{index}": tuple(state)
                    for (topic, index), state in snapshot.partitions.items()
                    if set(state.in_sync) != set(state.replicas)
                }
                what = behind or "no writes, or no copies"
                self.history.violated(Kind.STUCK, f"not well {LIVENESS_SECONDS:g} s after the last fault: {what}")
                return
            time.sleep(0.05)
        self.say(f"all replicas in sync and all partitions written to after {time.monotonic() - peace:.2f} s")

    def _catch_up(self, reader: Reader, members: list[Member]) -> None:
        """Until the readers have read all records."""
        history, deadline = self.history, time.monotonic() + CATCH_UP_SECONDS
        while min(history.read_count(READER), history.read_count(GROUP)) < history.counts["acknowledged"]:
            if time.monotonic() > deadline or history.violations:
                break
            time.sleep(0.1)
        readers: list[Reader | Member] = [reader, *members]
        for each in readers:
            each.ended.set()
        for each in readers:
            each.join(CATCH_UP_SECONDS)  # librdkafka may wait for ever for the answer of a coordinator that has gone

    def _verdict(self, bootstrap: str) -> None:
        report, history = self.report, self.history
        history.conclude(read_log(bootstrap, PARTITIONS))
        report.transactions = self.transactions.verdict()
        report.acknowledged, report.read = history.counts["acknowledged"], history.read_count(READER)
        if report.read < report.acknowledged:
            history.violated(Kind.STUCK, f"the reader saw {report.read} of {report.acknowledged} acknowledged records")
        report.shared = history.read_count(GROUP)
        if report.shared < report.acknowledged:
            history.violated(Kind.STUCK, f"the group saw {report.shared} of {report.acknowledged} acknowledged records")
        report.commits = history.counts["offsets committed"]
        self.cluster.stop()
        self.proxies.close()
        self._thread.close()
        same = {topic: partitions for topic, partitions in TOPICS.items() if topic != BANK}
        for name in [f"{topic}-{n}" for topic, partitions in same.items() for n in range(partitions)]:
            logs = {each.id: _log_on_disk(each.data / name) for each in self.cluster.brokers.values()}
            if len({tuple(log) for log in logs.values()}) > 1:
                sizes = {broker: f"{len(log)} batches" for broker, log in logs.items()}
                history.violated(Kind.DIVERGED, f"the replicas of {name} differ: {_divergence(logs)} ({sizes})")
        report.findings = history.findings()
        report.violations = [f"{each.kind.value}: {each.text}" for each in history.violations]


def _log_on_disk(directory: Path) -> list[tuple[int, int, int]]:
    """Base offset, leader epoch and checksum of every batch."""
    found = []
    for segment in sorted(directory.glob("*.log")):
        found += [(each.base_offset, each.leader_epoch, each.crc) for _, each in batches(segment.read_bytes())]
    return found


def _divergence(logs: dict[int, list[tuple[int, int, int]]]) -> str:
    """Where the logs cease to be the same."""
    for index in range(max(map(len, logs.values()))):
        at = {broker: log[index] if index < len(log) else None for broker, log in logs.items()}
        if len(set(at.values())) > 1:
            return f"batch {index}, (base offset, epoch, checksum) by broker: {at}"
    return "nowhere"
