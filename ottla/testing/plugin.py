"""The pytest plugin: fixtures for code that talks to Kafka.

    ottla_server    one broker for the whole run (of each xdist worker): quick, shared; the topics that a test makes
                    through it go with the test, those of a fixture with the fixture
    ottla_topic     a fresh topic on it for each test: a `str` with `.produce(...)`, `.consume(n)`
    ottla_broker    a fresh broker for each test, in this process, gone afterwards; `.inject(api, error=...)`
    ottla_cluster   three broker processes for each test, to be broken: `.kill_leader(topic)`, `.partition_network(...)`

`@pytest.mark.ottla(brokers=5, config={"auto.create.topics.enable": False})` says how `ottla_broker`, `ottla_cluster`
are made, and `ottla_topic` (`partitions=3`). With `--ottla-bootstrap=HOST:PORT` the tests run on that cluster, Apache
Kafka or another: those that break or configure brokers are skipped.
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
"""What a mark can say, and what holds otherwise."""
NAME_CHARACTERS_MAX = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ottla")
    group.addoption(
        OPTION, metavar="HOST:PORT", default=None, help="run tests on this cluster instead of starting brokers"
    )


def pytest_configure(config: pytest.Config) -> None:
    words = "how the brokers and topics of Ottla's fixtures are made"
    config.addinivalue_line("markers", f"ottla(brokers=3, config={{...}}, partitions=1): {words}")


def _marked(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """What the marks on a test say; one that is nearer goes first."""
    wanted: dict[str, Any] = {}
    for mark in request.node.iter_markers("ottla"):
        unknown = mark.kwargs.keys() - KEYWORDS.keys()
        if unknown or mark.args:
            given = ", ".join(sorted(unknown)) or str(mark.args)
            from difflib import get_close_matches

            near = [meant for name in sorted(unknown) for meant in get_close_matches(name, KEYWORDS, n=1)]
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise pytest.UsageError(f"@pytest.mark.ottla takes {', '.join(KEYWORDS)}, by name; not {given}{hint}")
        wanted = mark.kwargs | wanted
    return KEYWORDS | wanted


def _needs_own(request: pytest.FixtureRequest) -> None:
    if request.config.getoption(OPTION):
        pytest.skip(f"needs brokers of its own, and {OPTION} names another's")


_SERVER = pytest.StashKey["Access"]()


@pytest.fixture(scope="session")
def ottla_server(request: pytest.FixtureRequest) -> Iterator[Access]:
    """One broker for the whole run, or the cluster that --ottla-bootstrap names."""
    from ottla.testing.access import Access
    from ottla.testing.broker import Broker

    class _Another(Access):
        """A cluster that is not ours to break."""

        def inject(self, *_: Any, **__: Any) -> Any:
            pytest.skip(f"needs a broker of its own, and {OPTION} names another's")

    external = request.config.getoption(OPTION)
    started = None if external else Broker().start()
    server = started or _Another(external)
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
    """What a fixture of a module or a session makes on the shared broker goes with that fixture."""
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
    """What a test made on the shared broker goes with it; a fault that it left there and that never fired is told."""
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
    """A topic that no other test uses. Its name tells whose it is."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:NAME_CHARACTERS_MAX].strip("-")
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    return ottla_server.create_topic(name, _marked(request)["partitions"])


@pytest.fixture
def ottla_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of this test's own, in this process."""
    _needs_own(request)
    from ottla.testing.broker import Broker

    with Broker(_marked(request)["config"]) as broker:
        yield broker


@pytest.fixture
def ottla_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Brokers of this test's own, each a process."""
    _needs_own(request)
    from ottla.testing.cluster import Cluster

    wanted = _marked(request)
    with Cluster(wanted["brokers"], wanted["config"]) as cluster:
        yield cluster
