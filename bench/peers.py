"""The brokers under test: start one, freeze it while another is measured, read what it costs.

Each peer is one process with its own data directory and loopback port:

    with ApacheKafka() as kafka:
        client = Producer({"bootstrap.servers": kafka.bootstrap_servers})
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import ottla
from bench.maven import CACHE, kafka_jars, kafka_version
from ottla.cluster.ensemble import free_ports

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).resolve().parent.parent

# ApiVersions v0 with correlation id 1 and no client id: any broker answers it once it serves.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", ""))
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.002


class NotReady(Exception):
    """The broker ended or kept silent instead of serving."""


def free_port() -> int:
    return free_ports(1)[0]


def answers(port: int, timeout: float = 5.0) -> bool:
    """Whether a Kafka broker on this port answers ApiVersions."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout) as sock:
            sock.sendall(API_VERSIONS)
            return len(sock.recv(8)) == 8
    except OSError:
        return False


class Peer(ABC):
    """One broker process, from exec to exit."""

    name: str
    # What lets a killed broker come back at once instead of waiting until its last session has expired.
    to_restart: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, data: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})
        self.port = 0
        self.exec_at = 0.0
        self.ready_seconds = 0.0
        self._given_data = data
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self.directory = Path()

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> list[str]:
        """Make the data directory ready and give the command to run; not part of the start-up time."""

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the peer has not been started"
        return self._process.pid

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    def start(self) -> Self:
        self.begin()
        return self.await_ready()

    def begin(self) -> None:
        """Execute it, and do not wait."""
        parent = self._given_data or CACHE / "run"
        parent.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=parent))
        self.port = free_port()
        self._command = self._prepare()
        self._run()

    def kill_and_restart(self) -> Self:
        """kill -9, and the same command on what is left of the data."""
        assert self._process is not None, "the peer has not been started"
        self._process.kill()
        self._process.wait()
        self.log_path.unlink()
        self._run()
        return self.await_ready()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill_now(self) -> None:
        """kill -9."""
        assert self._process is not None, "the peer has not been started"
        self._process.kill()
        self._process.wait()

    def restart(self) -> Self:
        """The same command on what is left of the data."""
        self._run()
        return self.await_ready()

    def kill(self) -> None:
        """kill -9, and remove its data."""
        if self.running:
            self.kill_now()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self) -> None:
        with self.log_path.open("wb") as log:
            self.exec_at = time.monotonic()
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=REPOSITORY
            )

    def await_ready(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        while not answers(self.port):
            if self._process.poll() is not None:
                raise NotReady(f"{self.name} exited with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() - self.exec_at > READY_TIMEOUT_S:
                raise NotReady(f"{self.name} does not answer on port {self.port}:\n{self.log_tail()}")
            time.sleep(POLL_S)
        self.ready_seconds = time.monotonic() - self.exec_at

    def stop(self) -> None:
        """Stop the process and remove its data."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def freeze(self) -> None:
        """Take the process off the cores but keep it warm."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def cpu_seconds(self) -> float:
        """User and system time of all threads since exec (proc(5): fields 14 and 15 of stat)."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise NotReady(f"{self.name} is gone:\n{self.log_tail()}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Ottla(Peer):
    """`python -m ottla serve` of this checkout; its one setting frees a deleted topic's disk sooner."""

    name = "ottla"

    def version(self) -> str:
        return ottla.__version__

    def _prepare(self) -> list[str]:
        data = self.directory / "data"
        command = [sys.executable, "-m", "ottla", "serve", "--port", str(self.port), "--data", str(data)]
        settings = {"log.segment.delete.delay.ms": "500"} | self.settings
        return [*command, *(f"--set={name}={value}" for name, value in settings.items())]

    def _wait_until_ready(self) -> None:
        super()._wait_until_ready()
        deadline = time.monotonic() + 5
        while f"ready on {self.bootstrap_servers}" not in self.log_tail():
            if time.monotonic() > deadline:
                raise NotReady(f"ottla serves but printed no ready line:\n{self.log_tail()}")
            time.sleep(POLL_S)


# What kafka-server-start.sh and kafka-run-class.sh pass by default, less the JMX agent and the GC log.
JVM_FLAGS = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]

# The distribution's server.properties with this run's ports and directory. The last three lines serve
# the measuring only: a deleted topic frees its disk before the next cell, and a frozen broker is not fenced.
SERVER_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
log.segment.delete.delay.ms=500
log.initial.task.delay.ms=500
broker.session.timeout.ms=3600000
"""

LOG4J2 = """status=warn
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""


class ApacheKafka(Peer):
    """A single KRaft node of the newest Apache Kafka 4.x, on the distribution's defaults."""

    to_restart = MappingProxyType({"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"})

    def __init__(
        self, *, heap: str = "1G", data: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data=data, settings=settings)
        self.heap = heap
        self.name = "kafka" if heap == "1G" else f"kafka-{heap}"

    def version(self) -> str:
        return kafka_version(kafka_jars()) or "unknown"

    formatting: tuple[str, ...] = ("--standalone",)

    def properties(self) -> str:
        return SERVER_PROPERTIES.format(
            host=HOST, port=self.port, controller_port=free_port(), data=self.directory / "data"
        )

    def _prepare(self) -> list[str]:
        jars = kafka_jars()
        properties = self.directory / "server.properties"
        properties.write_text(self.properties() + "".join(f"{name}={value}\n" for name, value in self.settings.items()))
        log4j2 = self.directory / "log4j2.properties"
        log4j2.write_text(LOG4J2)
        java = ["java", f"-Dlog4j2.configurationFile={log4j2}", "-cp", f"{jars}/*"]
        storage = ["kafka.tools.StorageTool", "format", *self.formatting, "-t", "b3R0bGEtYmVuY2gtMDAwMQ"]
        formatting = [*java, *storage, "-c", str(properties)]
        done = subprocess.run(formatting, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotReady(f"the storage of {self.name} could not be formatted:\n{done.stdout}{done.stderr}")
        heap = [f"-Xmx{self.heap}", f"-Xms{self.heap}"]
        return [java[0], *heap, *JVM_FLAGS, *java[1:], "kafka.Kafka", str(properties)]
