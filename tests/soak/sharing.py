"""Consumer group of a soak round: its members share the topic and commit, while coordinators fail over.

An acknowledged commit must not be read again, and nothing may be skipped: the first record that a member gets of a
partition is at or behind the last committed offset, and not beyond what the group has read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ottla.local.history import History, Kind, Value
from tests.soak.load import QUIET, RECONNECT, TOPIC

GROUP = "soak-group"
COMMIT_SECONDS = 0.3
SESSION_MS = 6_000


class Member(threading.Thread):
    def __init__(self, number: int, bootstrap: str, history: History) -> None:
        super().__init__(name=f"member-{number}", daemon=True)
        self.ended = threading.Event()
        self._history = history
        self._due: dict[int, int] = {}
        """Partitions just assigned, and how far the group had committed them: nothing before that may come."""
        self._positions: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "client.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 1_000,
                "topic.metadata.refresh.interval.ms": 5_000,
                "fetch.wait.max.ms": 100,
                "log_level": QUIET,
                **RECONNECT,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        commit_at = time.monotonic() + COMMIT_SECONDS
        while not self.ended.is_set():
            for message in self._consumer.consume(500, 0.1):
                self._see(message)
            if time.monotonic() > commit_at:
                self._commit()
                commit_at = time.monotonic() + COMMIT_SECONDS
        self._consumer.close()

    def _see(self, message) -> None:
        error = message.error()
        if error is not None:
            if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._history.failed(f"{self.name}: {error}")
            return
        partition, offset = message.partition(), message.offset()
        known = self._due.pop(partition, None)
        if known is not None:
            self._history.member_begins(GROUP, self.name, partition, offset, known)
        elif offset != (expected := self._positions.get(partition, offset)):
            self._history.violated(Kind.SKIPPED, f"{self.name}: partition {partition} went to {offset}, not {expected}")
        self._positions[partition] = offset + 1
        self._history.group_read(GROUP, self.name, partition, offset, Value.decode(message.value()))

    def _commit(self) -> None:
        offsets = dict(self._positions)
        if not offsets:
            return
        try:
            committed = self._consumer.commit(
                offsets=[TopicPartition(TOPIC, *tp) for tp in offsets.items()], asynchronous=False
            )
        except KafkaException:
            return  # a coordinator that moves, or a generation that has ended: the next one will do
        for each in committed or ():
            if each.error is None:
                self._history.commit_acknowledged(GROUP, each.partition, each.offset)

    def _assigned(self, _: Consumer, tps: Sequence[TopicPartition]) -> None:
        self._due = {tp.partition: self._history.commit_known(GROUP, tp.partition) for tp in tps}
        self._positions = {}

    def _revoked(self, _: Consumer, __: Sequence[TopicPartition]) -> None:
        self._commit()
        self._positions = {}

    def _lost(self, _: Consumer, __: Sequence[TopicPartition]) -> None:
        self._positions = {}
