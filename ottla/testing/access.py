"""Cluster access of a test: create topics, produce, consume, read the lag.

Every call opens a client and closes it: nothing keeps running between two lines of a test.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.blocking import Admin, Consumer, Producer
from ottla.client.admin import NewTopic, ResourceKind
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.client.values import RecordMetadata, TopicPartition
from ottla.errors import ErrorCode
from ottla.testing.faults import InjectedFault

TIMEOUT_S: Final = 10.0
POLL_MS: Final = 100

Value = bytes | str | None
Written = Value | tuple[Value, Value]
"""A value, or a key and a value."""
Records = list[ConsumerRecord[Any, Any]]


class Topic(str):
    """The name of a topic, with methods to produce and consume."""

    __slots__ = ("_access",)
    _access: Access

    def __new__(cls, name: str, access: Access) -> Topic:
        topic = super().__new__(cls, name)
        topic._access = access
        return topic

    @property
    def bootstrap_servers(self) -> str:
        return self._access.bootstrap_servers

    def produce(self, records: Iterable[Written] | Value, **settings: Any) -> list[RecordMetadata]:
        return self._access.produce(self, records, **settings)

    def consume(self, n: int, timeout: float = TIMEOUT_S, **settings: Any) -> Records:
        return self._access.consume(self, n, timeout, **settings)


class Access:
    """A cluster by its address: Ottla, or any that speaks Kafka's protocol."""

    def __init__(self, bootstrap_servers: str = "") -> None:
        self._bootstrap_servers = bootstrap_servers
        self.made: list[str] = []
        """Topics that were created through this object, in order."""
        self.shared = False
        """Whether other tests use it, too: then topics that `produce` creates are recorded in `made`, too."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for any client."""
        return self._bootstrap_servers

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topic:
        """Create a topic; without a name, one with a unique name."""
        chosen = name or f"topic-{uuid.uuid4().hex[:12]}"
        configs = {key.replace("_", "."): str(value) for key, value in (config or {}).items()}
        with Admin(self.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(chosen, partitions, replication_factor or -1, configs)])
        self.made.append(chosen)
        return Topic(chosen, self)

    def delete_topic(self, name: str) -> None:
        with Admin(self.bootstrap_servers) as admin:
            admin.delete_topics([str(name)])
        if str(name) in self.made:
            self.made.remove(str(name))

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete those that still exist."""
        with Admin(self.bootstrap_servers) as admin:
            there = {topic.name for topic in admin.list_topics()}
            if left := [name for name in names if name in there]:
                admin.delete_topics(left)

    def produce(
        self, topic: str, records: Iterable[Written] | Value, *, partition: int | None = None, **settings: Any
    ) -> list[RecordMetadata]:
        """Write records (values, or pairs of key and value) and wait until they are acknowledged. `settings` are
        those of a producer."""
        if self.shared and str(topic) not in self.made:
            with Admin(self.bootstrap_servers) as admin:
                if str(topic) not in {each.name for each in admin.list_topics()}:
                    self.made.append(str(topic))
        wanted = [records] if records is None or isinstance(records, bytes | str) else list(records)
        with Producer(self.bootstrap_servers, **settings) as producer:
            sent = []
            for record in wanted:
                key, value = record if isinstance(record, tuple) else (None, record)
                sent.append(producer.send(str(topic), value, key=key, partition=partition))
            producer.flush()
            return [each.result() for each in sent]

    def consume(
        self, topic: str, n: int, timeout: float = TIMEOUT_S, *, group: str | None = None, **settings: Any
    ) -> Records:
        """The first `n` records of a topic, or with `group` the next `n` after its committed offsets, which are then
        committed. AssertionError if fewer arrive in time."""
        deadline = time.monotonic() + timeout
        records: Records = []
        options = {"auto_offset_reset": "earliest", **settings}
        with Consumer(str(topic), bootstrap_servers=self.bootstrap_servers, group_id=group, **options) as consumer:
            while len(records) < n:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"only {len(records)} of {n} records of {topic} within {timeout:g} s")
                wait_ms = max(1, min(POLL_MS, int(left * 1000)))
                for taken in consumer.getmany(timeout_ms=wait_ms, max_records=n - len(records)).values():
                    records += taken
        return records

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """The lag of a group in every partition of the topics that it reads or has committed offsets for."""
        with Admin(self.bootstrap_servers) as admin:
            return {tp: each.lag for tp, each in admin.group_lag(group).items()}

    def forget_faults(self) -> None:
        """End injected faults; here there are none."""

    def inject(
        self, api: str, error: ErrorCode | int | str | None = None, times: int | None = 1, delay_ms: float = 0
    ) -> InjectedFault:
        """Make the next requests of an API fail or wait: `inject("Produce", error="not_leader_or_follower")`,
        `inject("Fetch", delay_ms=500, times=None)`. `error="disconnect"` closes the connection instead. Needs a broker
        that was started by the test."""
        raise RuntimeError(f"faults cannot be injected into {self.bootstrap_servers}: it was not started by the test")

    def configure(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic: `configure(topic, retention_ms=1000)`."""
        put = {name.replace("_", "."): str(value) for name, value in settings.items()}
        with Admin(self.bootstrap_servers) as admin:
            admin.alter_configs(ResourceKind.TOPIC, str(topic), put=put)
