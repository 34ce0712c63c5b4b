"""Programs with transactions, each a process of its own that is killed like any other: copiers and tellers.

    python -m tests.soak.transactional copier confluent 127.0.0.1:9092 copier-3 3
    python -m tests.soak.transactional teller ottla 127.0.0.1:9092 teller-1.7

What they did they say, a line each: `position 17`, `committed 4 21`, `aborted`, `committed teller-1.7.3`. A program
that can do no more (somebody else has its transactional id, a transaction took too long) leaves, and is started again.
One whose input is closed ends after its transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from abc import ABC, abstractmethod
from random import Random
from typing import Protocol

import confluent_kafka
from confluent_kafka import KafkaException

from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.client.values import OffsetAndMetadata, TopicPartition
from ottla.local.exactly_once import ACCOUNTS, Entry, Note
from tests.soak.load import RECONNECT

SOURCE, TARGET, BANK = "source", "target", "bank"
BANK_PARTITIONS = 3
NOTE = b"note"
GROUP = "copy"
TRANSACTION_TIMEOUT_MS = 8_000
PATIENCE_S = 10.0
START_SECONDS = 60.0
RECORDS_MAX = 20
ABORTED_SHARE = 0.15
DEBUG = os.environ.get("ROUNDS_DEBUG", "")
"""What librdkafka is to tell of itself, such as eos,protocol: it stands in the logs of the programs."""
COPIER_PAUSE_S = 0.3
TELLER_PAUSE_S = 0.25
BETWEEN_SIDES_S = 0.2

Records = list[tuple[int, bytes]]
"""Offsets and values."""


class Broken(Exception):
    """Of this transaction nothing more will come: it is to be aborted."""


class Useless(Exception):
    """Of this producer nothing more will come: the program leaves."""


class Client(Protocol):
    """A producer of transactions, and a reader of one partition of the source."""

    async def start(self) -> None: ...

    async def begin(self) -> None: ...

    async def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None: ...

    async def send_offset(self, partition: int, offset: int) -> None: ...

    async def commit(self) -> None: ...

    async def abort(self) -> None: ...

    async def committed(self, partition: int) -> int: ...

    async def seek(self, partition: int, offset: int) -> None: ...

    async def read(self, records_max: int) -> Records: ...


class Confluent:
    """confluent-kafka, which speaks the first version of the protocol. It waits in its own threads."""

    def __init__(self, bootstrap: str, name: str) -> None:
        common = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "log_level": 7 if DEBUG else 0,
            **({"debug": DEBUG} if DEBUG else {}),
            **RECONNECT,
            "topic.metadata.refresh.interval.ms": 5_000,
        }
        self._producer = confluent_kafka.Producer(
            {
                **common,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
                "retry.backoff.ms": 50,
            }
        )
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
            }
        )

    def _insist(self, call, *args) -> None:
        """What can be tried again is, for as long as a transaction may last."""
        for _ in range(3):
            # librdkafka asks for the group's coordinator once; if that broker dies meanwhile, the call never returns.
            hangs = threading.Timer(2 * PATIENCE_S, leave, [f"{call.__name__} hangs"])
            hangs.start()
            try:
                call(*args, PATIENCE_S)
            except KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    raise Broken(str(error)) from failure
                if error.fatal() or not error.retriable():
                    raise Useless(str(error)) from failure
            else:
                return
            finally:
                hangs.cancel()
        raise Useless("the coordinator does not answer")

    async def start(self) -> None:
        self._insist(self._producer.init_transactions)

    async def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            raise Useless(str(failure)) from failure

    async def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        try:
            self._producer.produce(topic, value, key, partition)
        except KafkaException as failure:  # such as a transaction that is to be aborted; begin() knows if it is worse
            raise Broken(str(failure)) from failure
        self._producer.poll(0)

    async def send_offset(self, partition: int, offset: int) -> None:
        tps = [confluent_kafka.TopicPartition(SOURCE, partition, offset)]
        self._insist(self._producer.send_offsets_to_transaction, tps, self._consumer.consumer_group_metadata())

    async def commit(self) -> None:
        self._insist(self._producer.commit_transaction)

    async def abort(self) -> None:
        self._insist(self._producer.abort_transaction)

    async def committed(self, partition: int) -> int:
        for _ in range(int(START_SECONDS / PATIENCE_S)):
            try:
                (tp,) = self._consumer.committed([confluent_kafka.TopicPartition(SOURCE, partition)], PATIENCE_S)
            except KafkaException:
                continue
            if tp.error is None:
                return max(tp.offset, 0)
        raise Useless("the group's coordinator does not answer")

    async def seek(self, partition: int, offset: int) -> None:
        self._consumer.assign([confluent_kafka.TopicPartition(SOURCE, partition, offset)])

    async def read(self, records_max: int) -> Records:
        messages = self._consumer.consume(records_max, 0.2)
        return [(message.offset(), message.value()) for message in messages if message.error() is None]


class Ottla:
    """Our own client, which speaks the second version of the protocol."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = Producer(
            bootstrap,
            client_id=name,
            transactional_id=name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=4_000,
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_block_ms=int(1000 * START_SECONDS),
            linger_ms=0,
        )
        self._consumer = Consumer(
            bootstrap_servers=bootstrap,
            client_id=name,
            group_id=GROUP,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=4_000,
            fetch_max_wait_ms=100,
        )

    async def _insist(self, call) -> None:
        try:
            await call
        except ClientError as error:
            raise (Useless if error.fatal else Broken)(str(error)) from error

    async def start(self) -> None:
        try:
            await self._producer.start()
            await self._consumer.start()
        except ClientError as error:
            raise Useless(str(error)) from error

    async def begin(self) -> None:
        try:
            await self._producer.begin_transaction()
        except ClientError as error:
            raise Useless(str(error)) from error

    async def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        try:
            sent = await self._producer.send(topic, value, key=key, partition=partition)
        except ClientError as error:
            raise (Useless if error.fatal else Broken)(str(error)) from error
        sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())  # the commit tells it again

    async def send_offset(self, partition: int, offset: int) -> None:
        offsets = {TopicPartition(SOURCE, partition): OffsetAndMetadata(offset)}
        await self._insist(self._producer.send_offsets_to_transaction(offsets, GROUP))

    async def commit(self) -> None:
        await self._insist(self._producer.commit_transaction())

    async def abort(self) -> None:
        try:
            await self._producer.abort_transaction()
        except ClientError as error:
            raise Useless(str(error)) from error

    async def committed(self, partition: int) -> int:
        try:
            return await self._consumer.committed(TopicPartition(SOURCE, partition)) or 0
        except ClientError as error:
            raise Useless(str(error)) from error

    async def seek(self, partition: int, offset: int) -> None:
        tp = TopicPartition(SOURCE, partition)
        if tp not in self._consumer.assignment():
            self._consumer.assign([tp])
        self._consumer.seek(tp, offset)

    async def read(self, records_max: int) -> Records:
        try:
            taken = await self._consumer.getmany(timeout_ms=200, max_records=records_max)
        except ClientError:
            return []
        return [(record.offset, record.value) for records in taken.values() for record in records]


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())  # whole, or not at all


def leave(why: str) -> None:
    """At once, whatever else the client would like to wait for."""
    with contextlib.suppress(OSError):
        say(f"leaves {why}")
    os._exit(0)


class Program(ABC):
    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.random = Random()
        self.ended = threading.Event()

    async def run(self) -> None:
        threading.Thread(target=self._wait_for_stop, daemon=True).start()
        try:
            await self.client.start()
            await self.work()
        except Useless as why:
            leave(str(why))
        leave("as told")

    def _wait_for_stop(self) -> None:
        sys.stdin.buffer.read()
        self.ended.set()

    @abstractmethod
    async def work(self) -> None: ...


class Copier(Program):
    """From one partition of the source to that of the target, with how far it has come."""

    def __init__(self, client: Client, name: str, partition: int) -> None:
        super().__init__(client, name)
        self.partition = partition

    async def work(self) -> None:
        client = self.client
        position = await client.committed(self.partition)
        say(f"position {position}")
        await client.seek(self.partition, position)
        while not self.ended.is_set():
            records = await client.read(self.random.randint(1, RECORDS_MAX))
            if not records:
                continue
            if records[0][0] != position:
                say(f"failed: {self.name} is given {records[0][0]} of the source at {position}")
                raise Useless("the source has a gap")
            if await self._copy(records):
                position = records[-1][0] + 1
                say(f"committed {len(records)} {position}")
            else:
                say("aborted")
                committed = await client.committed(self.partition)
                if committed > position:
                    raise Useless("somebody else copies")  # while it hung, with the answer to its abort on the way
                if committed < position:
                    say(f"failed: {self.name} had committed {position}, and {committed} is committed")
                await client.seek(self.partition, position)
            if len(records) < RECORDS_MAX // 2:
                await asyncio.sleep(self.random.uniform(0, COPIER_PAUSE_S))

    async def _copy(self, records: Records) -> bool:
        """Whether it is committed; otherwise it is aborted."""
        client = self.client
        await client.begin()
        try:
            for _, value in records:
                await client.send(TARGET, self.partition, value)
            await client.send_offset(self.partition, records[-1][0] + 1)
            if self.random.random() >= ABORTED_SHARE:
                await client.commit()
                return True
        except Broken:
            pass
        await client.abort()
        return False


class Teller(Program):
    """Moves money between accounts. It never comes back under its name: what it leaves open, time has to end."""

    async def work(self) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            transfer = f"{self.name}.{number}"
            committed = await self._move(transfer)
            say(f"committed {transfer}" if committed else "aborted")
            await asyncio.sleep(self.random.uniform(0, TELLER_PAUSE_S))

    async def _move(self, transfer: str) -> bool:
        client, amount = self.client, self.random.randint(1, 50)
        giver, taker = self.random.sample(range(ACCOUNTS), 2)
        meant = self.random.random() >= ABORTED_SHARE
        await client.begin()
        try:
            await self._enter(Entry(transfer, giver, taker, -amount, meant))
            await client.send(BANK, giver % BANK_PARTITIONS, Note(transfer, meant).encode(), NOTE)
            await asyncio.sleep(self.random.uniform(0, BETWEEN_SIDES_S))
            await self._enter(Entry(transfer, taker, giver, amount, meant))
            if meant:
                await client.commit()
                return True
        except Broken:
            pass
        await client.abort()
        return False

    async def _enter(self, entry: Entry) -> None:
        """Under a key of its own: of entries the bank's compaction may take away only what was aborted."""
        await self.client.send(BANK, entry.account % BANK_PARTITIONS, entry.encode(), entry.encode())


def main() -> None:
    role, kind, bootstrap, name, *partition = sys.argv[1:]
    client: Client = Ottla(bootstrap, name) if kind == "ottla" else Confluent(bootstrap, name)
    program = Copier(client, name, int(partition[0])) if role == "copier" else Teller(client, name)
    asyncio.run(program.run())


if __name__ == "__main__":
    main()
