"""Our kafka-*.sh beside Apache Kafka's own tools: the same command lines on the same cluster, the same output.

Kafka's tools come from Maven and are not part of `make test`: `make interop-java` fetches them and runs this.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from ottla.local.waiting import wait_for
from ottla.testing import Cluster
from tests.interop.test_java import JARS
from tests.interop.test_java import pytestmark as needs_java

# A command of Kafka's starts a Java virtual machine, which takes seconds on a busy machine; some tests start twenty.
pytestmark = [needs_java, pytest.mark.timeout(400)]

TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        topic = cluster.create_topic("orders", partitions=3, replication_factor=3, config={"retention.ms": 123456789})
        cluster.create_topic("with.dots", partitions=1, replication_factor=1)
        cluster.create_topic("t_1", partitions=2, replication_factor=1)
        topic.produce([("key", f"value {number}") for number in range(20)])
        cluster.consume("orders", 5, group="kitchen")
        cluster.consume("orders", 20, group="cellar", group_protocol="consumer")
        yield cluster


def kafka(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    lean = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return run(["java", *lean, "-cp", f"{JARS}/*", TOOLS[script], *arguments])


def ottla(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "ottla.cli.kafka_scripts", script, *arguments])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=os.environ, input="")


def by_kafka(cluster: Cluster, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return kafka(script, "--bootstrap-server", cluster.bootstrap_servers, *arguments)


def by_ottla(cluster: Cluster, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ottla(script, "--bootstrap-server", cluster.bootstrap_servers, *arguments)


def comparable(output: str) -> list[str]:
    """Java prints topics, groups and settings in the order of a hash table; and its log, with stack traces."""
    output = re.sub(
        r"^(\[.*|\d{4}-\d\d-\d\dT.*|\tat .*|\.\.\. \d+ more|(Caused by: )?[\w.$]+Exception: .*)$",
        "",
        output,
        flags=re.MULTILINE,
    )
    output = re.sub(r"Configs: (\S*)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), output)
    return sorted(line for line in output.splitlines() if line)


LINES = [
    "kafka-topics.sh --list",
    "kafka-topics.sh --list --exclude-internal",
    "kafka-topics.sh --list --topic ord.*",
    "kafka-topics.sh --describe",
    "kafka-topics.sh --describe --topic orders",
    "kafka-topics.sh --describe --topic orders,with.dots --under-replicated-partitions",
    "kafka-topics.sh --describe --at-min-isr-partitions --exclude-internal",
    "kafka-topics.sh --describe --topics-with-overrides --exclude-internal",
    "kafka-topics.sh --describe --topic nobody",
    "kafka-topics.sh --describe --topic nobody --if-exists",
    "kafka-topics.sh --delete --topic nobody",
    "kafka-topics.sh --create --topic orders",
    "kafka-topics.sh --create --topic orders --if-not-exists",
    "kafka-topics.sh --create --topic or/ders",
    "kafka-topics.sh --alter --topic orders --partitions 1",
    "kafka-consumer-groups.sh --list",
    "kafka-consumer-groups.sh --list --state",
    "kafka-consumer-groups.sh --list --state Empty --type consumer",
    "kafka-consumer-groups.sh --describe --group kitchen",
    "kafka-consumer-groups.sh --describe --all-groups",
    "kafka-consumer-groups.sh --describe --group kitchen --verbose",
    "kafka-consumer-groups.sh --describe --group cellar --state",
    "kafka-consumer-groups.sh --describe --group cellar --state --verbose",
    "kafka-consumer-groups.sh --describe --group cellar --members",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --to-earliest",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --all-topics --shift-by -1 --dry-run",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders:0 --to-current --export",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --group cellar --topic orders:1,2 --to-offset 1 --export",
    "kafka-consumer-groups.sh --validate-regex a.*b",
    "kafka-consumer-groups.sh --describe --group nobody",
    "kafka-consumer-groups.sh --describe --group nobody --members",
    "kafka-consumer-groups.sh --delete --group nobody",
    "kafka-consumer-groups.sh --delete-offsets --group nobody --topic orders",
    "kafka-consumer-groups.sh --reset-offsets --group nobody --topic nobody --to-earliest --dry-run",
    "kafka-configs.sh --describe --entity-type topics --entity-name orders",
    "kafka-configs.sh --describe --topic orders --all",
    "kafka-configs.sh --describe --entity-type topics",
    "kafka-configs.sh --describe --entity-type topics --entity-name nobody",
    "kafka-configs.sh --describe --entity-type brokers --entity-name 1",
    "kafka-configs.sh --describe --entity-type brokers --entity-name 1 --all",
    "kafka-configs.sh --describe --entity-type brokers --entity-default",
    "kafka-configs.sh --describe --entity-type brokers --entity-name 9",
    "kafka-get-offsets.sh --topic orders",
    "kafka-get-offsets.sh --topic-partitions orders:0-2,with.*",
    "kafka-get-offsets.sh --topic-partitions :1",
    "kafka-get-offsets.sh --topic orders --time earliest",
    "kafka-get-offsets.sh --topic orders --time -3 --partitions 0,2",
    "kafka-get-offsets.sh --topic orders --time 99999999999999",
    "kafka-reassign-partitions.sh --list",
    "kafka-leader-election.sh --election-type preferred --topic orders --partition 0",
    "kafka-leader-election.sh --election-type preferred --topic nobody --partition 0",
]


def test_topics_and_settings_are_described_in_kafkas_order(cluster):
    """Which is that of a hash table, and always the same."""
    names = [f"topic-{number * 7919 % 101}" for number in range(30)]
    some = {"retention.ms": 5, "cleanup.policy": "compact", "flush.ms": 9, "segment.bytes": 2_000_000}
    for name in names:
        cluster.create_topic(name, partitions=1, replication_factor=1, config=some)
    lines = ("--describe", "--describe --topic topic-.*", "--describe --topic topic-1.*", "--list")
    theirs, ours = (
        [tool(cluster, "kafka-topics.sh", *line.split()).stdout for line in lines] for tool in (by_kafka, by_ottla)
    )
    run([sys.executable, "-m", "ottla", "topics", "delete", *names, "-b", cluster.bootstrap_servers])
    assert ours == theirs


def test_an_offset_beyond_the_end_is_no_error_of_the_console_consumer(cluster):
    arguments = ["--topic", "orders", "--partition", "0", "--offset", "500", "--timeout-ms", "3000"]
    theirs, ours = (tool(cluster, "kafka-console-consumer.sh", *arguments) for tool in (by_kafka, by_ottla))
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)
    assert ours.stderr == "Processed a total of 0 messages\n"


@pytest.mark.parametrize("line", LINES)
def test_a_command_prints_what_kafkas_own_prints(cluster, line):
    script, *arguments = line.split()
    theirs, ours = by_kafka(cluster, script, *arguments), by_ottla(cluster, script, *arguments)
    assert comparable(ours.stdout) == comparable(theirs.stdout), theirs.stderr[-2000:] + ours.stderr
    assert ours.returncode == theirs.returncode


FILES = {
    "topics.json": '{"version":1,"topics":[{"topic":"orders"}]}',
    "topicsnobody.json": '{"version":1,"topics":[{"topic":"nobody"}]}',
    "plan9.json": '{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,9]}]}',
    "plandup.json": '{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,1]}]}',
    "plannobody.json": '{"version":1,"partitions":[{"topic":"nobody","partition":0,"replicas":[1]}]}',
    "empty.json": '{"version":1}',
    "bad.json": "nope",
}
"""FILES of the lines below is the directory that has these."""
MISUSE = [
    "kafka-topics.sh",
    "kafka-topics.sh --list --create",
    "kafka-topics.sh --list --bogus",
    "kafka-topics.sh --create",
    "kafka-topics.sh --alter --topic orders",
    "kafka-topics.sh --alter --partitions 5",
    "kafka-topics.sh --delete",
    "kafka-topics.sh --create --topic new1 --partitions x",
    "kafka-topics.sh --create --topic new1 --partitions 0",
    "kafka-topics.sh --create --topic new1 --partitions -2",
    "kafka-topics.sh --create --topic new1 --replication-factor 0",
    "kafka-topics.sh --create --topic new1 --replication-factor 9",
    "kafka-topics.sh --create --topic new1 --replication-factor 99999",
    "kafka-topics.sh --create --topic new1 --config nope",
    "kafka-topics.sh --create --topic new1 --config nope=1",
    "kafka-topics.sh --create --topic new1 --replica-assignment 1:x",
    "kafka-topics.sh --create --topic new1 --replica-assignment 1:1",
    "kafka-topics.sh --create --topic new1 --replica-assignment 1:2,3",
    "kafka-topics.sh --create --topic new1 --replica-assignment 1:2 --partitions 3",
    "kafka-topics.sh --list --partitions 3",
    "kafka-topics.sh --list --if-exists",
    "kafka-topics.sh --describe --if-not-exists",
    "kafka-topics.sh --list --under-replicated-partitions",
    "kafka-topics.sh --describe --under-replicated-partitions --unavailable-partitions",
    "kafka-topics.sh --describe --topic-id nope",
    "kafka-topics.sh --describe --topic [",
    "kafka-topics.sh --topic",
    "kafka-topics.sh --alter --topic orders --config a=b --partitions 5",
    "kafka-topics.sh --list --command-config FILES/nope",
    "kafka-consumer-groups.sh",
    "kafka-consumer-groups.sh --list --describe",
    "kafka-consumer-groups.sh --describe",
    "kafka-consumer-groups.sh --delete",
    "kafka-consumer-groups.sh --reset-offsets",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --to-latest --to-earliest",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --to-latest",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --to-offset x",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --to-datetime nope",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --by-duration nope",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders:x --to-latest",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders:7 --to-latest",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic t_1 --to-datetime 2020-01-01T00:00:00.000",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic t_1 --by-duration PT1H",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --to-offset 999",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --to-latest --dry-run --execute",
    "kafka-consumer-groups.sh --reset-offsets --group kitchen --topic orders --from-file FILES/nope",
    "kafka-consumer-groups.sh --delete-offsets --group kitchen",
    "kafka-consumer-groups.sh --delete-offsets --topic orders",
    "kafka-consumer-groups.sh --delete --group kitchen --topic orders",
    "kafka-consumer-groups.sh --describe --group kitchen --all-groups",
    "kafka-consumer-groups.sh --describe --group kitchen --members --state",
    "kafka-consumer-groups.sh --describe --group kitchen --offsets --members",
    "kafka-consumer-groups.sh --list --state nope",
    "kafka-consumer-groups.sh --list --type nope",
    "kafka-consumer-groups.sh --list --group x",
    "kafka-consumer-groups.sh --describe --group kitchen --timeout x",
    "kafka-consumer-groups.sh --validate-regex [",
    "kafka-consumer-groups.sh --describe --group kitchen --verbose --state nope",
    "kafka-consumer-groups.sh --list --bogus",
    "kafka-configs.sh",
    "kafka-configs.sh --describe --alter --topic orders",
    "kafka-configs.sh --describe",
    "kafka-configs.sh --alter",
    "kafka-configs.sh --alter --topic orders",
    "kafka-configs.sh --alter --topic orders --add-config nope=1",
    "kafka-configs.sh --alter --topic orders --add-config retention.ms=x",
    "kafka-configs.sh --alter --topic orders --add-config nope",
    "kafka-configs.sh --alter --topic nobody --add-config retention.ms=5",
    "kafka-configs.sh --alter --entity-type topics --add-config retention.ms=5",
    "kafka-configs.sh --alter --entity-type brokers --entity-name x --add-config a=b",
    "kafka-configs.sh --alter --entity-type nope --entity-name x --add-config a=b",
    "kafka-configs.sh --describe --entity-type nope",
    "kafka-configs.sh --describe --broker x",
    "kafka-configs.sh --describe --topic orders --entity-type topics",
    "kafka-configs.sh --alter --topic orders --add-config a=b --add-config-file FILES/nope",
    "kafka-configs.sh --alter --topic orders --add-config-file FILES/nope",
    "kafka-configs.sh --alter --broker 1 --add-config nope=1",
    "kafka-configs.sh --describe --entity-type topics --entity-name a --entity-name b",
    "kafka-configs.sh --describe --entity-type topics --entity-default",
    "kafka-configs.sh --describe --add-config a=b --topic orders",
    "kafka-configs.sh --describe --broker-logger 9",
    "kafka-configs.sh --describe --topic --all",
    "kafka-get-offsets.sh --time nope",
    "kafka-get-offsets.sh --topic nobody",
    "kafka-get-offsets.sh --topic orders --partitions x",
    "kafka-get-offsets.sh --topic orders --topic-partitions orders:0",
    "kafka-get-offsets.sh --topic-partitions orders:x",
    "kafka-get-offsets.sh --topic-partitions a:b:c",
    "kafka-get-offsets.sh --topic [",
    "kafka-get-offsets.sh --topic orders --partitions 9",
    "kafka-reassign-partitions.sh",
    "kafka-reassign-partitions.sh --list --verify",
    "kafka-reassign-partitions.sh --generate",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/topics.json",
    "kafka-reassign-partitions.sh --execute",
    "kafka-reassign-partitions.sh --verify",
    "kafka-reassign-partitions.sh --cancel",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/topics.json --broker-list 1",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/topics.json --broker-list 1,x",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/topics.json --broker-list 1,1",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/topics.json --broker-list 1,2,9",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/nope.json --broker-list 1",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/bad.json --broker-list 1",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/empty.json --broker-list 1",
    "kafka-reassign-partitions.sh --generate --topics-to-move-json-file FILES/topicsnobody.json --broker-list 1",
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILES/plan9.json",
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILES/plandup.json",
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILES/plannobody.json",
    "kafka-reassign-partitions.sh --verify --reassignment-json-file FILES/plannobody.json",
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILES/empty.json",
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILES/nope.json",
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILES/plan9.json --throttle x",
    "kafka-reassign-partitions.sh --list --throttle 5",
    "kafka-reassign-partitions.sh --verify --reassignment-json-file FILES/plan9.json --broker-list 1",
    "kafka-leader-election.sh",
    "kafka-leader-election.sh --election-type nope --all-topic-partitions",
    "kafka-leader-election.sh --election-type preferred",
    "kafka-leader-election.sh --election-type preferred --topic orders",
    "kafka-leader-election.sh --election-type preferred --topic orders --all-topic-partitions",
    "kafka-leader-election.sh --election-type preferred --partition 0 --all-topic-partitions",
    "kafka-leader-election.sh --election-type preferred --topic orders --partition x",
    "kafka-leader-election.sh --election-type preferred --path-to-json-file FILES/bad.json",
    "kafka-leader-election.sh --election-type preferred --path-to-json-file FILES/empty.json",
    "kafka-leader-election.sh --election-type preferred --path-to-json-file FILES/nope.json",
    "kafka-console-producer.sh",
    "kafka-console-producer.sh --topic orders --compression-codec nope",
    "kafka-console-producer.sh --topic orders --request-required-acks x",
    "kafka-console-consumer.sh",
    "kafka-console-consumer.sh --topic orders --offset 3",
    "kafka-console-consumer.sh --topic orders --partition 0 --offset nope",
    "kafka-console-consumer.sh --topic orders --partition 0 --offset -5",
    "kafka-console-consumer.sh --topic orders --partition x",
    "kafka-console-consumer.sh --topic orders --partition 0 --from-beginning --offset latest",
    "kafka-console-consumer.sh --topic orders --timeout-ms x",
    "kafka-console-consumer.sh --topic orders --isolation-level nope --max-messages 1 --from-beginning",
    "kafka-console-consumer.sh --topic orders --group g --partition 0 --offset 3 --max-messages 1",
]
MISUSE_WITHOUT_A_SERVER = [
    "kafka-topics.sh --version",
    "kafka-topics.sh --help",
    "kafka-topics.sh --bogus",
    "kafka-topics.sh",
    "kafka-topics.sh --list",
    "kafka-topics.sh --list --bootstrap-server 127.0.0.1:x",
    "kafka-consumer-groups.sh --version",
    "kafka-consumer-groups.sh --help",
    "kafka-consumer-groups.sh --bogus",
    "kafka-consumer-groups.sh --list",
    "kafka-configs.sh --version",
    "kafka-configs.sh --help",
    "kafka-configs.sh --bogus",
    "kafka-configs.sh --describe --entity-type topics",
    "kafka-get-offsets.sh --version",
    "kafka-get-offsets.sh --help",
    "kafka-get-offsets.sh --bogus",
    "kafka-get-offsets.sh --topic orders",
    "kafka-reassign-partitions.sh --version",
    "kafka-reassign-partitions.sh --help",
    "kafka-reassign-partitions.sh --bogus",
    "kafka-reassign-partitions.sh --list",
    "kafka-leader-election.sh --version",
    "kafka-leader-election.sh --help",
    "kafka-leader-election.sh --bogus",
    "kafka-leader-election.sh --election-type preferred --all-topic-partitions",
    "kafka-console-producer.sh --version",
    "kafka-console-producer.sh --help",
    "kafka-console-producer.sh --bogus",
    "kafka-console-producer.sh --topic orders",
    "kafka-console-consumer.sh --version",
    "kafka-console-consumer.sh --help",
    "kafka-console-consumer.sh --bogus",
    "kafka-console-consumer.sh --topic orders",
]


def reported(output: str) -> list[str]:
    """What a misused command says: without stack traces and the table of options, but for that there is one.

    Where Java prints a set of options or states, it does so in an order that each virtual machine chooses for itself.
    """
    message, table, _ = re.sub(r"^\t\.\.\. \d+ more$", "", output, flags=re.MULTILINE).partition("Option     ")
    options = re.compile(r"\[\[?[a-z-]+\](?:, \[[a-z-]+\])+\]?")
    message = options.sub(lambda found: " ".join(sorted(re.findall(r"[a-z-]+", found[0]))), message)
    states = re.compile(r"(?<=Valid states are: ).*|(?<=Valid types are: ).*")
    message = states.sub(lambda found: " ".join(sorted(found[0].split(", "))), message)
    return [*comparable(message), table]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (directory / name).write_text(content)
    return str(directory)


def same_refusal(theirs: subprocess.CompletedProcess[str], ours: subprocess.CompletedProcess[str]) -> None:
    assert reported(ours.stdout) == reported(theirs.stdout)
    assert reported(ours.stderr) == reported(theirs.stderr)
    assert ours.returncode == theirs.returncode


@pytest.mark.parametrize("line", MISUSE)
def test_misuse_prints_what_kafkas_own_print(cluster, files, line):
    script, *arguments = line.replace("FILES", files).split()
    same_refusal(by_kafka(cluster, script, *arguments), by_ottla(cluster, script, *arguments))


@pytest.mark.parametrize("line", MISUSE_WITHOUT_A_SERVER)
def test_misuse_without_a_server_prints_what_kafkas_own_print(line):
    script, *arguments = line.split()
    same_refusal(kafka(script, *arguments), ottla(script, *arguments))


def test_members_are_shown_as_by_kafkas_own(cluster):
    from ottla.blocking import Consumer

    with Consumer("orders", bootstrap_servers=cluster.bootstrap_servers, group_id="watched") as consumer:
        wait_for(
            lambda: consumer.getmany(timeout_ms=100) is not None and len(consumer.assignment()) == 3, "a share", 30
        )
        for arguments in (["--members"], ["--members", "--verbose"], ["--offsets"], []):
            command = ("kafka-consumer-groups.sh", "--describe", "--group", "watched", *arguments)
            theirs, ours = by_kafka(cluster, *command), by_ottla(cluster, *command)
            assert comparable(ours.stdout) == comparable(theirs.stdout), theirs.stderr[-2000:] + ours.stderr


def test_changes_print_what_kafkas_own_print(cluster):
    """Each does the same to a topic of its own."""
    outputs = []
    for run, topic in ((by_kafka, "made-by-kafka"), (by_ottla, "made-by-ottla")):
        lines = [
            f"kafka-topics.sh --create --topic {topic} --partitions 2 --replication-factor 1 --config retention.ms=5",
            f"kafka-topics.sh --create --topic {topic}_ --replica-assignment 1:2,2:3",
            f"kafka-topics.sh --alter --topic {topic} --partitions 3",
            f"kafka-configs.sh --alter --topic {topic} --add-config retention.ms=7,cleanup.policy=[compact,delete]",
            f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --delete-config retention.ms",
            f"kafka-configs.sh --describe --topic {topic}",
            f"kafka-consumer-groups.sh --reset-offsets --group of-{topic} --topic {topic} --to-latest --execute",
            f"kafka-consumer-groups.sh --delete-offsets --group of-{topic} --topic {topic}:0",
            f"kafka-consumer-groups.sh --describe --group of-{topic}",
            f"kafka-consumer-groups.sh --delete --group of-{topic}",
            f"kafka-topics.sh --delete --topic {topic}.*",
        ]
        said = ""
        for line in lines:
            script, *arguments = line.split()
            done = run(cluster, script, *arguments)
            assert done.returncode == 0, (line, done)
            said += done.stdout
        outputs.append(said.replace(topic, "TOPIC"))
    theirs, ours = outputs
    assert comparable(ours) == comparable(theirs)


def moved(verify):
    return "still in progress" not in verify().stdout


def test_a_reassignment_prints_what_kafkas_own_prints(cluster, tmp_path):
    outputs = []
    for run, topic in ((by_kafka, "moved-by-kafka"), (by_ottla, "moved-by-ottla")):
        assert by_ottla(
            cluster, "kafka-topics.sh", "--create", "--topic", topic, "--replica-assignment", "1:2,2:3"
        ).returncode == 0  # fmt: skip
        plan, topics = tmp_path / f"{topic}.json", tmp_path / f"{topic}-topics.json"
        parts = [{"topic": topic, "partition": number, "replicas": [3, 1]} for number in range(2)]
        plan.write_text(json.dumps({"version": 1, "partitions": parts}))
        topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
        script = "kafka-reassign-partitions.sh"
        generated = run(
            cluster, script, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"
        )
        current, proposed = re.findall(r"^\{.*\}$", generated.stdout, re.MULTILINE)
        said = re.sub(r"^\{.*\}$", "JSON", generated.stdout, flags=re.MULTILINE)
        said += json.dumps(json.loads(current)) + str(sorted(json.loads(proposed)))
        said += run(cluster, script, "--execute", "--reassignment-json-file", str(plan), "--throttle", "9000000").stdout
        verify = partial(
            run, cluster, script, "--verify", "--reassignment-json-file", str(plan), "--preserve-throttles"
        )
        wait_for(partial(moved, verify), "the move", 60)
        said += run(cluster, script, "--verify", "--reassignment-json-file", str(plan)).stdout
        said += run(cluster, script, "--cancel", "--reassignment-json-file", str(plan)).stdout
        said += run(cluster, script, "--list").stdout
        outputs.append(re.sub(r"\"log_dirs\": ?\[[^]]*\]", "DIRS", said.replace(topic, "TOPIC")))
    theirs, ours = outputs
    assert ours.splitlines() == theirs.splitlines()
