"""`ottla dev`: a cluster that comes up, does as it is told from another terminal, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.cluster.ensemble import HOST
from tests.ensembles import zookeeper_jars
from tests.serving import wait_for

pytestmark = pytest.mark.timeout(120)
OTTLA = (sys.executable, "-m", "ottla")


class Dev:
    def __init__(self, directory, *arguments, **environment):
        self.data = directory / "dev"
        self.out = directory / "out"
        command = [*OTTLA, "dev", "--data", str(self.data), "--port", "0", *arguments]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )

    def ready(self):
        wait_for(lambda: "the cluster serves" in self.text() or self.process.poll() is not None, "the cluster", 60)
        assert self.process.poll() is None, self.text()
        return self

    def text(self):
        return self.out.read_text()

    def ask(self, *arguments):
        return subprocess.run(
            [*OTTLA, "dev", *arguments, "--data", str(self.data)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def status(self):
        return json.loads(self.ask("status", "--json").stdout)

    def states(self):
        return [broker["state"] for broker in self.status()["brokers"]]

    def processes(self):
        """Everything that runs on its data."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(self.data).encode() in line and int(entry.name) != self.process.pid:
                found.append(int(entry.name))
        return found


@pytest.fixture
def dev(tmp_path):
    started = []

    def start(*arguments, **environment):
        started.append(Dev(tmp_path, *arguments, **environment))
        return started[-1].ready()

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(30)


def test_brokers_are_killed_paused_and_restarted_from_another_terminal(dev):
    cluster = dev()
    bootstrap = cluster.status()["bootstrap"]
    create = [*OTTLA, "topics", "create", "orders", "--partitions", "3", "-b", bootstrap]
    subprocess.run(create, check=True, capture_output=True, timeout=60)
    wait_for(lambda: "topic orders was created" in cluster.text(), "the topic to be told of")
    killed = cluster.ask("kill", "2")
    assert re.fullmatch(r"broker 2 killed with kill -9 \(pid \d+\)\n", killed.stdout)
    assert cluster.states() == ["ready", "killed", "ready"]
    wait_for(lambda: re.search(r"orders-\d: .*in sync 1, 3", cluster.text()), "the in-sync set to shrink")
    again = cluster.ask("kill", "2")
    assert (again.returncode, "does not run (killed)" in again.stderr) == (1, True)
    assert "restarted" in cluster.ask("restart", "2").stdout
    assert "SIGSTOP" in cluster.ask("pause", "3").stdout
    assert cluster.states() == ["ready", "ready", "paused"]
    assert json.loads(cluster.ask("resume", "3", "--json").stdout)["did"] == "resume"
    assert cluster.states() == ["ready", "ready", "ready"]
    wait_for(
        lambda: all(len(each["in_sync"]) == 3 for each in cluster.status()["partitions"]), "all replicas in sync", 30
    )
    assert "LEADER" in cluster.ask("status").stdout
    assert cluster.ask("kill", "9").stderr.startswith("ottla: error: there is no broker 9")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_leaves_no_process(dev, number):
    cluster = dev("--brokers", "2")
    assert len(cluster.processes()) == 2
    cluster.process.send_signal(number)
    assert cluster.process.wait(30) == 0
    assert cluster.processes() == []
    assert f"data stays in {cluster.data}" in cluster.text()
    assert not (cluster.data / "control.json").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the kernel's word on the death of a parent")
def test_even_kill_9_leaves_no_process_and_the_next_one_starts(dev):
    cluster = dev("--brokers", "2")
    cluster.process.kill()
    cluster.process.wait()
    wait_for(lambda: cluster.processes() == [], "the brokers to end")
    gone = cluster.ask("status")
    assert (gone.returncode, "does not answer" in gone.stderr) == (1, True)
    assert dev("--brokers", "2").states() == ["ready", "ready"]


def test_a_port_that_is_taken_is_replaced_and_said(dev):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = dev("--brokers", "1", "--port", str(port))
        assert f"port {port} is taken: broker 1 gets another" in cluster.text()
        wait_for(lambda: "try in another terminal" in cluster.text(), "advice")
        assert cluster.text().splitlines()[-1].endswith(" kill 1"), "there is no second one"


def test_a_second_one_on_the_same_data_is_refused(dev):
    cluster = dev("--brokers", "1")
    second = subprocess.run(
        [*OTTLA, "dev", "--data", str(cluster.data)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (second.returncode, "is running on" in second.stderr) == (1, True)


def test_without_a_directory_the_data_goes_with_the_cluster(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [*OTTLA, "dev", "--brokers", "1", "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "the cluster serves" in line:
                assert list(temporary.glob("ottla-dev-*/broker-1"))
                process.terminate()
        assert process.wait(30) == 0
    assert list(temporary.iterdir()) == []


def test_a_cluster_on_zookeeper(dev):
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'ottla[zookeeper]'")
    cluster = dev("--brokers", "2", "--zookeeper", OTTLA_ZOOKEEPER_JARS=zookeeper_jars())
    assert cluster.status()["store"].startswith("zookeeper:")
    assert len(cluster.processes()) == 3
    cluster.process.terminate()
    assert cluster.process.wait(30) == 0
    assert cluster.processes() == []


class Terminal:
    """A command that believes somebody sits in front of it."""

    def __init__(self, *command):
        self.said = ""
        self.descriptor, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)

    def until(self, text, seconds=30.0):
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, f"waited for {text!r}, seen: {self.said[-2000:]}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.descriptor, 65536).decode(errors="replace")
                except OSError:
                    break
        assert text in self.said, self.said[-2000:]
        self.said = ""

    def press(self, keys):
        os.write(self.descriptor, keys.encode())

    def close(self):
        status = self.process.wait(30)
        os.close(self.descriptor)
        return status


def test_the_live_view_draws_the_cluster_and_obeys_keys(tmp_path):
    pytest.importorskip("rich")
    terminal = Terminal(*OTTLA, "dev", "--brokers", "2", "--port", "0", "--data", str(tmp_path / "dev"))
    terminal.until("k kill -9")
    terminal.until("controller")
    terminal.press("2k")
    terminal.until("broker 2 was killed")
    terminal.press("r")
    terminal.until("broker 2 is ready")
    terminal.press("q")
    terminal.until("all brokers have stopped")
    assert terminal.close() == 0
