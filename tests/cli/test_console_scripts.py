"""Kafka's console commands and the first lab, typed as the texts have them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cli.shell import Shell
from tests.serving import wait_for

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


def test_topics_are_made_listed_described_altered_and_deleted(shell, fresh_name):
    topic = fresh_name()
    tool = f"bin/kafka-topics.sh --bootstrap-server localhost:9092 --topic {topic}"
    seen = succeed(
        shell,
        f"{tool} --create --partitions 2 --replication-factor 1 --config retention.ms=5;"
        f"{tool} --create --if-not-exists;"
        f"{tool} --list | grep -x {topic}; {tool} --alter --partitions 3; {tool} --describe; {tool} --delete",
    )
    assert f"created topic {topic}\n" in seen
    assert f"\n{topic}\n" in seen
    assert "  partitions          3\n" in seen
    assert "retention.ms=5" in seen
    assert seen.endswith(f"deleted topic {topic}\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kafka-topics.sh --list --zookeeper localhost:2181", "--bootstrap-server"),
        ("kafka-topics.sh --bootstrap-server localhost:9092", "--create, --list"),
        ("kafka-topics.sh --create --bootstrap-server localhost:9092", "--topic NAME"),
        ("kafka-console-producer.sh --topic t", "no broker was named"),
        ("kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic t --offset 3", "--partition"),
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic t --group g --partition 0 --offset 3",
            "Leave out --group or --partition",
        ),
        ("kafka-console-consumer.sh --bootstrap-server localhost", "--topic"),
    ],
)
def test_misuse_says_what_to_do(shell, command, words):
    done = shell.run(f"bin/{command} < /dev/null")
    assert done.returncode == 2
    assert words in done.stderr


def test_a_consumer_ends_on_ctrl_c_and_says_how_much_it_read(shell, fresh_name, tmp_path):
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
