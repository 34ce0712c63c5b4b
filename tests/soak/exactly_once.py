"""Transactions of a soak round: copiers, tellers of a bank, a feeder, and an auditor that reads what they commit.

Five copiers copy a source, a partition each, to a target, with their offsets in the transaction; two tellers move money
between accounts. A copier keeps its transactional id when it is started again, so its next InitProducerId ends what it
left open. A teller takes a new id every time, so the coordinator must abort what it left open after the timeout.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import IsolationLevel as Isolation
from confluent_kafka.admin import AdminClient, OffsetSpec

from ottla.client.admin import Admin
from ottla.coordinator.coordinator_service import java_hash
from ottla.local.exactly_once import ACCOUNTS, NO_ACCOUNT, OPENING, TOTAL, CopyFindings, Entry, Ledger, compare_copy
from ottla.local.history import History
from tests.soak.load import MESSAGE_TIMEOUT_MS, QUIET, READ_SECONDS, RECONNECT, report_error
from tests.soak.programs import Program
from tests.soak.transactional import (
    BANK,
    BANK_PARTITIONS,
    SOURCE,
    TARGET,
    TRANSACTION_TIMEOUT_MS,
)

COPIERS = ("confluent", "ottla", "confluent", "ottla", "confluent")
TELLERS = ("confluent", "ottla")
STATE_PARTITIONS = 3
OFFSETS = "__consumer_offsets"
FEED_RATE = 12
"""Records a second in each partition of the source."""
COPIED_SECONDS = 60.0
ENDED_SECONDS = TRANSACTION_TIMEOUT_MS / 1000 + 15
"""After their timeout, and the coordinator's look at it."""
UNDERWAY = ("Ongoing", "PrepareCommit", "PrepareAbort")

TOPICS = {SOURCE: len(COPIERS), TARGET: len(COPIERS), BANK: BANK_PARTITIONS}
SETTINGS = {
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "15000", "min.cleanable.dirty.ratio": "0.01"}
"""The settings of the bank. Its replicas are compacted each by itself, and need not be the same on disk."""


@dataclass
class TransactionStats:
    """What a round tells of its transactions."""

    committed: int = 0
    aborted: int = 0
    copied: int = 0
    copy: CopyFindings = field(default_factory=CopyFindings)
    transfers: int = 0
    bank_sums: set[int] = field(default_factory=set)

    def line(self) -> str:
        found, sums = self.copy, " and ".join(f"{each:,}" for each in sorted(self.bank_sums))
        return (
            f"transactions committed {self.committed:,} · aborted {self.aborted:,} · records copied {self.copied:,} · "
            f"lost {found.lost} · duplicated {found.duplicated} · reordered {found.reordered} · "
            f"invented {found.invented} · transfers {self.transfers:,} · bank sum {sums} of {TOTAL:,}"
        )

    @classmethod
    def of(cls, all_stats: list[TransactionStats]) -> TransactionStats:
        total = cls()
        for each in all_stats:
            total.committed += each.committed
            total.aborted += each.aborted
            total.copied += each.copied
            total.transfers += each.transfers
            total.bank_sums |= each.bank_sums
            total.copy = total.copy.plus(each.copy)
        return total


class Feeder(threading.Thread):
    """Writes what is to be copied."""

    def __init__(self, bootstrap: str, history: History) -> None:
        super().__init__(name="feeder", daemon=True)
        self.ended = threading.Event()
        self._history = history
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "topic.metadata.refresh.interval.ms": 5_000,
                "log_level": QUIET,
                **RECONNECT,
            }
        )

    def run(self) -> None:
        number = 0
        while not self.ended.wait(1 / FEED_RATE):
            for partition in range(len(COPIERS)):
                self._producer.produce(SOURCE, b"%d:%d" % (partition, number), partition=partition)
            number += 1
            self._producer.poll(0)
        if left := self._producer.flush(READ_SECONDS):
            self._history.failed(f"feeder: {left} records were not acknowledged at the end")


class Auditor(threading.Thread):
    """Reads along what is committed at the bank, and keeps its own books."""

    def __init__(self, bootstrap: str, history: History) -> None:
        super().__init__(name="auditor", daemon=True)
        self.ended = threading.Event()
        self.ledger = Ledger()
        self._servers = bootstrap
        self._history = history
        self._positions = [0] * BANK_PARTITIONS

    def run(self) -> None:
        consumer = reader_of_committed(self._servers)
        try:
            consumer.assign([TopicPartition(BANK, n, OFFSET_BEGINNING) for n in range(BANK_PARTITIONS)])
            while not self.ended.is_set():
                for message in consumer.consume(100, 0.1):
                    self._see(message)
                if self.ledger.problems:
                    self._history.failed(f"auditor: {self.ledger.problems[0]}")
                    return
        finally:
            consumer.close()

    def _see(self, message) -> None:
        if message.error() is not None:
            report_error(message.error(), self._history, "auditor")
            return
        partition, offset = message.partition(), message.offset()
        if offset < self._positions[partition]:
            self._history.failed(f"auditor: partition {partition} goes back to {offset}")
        self._positions[partition] = offset + 1
        self.ledger.read(message.value())


def reader_of_committed(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak-auditor",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 5_000,
            "fetch.wait.max.ms": 100,
            "log_level": QUIET,
            **RECONNECT,
        }
    )


class ExactlyOnce:
    """The transactions of one round."""

    def __init__(self, directory: Path, history: History, random: Random) -> None:
        self.stats = TransactionStats()
        self._directory = directory
        self._history = history
        self._random = random
        self._bootstrap = ""
        self._lock = threading.Lock()
        self._positions = [0] * len(COPIERS)
        self._transfers: set[str] = set()
        self.programs: list[Program] = []
        self._feeder: Feeder
        self._auditor: Auditor

    def start(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        _open_accounts(bootstrap)
        self._feeder = Feeder(bootstrap, self._history)
        self._auditor = Auditor(bootstrap, self._history)
        self._feeder.start()
        self._auditor.start()
        for number in range(len(COPIERS)):
            self._add(f"copier-{number}", self._copier(number), self._copier_said(number))
        for number in range(len(TELLERS)):
            self._add(f"teller-{number}", self._teller(number), self._teller_said)

    def _add(self, name: str, command: Callable[[int], list[str]], heard: Callable[[list[str]], None]) -> None:
        log = self._directory / f"{name}.log"
        program = Program(name, command, log, heard, self._history.failed)
        self.programs.append(program)
        program.start()

    def _copier(self, number: int) -> Callable[[int], list[str]]:
        command = ["tests.soak.transactional", "copier", COPIERS[number], self._bootstrap, f"copier-{number}"]
        return lambda life: [*command, str(number)]

    def _teller(self, number: int) -> Callable[[int], list[str]]:
        command = ["tests.soak.transactional", "teller", TELLERS[number], self._bootstrap]
        return lambda life: [*command, f"teller-{number}.{life}"]

    # What the programs say, each from the thread that listens to it.

    def _copier_said(self, number: int) -> Callable[[list[str]], None]:
        def said(words: list[str]) -> None:
            with self._lock:
                if words[0] == "position":
                    self._positions[number] = max(self._positions[number], int(words[1]))
                elif words[0] == "committed":
                    self.stats.committed += 1
                    self._positions[number] = max(self._positions[number], int(words[2]))
                else:
                    self._said(words)

        return said

    def _teller_said(self, words: list[str]) -> None:
        with self._lock:
            if words[0] == "committed":
                self.stats.committed += 1
                self._transfers.add(words[1])
            else:
                self._said(words)

    def _said(self, words: list[str]) -> None:
        if words[0] == "aborted":
            self.stats.aborted += 1
        elif words[0] == "failed:":
            self._history.failed(" ".join(words[1:]))

    # Faults.

    def some(self) -> list[Program]:
        return self._random.sample(self.programs, self._random.randint(1, len(self.programs)))

    def heal(self) -> None:
        for program in self.programs:
            program.resume()
            program.release()

    def state_partition(self) -> int:
        """Where the coordinator of one of the copiers keeps what it knows."""
        return java_hash(f"copier-{self._random.randrange(len(COPIERS))}") % STATE_PARTITIONS

    # The end.

    def progressed(self) -> Callable[[], bool]:
        """Whether every copier has copied something since now."""
        before = list(self._positions)
        return lambda: all(now > then for now, then in zip(self._positions, before, strict=True))

    def dismiss_tellers(self) -> None:
        """In the middle of transfers, which time has to end."""
        for teller in self.programs[len(COPIERS) :]:
            teller.end(kill=True)

    def settle(self) -> None:
        """Nothing new comes; what is there is copied, and whatever is open ends."""
        self._feeder.ended.set()
        self._feeder.join()
        ends = self._ends(SOURCE, Isolation.READ_UNCOMMITTED)
        self._wait(lambda: self._positions == ends, COPIED_SECONDS, lambda: f"copied {self._positions} of {ends}")
        for program in self.programs[: len(COPIERS)]:
            program.end()
        for program in self.programs:
            program.join()
        self._wait(lambda: not self._open(), ENDED_SECONDS, lambda: f"transactions do not end: {self._open()}")
        ledger = self._auditor.ledger
        self._wait(lambda: not ledger.lacks(self._transfers), READ_SECONDS, lambda: "the auditor does not read it all")
        self._auditor.ended.set()
        self._auditor.join()

    def close(self) -> None:
        """Whatever still runs is killed."""
        self._feeder.ended.set()
        self._auditor.ended.set()
        for program in self.programs:
            program.end(kill=True)

    def _wait(self, done: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        while not self._history.violations and not done():
            if time.monotonic() > deadline:
                self._history.failed(f"after {seconds:g} s: {why()}")
                return
            time.sleep(0.1)

    def _open(self) -> list[str]:
        """Transactions that coordinators hold for open, and partitions where one is."""
        found = []
        for topic in (TARGET, BANK, OFFSETS):
            ends, stable = self._ends(topic, Isolation.READ_UNCOMMITTED), self._ends(topic, Isolation.READ_COMMITTED)
            found += [f"{topic}-{n} at {stable[n]} of {ends[n]}" for n in range(len(ends)) if stable[n] < ends[n]]
        return found or asyncio.run(_transactions_underway(self._bootstrap))

    def _ends(self, topic: str, isolation: Isolation) -> list[int]:
        """Asked again as often as it takes: leaders still move, and the client only learns it this way."""
        deadline = time.monotonic() + READ_SECONDS
        while True:
            admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": QUIET})
            try:
                partitions = sorted(admin.list_topics(topic, READ_SECONDS).topics[topic].partitions)
                asked = {TopicPartition(topic, n): OffsetSpec.latest() for n in partitions}
                listed = admin.list_offsets(asked, isolation_level=isolation, request_timeout=READ_SECONDS)
                return [listed[tp].result().offset for tp in sorted(listed, key=lambda tp: tp.partition)]
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def verdict(self) -> TransactionStats:
        stats, history = self.stats, self._history
        copies = _values(self._bootstrap, TARGET, len(COPIERS))
        stats.copy = compare_copy(_values(self._bootstrap, SOURCE, len(COPIERS)), copies)
        stats.copied = sum(map(len, copies))
        if not stats.copy.clean:
            for example in stats.copy.examples:
                history.failed(example)
        books = Ledger()
        for values in _values(self._bootstrap, BANK, BANK_PARTITIONS):
            for value in values:
                books.read(value)
        for problem in books.conclude(self._transfers):
            history.failed(f"bank: {problem}")
        for gone in sorted(self._auditor.ledger.seen - books.seen):
            history.failed(f"bank: the auditor read {gone}, and it is not there in the end")
        stats.transfers = books.transfers
        stats.bank_sums = {books.sum, self._auditor.ledger.sum}
        if not stats.copied or not stats.transfers:
            history.failed(f"hardly a round: {stats.line()}")
        return stats


def _open_accounts(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "opening", "log_level": QUIET})
    producer.init_transactions(READ_SECONDS)
    producer.begin_transaction()
    for account in range(ACCOUNTS):
        entry = Entry(f"opening-{account}", account, NO_ACCOUNT, OPENING, meant=True)
        producer.produce(BANK, entry.encode(), entry.encode(), account % BANK_PARTITIONS)
    producer.commit_transaction(READ_SECONDS)


async def _transactions_underway(bootstrap: str) -> list[str]:
    async with Admin(bootstrap) as admin:
        return [f"{each.transactional_id}: {each.state}" for each in await admin.list_transactions(UNDERWAY)]


def _values(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """Everything that is committed, by partition."""
    consumer = reader_of_committed(bootstrap)
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    open_ = set(range(partitions))
    deadline = time.monotonic() + READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
        while open_:
            assert time.monotonic() < deadline, f"partitions {open_} of {topic} are not read in time"
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    values[message.partition()].append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_.discard(message.partition())
                else:
                    raise KafkaException(error)
        return values
    finally:
        consumer.close()
