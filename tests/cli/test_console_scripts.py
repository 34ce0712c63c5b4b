"""Kafka's console commands and the first lab, typed as the texts have them."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from ottla.local.waiting import wait_for
from tests.cli.shell import REPOSITORY, Shell

LAB = REPOSITORY / "examples" / "lab1" / "lab.env"
TYPED = ["This is message 1", "This is message 2", "This is message 3", "Message 4"]
TYPED_LATER = ["Message 5", "Message 6", "Message 7"]


@pytest.fixture(scope="module")
def shell(shared_broker, tmp_path_factory):
    with Shell(tmp_path_factory.mktemp("shell"), shared_broker.bootstrap) as shell:
        yield shell


@pytest.fixture
def typed(shell):
    """What is typed into a terminal, and what another one shows meanwhile."""
    started = []

    def start(script, topic):
        process = shell.start(f"examples/lab1/{script}", TOPIC=topic)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def succeed(shell, script):
    done = shell.run(script.replace("localhost:9092", shell.bootstrap))
    assert done.returncode == 0, done.stderr
    return done.stdout


def committed(shell, topic):
    return int(shell.run(f"ottla consume {topic} -e | wc -l").stdout)


def transcript(shell, typed, topic):
    """The lab: four lines are typed, then the consumer is started, then three more lines. What it shows."""
    producer = typed("start-producer-console.sh", topic)
    for line in TYPED:
        producer.stdin.write(line + "\n")
    wait_for(lambda: committed(shell, topic) == len(TYPED), "the lines to be in the log", 30)
    consumer = typed("start-consumer-console.sh", topic)
    seen = [consumer.stdout.readline().rstrip("\n") for _ in TYPED]
    for line in TYPED_LATER:
        producer.stdin.write(line + "\n")
        seen.append(consumer.stdout.readline().rstrip("\n"))
    return seen


def test_the_labs_transcript_is_out_of_order_across_partitions_and_in_order_within(shell, typed, fresh_name):
    topic = fresh_name()
    succeed(shell, f"TOPIC={topic} PARTITIONS=3 examples/lab1/create-topic.sh")
    seen = transcript(shell, typed, topic)
    assert sorted(seen[:4]) == sorted(TYPED)
    assert seen[:4] != TYPED, "four lines in three partitions, read partition by partition"
    assert seen[4:] == TYPED_LATER
    by_partition: dict[str, list[str]] = {}
    for line in succeed(shell, f"ottla consume {topic} -e -f '%p\\t%s\\n'").splitlines():
        partition, value = line.split("\t")
        by_partition.setdefault(partition, []).append(value)
    assert len(by_partition) == 3
    order = TYPED + TYPED_LATER
    for values in by_partition.values():
        assert values == sorted(values, key=order.index)
        assert [value for value in seen if value in values] == values


def printed(shell, topic, partitions):
    """The lab with all seven lines typed before the consumer is started: what it prints."""
    typed = "\\n".join(TYPED + TYPED_LATER)
    consume = "bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 --from-beginning --max-messages 7"
    return succeed(
        shell,
        f"export TOPIC={topic} PARTITIONS={partitions}; examples/lab1/create-topic.sh >&2;"
        f"printf '{typed}\\n' | examples/lab1/start-producer-console.sh; {consume} --topic {topic}",
    ).splitlines()


def test_seven_lines_typed_on_the_labs_thirteen_partitions_come_out_of_order(shell, fresh_name):
    partitions = re.search(r"PARTITIONS:=(\d+)", LAB.read_text())
    assert partitions is not None
    runs = [printed(shell, fresh_name(), partitions[1]) for _ in range(2)]
    assert all(sorted(run) == sorted(TYPED + TYPED_LATER) for run in runs)
    assert any(run != TYPED + TYPED_LATER for run in runs), "one run in 5040 is in order by chance"


@pytest.mark.long
def test_nine_of_ten_labs_are_out_of_order_and_none_with_one_partition(shell, fresh_name):
    order = TYPED + TYPED_LATER
    assert sum(printed(shell, fresh_name(), 13) != order for _ in range(10)) >= 9
    assert sum(printed(shell, fresh_name(), 1) == order for _ in range(10)) == 10


def test_the_three_scripts_of_the_lab_read_topic_and_partitions_from_one_file():
    scripts = sorted(LAB.parent.glob("*.sh"))
    assert len(scripts) == 3
    for script in scripts:
        assert ". examples/lab1/lab.env" in script.read_text()
        assert "my-topic" not in script.read_text()
    assert LAB.read_text().count("TOPIC:=") == LAB.read_text().count("PARTITIONS:=") == 1


def test_with_one_partition_the_transcript_is_in_order(shell, typed, fresh_name):
    topic = fresh_name()
    succeed(shell, f"TOPIC={topic} PARTITIONS=1 examples/lab1/create-topic.sh")
    assert transcript(shell, typed, topic) == TYPED + TYPED_LATER


def test_with_one_key_records_are_in_order(shell, fresh_name):
    topic = fresh_name()
    succeed(shell, f"bin/kafka-topics.sh --create --bootstrap-server localhost:9092 --topic {topic} --partitions 3")
    lines = "".join(f"employee-7:{line}\\n" for line in TYPED + TYPED_LATER)
    keyed = "--property parse.key=true --property key.separator=:"
    produce = f"bin/kafka-console-producer.sh --broker-list localhost:9092 --topic {topic} {keyed}"
    succeed(shell, f"printf '{lines}' | {produce}")
    consume = f"bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic {topic} --from-beginning"
    shown = "--property print.key=true --property key.separator=/"
    seen = succeed(shell, f"{consume} --max-messages 7 {shown}").splitlines()
    assert seen == [f"employee-7/{line}" for line in TYPED + TYPED_LATER]


def test_topics_are_created_listed_described_altered_and_deleted(shell, fresh_name):
    topic = fresh_name()
    tool = f"bin/kafka-topics.sh --bootstrap-server localhost:9092 --topic {topic}"
    seen = succeed(
        shell,
        f"{tool} --create --partitions 2 --replication-factor 1 --config retention.ms=5;"
        f"{tool} --create --if-not-exists;"
        f"{tool} --list | grep -x {topic}; {tool} --alter --partitions 3; {tool} --describe; {tool} --delete",
    )
    lines = seen.splitlines()
    assert lines[:2] == [f"Created topic {topic}.", topic]
    described = lines[2].split("\t")
    assert (described[0], described[2:]) == (
        f"Topic: {topic}",
        ["PartitionCount: 3", "ReplicationFactor: 1", "Configs: min.insync.replicas=1,retention.ms=5"],
    )
    assert re.fullmatch(r"TopicId: [\w-]{22}", described[1])
    assert lines[3:] == [
        f"\tTopic: {topic}\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
        for number in range(3)
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kafka-topics.sh --list --zookeeper localhost:2181", "--bootstrap-server"),
        ("kafka-topics.sh --bootstrap-server localhost:9092", "action: --list, --describe, --create, --alter or --del"),
        ("kafka-topics.sh --create --bootstrap-server localhost:9092", 'Missing required argument "[topic]"'),
        ("kafka-topics.sh --help", "--replication-factor <Integer>"),
        ("kafka-consumer-groups.sh --bogus", 'Exception in thread "main"'),
        ("kafka-configs.sh --describe --topic t", "Either --bootstrap-server or"),
        ("kafka-get-offsets.sh --bogus", "Error occurred: bogus is not a recognized option"),
        ("kafka-leader-election.sh --topic", "Option topic requires an argument"),
        ("kafka-console-producer.sh --topic t", "Error while validating the bootstrap address"),
        ("kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic t --offset 3", "partition is required"),
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic t --group g --partition 0 --offset 3",
            "Options group and partition cannot be specified together.",
        ),
        ("kafka-console-consumer.sh --bootstrap-server localhost", "[topic]"),
        ("kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic t --command-property nope=1", "'nope'"),
    ],
)
def test_wrong_usage_has_a_hint(shell, command, words):
    done = shell.run(f"bin/{command} < /dev/null")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_the_scripts_print_the_version_of_kafka(shell):
    assert succeed(shell, "bin/kafka-reassign-partitions.sh --version") == "4.3.1\n"


def test_a_consumer_ends_on_ctrl_c_and_prints_its_count(shell, fresh_name, tmp_path):
    topic = fresh_name()
    succeed(shell, f"ottla topics create {topic}; echo one | ottla produce {topic}")
    errors = tmp_path / "stderr"
    script = f"exec bin/kafka-console-consumer.sh --bootstrap-server {shell.bootstrap} --topic {topic} --from-beginning"
    process = shell.start("bash", "-c", f"{script} 2> {errors}")
    assert process.stdout.readline() == "one\n"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(20) == 0
    process.stdin.close()
    process.stdout.close()
    assert time.monotonic() - began < 10
    assert errors.read_text() == "Processed a total of 1 messages\n"
