"""Transactions in a simulated cluster: copiers, tellers of a bank, and an auditor that reads committed records.

A copier copies one partition of the log, and commits its offset in the same transaction. It keeps its transactional id
over restarts, and so ends its open transaction; a teller takes a new id every time, and the coordinator has to end its
open transaction by timeout. In the end the copy equals its original, and the sum of the bank is unchanged.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.client.values import OffsetAndMetadata, TopicPartition
from ottla.local.exactly_once import ACCOUNTS, NO_ACCOUNT, OPENING, Entry, Ledger, Note, compare_copy
from ottla.local.history import History, Kind
from ottla.sim.cluster import SimCluster
from ottla.sim.runtime import SimRuntime
from ottla.sim.workload import TOPIC, Client, create_topic

COPY: Final = "copy"
BANK: Final = "bank"
GROUP: Final = "copiers"
COPIERS: Final = 5
TELLERS: Final = 3
BANK_PARTITIONS: Final = 2
TRANSACTION_TIMEOUT_MS: Final = 8_000
REQUEST_TIMEOUT_MS: Final = 5_000
RECORDS_MAX: Final = 40
ABORTED_SHARE: Final = 0.15
SETTINGS: Final = {
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
"""Entries have all different keys, so of them compaction may take away only what was aborted. Markers stay for longer
than any replica is away, and than any clock jumps: a replica that comes back later has missed the end of what it holds
open (as with Kafka)."""
NOTE: Final = b"note"


def _producer(runtime: SimRuntime, cluster: SimCluster, transactional_id: str) -> Producer:
    return Producer(
        cluster.bootstrap,
        runtime=runtime,
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        delivery_timeout_ms=2 * TRANSACTION_TIMEOUT_MS,
        linger_ms=0,
    )


def _consumer(runtime: SimRuntime, cluster: SimCluster) -> Consumer:
    return Consumer(
        bootstrap_servers=cluster.bootstrap,
        runtime=runtime,
        group_id=GROUP,
        isolation_level="read_committed",
        enable_auto_commit=False,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        fetch_max_wait_ms=3_000,
    )


async def _send(producer: Producer, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
    sent = await producer.send(topic, value, key=value if key is None else key, partition=partition)
    sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())  # the commit returns it again


class Transactor(Client):
    """Makes transactions, with one producer after the other: one that can do no more is left for the next."""

    def __init__(self, cluster: SimCluster, history: History, name: str, partitions: int, random: Random) -> None:
        super().__init__(cluster, history, name, partitions)
        self._random = random
        self._pause_s = random.choice([1.0, 3.0])
        self._underway = False

    @property
    def settled(self) -> bool:
        return not self._underway

    @property
    def state(self) -> str:
        return "is in a transaction"

    async def live(self, runtime: SimRuntime) -> None:
        while True:
            try:
                await self._work(runtime)
            except ClientError as error:
                self.cluster.world.trace.line(self.name, f"begins again: {error}", minor=True)
            await asyncio.sleep(0.5)

    @abstractmethod
    async def _work(self, runtime: SimRuntime) -> None: ...

    async def _end(self, producer: Producer, *, committed: bool) -> bool:
        if committed:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        self.history.counts["transactions committed" if committed else "transactions aborted"] += 1
        return committed


class Copier(Transactor):
    def __init__(self, cluster: SimCluster, history: History, index: int, random: Random) -> None:
        super().__init__(cluster, history, f"copier-{index}", index + 1, random)
        self._tp = TopicPartition(TOPIC, index)
        self._position = 0

    @property
    def settled(self) -> bool:
        return self._position >= self.history.end_known(self._tp.partition).offset

    @property
    def state(self) -> str:
        return f"has copied {self._position} of {self.history.end_known(self._tp.partition).offset}"

    async def _work(self, runtime: SimRuntime) -> None:
        producer = _producer(runtime, self.cluster, self.name)
        consumer = _consumer(runtime, self.cluster)
        try:
            await producer.start()
            await consumer.start()
            consumer.assign([self._tp])
            await self._go_to_committed(consumer)
            while True:
                taken = await consumer.getmany(timeout_ms=5_000, max_records=self._random.randint(1, RECORDS_MAX))
                if records := taken.get(self._tp):
                    if not await self._copy(producer, records):
                        await self._go_to_committed(consumer)
                    if not self.quiet:
                        await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
        finally:
            await consumer.stop()
            await producer.stop()

    async def _go_to_committed(self, consumer: Consumer) -> None:
        known = self._position
        committed = await consumer.committed(self._tp) or 0
        if committed < known:
            self.history.violated(Kind.FORGOTTEN, f"{self.name} is at {committed}, and had committed {known}")
        self._position = committed
        consumer.seek(self._tp, committed)

    async def _copy(self, producer: Producer, records: Sequence[ConsumerRecord[Any, Any]]) -> bool:
        """Whether it is committed; otherwise it is aborted."""
        if records[0].offset != self._position:
            self.history.violated(Kind.SKIPPED, f"{self.name} at {self._position} is given {records[0].offset}")
        end = records[-1].offset + 1
        await producer.begin_transaction()
        try:
            for record in records:
                await _send(producer, COPY, self._tp.partition, record.value)
            await producer.send_offsets_to_transaction({self._tp: OffsetAndMetadata(end)}, GROUP)
            if self._random.random() >= ABORTED_SHARE:
                await self._end(producer, committed=True)
                self._position = end
                self.history.counts["copied"] += len(records)
                return True
        except ClientError as error:
            if error.fatal:
                raise
        return await self._end(producer, committed=False)


class Bank:
    """Answers that tellers got for their transfers."""

    def __init__(self) -> None:
        self.committed: dict[str, None] = {}

    async def open(self, runtime: SimRuntime, cluster: SimCluster) -> None:
        async with _producer(runtime, cluster, "opening") as producer, producer.transaction():
            for account in range(ACCOUNTS):
                entry = Entry(f"opening-{account}", account, NO_ACCOUNT, OPENING, meant=True)
                await _send(producer, BANK, account % BANK_PARTITIONS, entry.encode())


class Teller(Transactor):
    def __init__(self, cluster: SimCluster, history: History, name: str, bank: Bank, random: Random) -> None:
        super().__init__(cluster, history, name, BANK_PARTITIONS, random)
        self._bank = bank
        self._number = 0

    def kill(self) -> None:
        super().kill()
        self._underway = False  # of its own; the coordinator's end is waited for elsewhere

    async def _work(self, runtime: SimRuntime) -> None:
        producer = _producer(runtime, self.cluster, f"{self.name}.{self.lives}")
        try:
            await producer.start()
            while not self.quiet:
                self._underway = True
                await self._move(producer)
                self._underway = False
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
            await self._forget(producer)
        finally:
            self._underway = False
            await producer.stop()

    async def _forget(self, producer: Producer) -> None:
        """Leave with half a transfer: its time will be over."""
        await producer.begin_transaction()
        await _send(producer, BANK, 0, Entry(f"{self.name}.forgotten", 0, 1, -1, meant=False).encode())
        await asyncio.Event().wait()

    async def _move(self, producer: Producer) -> None:
        self._number += 1
        transfer, amount = f"{self.name}.{self._number}", self._random.randint(1, 50)
        giver, taker = self._random.sample(range(ACCOUNTS), 2)
        meant = self._random.random() >= ABORTED_SHARE
        await producer.begin_transaction()
        try:
            entry = Entry(transfer, giver, taker, -amount, meant)
            await _send(producer, BANK, giver % BANK_PARTITIONS, entry.encode())
            await _send(producer, BANK, giver % BANK_PARTITIONS, Note(transfer, meant).encode(), NOTE)
            await asyncio.sleep(self._random.choice([0.0, 0.1, 1.0, 5.0]))  # others begin and end in between
            entry = Entry(transfer, taker, giver, amount, meant)
            await _send(producer, BANK, taker % BANK_PARTITIONS, entry.encode())
            if meant:
                await self._end(producer, committed=True)
                self._bank.committed[transfer] = None
                return
        except ClientError as error:
            if error.fatal:
                raise
        await self._end(producer, committed=False)


class Auditor(Client):
    """Reads committed records of the bank, from the beginning after every restart."""

    def __init__(self, cluster: SimCluster, history: History, bank: Bank) -> None:
        super().__init__(cluster, history, "auditor", BANK_PARTITIONS)
        self._bank = bank
        self._ledger = Ledger()

    @property
    def settled(self) -> bool:
        return not self._ledger.lacks(self._bank.committed)

    @property
    def state(self) -> str:
        return f"has not seen {', '.join(self._ledger.lacks(self._bank.committed)[:3])} of the bank"

    async def live(self, runtime: SimRuntime) -> None:
        consumer = _consumer(runtime, self.cluster)
        while True:
            try:
                await consumer.start()
                break
            except ClientError:
                await asyncio.sleep(0.5)
        self._ledger = ledger = Ledger()
        tps = [TopicPartition(BANK, index) for index in range(BANK_PARTITIONS)]
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        while True:
            try:
                taken = await consumer.getmany(timeout_ms=5_000)
            except ClientError as error:
                self.cluster.world.trace.line(self.name, f"complains: {error}", minor=True)
                continue
            for record in (record for records in taken.values() for record in records):
                ledger.read(record.value)
            if ledger.problems:
                self.history.violated(Kind.WRONG_SUM, ledger.problems[0])
                return


class Exactness:
    """All parts of a simulation that are for transactions."""

    def __init__(self, cluster: SimCluster, history: History, random: Random) -> None:
        self._cluster = cluster
        self._history = history
        self.bank = Bank()
        self.compacted = random.random() < 0.5
        self.clients: list[Client] = [Copier(cluster, history, index, random) for index in range(COPIERS)]
        self.clients += [Teller(cluster, history, f"teller-{number}", self.bank, random) for number in range(TELLERS)]
        self.clients.append(Auditor(cluster, history, self.bank))

    async def begin(self, runtime: SimRuntime, replicas: int) -> None:
        await create_topic(runtime, self._cluster, COPIERS, replicas, {}, COPY)
        configs = COMPACTED if self.compacted else {}
        await create_topic(runtime, self._cluster, BANK_PARTITIONS, replicas, configs, BANK)
        await self.bank.open(runtime, self._cluster)

    def open_transactions(self) -> list[str]:
        """Partitions where one has not ended, as their leaders see it."""
        return [
            f"{partition} has an open transaction at {partition.last_stable}"
            for node in self._cluster.nodes
            if node.broker is not None
            for partition in node.broker.replicas
            if partition.leads and partition.last_stable < partition.high_watermark
        ]

    async def conclude(self, runtime: SimRuntime, originals: Mapping[int, Iterable[bytes]]) -> None:
        """Nothing changes any more: check the final state as a `read_committed` consumer sees it."""
        history = self._history
        copies = [await committed_values(runtime, self._cluster, COPY, index) for index in range(COPIERS)]
        found = compare_copy([list(originals[index]) for index in range(COPIERS)], copies)
        examples = "; ".join(found.examples)
        for kind, count in zip((Kind.LOST, Kind.DUPLICATED, Kind.REORDERED, Kind.INVENTED), found[:4], strict=True):
            if count:
                history.violated(kind, f"{count} times, {examples}")
        ledger = Ledger()
        for index in range(BANK_PARTITIONS):
            for value in await committed_values(runtime, self._cluster, BANK, index):
                ledger.read(value)
        for problem in ledger.conclude(self.bank.committed):
            history.violated(Kind.WRONG_SUM, problem)
        history.counts["transfers"] = ledger.transfers


async def committed_values(runtime: SimRuntime, cluster: SimCluster, topic: str, index: int) -> list[bytes]:
    tp = TopicPartition(topic, index)
    async with _consumer(runtime, cluster) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        end = (await consumer.end_offsets([tp]))[tp]
        values: list[bytes] = []
        while await consumer.position(tp) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                values += [record.value for record in records]
        return values
