"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.blocking import Admin
from ottla.testing import Broker

REPOSITORY = Path(__file__).resolve().parents[2]

USERS_TESTS = """
import pytest

def test_a_topic_of_its_own(ottla_topic, ottla_server):
    assert isinstance(ottla_topic, str)
    ottla_topic.produce([b"one", b"two"])
    assert [record.value for record in ottla_topic.consume(2)] == [b"one", b"two"]
    assert ottla_topic.bootstrap_servers == ottla_server.bootstrap_servers

@pytest.mark.parametrize("number", range(4))
def test_topics_are_empty(ottla_topic, number):
    ottla_topic.produce(str(number))
    assert [record.value for record in ottla_topic.consume(1)] == [str(number).encode()]

@pytest.mark.ottla(partitions=3)
def test_with_partitions(ottla_topic):
    written = ottla_topic.produce([b"x"] * 3, partitioner="round_robin")
    assert {metadata.partition for metadata in written} == {0, 1, 2}

def test_faults_on_the_shared_broker(ottla_server, ottla_topic):
    fault = ottla_server.inject("Produce", error="not_leader_or_follower")
    ottla_topic.produce(b"x")
    assert fault.hits == 1

@pytest.mark.ottla(config={"num.partitions": 7})
def test_its_own_broker(ottla_broker):
    ottla_broker.produce("made-on-the-way", b"x")
    from ottla.blocking import Admin
    with Admin(ottla_broker.bootstrap_servers) as admin:
        assert len(admin.describe_topics(["made-on-the-way"])["made-on-the-way"].partitions) == 7
"""


MISUSE = """
import pytest

@pytest.mark.ottla(borkers=3)
def test_a_mark_with_a_mistake(ottla_broker):
    pass
"""


def readme_example() -> str:
    text = (REPOSITORY / "README.md").read_text()
    [example] = re.findall(r"```python\n(# test_orders\.py\n.*?)```", text, re.DOTALL)
    return example


def pytest_run(directory: Path, files: dict[str, str], *arguments: str) -> str:
    for name, text in files.items():
        (directory / f"test_{name}.py").write_text(text)
    (directory / "conftest.py").write_text(
        "def pytest_addoption(parser, pluginmanager):\n"
        "    if not pluginmanager.has_plugin('ottla'):\n"
        "        from ottla.testing import plugin\n"
        "        pluginmanager.register(plugin, 'ottla')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_fixtures_work_together(tmp_path):
    output = pytest_run(tmp_path, {"users": USERS_TESTS, "orders": readme_example(), "misuse": MISUSE}, "-n", "2")
    assert "9 passed, 1 error" in output, output
    assert "@pytest.mark.ottla takes brokers, config, partitions, by name; not borkers; did you mean brokers?" in output


def test_the_same_tests_run_on_another_cluster(tmp_path):
    with Broker() as another:
        option = f"--ottla-bootstrap={another.bootstrap_servers}"
        output = pytest_run(tmp_path, {"users": USERS_TESTS}, option, "-rs")
        assert "6 passed, 2 skipped" in output, output
        assert "needs its own brokers" in output
        with Admin(another.bootstrap_servers) as admin:
            assert admin.list_topics() == []


def test_the_example_of_the_readme_has_ten_lines():
    assert len([line for line in readme_example().splitlines()[1:] if line.strip()]) == 10


def test_the_plugin_imports_no_broker_before_one_is_used():
    script = "import sys, ottla.testing.plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"ottla.broker", "ottla.client", "uvloop"} & set(done.stdout.split())


@pytest.mark.ottla(brokers=1)
def test_the_pytest_mark_configures_the_cluster(ottla_cluster):
    assert ottla_cluster.brokers == [1]
    topic = ottla_cluster.create_topic()
    topic.produce(b"x")
    assert ottla_cluster.kill_leader(topic) == 1
    ottla_cluster.restart(1)
    assert [record.value for record in topic.consume(1, timeout=30)] == [b"x"]


def test_broker_and_topic_fixtures_work_in_this_run(ottla_broker, ottla_topic):
    assert ottla_broker.bootstrap_servers != ottla_topic.bootstrap_servers


TOPICS_THAT_GO = """
import pytest
from ottla.blocking import Admin

def topics(server):
    with Admin(server.bootstrap_servers) as admin:
        return {topic.name for topic in admin.list_topics()}

@pytest.fixture(scope="module")
def shared(ottla_server):
    return ottla_server.create_topic("shared")

@pytest.fixture
def own(ottla_server):
    return ottla_server.create_topic("own")

def test_makes_topics(ottla_server, shared, own):
    ottla_server.create_topic("made")
    ottla_server.produce("written", b"x")
    assert topics(ottla_server) == {"shared", "own", "made", "written"}

def test_finds_only_what_its_module_has_made(ottla_server, shared):
    assert topics(ottla_server) == {"shared"}
"""
NEXT_MODULE = """
from ottla.blocking import Admin

def test_finds_nothing(ottla_server):
    with Admin(ottla_server.bootstrap_servers) as admin:
        assert admin.list_topics() == []

def test_leaves_a_fault_that_never_fires(ottla_server):
    ottla_server.inject("Fetch", error="not_leader_or_follower")
"""


def test_topics_are_deleted_after_the_test_and_unused_faults_cause_warnings(tmp_path):
    output = pytest_run(tmp_path, {"a": TOPICS_THAT_GO, "b": NEXT_MODULE}, "-p", "no:randomly")
    assert "4 passed, 1 warning" in output, output
    assert "inject('Fetch', error='not_leader_or_follower') never fired" in output


def test_the_lag_includes_partitions_without_a_commit(ottla_server):
    topic = ottla_server.create_topic(partitions=2)
    topic.produce([b"a", b"b"], partition=0)
    topic.produce([b"c"], partition=1)
    from ottla.blocking import Admin
    from ottla.client.values import TopicPartition

    with Admin(ottla_server.bootstrap_servers) as admin:
        admin.alter_group_offsets("half", {TopicPartition(topic, 0): 1})
    assert ottla_server.lag("half") == {(topic, 0): 1, (topic, 1): 1}
