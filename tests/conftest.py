"""Fixtures every test may use: a broker that runs as a real process, and fresh topics on it.

With OTTLA_TEST_BOOTSTRAP=host:port the interop tests run against that broker instead, which is how they are
checked against Apache Kafka; tests that must own the process are skipped then.
"""

from __future__ import annotations

import gc
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import hypothesis
import pytest

from tests.harness.brokers import WatchedBroker

# `make test` has the same examples in each run, `make test-long` looks for others. No deadline: a machine may be busy.
hypothesis.settings.register_profile("ottla", deadline=None, derandomize=os.environ.get("EXPLORE") != "1")
hypothesis.settings.load_profile("ottla")
EXTERNAL = os.environ.get("OTTLA_TEST_BOOTSTRAP", "")
StartBroker = Callable[..., WatchedBroker]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Our own plugin, where it is not installed."""
    if not pluginmanager.has_plugin("ottla"):
        from ottla.testing import plugin

        pluginmanager.register(plugin, "ottla")


class Served(Protocol):
    """What a test may know of a broker it does not own."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


@dataclass(frozen=True)
class ExternalBroker:
    bootstrap: str

    @property
    def host(self) -> str:
        return self.bootstrap.rsplit(":", 1)[0]

    @property
    def port(self) -> int:
        return int(self.bootstrap.rsplit(":", 1)[1])


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if EXTERNAL:
        yield ExternalBroker(EXTERNAL)
        return
    process = WatchedBroker(tmp_path_factory.mktemp("broker")).start()
    yield process
    since = len(process.log_text())
    assert process.stop() == 0, "the broker did not stop cleanly"
    assert not process.complaints(since), "the broker logged while it stopped:\n" + process.log_text()[since:]


@pytest.fixture
def broker(shared_broker: Served, request: pytest.FixtureRequest) -> Iterator[Served]:
    """The session's broker. Whatever it logs beyond INFO during the test must have been announced."""
    if not isinstance(shared_broker, WatchedBroker):
        yield shared_broker
        return
    since = len(shared_broker.log_text())
    yield shared_broker
    announced = [mark.args[0] for mark in request.node.iter_markers("broker_may_log")]
    complaints = shared_broker.complaints(since, announced)
    assert not complaints, "the broker logged:\n" + "\n".join(complaints)


@pytest.fixture(scope="module")
def module_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    """A broker that the tests of a module own, and may kill. The module's BROKER_ARGUMENTS are its arguments."""
    if EXTERNAL:
        pytest.skip("needs a broker process of its own")
    process = WatchedBroker(tmp_path_factory.mktemp("broker"), *getattr(request.module, "BROKER_ARGUMENTS", ()))
    yield process
    since = len(process.log_text())
    process.close()
    assert not process.complaints(since), "the broker logged while it stopped:\n" + process.log_text()[since:]


@pytest.fixture
def own_broker(module_broker: WatchedBroker, request: pytest.FixtureRequest) -> Iterator[WatchedBroker]:
    """The module's broker, which runs. Whatever it logs beyond INFO during the test must have been announced."""
    since = len(module_broker.log_text())
    if not module_broker.running:
        module_broker.start()
    yield module_broker
    announced = [mark.args[0] for mark in request.node.iter_markers("broker_may_log")]
    complaints = module_broker.complaints(since, announced)
    assert not complaints, "the broker logged:\n" + "\n".join(complaints)


@pytest.fixture
def start_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartBroker]:
    """Start brokers that this test owns, and may kill: `start_broker("--set", "name=value")`."""
    if EXTERNAL:
        pytest.skip("needs a broker process of its own")
    started: list[WatchedBroker] = []

    def start(*arguments: str, port: int | None = 0) -> WatchedBroker:
        process = WatchedBroker(tmp_path / f"broker-{len(started)}", *arguments, port=port)
        started.append(process)
        return process.start()

    yield start
    announced = [mark.args[0] for mark in request.node.iter_markers("broker_may_log")]
    for process in started:
        process.close()
    complaints = [line for process in started for line in process.complaints(0, announced)]
    assert not complaints, "the broker logged:\n" + "\n".join(complaints)


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Topic names no other test uses."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    return lambda: f"{stem}-{uuid.uuid4().hex[:8]}"


SHARING_SPARK = (
    "tests/spark/test_avro.py",
    "tests/spark/test_batch_sink.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_source.py",
    "tests/spark/connectors/test_parquet.py",
    "tests/spark/connectors/test_postgres.py",
    "tests/spark/pipeline/test_validate.py",
)
"""Files whose tests use one Spark session, which takes ten seconds to start."""
LONGEST = (
    "tests/soak/test_soak.py",
    "tests/cli/test_drill.py",
    *SHARING_SPARK,
    "tests/sim/test_simulation.py",
    "tests/spark/test_kills.py",
    "tests/behaviour/test_transaction_crash.py",
    "tests/spark/test_standalone.py",
    "tests/sim/test_planted_defects.py",
    "tests/soak/",
    "tests/cluster/",
    "tests/behaviour/test_rolling_restart.py",
    "tests/cli/test_dev.py",
    "tests/spark/",
    "tests/behaviour/test_restart.py",
    "tests/interop/test_groups_sharing.py",
    "tests/behaviour/test_serve_process.py",
    "tests/behaviour/test_transaction_failover.py",
    "tests/behaviour/test_replication.py",
    "tests/sim/",
    "tests/client/",
    "tests/behaviour/test_cluster_requests.py",
    "tests/behaviour/test_elections.py",
    "tests/interop/test_transactions",
    "tests/interop/test_consumer_protocol.py",
    "tests/interop/test_groups",
    "tests/interop/",
    "tests/cli/",
    "tests/broker/",
)
"""What takes longest goes first, in this order: whichever process came to it last would keep all waiting. Needs
`--no-loadscope-reorder`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((rank for rank, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))

    items.sort(key=rank)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Many tests collect garbage to see what they left: without what was there before, that takes no time."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """File by file; but files that share a Spark stay together, for it takes ten seconds to come up."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    by_file = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: "a Spark" if nodeid.startswith(SHARING_SPARK) else by_file(nodeid)
    return scheduler
