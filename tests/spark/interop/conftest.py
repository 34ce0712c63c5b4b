"""A session with the jars that `make interop-spark` fetches, and the peers: Apache Kafka, and an HDFS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.peers import ApacheKafka, free_port
from bench.spark_jars import JARS
from ottla.local.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOGGING = ("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "jcl-over-slf4j")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They need another session than the tests beside them, so they have a run of their own."""
    if os.environ.get("SPARK_TESTS") != "interop":
        skip = pytest.mark.skip(reason="needs jars from Maven: make interop-spark runs it")
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tests.spark.copying import session

    connector = [str(jar) for jar in JARS.glob("*.jar") if "minicluster" not in jar.name]
    settings = {"spark.jars": ",".join(sorted(connector)), "spark.sql.session.timeZone": "UTC"}
    made = session("local[2]", tmp_path_factory.mktemp("session"), **settings)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ApacheKafka(heap="512M", data=tmp_path_factory.mktemp("kafka")) as peer:
        yield peer.bootstrap


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a namenode, which has one datanode."""
    import pyspark

    home = tmp_path_factory.mktemp("hdfs")
    address = f"hdfs://127.0.0.1:{free_port()}"
    ports = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    _configure(home / "core-site.xml", {"fs.defaultFS": address, "hadoop.tmp.dir": str(home / "data")})
    names = ("dfs.namenode.http-address", "dfs.datanode.address", "dfs.datanode.http.address")
    settings = dict(zip((*names, "dfs.datanode.ipc.address"), ports, strict=True))
    _configure(home / "hdfs-site.xml", settings | {"dfs.replication": "1", "dfs.permissions.enabled": "false"})
    jars = Path(pyspark.__file__).parent / "jars"
    classes = [home, *JARS.glob("hadoop-client-minicluster-*.jar"), *jars.glob("hadoop-client-*.jar")]
    classes += [jar for name in LOGGING for jar in jars.glob(f"{name}-*.jar")]
    java = ["java", *JAVA, "-cp", ":".join(map(str, classes))]
    server = "org.apache.hadoop.hdfs.server"
    subprocess.run(
        [*java, f"{server}.namenode.NameNode", "-format", "-nonInteractive"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    try:
        for main in (f"{server}.namenode.NameNode", f"{server}.datanode.DataNode"):
            with (home / f"{main.rsplit('.', 1)[1]}.log").open("wb") as log:
                running.append(subprocess.Popen([*java, main], stdout=log, stderr=log))
        wait_for(lambda: _has_datanode(java, address), "a datanode", 120.0)
        yield address
    finally:
        for process in running:
            process.kill()
            process.wait()


def _configure(path: Path, settings: dict[str, str]) -> None:
    form = "<property><name>{}</name><value>{}</value></property>"
    reported = "".join(form.format(name, value) for name, value in settings.items())
    path.write_text(f"<configuration>{reported}</configuration>")


def _has_datanode(java: list[str], address: str) -> bool:
    command = [*java, "org.apache.hadoop.hdfs.tools.DFSAdmin", "-fs", address, "-report", "-live"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "Live datanodes (1)" in done.stdout
