"""Fixtures for tests with real clients: each client in turn, and topics made for one test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Served
from tests.interop.clients import CLIENTS, Client
from tests.serving import wait_for

MakeTopic = Callable[..., str]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param


@pytest.fixture
def admin(broker: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create_topic(admin: AdminClient, name: str, partitions: int = 1, **config: object) -> str:
    """Create a topic and wait until every partition has a leader. `max_message_bytes=10` sets max.message.bytes."""
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)

    def led() -> bool:
        found = admin.list_topics(name, timeout=10).topics[name]
        return len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values())

    wait_for(led, f"{partitions} leaders of {name}")
    return name


@pytest.fixture
def make_topic(admin: AdminClient, fresh_name: Callable[[], str]) -> MakeTopic:
    return lambda partitions=1, **config: create_topic(admin, fresh_name(), partitions, **config)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A fresh topic with one partition."""
    return make_topic()
