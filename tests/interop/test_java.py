"""The Java client and Apache Kafka's own command-line tools, on Ottla and on the files it writes.

They come from Maven and are not part of `make test`: `make interop-java` fetches them and runs this.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.harness.topics import create_topic

JARS = Path(__file__).resolve().parents[2] / ".bench" / "kafka" / "jars"

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not any(JARS.glob("kafka-tools-[0-9]*.jar")),
    reason="Apache Kafka's jars are not there: make interop-java fetches them",
)


def java(tool: str, *arguments: str, stdin: str = "", cwd: Path | None = None, refused: bool = False) -> str:
    lean = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    done = subprocess.run(
        ["java", *lean, "-cp", f"{JARS}/*", tool, *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False, cwd=cwd,
    )  # fmt: skip
    said = done.stdout + done.stderr
    if refused:
        assert done.returncode or "rror" in said, said
        return said
    assert done.returncode == 0, said
    return done.stdout


def failing(tool: str, *arguments: str) -> str:
    """What a tool says that is refused."""
    return java(tool, *arguments, refused=True)


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


def test_kafkas_dump_tool_reads_ottla_segments(start_broker, tmp_path):
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


def test_kafkas_dump_tool_reads_the_files_of_a_segment_that_is_written_to(start_broker):
    """While the broker runs, after kill -9, and after it has recovered."""
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create_topic(admin, "active", index_interval_bytes=100)
    directory = Path(broker.data) / "active-0"
    names = [f"00000000000000000000.{kind}" for kind in ("log", "index", "timeindex")]

    def dump(records: int) -> None:
        dumped = java("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(names), cwd=directory)
        assert all(f"Dumping {name}" in dumped for name in names)
        assert "Mismatches" not in dumped
        assert sum(int(count) for count in re.findall(r" count: (\d+) ", dumped)) == records

    def produce(count: int) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for _ in range(count):
            producer.produce("active", b"x" * 100)
            producer.flush(30)

    produce(20)
    dump(20)
    broker.kill()
    dump(20)
    broker.start()
    dump(20)
    produce(20)
    assert broker.stop() == 0
    dump(40)
    broker.start()
    produce(20)
    broker.kill()
    dump(60)
    broker.start()
    dump(60)


def test_missing_topics_and_groups_are_reported_as_by_kafka(tool, broker, tmp_path):
    config = "kafka.admin.ConfigCommand"
    assert "SCRAM" not in tool(config, "--describe", "--entity-type", "users")
    assert tool(config, "--describe", "--entity-type", "clients").strip() == ""
    refusal = failing(config, "--bootstrap-server", broker.bootstrap, "--alter", "--entity-type", "clients",
                      "--entity-name", "c", "--add-config", "producer_byte_rate=1024")  # fmt: skip
    assert "no client quotas" in refusal
    tokens = "org.apache.kafka.tools.DelegationTokenCommand"
    plain = tmp_path / "client.properties"
    plain.write_text("request.timeout.ms=30000\n")
    refusal = failing(tokens, "--bootstrap-server", broker.bootstrap, "--command-config", str(plain), "--describe")
    assert "Delegation Token requests are not allowed" in refusal
    cluster = "org.apache.kafka.tools.ClusterTool"
    assert "is not currently registered" in failing(
        cluster, "unregister", "--bootstrap-server", broker.bootstrap, "--id", "4711"
    )
    assert "is alive" in failing(cluster, "unregister", "--bootstrap-server", broker.bootstrap, "--id", "1")
    assert "UnregisterBroker(64): 0" in tool("org.apache.kafka.tools.BrokerApiVersionsCommand")


def test_settings_of_groups_loggers_and_brokers_are_shown_and_changed(tool, broker, fresh_name):
    config = "kafka.admin.ConfigCommand"
    group = fresh_name()
    of_group = ("--entity-type", "groups", "--entity-name", group)
    tool(config, "--alter", *of_group, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in tool(config, "--describe", *of_group)
    assert group in tool(config, "--describe", "--entity-type", "groups")
    tool(config, "--alter", *of_group, "--delete-config", "consumer.session.timeout.ms")
    of_loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    tool(config, "--alter", *of_loggers, "--add-config", "ottla.cluster.view=DEBUG")
    assert "ottla.cluster.view=DEBUG" in tool(config, "--describe", *of_loggers)
    tool(config, "--alter", *of_loggers, "--delete-config", "ottla.cluster.view")
    of_all = ("--entity-type", "brokers", "--entity-default")
    tool(config, "--alter", *of_all, "--add-config", "num.io.threads=16")
    described = tool(config, "--describe", *of_all)
    assert "num.io.threads=16" in described
    assert "min.insync.replicas=1" in described
    tool(config, "--alter", *of_all, "--delete-config", "num.io.threads")
    refusal = failing(config, "--bootstrap-server", broker.bootstrap, "--alter", "--entity-type", "brokers",
                      "--entity-name", "1", "--add-config", "ssl.keystore.location=/k")  # fmt: skip
    assert "does not speak TLS" in refusal


def test_transactions_of_the_java_client_and_its_tools(start_broker, tmp_path):
    """The Java producer speaks the second version of the protocol: its epoch rises with every transaction."""
    broker = start_broker("--set", "transaction.state.log.num.partitions=1")
    create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), "t", 2)
    said = java(str(Path(__file__).parent / "Transactions.java"), broker.bootstrap, "t").splitlines()
    assert said[0] == "committed 19"
    assert said[1].split() == sorted(f"{number}-{partition}" for number in range(0, 20, 2) for partition in range(2))
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


def fill(bootstrap: str, topic: str, partitions: int, records: int, batch_bytes: int) -> dict[str, int]:
    """Records of 1,000 bytes in large batches, and how often each is to be seen: once."""
    limits = {"batch.size": batch_bytes, "message.max.bytes": batch_bytes + 1_000}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 200, **limits})
    values = {f"{partition}-{number} ": partition for partition in range(partitions) for number in range(records)}
    for value, partition in values.items():
        producer.produce(topic, value.ljust(1000, "x"), partition=partition)
        if len(producer) > 20_000:
            producer.poll(0.1)
    assert producer.flush(60) == 0
    return dict.fromkeys((value.strip() for value in values), 1)


BACKLOGS = {
    "40 partitions of 2 MB": (40, 2_000, 800_000, []),
    # A partition's share is 1 MiB: only the first partition of an answer gets more.
    "18 partitions of 2.5 MB": (18, 2_500, 1_250_000, []),
    "batches larger than an answer": (10, 2_000, 800_000, ["fetch.max.bytes=100000"]),
    "batches larger than a partition's share": (10, 2_000, 800_000, ["max.partition.fetch.bytes=50000"]),
    "batches larger than both": (10, 2_000, 800_000, ["fetch.max.bytes=100000", "max.partition.fetch.bytes=50000"]),
}


@pytest.mark.parametrize(("partitions", "records", "batch_bytes", "limits"), BACKLOGS.values(), ids=BACKLOGS.keys())
def test_the_console_consumer_reads_a_backlog_in_many_partitions(
    tool, make_topic, broker, partitions, records, batch_bytes, limits
):
    topic = make_topic(partitions, max_message_bytes=2 * batch_bytes)
    expected = fill(broker.bootstrap, topic, partitions, records, batch_bytes)
    properties = [word for limit in limits for word in ("--command-property", limit)]
    seen = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", topic, "--from-beginning",
        "--max-messages", str(len(expected)), "--timeout-ms", "20000", *properties,
    )  # fmt: skip
    assert Counter(line.split()[0] for line in seen.splitlines()) == expected
