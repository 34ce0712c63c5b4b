"""Apache Kafka's jars, resolved once by Maven into the git-ignored cache directory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".bench"

# The newest 4.x that the repository offers; a version range makes Maven look for it.
KAFKA_RANGE = "[4.2.0,4.999]"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
FETCH_SECONDS = 600

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_RANGE}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA_RANGE}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
"""


class Unavailable(Exception):
    """Apache Kafka cannot be run here; the message says what is missing."""


def kafka_version(jars: Path) -> str | None:
    """The version of the cached jars, or None if they are incomplete."""
    if not any(jars.glob("kafka-tools-[0-9]*.jar")):
        return None
    for jar in jars.glob("kafka_2.13-*.jar"):
        found = re.fullmatch(r"kafka_2\.13-(.+)\.jar", jar.name)
        if found:
            return found[1]
    return None


def copy_dependencies(home: Path, pom: str, what: str, complete: Callable[[Path], bool]) -> Path:
    """The directory with the jars of the POM, filled by Maven unless it is complete."""
    jars = home / "jars"
    if complete(jars):
        return jars
    if shutil.which("mvn") is None:
        raise Unavailable(f"mvn is not installed, so {what} cannot be fetched")
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(pom)
    fetching = home / "fetching"
    shutil.rmtree(fetching, ignore_errors=True)
    command = ["mvn", "-q", "-B", COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={fetching}"]
    try:
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"mvn did not fetch {what} within {FETCH_SECONDS // 60} minutes") from None
    if done.returncode != 0 or not complete(fetching):
        reason = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        said = " ".join(reason[:2]) or "no reason given"
        raise Unavailable(f"mvn could not fetch {what}: {said}")
    shutil.rmtree(jars, ignore_errors=True)
    fetching.rename(jars)
    return jars


def kafka_jars() -> Path:
    """The directory of Kafka's jars, filled by Maven the first time."""
    if shutil.which("java") is None:
        raise Unavailable("java is not installed (Apache Kafka 4 needs Java 17 or newer)")
    return copy_dependencies(CACHE / "kafka", POM, "Apache Kafka's jars", lambda jars: kafka_version(jars) is not None)
