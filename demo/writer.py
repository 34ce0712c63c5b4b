"""Producer of the demo: unmodified confluent-kafka at a steady rate.

Each record has the next number of its partition, so that lost, duplicated and reordered records can be counted.
"""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPIC = "orders"
PARTITIONS = 6
RECORDS_PER_SECOND = 10_000
TIMEOUT_S = 60.0


class Writer(threading.Thread):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="writer", daemon=True)
        self.acknowledged: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.acknowledged_count = 0
        self.last_acknowledged = [0.0] * PARTITIONS
        self.failures: list[Any] = []
        self.rate = RECORDS_PER_SECOND
        self._ended = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
                "log_level": 0,
            }
        )

    def run(self) -> None:
        sent, due, last = 0, 0.0, time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            due, last = due + (now - last) * self.rate, now
            for number in range(sent, int(due)):
                partition = number % PARTITIONS
                value = str(number // PARTITIONS)
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            sent = int(due)
            self._producer.poll(0.01)
        if self._producer.flush(TIMEOUT_S):
            self.failures.append("records were still waiting at the end")

    def stop(self) -> None:
        """Stop writing, and wait for the records in flight."""
        self._ended.set()
        if self.is_alive():
            self.join()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)
            return
        partition = message.partition()
        self.acknowledged[partition].add(int(message.value()))
        self.last_acknowledged[partition] = time.monotonic()
        self.acknowledged_count += 1


def read_back(bootstrap: str) -> list[list[int]]:
    """All records of the topic, by partition, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "enable.auto.commit": False})
    stored: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        tps = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(tp, TIMEOUT_S)[1] for tp in tps]
        consumer.assign(tps)
        deadline = time.monotonic() + TIMEOUT_S
        while [len(numbers) for numbers in stored] != ends:
            if time.monotonic() > deadline:
                raise SystemExit("demo: reading back took too long")
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                stored[message.partition()].append(int(message.value()))
        return stored
    finally:
        consumer.close()


def count(acknowledged: list[set[int]], stored: list[list[int]]) -> tuple[int, int, int]:
    """(lost, duplicated, reordered)"""
    lost = sum(len(wanted - set(found)) for wanted, found in zip(acknowledged, stored, strict=True))
    duplicated = sum(len(found) - len(set(found)) for found in stored)
    reordered = sum(later < earlier for found in stored for earlier, later in pairwise(found))
    return lost, duplicated, reordered
