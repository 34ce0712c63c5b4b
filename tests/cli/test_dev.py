"""`ottla dev`: start, commands from another terminal, the live view, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.blocking import Admin, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.cluster.ensemble import HOST
from ottla.local.waiting import wait_for
from tests.cli.terminal import Terminal
from tests.harness.zookeeper import zookeeper_jars

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
        wait_for(lambda: "the cluster is ready" in self.text() or self.process.poll() is not None, "the cluster", 60)
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
    wait_for(lambda: "topic orders was created" in cluster.text(), "the topic in the output")
    killed = cluster.ask("kill", "2")
    assert re.fullmatch(r"broker 2 killed with kill -9 \(pid \d+\)\n", killed.stdout)
    assert cluster.states() == ["ready", "killed", "ready"]
    wait_for(lambda: re.search(r"orders-\d: .*in sync: 1, 3", cluster.text()), "the in-sync set to shrink")
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
    shown = cluster.ask("status").stdout
    assert "LEADER" in shown
    assert re.search(r"^controller: broker [123]$", shown, re.MULTILINE)
    assert cluster.ask("kill", "9").stderr.startswith("ottla: error: there is no broker 9")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_process_is_left_however_it_ends(dev, number):
    cluster = dev("--brokers", "2")
    assert len(cluster.processes()) == 2
    cluster.process.send_signal(number)
    assert cluster.process.wait(30) == 0
    assert cluster.processes() == []
    assert f"the data is in {cluster.data}" in cluster.text()
    assert not (cluster.data / "control.json").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the kernel's word on the death of a parent")
def test_no_process_is_left_after_kill_9_and_the_next_one_starts(dev):
    cluster = dev("--brokers", "2")
    cluster.process.kill()
    cluster.process.wait()
    wait_for(lambda: cluster.processes() == [], "the brokers to end")
    gone = cluster.ask("status")
    assert (gone.returncode, "does not answer" in gone.stderr) == (1, True)
    assert dev("--brokers", "2").states() == ["ready", "ready"]


def test_a_port_in_use_is_replaced_and_reported(dev):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = dev("--brokers", "1", "--port", str(port))
        assert f"port {port} is in use: broker 1 gets another" in cluster.text()
        wait_for(lambda: "try in another terminal" in cluster.text(), "advice")
        assert cluster.text().splitlines()[-1].endswith(" kill 1"), "there is no second one"


def test_a_second_one_on_the_same_data_is_refused(dev):
    cluster = dev("--brokers", "1")
    second = subprocess.run(
        [*OTTLA, "dev", "--data", str(cluster.data)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (second.returncode, "is running on" in second.stderr) == (1, True)


def test_without_a_directory_the_data_is_removed_at_the_end(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [*OTTLA, "dev", "--brokers", "1", "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "the cluster is ready" in line:
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


WRITTEN = """\
    broker  address         pid  memory  state  leads  replicas
 ›  1       127.0.0.1:PORT  PID     MEM  ready      1         3
    2       127.0.0.1:PORT  PID     MEM  ready      1         3
    3       127.0.0.1:PORT  PID     MEM  ready      1         3
 partition  broker 1   broker 2   broker 3   log start  high watermark  log end  records/s
 orders-0   ● leader   ● in sync  ● in sync          0               4        4          N
 orders-1   ● in sync  ● leader   ● in sync          0               3        3          N
 orders-2   ● in sync  ● in sync  ● leader           0               3        3          N
 broker 1: k kill -9  p pause  c continue  r restart  s stop  ·  1-9 choose a broker  ·  q quit
 clients: w write 10 records to orders  g start a consumer of group kitchen  x stop it"""

READ = """\
    broker  address         pid  memory  state  leads  replicas
 ›  1       127.0.0.1:PORT  PID     MEM  ready      L        53
    2       127.0.0.1:PORT  PID     MEM  ready      L        53
    3       127.0.0.1:PORT  PID     MEM  ready      L        53
 partition  broker 1   broker 2   broker 3   log start  high watermark  log end  records/s
 orders-0   ● leader   ● in sync  ● in sync          0               4        4          N
 orders-1   ● in sync  ● leader   ● in sync          0               3        3          N
 orders-2   ● in sync  ● in sync  ● leader           0               3        3          N
 __consumer_offsets: 50 partitions, 50 of them fully in sync
 group    member             partition  offset  lag
 kitchen  Stable, 2 members
          anna               orders-0        4    0
          anna               orders-1        3    0
          bert               orders-2        3    0
 broker 1: k kill -9  p pause  c continue  r restart  s stop  ·  1-9 choose a broker  ·  q quit
 clients: w write 10 records to orders  g start a consumer of group kitchen  x stop it"""

KEYS = """\
 broker {}: k kill -9  p pause  c continue  r restart  s stop  ·  1-9 choose a broker  ·  q quit
 clients: w write 10 records to orders  g start a consumer of group kitchen  x stop it"""

ONE_LEFT = """\
    broker  address         pid  memory  state   leads  replicas
    1       127.0.0.1:PORT  PID     MEM  killed      L        53
 ›  2       127.0.0.1:PORT  PID     MEM  killed      L        53
    3       127.0.0.1:PORT  PID     MEM  ready       L        53
 partition  broker 1       broker 2       broker 3  log start  high watermark  log end  records/s
 orders-0   ○ out of sync  ○ out of sync  ● leader          0               4        4          N
 orders-1   ○ out of sync  ○ out of sync  ● leader          0               3        3          N
 orders-2   ○ out of sync  ○ out of sync  ● leader          0               3        3          N
 __consumer_offsets: 50 partitions, 0 of them fully in sync
 brokers 1, 2 were killed: after an unclean shutdown a replica that is out of sync is not eligible.
 It cannot lead before it has caught up with a leader.
"""

NO_LEADER = """\
    broker  address         pid  memory  state   leads  replicas
    1       127.0.0.1:PORT  PID     MEM  killed      L        53
    2       127.0.0.1:PORT  PID     MEM  killed      L        53
 ›  3       127.0.0.1:PORT  PID     MEM  killed      L        53
 partition  broker 1       broker 2       broker 3         log start  high watermark  log end
 orders-0   ○ out of sync  ○ out of sync  ○ in sync, down          -       no leader        -
 orders-1   ○ out of sync  ○ out of sync  ○ in sync, down          -       no leader        -
 orders-2   ○ out of sync  ○ out of sync  ○ in sync, down          -       no leader        -
 __consumer_offsets: 50 partitions, 0 of them fully in sync
 a wider window shows records/s too
 brokers 1, 2 were killed: after an unclean shutdown a replica that is out of sync is not eligible.
 It cannot lead before it has caught up with a leader.
""" + KEYS.format(3)

KILLED_IS_BACK = """\
    broker  address         pid  memory  state   leads  replicas
    1       127.0.0.1:PORT  PID     MEM  killed      L        53
 ›  2       127.0.0.1:PORT  PID     MEM  ready       L        53
    3       127.0.0.1:PORT  PID     MEM  killed      L        53
 partition  broker 1       broker 2       broker 3         log start  high watermark  log end
 orders-0   ○ out of sync  ○ out of sync  ○ in sync, down          -       no leader        -
 orders-1   ○ out of sync  ○ out of sync  ○ in sync, down          -       no leader        -
 orders-2   ○ out of sync  ○ out of sync  ○ in sync, down          -       no leader        -
 __consumer_offsets: 50 partitions, 0 of them fully in sync
 a wider window shows records/s too
 broker 1 was killed: after an unclean shutdown a replica that is out of sync is not eligible. It
 cannot lead before it has caught up with a leader.
""" + KEYS.format(2)

STOPPED = """\
    broker  address         pid  memory  state    leads  replicas
    1       127.0.0.1:PORT  PID     MEM  stopped      0         3
    2       127.0.0.1:PORT  PID     MEM  stopped      0         3
 ›  3       127.0.0.1:PORT  PID     MEM  killed       0         3
 partition  broker 1       broker 2    broker 3         log start  high watermark  log end
 orders-0   ○ out of sync  ○ may lead  ○ in sync, down          -       no leader        -
 orders-1   ○ out of sync  ○ may lead  ○ in sync, down          -       no leader        -
 orders-2   ○ out of sync  ○ may lead  ○ in sync, down          -       no leader        -
 a wider window shows records/s too
 may lead: out of sync, but an eligible leader replica (ELR). It has every committed record: it
 went out of sync when fewer than min.insync.replicas were left, and since then nothing was
 committed.
""" + KEYS.format(3)

STOPPED_IS_BACK = """\
    broker  address         pid  memory  state    leads  replicas
    1       127.0.0.1:PORT  PID     MEM  stopped      0         3
 ›  2       127.0.0.1:PORT  PID     MEM  ready        3         3
    3       127.0.0.1:PORT  PID     MEM  killed       0         3
 partition  broker 1       broker 2  broker 3"""


def steady(screen):
    """The live view without the lines above it, and without what differs from run to run."""
    _, _, view = screen.rpartition("\n    broker  address")
    view = re.sub(r"(:\d{5})( +)(\d+|-) +(\d+ MB|-)  ", ":PORT  PID     MEM  ", "    broker  address" + view)
    view = re.sub(r"address +pid +memory", "address         pid  memory", view)
    view = view.replace("  controller", "")  # whichever broker it is
    view = re.sub(r"(\d+)( +53\b)", lambda found: "L".rjust(len(found[1])) + found[2], view)
    return re.sub(r"^( orders-\d .*) +\d+$", lambda found: found[1].rstrip() + "          N", view, flags=re.MULTILINE)


NARROW = re.compile(
    r"^    broker  address  .*state  leads  replicas$\n"
    r"(^ [› ]  \d       127\.0\.0\.1:\d{5}  .*ready      \d         3(  controller)?$\n){3}"
    r"^ partition  broker 1 +broker 2 +broker 3 +log start  high watermark  log end$\n"
    r"(^ orders-\d  ( +● (leader|in sync))+ +\d+ +\d+ +\d+$\n){3}"
    r"^ a wider window shows records/s too$\n"
    r"^ broker 1: k kill -9  p pause  c continue  r restart  s stop$\n"
    r"^           1-9 choose a broker  ·  q quit$\n"
    r"^ clients: w write 10 records to orders  g start a consumer of group kitchen$\n"
    r"^          x stop it$",
    re.MULTILINE,
)


def test_the_live_view_shows_the_cluster_and_reacts_to_keys(tmp_path):
    pytest.importorskip("rich")
    with Terminal(*OTTLA, "dev", "--port", "0", "--data", str(tmp_path / "dev")) as terminal:
        play(terminal)
        assert terminal.close() == 0


@pytest.mark.long
def test_a_small_window_shows_replicas_before_other_columns(tmp_path):
    pytest.importorskip("rich")
    with Terminal(*OTTLA, "dev", "--port", "0", "--data", str(tmp_path / "dev"), width=80, height=24) as terminal:
        terminal.until_screen(lambda screen: "the cluster is ready" in screen, "the cluster", 60)
        terminal.press("w")
        terminal.until_screen(lambda screen: NARROW.search(screen) is not None, "ten records", 60)
        terminal.press("q")
        assert terminal.close() == 0


@pytest.mark.long
def test_a_closed_terminal_ends_the_cluster(tmp_path):
    pytest.importorskip("rich")
    with Terminal(*OTTLA, "dev", "--brokers", "1", "--port", "0", "--data", str(tmp_path / "dev")) as terminal:
        terminal.until_screen(lambda screen: "bootstrap servers:" in screen, "the cluster", 60)
        os.close(terminal.descriptor)
        assert terminal.process.wait(60) is not None


def opened(terminal):
    """Wait for the cluster, and create a topic of which each broker leads a partition."""
    terminal.until_screen(lambda screen: "bootstrap servers:" in screen, "the cluster", 60)
    found = re.search(r"bootstrap servers: (127\.0\.0\.1:\d+)", terminal.screen.text())
    assert found is not None
    spread = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
    with Admin(found[1]) as admin:
        admin.create_topics([NewTopic("orders", assignment=spread)])
    terminal.until("topic orders was created")


def shows(terminal, expected, what, *, controllers=1):
    def holds(screen):
        view = screen.rpartition("\n    broker  address")[2]
        return steady(screen).startswith(expected) and view.count("  controller\n") == controllers

    try:
        terminal.until_screen(holds, what, 60)
    except AssertionError:
        assert steady(terminal.screen.text()) == expected
        raise


@pytest.mark.long
def test_a_replica_that_was_stopped_cleanly_may_lead_also_when_no_broker_answers(tmp_path):
    pytest.importorskip("rich")
    data = str(tmp_path / "dev")
    with Terminal(*OTTLA, "dev", "--port", "0", "--data", data) as terminal:
        opened(terminal)
        terminal.press("1s")
        terminal.until_screen(lambda screen: "in sync: 2, 3" in screen, "the in-sync replicas to shrink", 60)
        terminal.press("2s")
        terminal.until_screen(lambda screen: screen.count("○ may lead") == 3, "broker 3 alone", 60)
        terminal.said = ""
        terminal.press("w")
        said = terminal.until("10 of 10 records for orders not acknowledged: below min.insync.replicas", 60)
        assert "writing 10 records to orders…" in said
        assert "still trying" not in said
        terminal.press("3k")
        shows(terminal, STOPPED, "no leader", controllers=0)
        status = subprocess.run(
            [*OTTLA, "dev", "status", "--data", data], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert re.search(r"^orders-0 +none +1,2,3 +3 +2 ", status, re.MULTILINE), status
        assert "controller: none" in status
        terminal.press("2r")
        shows(terminal, STOPPED_IS_BACK, "broker 2 to lead")
        terminal.press("q")
        assert terminal.close() == 0


def play(terminal):
    opened(terminal)
    terminal.press("w")
    shows(terminal, WRITTEN, "ten records")
    terminal.press("gg")
    shows(terminal, READ, "a group of two")
    terminal.press("x")
    terminal.until_screen(lambda screen: "Stable, 1 member" in screen and "bert    " not in screen, "one member", 60)
    terminal.press("1k")
    terminal.until_screen(lambda screen: "in sync: 2, 3" in screen, "the in-sync replicas to shrink", 60)
    terminal.press("2k")
    shows(terminal, ONE_LEFT, "broker 3 alone")
    terminal.press("3k")
    shows(terminal, NO_LEADER, "no leader", controllers=0)
    terminal.press("2r")
    shows(terminal, KILLED_IS_BACK, "broker 2, which does not lead")
    terminal.press("3r")
    terminal.until_screen(lambda screen: screen.count("● leader") == 3, "broker 3 to lead", 60)
    terminal.press("q")
    terminal.until("all brokers have stopped", 60)


def test_status_sums_up_internal_topics_and_shows_offsets_and_groups(dev):
    cluster = dev("--brokers", "1")
    bootstrap = cluster.status()["bootstrap"]
    with Producer(bootstrap) as producer:
        for n in range(7):
            producer.send_and_wait("orders", b"%d" % n)
    with Consumer("orders", bootstrap_servers=bootstrap, group_id="kitchen", auto_offset_reset="earliest") as consumer:
        assert len(consumer.getmany(timeout_ms=20_000, max_records=4)) == 1
    wait_for(lambda: cluster.status()["groups"], "the group")
    [group] = cluster.status()["groups"]
    assert (group["group"], group["members"]) == ("kitchen", [])
    assert [(of["offset"], of["lag"]) for of in group["partitions"]] == [(4, 3)]
    [orders] = [of for of in cluster.status()["partitions"] if not of["internal"]]
    assert orders["offsets"] == {"start": 0, "high_watermark": 7, "end": 7}
    shown = cluster.ask("status").stdout
    assert "__consumer_offsets: 50 partitions, 50 of them fully in sync" in shown
    assert "__consumer_offsets-1" not in shown
    line = re.compile(r"^orders-0 +1 +1 +1 +- +0 +7 +7 +0", re.MULTILINE)  # once the rate of the seven is over
    wait_for(lambda: line.search(cluster.ask("status").stdout), "the partition, to which nobody writes")
    assert re.search(r"^kitchen +Empty +- +orders-0 +4 +3$", shown, re.MULTILINE)
