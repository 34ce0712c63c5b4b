"""Load with four Python clients: send records one by one, read them one by one.

All producers are idempotent, with linger.ms=5 and batches of 64 kB, uncompressed; sending ends when everything is
acknowledged. All consumers read four assigned partitions, without a group. Other settings are each client's defaults.
None is imported before its process is forked: some of them start threads.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.connection import Broken
from bench.workers import Start, Tally, Worker

PARTITIONS = 4
LINGER_MS = 5
BATCH_BYTES = 64_000
LOOK_EVERY = 256
"""So many records between two looks at the clock."""
SILENCE_S = 10.0


class Job(NamedTuple):
    bootstrap_servers: str
    topic: str
    value: bytes
    """Of every record sent."""
    records: int
    """To be taken at most."""


Load = Callable[[Job, Start], Tally]


def worker(load: Load, job: Job) -> Worker:
    def work(start: Start) -> Tally:
        gc.enable()  # a client is measured here, not what is served to it
        return load(job, start)

    return work


def _tally(begin: float, records: int) -> Tally:
    return Tally(begin=begin, end=time.monotonic(), requests=records, records=records)


# Ottla's own client and aiokafka: the same words, but for a name.


async def _sent(producer: Any, job: Job, start: Start) -> Tally:
    send = producer.send
    await (await send(job.topic, job.value))
    stop = start()
    begin = time.monotonic()
    count = 0
    last: Any = None
    while time.monotonic() < stop:
        for _ in range(LOOK_EVERY):
            last = await send(job.topic, job.value)
        count += LOOK_EVERY
    await producer.flush()
    await last
    return _tally(begin, count)


async def _taken(consumer: Any, job: Job, start: Start) -> Tally:
    stop = start()
    begin = time.monotonic()
    count = 0
    async for record in consumer:
        assert len(record.value) == len(job.value)
        count += 1
        if count == job.records or (not count % LOOK_EVERY and time.monotonic() > stop):
            break
    return _tally(begin, count)


def ottla_produce(job: Job, start: Start) -> Tally:
    from ottla import Producer

    async def main() -> Tally:
        async with Producer(job.bootstrap_servers, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
            return await _sent(producer, job, start)

    return _on_loop(main)


def ottla_consume(job: Job, start: Start) -> Tally:
    from ottla import Consumer, TopicPartition

    async def main() -> Tally:
        async with Consumer(bootstrap_servers=job.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(job.topic, number) for number in range(PARTITIONS)])
            return await _taken(consumer, job, start)

    return _on_loop(main)


def aiokafka_produce(job: Job, start: Start) -> Tally:
    from aiokafka import AIOKafkaProducer

    async def main() -> Tally:
        producer = AIOKafkaProducer(
            bootstrap_servers=job.bootstrap_servers,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            return await _sent(producer, job, start)
        finally:
            await producer.stop()

    return _on_loop(main)


def aiokafka_consume(job: Job, start: Start) -> Tally:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> Tally:
        consumer = AIOKafkaConsumer(bootstrap_servers=job.bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([TopicPartition(job.topic, number) for number in range(PARTITIONS)])
            return await _taken(consumer, job, start)
        finally:
            await consumer.stop()

    return _on_loop(main)


def _on_loop(main: Callable[[], Any]) -> Tally:
    """On uvloop, for both asyncio clients."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tally = runner.run(main())
    assert isinstance(tally, Tally)
    return tally


# kafka-python and confluent-kafka.


def kafka_python_produce(job: Job, start: Start) -> Tally:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap_servers, linger_ms=LINGER_MS, batch_size=BATCH_BYTES, enable_idempotence=True
    )
    producer.send(job.topic, job.value).get(SILENCE_S)
    stop = start()
    begin = time.monotonic()
    count = 0
    while time.monotonic() < stop:
        for _ in range(LOOK_EVERY):
            last = producer.send(job.topic, job.value)
        count += LOOK_EVERY
    producer.flush()
    last.get(SILENCE_S)
    tally = _tally(begin, count)
    producer.close()
    return tally


def kafka_python_consume(job: Job, start: Start) -> Tally:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=job.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(SILENCE_S * 1000),
    )
    consumer.assign([TopicPartition(job.topic, number) for number in range(PARTITIONS)])
    stop = start()
    begin = time.monotonic()
    count = 0
    for record in consumer:
        assert len(record.value) == len(job.value)
        count += 1
        if count == job.records or (not count % LOOK_EVERY and time.monotonic() > stop):
            break
    tally = _tally(begin, count)
    consumer.close()
    return tally


def confluent_produce(job: Job, start: Start) -> Tally:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap_servers,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "enable.idempotence": True,
        }
    )
    producer.produce(job.topic, job.value)
    producer.flush(SILENCE_S)
    stop = start()
    begin = time.monotonic()
    count = 0
    while time.monotonic() < stop:
        for _ in range(LOOK_EVERY):
            try:
                producer.produce(job.topic, job.value)
                count += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(SILENCE_S):
        raise Broken("confluent-kafka has not delivered all it was given")
    return _tally(begin, count)


def confluent_consume(job: Job, start: Start) -> Tally:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": job.bootstrap_servers, "group.id": job.topic, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(job.topic, number, 0) for number in range(PARTITIONS)])
    stop = start()
    begin = time.monotonic()
    count = 0
    while count < job.records:
        message = consumer.poll(SILENCE_S)
        if message is None or message.error():
            raise Broken(f"confluent-kafka has no more records after {count}")
        assert len(message.value() or b"") == len(job.value)
        count += 1
        if not count % LOOK_EVERY and time.monotonic() > stop:
            break
    tally = _tally(begin, count)
    consumer.close()
    return tally


CLIENTS: dict[str, tuple[Load, Load]] = {
    "ottla": (ottla_produce, ottla_consume),
    "confluent": (confluent_produce, confluent_consume),
    "aiokafka": (aiokafka_produce, aiokafka_consume),
    "kafka_python": (kafka_python_produce, kafka_python_consume),
}
