"""Transactional producers of three clients in one shape, and readers of committed records."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
from aiokafka.errors import ProducerFenced
from confluent_kafka import TopicPartition

from ottla.local.waiting import wait_for
from tests.interop.clients import Confluent

TIMEOUT_S = 15.0


class Fenced(Exception):
    """Another producer has taken over the transactional id, or the coordinator has given this one up."""


class Transactional(Protocol):
    """One producer with a transactional id, ready to begin."""

    def begin(self) -> None: ...

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Returns when all are acknowledged."""

    def send_offsets(self, consumer: Any, group: str, topic: str, offset: int, partition: int = 0) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class ConfluentTransactional:
    name = "confluent-kafka"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
            }
        )
        self._errors: list[Any] = []
        with self._fencing():
            self._producer.init_transactions(TIMEOUT_S)

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except confluent_kafka.KafkaException as error:
            if error.args[0].fatal():
                raise Fenced(str(error)) from error
            raise

    def begin(self) -> None:
        with self._fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        with self._fencing():
            for value in values:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            assert self._producer.flush(TIMEOUT_S) == 0
        if self._errors:
            raise Fenced(str(self._errors)) if self._is_fatal() else AssertionError(self._errors)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._errors.append(error)

    def _is_fatal(self) -> bool:
        try:
            self._producer.begin_transaction()
        except confluent_kafka.KafkaException as error:
            return bool(error.args[0].fatal())
        return False

    def send_offsets(self, consumer: Any, group: str, topic: str, offset: int, partition: int = 0) -> None:
        with self._fencing():
            self._producer.send_offsets_to_transaction(
                [TopicPartition(topic, partition, offset)], consumer.consumer_group_metadata(), TIMEOUT_S
            )

    def commit(self) -> None:
        with self._fencing():
            self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        with self._fencing():
            self._producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()


class KafkaPythonTransactional:
    name = "kafka-python"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=max(timeout_ms, 10_000),
            request_timeout_ms=5_000,
            acks="all",
            linger_ms=0,
        )
        self._producer.init_transactions()

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError) as error:
            raise Fenced(str(error)) from error

    def begin(self) -> None:
        with self._fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        with self._fencing():
            for sent in [self._producer.send(topic, value, partition=partition) for value in values]:
                sent.get(TIMEOUT_S)

    def send_offsets(self, consumer: Any, group: str, topic: str, offset: int, partition: int = 0) -> None:
        offsets = {kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)}
        with self._fencing():
            self._producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        with self._fencing():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with self._fencing():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class AiokafkaTransactional:
    name = "aiokafka"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer: Any = self._run(self._start(bootstrap, transactional_id, timeout_ms))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    async def _start(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        await producer.start()
        return producer

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except ProducerFenced as error:
            raise Fenced(str(error)) from error

    def begin(self) -> None:
        with self._fencing():
            self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        async def send() -> None:
            for value in values:
                await self._producer.send_and_wait(topic, value, partition=partition)

        with self._fencing():
            self._run(send())

    def send_offsets(self, consumer: Any, group: str, topic: str, offset: int, partition: int = 0) -> None:
        offsets = {aiokafka.TopicPartition(topic, partition): offset}
        with self._fencing():
            self._run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        with self._fencing():
            self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        with self._fencing():
            self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._run(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


TRANSACTIONAL = (ConfluentTransactional, KafkaPythonTransactional, AiokafkaTransactional)


def read(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """All values up to the end of what may be seen."""
    consumer = Confluent().consumer(
        bootstrap,
        **{
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
        },
    )
    values: list[bytes] = []

    def ended() -> bool:
        for message in consumer.consume(100, timeout=0.2):
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                return True
            values.append(message.value())
        return False

    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        wait_for(ended, f"the end of {topic}-{partition}")
        return values
    finally:
        consumer.close()


def read_until(bootstrap: str, topic: str, wanted: list[bytes], *, partition: int = 0) -> None:
    """Committed records become visible soon after their commit is acknowledged."""
    wait_for(lambda: read(bootstrap, topic, partition) == wanted, f"{wanted} in {topic}-{partition}")
