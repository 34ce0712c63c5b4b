"""Three unmodified Kafka clients behind one small interface, so that one test speaks for all of them.

Reading is by assignment: a partition, a start and a count. Nothing here knows which broker answers.
"""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.admin

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 30.0
RECORD_BYTES_MAX = 4 << 20
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int = field(default=-1, compare=False)
    timestamp_type: str = field(default="", compare=False)

    def short(self) -> str:
        return f"{self.offset}: {self.key!r:.40} {self.value!r:.40}"


@contextmanager
def kafka_python_admin(bootstrap: str) -> Iterator[kafka.admin.KafkaAdminClient]:
    """kafka-python's. It leaves the sockets to brokers that died to the collector, which would meet them in the middle
    of another test: so they are collected here, and not called a leak."""
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        yield admin
    finally:
        admin.close()
        del admin
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def untimed(records: Sequence[Record]) -> list[Record]:
    return [replace(record, timestamp_ms=None) for record in records]


class Client(Protocol):
    name: str

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: int | str = "all",
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        """Write the records in order; the offsets they were acknowledged at."""

    def consume(
        self, bootstrap: str, topic: str, count: int, *, start: int = EARLIEST, partition: int = 0
    ) -> list[Record]:
        """Read that many records of one partition, from an offset, EARLIEST or LATEST on."""

    def bounds(self, bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
        """The log start and the high watermark."""

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset at or after a point in time; None when there is none."""


class Confluent:
    """librdkafka, the client under confluent-kafka, kcat and most other languages."""

    name = "confluent-kafka"

    def produce(self, bootstrap, topic, records, *, acks="all", codec="none", idempotent=False):
        offsets: list[int] = []
        errors: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "message.max.bytes": RECORD_BYTES_MAX,
                "linger.ms": 5,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(error)

        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers) or None,
                partition=record.partition,
                timestamp=record.timestamp_ms or 0,
                on_delivery=delivered,
            )
        assert producer.flush(TIMEOUT_S) == 0, "records were left unsent"
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return offsets

    def consumer(self, bootstrap: str, **settings: Any) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"unused-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # whoever reads by assignment says where: nothing is reset in silence
                "fetch.message.max.bytes": RECORD_BYTES_MAX,
                **settings,
            }
        )

    def consume(self, bootstrap, topic, count, *, start=EARLIEST, partition=0):
        consumer = self.consumer(bootstrap)
        try:
            consumer.list_topics(topic, TIMEOUT_S)  # with the leader known at once, the first fetch need not wait
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
            return take(consumer, count)
        finally:
            consumer.close()

    def bounds(self, bootstrap, topic, partition=0):
        consumer = self.consumer(bootstrap)
        try:
            return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=TIMEOUT_S)
        finally:
            consumer.close()

    def offset_at(self, bootstrap, topic, timestamp_ms, partition=0):
        consumer = self.consumer(bootstrap)
        try:
            asked = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
            answer = consumer.offsets_for_times([asked], timeout=TIMEOUT_S)[0]
            assert answer.error is None, answer.error
            return answer.offset if answer.offset >= 0 else None
        finally:
            consumer.close()


def take(consumer: Any, count: int) -> list[Record]:
    """That many records from an assigned confluent-kafka consumer."""
    records: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(records) < count:
        if time.monotonic() > deadline:
            assigned = consumer.position(consumer.assignment())
            bounds = [consumer.get_watermark_offsets(partition, timeout=5) for partition in assigned]
            raise AssertionError(
                f"read {len(records)} of {count} records in {TIMEOUT_S:g} s; the reader is at {assigned}, "
                f"the partition has {bounds}"
            )
        for message in consumer.consume(count - len(records), timeout=0.5):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            kind, timestamp_ms = message.timestamp()
            records.append(
                Record(
                    value=message.value(),
                    key=message.key(),
                    headers=tuple(message.headers() or ()),
                    timestamp_ms=timestamp_ms,
                    partition=message.partition(),
                    offset=message.offset(),
                    timestamp_type={1: "CreateTime", 2: "LogAppendTime"}[kind],
                )
            )
    return records


def from_python_client(message: Any) -> Record:
    """kafka-python and aiokafka hand out records of the same shape."""
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
        timestamp_type={0: "CreateTime", 1: "LogAppendTime"}[message.timestamp_type],
    )


class KafkaPython:
    name = "kafka-python"

    def produce(self, bootstrap, topic, records, *, acks="all", codec="none", idempotent=False):
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=RECORD_BYTES_MAX,
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(TIMEOUT_S)
            return [future.get(TIMEOUT_S).offset for future in futures]
        finally:
            producer.close(timeout=5)

    def consumer(self, bootstrap: str, **settings: Any) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            max_partition_fetch_bytes=RECORD_BYTES_MAX,
            **settings,
        )

    def consume(self, bootstrap, topic, count, *, start=EARLIEST, partition=0):
        consumer = self.consumer(bootstrap)
        topic_partition = kafka.TopicPartition(topic, partition)
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT_S
        try:
            consumer.assign([topic_partition])
            if start == EARLIEST:
                consumer.seek_to_beginning(topic_partition)
            elif start == LATEST:
                consumer.seek_to_end(topic_partition)
            else:
                consumer.seek(topic_partition, start)
            while len(records) < count:
                assert time.monotonic() < deadline, f"read {len(records)} of {count} records"
                for batch in consumer.poll(500, max_records=count - len(records)).values():
                    records += [from_python_client(message) for message in batch]
            return records
        finally:
            consumer.close()

    def bounds(self, bootstrap, topic, partition=0):
        consumer = self.consumer(bootstrap)
        topic_partition = kafka.TopicPartition(topic, partition)
        try:
            return consumer.beginning_offsets([topic_partition])[topic_partition], consumer.end_offsets(
                [topic_partition]
            )[topic_partition]
        finally:
            consumer.close()

    def offset_at(self, bootstrap, topic, timestamp_ms, partition=0):
        consumer = self.consumer(bootstrap)
        topic_partition = kafka.TopicPartition(topic, partition)
        try:
            found = consumer.offsets_for_times({topic_partition: timestamp_ms})[topic_partition]
            return None if found is None else found.offset
        finally:
            consumer.close()


class Aiokafka:
    name = "aiokafka"

    def produce(self, bootstrap, topic, records, *, acks="all", codec="none", idempotent=False):
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=acks,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                max_request_size=RECORD_BYTES_MAX,
                linger_ms=5,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                done = await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)
                return [-1 if metadata is None else metadata.offset for metadata in done]
            finally:
                await producer.stop()

        return asyncio.run(run())

    def consume(self, bootstrap, topic, count, *, start=EARLIEST, partition=0):
        topic_partition = aiokafka.TopicPartition(topic, partition)

        async def run() -> list[Record]:
            consumer = self.consumer(bootstrap)
            await consumer.start()
            records: list[Record] = []
            try:
                consumer.assign([topic_partition])
                if start == EARLIEST:
                    await consumer.seek_to_beginning(topic_partition)
                elif start == LATEST:
                    await consumer.seek_to_end(topic_partition)
                else:
                    consumer.seek(topic_partition, start)
                while len(records) < count:
                    message = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                    records.append(from_python_client(message))
                return records
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def consumer(self, bootstrap: str) -> Any:
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, max_partition_fetch_bytes=RECORD_BYTES_MAX
        )

    def bounds(self, bootstrap, topic, partition=0):
        topic_partition = aiokafka.TopicPartition(topic, partition)

        async def run() -> tuple[int, int]:
            consumer = self.consumer(bootstrap)
            await consumer.start()
            try:
                first = await consumer.beginning_offsets([topic_partition])
                last = await consumer.end_offsets([topic_partition])
                return first[topic_partition], last[topic_partition]
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def offset_at(self, bootstrap, topic, timestamp_ms, partition=0):
        topic_partition = aiokafka.TopicPartition(topic, partition)

        async def run() -> int | None:
            consumer = self.consumer(bootstrap)
            await consumer.start()
            try:
                found = (await consumer.offsets_for_times({topic_partition: timestamp_ms}))[topic_partition]
                return None if found is None else found.offset
            finally:
                await consumer.stop()

        return asyncio.run(run())


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aiokafka())
