"""Apache Kafka's jars, resolved once by Maven into the git-ignored cache directory."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".bench"

# The newest 4.x that the repository offers; a version range makes Maven look for it.
KAFKA_RANGE = "[4.2.0,4.999]"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"

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
    """Which Kafka the cached jars are, or None when they are not all there."""
    if not any(jars.glob("kafka-tools-[0-9]*.jar")):
        return None
    for jar in jars.glob("kafka_2.13-*.jar"):
        found = re.fullmatch(r"kafka_2\.13-(.+)\.jar", jar.name)
        if found:
            return found[1]
    return None


def kafka_jars() -> Path:
    """The directory of Kafka's jars, filled by Maven the first time."""
    home = CACHE / "kafka"
    jars = home / "jars"
    if shutil.which("java") is None:
        raise Unavailable("java is not installed (Apache Kafka 4 needs Java 17 or newer)")
    if kafka_version(jars) is not None:
        return jars
    if shutil.which("mvn") is None:
        raise Unavailable("mvn is not installed, so Apache Kafka's jars cannot be fetched")
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(POM)
    fetching = home / "fetching"
    shutil.rmtree(fetching, ignore_errors=True)
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={fetching}"]
    command = ["mvn", "-q", "-B", COPY_DEPENDENCIES, *options]
    try:
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable("mvn did not fetch Apache Kafka's jars within ten minutes") from None
    if done.returncode != 0 or kafka_version(fetching) is None:
        reason = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        said = " ".join(reason[:2]) or "no reason given"
        raise Unavailable(f"mvn could not fetch Apache Kafka's jars: {said}")
    shutil.rmtree(jars, ignore_errors=True)
    fetching.rename(jars)
    return jars
