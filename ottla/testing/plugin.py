"""The pytest plugin: fixtures for code that talks to Kafka.

    ottla_server    one shared broker for the whole run (of each xdist worker); topics that a test creates through it
                    are deleted after the test, those of a fixture with the fixture
    ottla_topic     a new topic on it for each test: a `str` with `.produce(...)`, `.consume(n)`
    ottla_broker    a new broker for each test, in this process; `.inject(api, error=...)`
    ottla_cluster   three broker processes for each test: `.kill_leader(topic)`, `.partition_network(...)`

`@pytest.mark.ottla(brokers=5, config={"auto.create.topics.enable": False})` configures `ottla_broker` and
`ottla_cluster`, and `partitions=3` configures `ottla_topic`. With `--ottla-bootstrap=HOST:PORT` the tests run on that
cluster, Apache Kafka or another: tests that break or configure brokers are skipped.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.testing.access import Access, Topic
    from ottla.testing.broker import Broker
    from ottla.testing.cluster import Cluster

OPTION = "--ottla-bootstrap"
KEYWORDS = {"brokers": 3, "config": None, "partitions": 1}
"""Arguments of the mark, and their defaults."""
NAME_CHARACTERS_MAX = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ottla")
    group.addoption(
        OPTION, metavar="HOST:PORT", default=None, help="run tests on this cluster instead of starting brokers"
    )


def pytest_configure(config: pytest.Config) -> None:
    words = "configuration of the brokers and topics of Ottla's fixtures"
    config.addinivalue_line("markers", f"ottla(brokers=3, config={{...}}, partitions=1): {words}")


def _marked(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Arguments of the marks of a test; the mark nearest to the test wins."""
    wanted: dict[str, Any] = {}
    for mark in request.node.iter_markers("ottla"):
        unknown = mark.kwargs.keys() - KEYWORDS.keys()
        if unknown or mark.args:
            given = ", ".join(sorted(unknown)) or str(mark.args)
            from ottla.config.named_options import nearest

            near = list(filter(None, (nearest(name, KEYWORDS) for name in sorted(unknown))))
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise pytest.UsageError(f"@pytest.mark.ottla takes {', '.join(KEYWORDS)}, by name; not {given}{hint}")
        wanted = mark.kwargs | wanted
    return KEYWORDS | wanted


def _needs_own(request: pytest.FixtureRequest) -> None:
    if request.config.getoption(OPTION):
        pytest.skip(f"needs its own brokers, and {OPTION} is set")


_SERVER = pytest.StashKey["Access"]()


@pytest.fixture(scope="session")
def ottla_server(request: pytest.FixtureRequest) -> Iterator[Access]:
    """One broker for the whole run, or the cluster that --ottla-bootstrap names."""
    from ottla.testing.access import Access
    from ottla.testing.broker import Broker

    class _External(Access):
        """A cluster that tests must not break."""

        def inject(self, *_: Any, **__: Any) -> Any:
            pytest.skip(f"needs its own broker, and {OPTION} is set")

    external = request.config.getoption(OPTION)
    started = None if external else Broker().start()
    server = started or _External(external)
    server.shared = True
    request.config.stash[_SERVER] = server
    yield server
    del request.config.stash[_SERVER]
    if started is not None:
        started.stop()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Topics that a module or session fixture creates on the shared broker are deleted with that fixture."""
    if fixturedef.scope == "function" or fixturedef.argname == "ottla_server":
        return (yield)
    before = request.config.stash.get(_SERVER, None)
    count = 0 if before is None else len(before.made)
    result = yield
    server = request.config.stash.get(_SERVER, None)
    if server is not None and len(server.made) > count:
        made, server.made[count:] = server.made[count:], []
        fixturedef.addfinalizer(lambda: server.delete_topics(made))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Delete the topics that the test created on the shared broker, and warn about its faults that never fired."""
    yield
    server = item.config.stash.get(_SERVER, None)
    if server is None:
        return
    if server.made:
        server.delete_topics(server.made)
        server.made.clear()
    server.forget_faults()


@pytest.fixture
def ottla_topic(ottla_server: Access, request: pytest.FixtureRequest) -> Topic:
    """A topic of this test; its name contains the name of the test."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:NAME_CHARACTERS_MAX].strip("-")
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    return ottla_server.create_topic(name, _marked(request)["partitions"])


@pytest.fixture
def ottla_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of this test, in this process."""
    _needs_own(request)
    from ottla.testing.broker import Broker

    with Broker(_marked(request)["config"]) as broker:
        yield broker


@pytest.fixture
def ottla_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Broker processes of this test."""
    _needs_own(request)
    from ottla.testing.cluster import Cluster

    wanted = _marked(request)
    with Cluster(wanted["brokers"], wanted["config"]) as cluster:
        yield cluster
