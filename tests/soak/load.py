"""Real clients under load: idempotent confluent-kafka producers with acks=all, and a consumer that reads along."""

from __future__ import annotations

import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ottla.local.history import NO_OFFSET, History, Value

TOPIC = "orders"
VALUE_BYTES = 100
MESSAGE_TIMEOUT_MS = 300_000
READER = "reader"
QUIET = 0
READ_SECONDS = 60.0
RECONNECT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 250,
    # When all brokers are away for a moment, librdkafka 2.16 forgets them and begins with the bootstrap list again; if
    # epochs are being validated then, two of its threads take two locks in different order, and the client stands still
    # for ever (rd_kafka_toppar_forget_leader).
    "metadata.recovery.strategy": "none",
}


class Writer(threading.Thread):
    """Writes numbered records at a steady rate, whatever happens to the brokers."""

    def __init__(self, number: int, bootstrap: str, partitions: int, rate: int, history: History) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.partitions = partitions
        self.rate = rate
        self.history = history
        self.ended = threading.Event()
        self.last_acknowledged = [time.monotonic()] * partitions
        self.silence_s = [0.0] * partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 250,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "queue.buffering.max.messages": 1_000_000,
                "topic.metadata.refresh.interval.ms": 5_000,
                "error_cb": self._error,
                "log_level": QUIET,
                **RECONNECT,
            }
        )

    def run(self) -> None:
        try:
            self._write()
        except KafkaException as error:  # a producer that cannot go on
            self.history.failed(f"{self.name}: {error}")

    def _write(self) -> None:
        sent, started = 0, time.monotonic()
        while not self.ended.is_set():
            due = int((time.monotonic() - started) * self.rate)
            for number in range(sent, due):
                self._send(number)
            sent = max(sent, due)
            self._producer.poll(0.02)
        left = self._producer.flush(READ_SECONDS)
        if left:
            self.history.failed(f"{self.name}: {left} records were not acknowledged at the end")

    def _send(self, number: int) -> None:
        value = Value(self.name, number % self.partitions, number // self.partitions)
        self.history.sent(value)
        while not self.ended.is_set():
            try:
                self._producer.produce(
                    TOPIC, value.encode(VALUE_BYTES), partition=value.partition, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: KafkaError | None, message) -> None:
        if error is not None:
            self.history.failed(f"{self.name}: {error}")
            return
        partition, now = message.partition(), time.monotonic()
        self.silence_s[partition] = max(self.silence_s[partition], now - self.last_acknowledged[partition])
        self.last_acknowledged[partition] = now
        offset = message.offset()  # not known when the broker said that it had the record already
        self.history.acknowledged(Value.decode(message.value()), NO_OFFSET if offset is None else offset)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self.history.failed(f"{self.name}: fatal: {error}")
            self.ended.set()


class Reader(threading.Thread):
    """Reads along from the start, by assignment: what it saw must be what the log has in the end."""

    def __init__(self, bootstrap: str, partitions: int, history: History) -> None:
        super().__init__(name=READER, daemon=True)
        self.ended = threading.Event()
        self._partitions = partitions
        self._servers = bootstrap
        self._history = history

    def run(self) -> None:
        consumer = _consumer(self._servers, "soak-reader")
        try:
            consumer.assign([TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in range(self._partitions)])
            while not self.ended.is_set():
                for message in consumer.consume(1000, 0.1):
                    self._see(message)
        finally:
            consumer.close()

    def _see(self, message) -> None:
        if message.error() is not None:
            report_error(message.error(), self._history, "reader")
            return
        self._history.read(self.name, message.partition(), message.offset(), Value.decode(message.value()))


def report_error(error: KafkaError, history: History, program: str) -> None:
    """Errors that a consumer must not meet; others are retried."""
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) or error.fatal():
        history.failed(f"{program}: {error}")


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 5_000,
            "fetch.wait.max.ms": 100,
            "log_level": QUIET,
            **RECONNECT,
        }
    )


def read_log(bootstrap: str, partitions: int) -> dict[int, list[tuple[int, Value]]]:
    """All records of the topic, by partition, in the order of the log."""
    consumer = _consumer(bootstrap, "soak-check")
    log: dict[int, list[tuple[int, Value]]] = {n: [] for n in range(partitions)}
    try:
        tps = [TopicPartition(TOPIC, n, 0) for n in range(partitions)]
        ends = {tp.partition: consumer.get_watermark_offsets(tp, READ_SECONDS)[1] for tp in tps}
        consumer.assign(tps)
        deadline = time.monotonic() + READ_SECONDS
        while any((log[n][-1][0] + 1 if log[n] else 0) < end for n, end in ends.items()):
            if time.monotonic() > deadline:
                raise AssertionError(f"read { ({n: len(each) for n, each in log.items()}) } of {ends} in time")
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                log[message.partition()].append((message.offset(), Value.decode(message.value())))
        return log
    finally:
        consumer.close()
