"""Access to a cluster from a test: create topics, produce, consume, ask for the lag.

Every call makes a client, uses it and closes it: nothing is left running between two lines of a test.
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
from ottla.testing.faults import Fault

TIMEOUT_S: Final = 10.0
POLL_MS: Final = 100

Value = bytes | str | None
Written = Value | tuple[Value, Value]
"""A value, or a key and a value."""
Records = list[ConsumerRecord[Any, Any]]


class Topic(str):
    """The name of a topic, and what a test does with it."""

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
    """A cluster by its address: one of ours, or any that speaks Kafka's protocol."""

    def __init__(self, bootstrap_servers: str = "") -> None:
        self._bootstrap_servers = bootstrap_servers
        self.made: list[str] = []
        """Topics that were made by calls of this object, in order."""
        self.shared = False
        """Whether other tests use it, too: then topics that are made by writing to them are noted as well."""

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
        """A new topic; without a name, one that nobody else has."""
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
        """Those of them that are still there."""
        with Admin(self.bootstrap_servers) as admin:
            there = {topic.name for topic in admin.list_topics()}
            if left := [name for name in names if name in there]:
                admin.delete_topics(left)

    def produce(
        self,
        topic: str,
        records: Iterable[Written] | Value,
        *,
        partition: int | None = None,
        **settings: Any,
    ) -> list[RecordMetadata]:
        """Write records, and return when they are there: values, or pairs of key and value. `settings` are those of a
        producer."""
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
        """The first `n` records of a topic, or of what a group has not read yet; it is committed then. AssertionError
        when fewer come in time."""
        deadline = time.monotonic() + timeout
        records: Records = []
        options = {"auto_offset_reset": "earliest", **settings}
        with Consumer(str(topic), bootstrap_servers=self.bootstrap_servers, group_id=group, **options) as consumer:
            while len(records) < n:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{len(records)} of {n} records of {topic} came within {timeout:g} s")
                wait_ms = max(1, min(POLL_MS, int(left * 1000)))
                for taken in consumer.getmany(timeout_ms=wait_ms, max_records=n - len(records)).values():
                    records += taken
        return records

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """How many records a group has not read yet, in every partition of the topics that it reads or has committed
        for."""
        with Admin(self.bootstrap_servers) as admin:
            return {tp: each.lag for tp, each in admin.group_lag(group).items()}

    def forget_faults(self) -> None:
        """Nothing was injected."""

    def inject(
        self, api: str, error: ErrorCode | int | str | None = None, times: int | None = 1, delay_ms: float = 0
    ) -> Fault:
        """Let the next requests to an API fail, or take longer: `inject("Produce", error="not_leader_or_follower")`,
        `inject("Fetch", delay_ms=500, times=None)`. `error="disconnect"` closes the connection instead. Only brokers
        that were started here do what a test tells them."""
        raise RuntimeError(f"nobody stands between clients and {self.bootstrap_servers}: it was not started here")

    def configure(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic: `configure(topic, retention_ms=1000)`."""
        put = {name.replace("_", "."): str(value) for name, value in settings.items()}
        with Admin(self.bootstrap_servers) as admin:
            admin.alter_configs(ResourceKind.TOPIC, str(topic), put=put)
