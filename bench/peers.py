"""The brokers under test: start one, freeze it while another is measured, read what it costs.

Each peer is one process with its own data directory and loopback port:

    with ApacheKafka() as kafka:
        client = Producer({"bootstrap.servers": kafka.bootstrap})
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import ottla
from bench.maven import CACHE, kafka_jars, kafka_version
from ottla.cluster.ensemble import HOST, free_ports
from ottla.errors import Fault
from ottla.local.processes import BrokerProcess, ServerProcess

REPOSITORY = Path(__file__).resolve().parent.parent

# ApiVersions v0 with correlation id 1 and no client id: any broker answers it once it serves.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", ""))
STOP_SECONDS = 30.0


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


class Peer(ServerProcess):
    """One broker process with its data, from exec to exit."""

    READY_SECONDS = 300.0
    name: str
    # What lets a killed broker come back at once instead of waiting until its last session has expired.
    to_restart: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, data: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(Path())
        self.settings = dict(settings or {})
        self.port = 0
        self.directory = Path()
        self._parent = data or CACHE / "run"
        self._command: list[str] = []

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> list[str]:
        """Prepare the data directory and return the command; not part of the start-up time."""

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def launch(self) -> None:
        """Start in a new directory, or again on the existing data."""
        if not self._command:
            self._parent.mkdir(parents=True, exist_ok=True)
            self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self._parent))
            self.log = self.directory / "broker.log"
            self.port = free_port()
            self._command = self._prepare()
        super().launch()

    def command(self) -> list[str]:
        return self._command

    def serves(self) -> bool:
        return answers(self.port)

    def cpu_seconds(self) -> float:
        """User and system time of all threads since exec (Linux, proc(5): fields 14 and 15 of stat)."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def remove(self) -> None:
        """kill -9, and remove its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(STOP_SECONDS)
        self.remove()


class Ottla(Peer):
    """`python -m ottla serve` of this checkout; its one setting frees the disk of a deleted topic sooner."""

    name = "ottla"

    def version(self) -> str:
        return ottla.__version__

    def _prepare(self) -> list[str]:
        settings = {"log.segment.delete.delay.ms": "500"} | self.settings
        return BrokerProcess(self.directory / "data", port=self.port, settings=settings).command()


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
            raise Fault(f"the storage of {self.name} could not be formatted:\n{done.stdout}{done.stderr}")
        heap = [f"-Xmx{self.heap}", f"-Xms{self.heap}"]
        return [java[0], *heap, *JVM_FLAGS, *java[1:], "kafka.Kafka", str(properties)]
