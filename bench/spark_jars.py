"""Jars that PySpark does not bring along, resolved once by Maven into the git-ignored cache: its Kafka connector, HDFS.

python -m bench.spark_jars
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.maven import CACHE, Unavailable, copy_dependencies

HOME = CACHE / "spark"
JARS = HOME / "jars"
NEEDED = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2",
          "hadoop-client-minicluster")  # fmt: skip

# The newest connector that is published: not every PySpark has one of its own. Each jar is named here, and what it
# depends on is left out: Spark's descriptors name repositories that not everybody can reach.
CONNECTOR = "4.2.0"
PROVIDER_RANGE = "[4.0.0,4.2.0]"
DEPENDENCY = """    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId>
  <artifactId>spark-jars</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""


def hadoop_version() -> str:
    """Version of the Hadoop client in PySpark."""
    import pyspark

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def pom() -> str:
    wanted = (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", PROVIDER_RANGE),
        ("org.apache.kafka", "kafka-clients", "[3.9.0,3.9.99]"),
        ("org.apache.commons", "commons-pool2", "[2.12.0,2.99]"),
        ("org.apache.hadoop", "hadoop-client-minicluster", hadoop_version()),
    )
    dependencies = [
        DEPENDENCY.format(group=group, artifact=artifact, version=version) for group, artifact, version in wanted
    ]
    return POM.format(dependencies="".join(dependencies))


def there(folder: Path = JARS) -> bool:
    return all(any(folder.glob(f"{name}*.jar")) for name in NEEDED)


def fetch() -> Path:
    if there():
        return JARS
    return copy_dependencies(HOME, pom(), "Spark's Kafka connector and HDFS", there)


if __name__ == "__main__":
    try:
        print(*sorted(path.name for path in fetch().glob("*.jar")), sep="\n")
    except Unavailable as reason:
        sys.exit(str(reason))
