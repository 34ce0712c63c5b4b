"""Where the tests find a ZooKeeper to run: jars that are named, or installed, or that Maven can fetch.

OTTLA_ZOOKEEPER_JARS   a directory with ZooKeeper's jars
pip install pyspark    brings them
mvn                    fetches them once into the git-ignored cache, where Maven Central can be reached
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from ottla.cluster.ensemble import Ensemble, find_jars, find_java
from ottla.errors import Fault

CACHE = Path(__file__).resolve().parents[2] / ".bench" / "zookeeper"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
WANTED = (
    ("org.apache.zookeeper", "zookeeper", "3.9.5"),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ("commons-cli", "commons-cli", "1.5.0"),
    ("org.slf4j", "slf4j-simple", "2.0.13"),
)
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>zookeeper-jars</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
FETCH_SECONDS = 100


@cache
def _jars_or_reason() -> tuple[str, str]:
    """The directory, or why there is none."""
    try:
        find_java()
        return str(find_jars()[0].parent), ""
    except Fault as fault:
        missing = str(fault)
    if "Java" not in missing:
        jars = CACHE / "jars"
        if any(jars.glob("zookeeper-3*.jar")) or _fetched(jars):
            return str(jars), ""
    return "", missing


def _fetched(jars: Path) -> bool:
    maven = shutil.which("mvn")
    if maven is None:
        return False
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "pom.xml").write_text(POM.format("".join(DEPENDENCY.format(*each) for each in WANTED)))
    fetching = CACHE / "fetching"
    shutil.rmtree(fetching, ignore_errors=True)
    command = [maven, "-q", "-B", COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={fetching}"]
    try:
        done = subprocess.run(command, cwd=CACHE, capture_output=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode != 0 or not any(fetching.glob("zookeeper-3*.jar")):
        return False
    shutil.rmtree(jars, ignore_errors=True)
    fetching.rename(jars)
    return True


def zookeeper_jars() -> str:
    """The directory of ZooKeeper's jars; skips the test where there is no way to get them."""
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'ottla[zookeeper]'")
    directory, missing = _jars_or_reason()
    if not directory:
        pytest.skip(missing)
    return directory


def ensemble(directory: Path, nodes: int = 1, **options) -> Ensemble:
    """One that serves."""
    made = Ensemble(directory, nodes, jars=zookeeper_jars(), **options)
    made.start()
    return made
