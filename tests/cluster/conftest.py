"""A ZooKeeper server that the tests of a run share, each below a chroot of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from ottla.cluster.ensemble import Ensemble
from tests.harness.zookeeper import ensemble


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    running = ensemble(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.stop()


@pytest.fixture
def zookeeper_url(shared_zookeeper: Ensemble) -> str:
    """The name of an empty store."""
    return f"zookeeper:{shared_zookeeper.connect}/{uuid.uuid4().hex[:12]}/ottla"


@pytest.fixture(params=["embedded", "zookeeper"])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an empty store, of every kind there is."""
    if request.param == "embedded":
        return f"embedded:{tmp_path_factory.mktemp('store')}/store.db"
    find: Callable[[str], str] = request.getfixturevalue
    return find("zookeeper_url")
