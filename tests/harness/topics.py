"""Fixtures for topics and clusters as confluent-kafka's admin client makes and sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from ottla.local.waiting import wait_for
from tests.conftest import Served
from tests.harness.cluster import Brokers

MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("brokers"))
    yield made
    made.close()


@pytest.fixture
def brokers(shared_brokers: Brokers) -> Brokers:
    """Three that this test may kill. The tests of a module share them: each uses topics, groups and transactional ids
    of its own, and begins when all three run and every replica is in sync."""
    shared_brokers.restore()
    return shared_brokers


@pytest.fixture
def admin(broker: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create_topic(admin: AdminClient, name: str, partitions: int = 1, **config: object) -> str:
    """Create a topic and wait until its leaders answer. `max_message_bytes=10` sets max.message.bytes."""
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
    asked = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}

    def led() -> bool:
        answers = admin.list_offsets(asked, request_timeout=10).values()
        return all(answer.exception(10) is None for answer in answers)

    wait_for(led, f"{partitions} leaders of {name}")
    return name


@pytest.fixture
def make_topic(admin: AdminClient, fresh_name: Callable[[], str]) -> MakeTopic:
    return lambda partitions=1, **config: create_topic(admin, fresh_name(), partitions, **config)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A fresh topic with one partition."""
    return make_topic()
