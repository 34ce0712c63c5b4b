"""Fixtures for tests of consumer groups, a plugin of the modules that name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXTERNAL, ExternalBroker, Served
from tests.harness.brokers import WatchedBroker
from tests.harness.groups import Group, Member, Process

# Sessions short enough to wait for their end, and no waiting for members that may still come.
GROUP_SETTINGS = {
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "offsets.topic.num.partitions": 5,
}


def as_arguments(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="session")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker with short sessions. An external one is expected to be set up like it."""
    if EXTERNAL:
        yield ExternalBroker(EXTERNAL)
        return
    process = WatchedBroker(tmp_path_factory.mktemp("group-broker"), *as_arguments(GROUP_SETTINGS)).start()
    yield process
    assert process.stop() == 0, "the broker did not stop cleanly"
    assert not process.complaints(), "the broker logged:\n" + process.log_text()


@pytest.fixture
def start_members(broker: Served, tmp_path: Path) -> Iterator[Callable[[list[dict[str, Any]]], list[Member]]]:
    """Start consumers from specs, in one process."""
    processes: list[Process] = []

    def start(specs: list[dict[str, Any]]) -> list[Member]:
        process = Process([{"bootstrap": broker.bootstrap, **spec} for spec in specs], tmp_path / "consumers.log")
        processes.append(process)
        return list(process.members.values())

    yield start
    for process in processes:
        process.kill()


@pytest.fixture
def make_group(start_members: Callable[[list[dict[str, Any]]], list[Member]]) -> Callable[..., Group]:
    return lambda topic, **settings: Group(start_members, topic, **settings)
