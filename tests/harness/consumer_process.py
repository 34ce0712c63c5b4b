"""Group consumers in a process of their own, which a test can kill: `python -m tests.harness.consumer_process SPECS`.

SPECS is a JSON list, one object for each consumer the process hosts (see `Spec`). What happens to them is printed
as JSON lines; commands come as JSON lines: {"name": …, "do": "stop"} or "commit". All three clients do the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

POLL_S = 0.05


@dataclass
class Spec:
    name: str
    client: str
    bootstrap: str
    group: str
    topics: list[str]
    assignor: str = "range"
    reset: str = "earliest"
    commit: str = "never"
    """When a record is committed: `before` or `after` it is processed, one by one; or `never`."""
    crash_at: int = 0
    """Between the two, at the n-th record, the process kills itself."""
    instance: str | None = None
    protocol: str = "classic"
    session_ms: int = 1_500
    heartbeat_ms: int = 200
    metadata_ms: int = 500
    commands: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, repr=False)
    processed: int = 0

    def tell(self, event: str, value: Any = None) -> None:
        line = json.dumps({"name": self.name, "event": event, "value": value})
        os.write(1, line.encode() + b"\n")

    def tell_partitions(self, event: str, tps: Iterable[Any]) -> None:
        self.tell(event, sorted([tp.topic, tp.partition] for tp in tps))

    def process(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.tell("record", [topic, partition, offset, value.decode()])

    def crash_if_asked(self) -> None:
        """Called between processing and committing, whichever comes first."""
        self.processed += 1
        if self.processed == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def command(self) -> str:
        try:
            return self.commands.get_nowait()
        except queue.Empty:
            return ""


def run_confluent(spec: Spec) -> None:
    import confluent_kafka as ck

    settings = {
        "bootstrap.servers": spec.bootstrap,
        "group.id": spec.group,
        "auto.offset.reset": spec.reset,
        "enable.auto.commit": False,
        "group.protocol": spec.protocol,
        "topic.metadata.refresh.interval.ms": spec.metadata_ms,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 200,
        "fetch.wait.max.ms": 100,
    }
    if spec.protocol == "classic":
        settings |= {
            "session.timeout.ms": spec.session_ms,
            "heartbeat.interval.ms": spec.heartbeat_ms,
            "partition.assignment.strategy": spec.assignor,
        }
    if spec.instance:
        settings["group.instance.id"] = spec.instance
    consumer = ck.Consumer(settings)
    consumer.subscribe(
        spec.topics,
        on_assign=lambda _, tps: spec.tell_partitions("assigned", tps),
        on_revoke=lambda _, tps: spec.tell_partitions("revoked", tps),
        on_lost=lambda _, tps: spec.tell_partitions("lost", tps),
    )
    spec.tell("started")
    while (command := spec.command()) != "stop":
        if command == "commit":
            consumer.commit(asynchronous=False)
            spec.tell("committed")
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        if message.error():
            spec.tell("error", str(message.error()))
            continue
        tp = message.topic(), message.partition(), message.offset()
        if spec.commit == "before":
            consumer.commit(message=message, asynchronous=False)
            spec.crash_if_asked()
        spec.process(*tp, message.value())
        if spec.commit == "after":
            spec.crash_if_asked()
            consumer.commit(message=message, asynchronous=False)
    consumer.close()


def run_kafka_python(spec: Spec) -> None:
    import kafka
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        assignor.name: assignor
        for assignor in (
            RangePartitionAssignor,
            RoundRobinPartitionAssignor,
            StickyPartitionAssignor,
            CooperativeStickyAssignor,
        )
    }

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned):
            spec.tell_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked):
            spec.tell_partitions("revoked", revoked)

        def on_partitions_lost(self, lost):
            spec.tell_partitions("lost", lost)

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=spec.bootstrap,
        group_id=spec.group,
        group_instance_id=spec.instance,
        auto_offset_reset=spec.reset,
        enable_auto_commit=False,
        session_timeout_ms=spec.session_ms,
        heartbeat_interval_ms=spec.heartbeat_ms,
        partition_assignment_strategy=[assignors[spec.assignor]],
        metadata_max_age_ms=spec.metadata_ms,
        fetch_max_wait_ms=100,
        retry_backoff_ms=50,
    )
    consumer.subscribe(spec.topics, listener=Listener())
    spec.tell("started")
    while (command := spec.command()) != "stop":
        if command == "commit":
            consumer.commit()
            spec.tell("committed")
        # A shorter poll that ends in the middle of a rebalance can leave this client stuck in it, on any broker.
        for messages in consumer.poll(500, max_records=1).values():
            for message in messages:
                tp = kafka.TopicPartition(message.topic, message.partition)
                upto = {tp: kafka.OffsetAndMetadata(message.offset + 1, "", -1)}
                if spec.commit == "before":
                    consumer.commit(upto)
                    spec.crash_if_asked()
                spec.process(message.topic, message.partition, message.offset, message.value)
                if spec.commit == "after":
                    spec.crash_if_asked()
                    consumer.commit(upto)
    consumer.close()


async def run_aiokafka(spec: Spec) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    known = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
    assignors = {assignor.name: assignor for assignor in known}

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned):
            spec.tell_partitions("assigned", assigned)

        async def on_partitions_revoked(self, revoked):
            spec.tell_partitions("revoked", revoked)

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=spec.bootstrap,
        group_id=spec.group,
        group_instance_id=spec.instance,
        auto_offset_reset=spec.reset,
        enable_auto_commit=False,
        session_timeout_ms=spec.session_ms,
        heartbeat_interval_ms=spec.heartbeat_ms,
        partition_assignment_strategy=[assignors[spec.assignor]],
        metadata_max_age_ms=spec.metadata_ms,
        fetch_max_wait_ms=100,
        retry_backoff_ms=50,
    )
    consumer.subscribe(spec.topics, listener=Listener())
    await consumer.start()
    spec.tell("started")
    while (command := spec.command()) != "stop":
        if command == "commit":
            await consumer.commit()
            spec.tell("committed")
        for tp, messages in (await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=1)).items():
            for message in messages:
                upto = {tp: message.offset + 1}
                if spec.commit == "before":
                    await consumer.commit(upto)
                    spec.crash_if_asked()
                spec.process(message.topic, message.partition, message.offset, message.value)
                if spec.commit == "after":
                    spec.crash_if_asked()
                    await consumer.commit(upto)
    await consumer.stop()


RUN = {"confluent-kafka": run_confluent, "kafka-python": run_kafka_python}


def serve(spec: Spec) -> None:
    try:
        if spec.client == "aiokafka":
            asyncio.run(run_aiokafka(spec))
        else:
            RUN[spec.client](spec)
    except BaseException as error:
        spec.tell("died", repr(error))
        raise
    spec.tell("stopped")


def main() -> None:
    specs = {fields["name"]: Spec(**fields) for fields in json.loads(sys.argv[1])}
    threads = [threading.Thread(target=serve, args=(spec,), daemon=True) for spec in specs.values()]
    for thread in threads:
        thread.start()
    threading.Thread(target=listen, args=(specs,), daemon=True).start()
    for thread in threads:
        thread.join()


def listen(specs: dict[str, Spec]) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        specs[command["name"]].commands.put(command["do"])
    os._exit(1)  # the test is gone


if __name__ == "__main__":
    main()
