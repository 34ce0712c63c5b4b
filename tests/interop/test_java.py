"""The Java client and Apache Kafka's own command-line tools, on Ottla and on the files it writes.

They come from Maven and are not part of `make test`: `make interop-java` fetches them and runs this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.interop.conftest import create_topic

JARS = Path(__file__).resolve().parents[2] / ".bench" / "kafka" / "jars"

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not any(JARS.glob("kafka-tools-[0-9]*.jar")),
    reason="Apache Kafka's jars are not there: make interop-java fetches them",
)


def java(tool: str, *arguments: str, stdin: str = "", cwd: Path | None = None) -> str:
    lean = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    done = subprocess.run(
        ["java", *lean, "-cp", f"{JARS}/*", tool, *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False, cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def tool(broker):
    def run(name: str, *arguments: str, stdin: str = "") -> str:
        return java(name, "--bootstrap-server", broker.bootstrap, *arguments, stdin=stdin)

    return run


def test_topics_are_created_described_and_deleted(tool, fresh_name):
    topics = "org.apache.kafka.tools.TopicCommand"
    name = fresh_name()
    tool(topics, "--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=100000")
    described = tool(topics, "--describe", "--topic", name)
    assert "PartitionCount: 3" in described
    assert "retention.ms=100000" in described
    assert described.count("Leader: 1") == 3
    tool(topics, "--delete", "--topic", name)
    assert name not in tool(topics, "--list").split()


def test_the_java_producer_and_consumer_read_what_was_written(tool, topic):
    tool("org.apache.kafka.tools.ConsoleProducer", "--topic", topic, stdin="one\ntwo\nthree\n")
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    seen = tool(consumer, "--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000")
    assert seen.split() == ["one", "two", "three"]


def test_the_java_producer_at_full_speed(tool, topic):
    performance = "org.apache.kafka.tools.ProducerPerformance"
    load = ("--num-records", "100000", "--record-size", "100", "--throughput", "-1")
    assert "100000 records sent" in tool(performance, "--topic", topic, *load)
    assert tool("org.apache.kafka.tools.GetOffsetShell", "--topic", topic).strip() == f"{topic}:0:100000"


def test_configurations_offsets_and_directories_are_shown(tool, topic):
    tool("org.apache.kafka.tools.ConsoleProducer", "--topic", topic, stdin="a\nb\n")
    alter = ("--alter", "--topic", topic, "--add-config", "retention.bytes=12345")
    tool("kafka.admin.ConfigCommand", *alter)
    assert "retention.bytes=12345" in tool("kafka.admin.ConfigCommand", "--describe", "--topic", topic)
    described = tool("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic)
    (line,) = [line for line in described.splitlines() if line.startswith("{")]
    (directory,) = json.loads(line)["brokers"][0]["logDirs"]
    assert directory["partitions"][0]["partition"] == f"{topic}-0"
    assert directory["partitions"][0]["size"] > 0


def test_a_group_of_the_java_consumer_commits_and_is_described(tool, topic, fresh_name):
    tool("org.apache.kafka.tools.ConsoleProducer", "--topic", topic, stdin="a\nb\nc\n")
    group = fresh_name()
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    read = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2", "--timeout-ms", "20000")
    tool(consumer, *read)
    groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    assert group in tool(groups, "--list").split()
    described = tool(groups, "--describe", "--group", group)
    (row,) = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert row[:4] == [group, topic, "0", "2"]


def test_kafkas_dump_tool_reads_our_files(start_broker, tmp_path):
    broker = start_broker()
    java(
        "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", broker.bootstrap, "--topic", "dumped",
        stdin="a\nb\nc\n",
    )  # fmt: skip
    directory = Path(broker.data) / "dumped-0"
    broker.stop()
    names = sorted(path.name for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    dumped = java(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(names), cwd=directory
    )
    assert dumped.count("| offset:") == 3
    assert "Mismatches" not in dumped
    assert "isValid: false" not in dumped


def test_transactions_of_the_java_client_and_its_tools(start_broker, tmp_path):
    """The Java producer speaks the second version of the protocol: its epoch rises with every transaction."""
    broker = start_broker("--set", "transaction.state.log.num.partitions=1")
    create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), "t", 2)
    said = java(str(Path(__file__).parent / "Transactions.java"), broker.bootstrap, "t").splitlines()
    assert said[0] == "committed 19"
    assert said[1].split() == sorted(f"{number}-{place}" for number in range(0, 20, 2) for place in range(2))
    command = "org.apache.kafka.tools.TransactionsCommand"
    shown = java(
        command, "--bootstrap-server", broker.bootstrap, "describe", "--transactional-id", "java-t"
    ).splitlines()[-1].split()  # fmt: skip
    assert shown[1:5] == ["java-t", "0", "20", "CompleteAbort"]
    assert "java-t" in java(command, "--bootstrap-server", broker.bootstrap, "list")
    assert broker.stop() == 0
    dump = "org.apache.kafka.tools.DumpLogSegments"
    log = broker.data / "__transaction_state-0" / "00000000000000000000.log"
    decoded = java(dump, "--transaction-log-decoder", "--files", str(log), cwd=tmp_path)
    assert '"transactionalId":"java-t"' in decoded
    assert '"producerEpoch":20' in decoded
    index = java(dump, "--files", str(broker.data / "t-0" / "00000000000000000000.txnindex"), cwd=tmp_path)
    assert index.count("producerId: 0") == 10
