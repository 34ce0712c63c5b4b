"""Our console commands beside Apache Kafka's own: each option on the same topics, and what each producer writes.

As `test_kafka_scripts`, whose tools these are: `make interop-java` fetches Kafka's and runs this.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from ottla.blocking import Producer
from ottla.testing import Cluster
from tests.interop.test_java import JARS
from tests.interop.test_java import pytestmark as needs_java
from tests.interop.test_kafka_scripts import TOOLS, kafka, ottla, reported

pytestmark = [needs_java, pytest.mark.timeout(400)]

CONSUMER, PRODUCER = "kafka-console-consumer.sh", "kafka-console-producer.sh"
TOOL = "org.apache.kafka.tools.consumer"
SERDE = "org.apache.kafka.common.serialization"
ADVICE = re.compile(r"^The consumer rebalance protocol .*$|^Unable to instantiate .*$", re.MULTILINE)
"""What Kafka's client recommends, and what Kafka's tool writes into its log and ours on standard error."""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(1, config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        orders = cluster.create_topic("orders", partitions=1, replication_factor=1)
        orders.produce([("key", f"value {number}") for number in range(5)])
        timed = cluster.create_topic(
            "timed", partitions=1, replication_factor=1, config={"message.timestamp.type": "LogAppendTime"}
        )
        timed.produce([("key", "value")])
        cluster.create_topic("odd", partitions=1, replication_factor=1)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("odd", b"one", key=b"k", headers=[("a", b"1"), ("b", None)]).result()
            producer.send("odd", None, key=b"k").result()
            producer.send("odd", b"\x00\x00\x00\x05").result()
            producer.send("odd", "ünï\nx".encode(), headers=[("ü", b"2")]).result()
        cluster.consume("orders", 5, group="kitchen")
        cluster.consume("orders", 5, group="cellar", group_protocol="consumer")
        with Producer(cluster.bootstrap_servers, transactional_id="bookkeeper") as producer:
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("orders", b"in a transaction", key=b"t").result()
                end()
        yield cluster


def shown(*names: str) -> str:
    return " ".join(f"--formatter-property {name}" for name in names)


PARTS = ("key", "headers", "timestamp", "epoch", "delivery", "offset", "partition")
ALL = shown(*(f"print.{name}=true" for name in PARTS))
LINES = [
    f"--topic odd {ALL} --max-messages 4",
    f"--topic odd {ALL} {shown('headers.separator=|', 'null.literal=NIL', 'key.separator=/')} --max-messages 4",
    f"--topic odd {shown('print.value=false')} --max-messages 4",
    f"--topic odd {shown('print.value=no', 'print.offset= TRUE', 'line.separator=;')} --max-messages 4",
    f"--topic timed {shown('print.timestamp=true')} --max-messages 1",
    f"--topic odd --formatter {TOOL}.LoggingMessageFormatter --max-messages 4",
    f"--topic odd --formatter {TOOL}.NoOpMessageFormatter --enable-systest-events --max-messages 4",
    f"--topic __transaction_state --formatter {TOOL}.TransactionLogMessageFormatter --max-messages 7",
    f"--topic orders --formatter {TOOL}.OffsetsMessageFormatter --max-messages 6",
    f"--topic orders --formatter {TOOL}.OffsetsMessageFormatter --max-messages 6 --skip-message-on-error",
    "--topic orders --formatter nope.Nope",
    "--topic orders --formatter-config FILES/format --max-messages 1",
    f"--topic orders --formatter-config FILES/format {shown('print.key=false')} --max-messages 1",
    "--topic orders --formatter-config FILES/nope",
    f"--topic odd --value-deserializer {SERDE}.IntegerDeserializer --max-messages 4",
    f"--topic odd --value-deserializer {SERDE}.IntegerDeserializer --max-messages 4 --skip-message-on-error",
    f"--topic odd --value-deserializer {SERDE}.FloatDeserializer --max-messages 4 --skip-message-on-error",
    f"--topic odd --value-deserializer {SERDE}.BooleanDeserializer --max-messages 4 --skip-message-on-error",
    f"--topic odd --value-deserializer {SERDE}.BytesDeserializer --max-messages 4",
    f"--topic odd --value-deserializer {SERDE}.ByteBufferDeserializer --max-messages 4",
    f"--topic odd --key-deserializer {SERDE}.StringDeserializer {shown('print.key=true')} --max-messages 4",
    "--topic orders --value-deserializer nope.Nope --max-messages 1",
    "--include or.* --max-messages 5",
    "--include orders --partition 0",
    "--include orders --topic orders",
    "--topic orders --max-messages 0",
    "--topic orders --max-messages -2",
    "--topic orders --max-messages x",
    "--topic orders --formatter",
    "--topic orders --property print.key=true --formatter-property print.key=true",
    "--topic orders --consumer-property a=b --command-property a=b",
    "--topic orders --consumer.config FILES/nope --command-config FILES/nope",
    "--topic orders --command-config FILES/nope",
    "--topic orders --command-property auto.offset.reset=latest",
    "--topic orders --command-property auto.offset.reset=earliest --max-messages 1",
    "--topic orders --isolation-level read_committed --max-messages 6",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    (directory / "format").write_text("print.key = true\nkey.separator=:\n")
    (directory / "read").write_text("parse.key=true\nkey.separator=:\n")
    (directory / "settings").write_text("acks=1\nlinger.ms=1\n")
    return str(directory)


def same(theirs: subprocess.CompletedProcess[str], ours: subprocess.CompletedProcess[str]) -> None:
    assert reported(ours.stdout) == reported(theirs.stdout), theirs.stderr[-2000:] + ours.stderr
    assert reported(ADVICE.sub("", ours.stderr)) == reported(ADVICE.sub("", theirs.stderr))
    assert ours.returncode == theirs.returncode


@pytest.mark.parametrize("line", LINES)
def test_the_consumer_prints_what_kafkas_own_prints(cluster, files, line):
    arguments = re.split(r" (?! |TRUE)", line.replace("FILES", files))
    command = (CONSUMER, "--bootstrap-server", cluster.bootstrap_servers, "--from-beginning", *arguments)
    same(kafka(*command), ottla(*command))


def objects(output: str, groups: tuple[str, ...]) -> dict[str, list[object]]:
    """What a formatter told of these groups, in its order; partitions come in any."""
    found: dict[str, list[object]] = {group: [] for group in groups}
    while output.startswith("{"):
        reported, end = json.JSONDecoder().raw_decode(output)
        output = output[end:]
        if (group := reported["key"]["data"]["group"]) in found:
            found[group].append(reported)
    return found


@pytest.mark.parametrize("formatter", ["OffsetsMessageFormatter", "GroupMetadataMessageFormatter"])
def test_the_records_of_groups_are_printed_as_by_kafkas_own(cluster, formatter):
    arguments = f"--topic __consumer_offsets --from-beginning --timeout-ms 4000 --formatter {TOOL}.{formatter}".split()
    command = (CONSUMER, "--bootstrap-server", cluster.bootstrap_servers, *arguments)
    theirs, ours = (objects(run(*command).stdout, ("kitchen", "cellar")) for run in (kafka, ottla))
    assert json.dumps(ours) == json.dumps(theirs)
    assert len(ours["kitchen"]) > 0


def fed(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, input=text)


def by_both(cluster, topic, line, text):
    """Each with a topic of its own: what they said, and what is in the topics."""
    said, written = [], []
    lean = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    java = ["java", *lean, "-cp", f"{JARS}/*", TOOLS[PRODUCER]]
    for run, name in (
        (java, f"{topic}-kafka"),
        ([sys.executable, "-m", "ottla.cli.kafka_scripts", PRODUCER], f"{topic}-ottla"),
    ):
        cluster.create_topic(name, partitions=1, replication_factor=1)
        said.append(
            fed([*run, "--bootstrap-server", cluster.bootstrap_servers, "--topic", name, *line.split(" ")], text)
        )
        properties = ["print.key=true", "print.headers=true", "null.literal=<null>"]
        command = f"--topic {name} --from-beginning --timeout-ms 1500 {shown(*properties)}".split()
        written.append(ottla(CONSUMER, "--bootstrap-server", cluster.bootstrap_servers, *command).stdout)
    return said, written


def read(*names: str) -> str:
    return " ".join(f"--reader-property {name}" for name in names)


HEADED = read("parse.headers=true", "parse.key=true", "key.separator=:", "headers.delimiter=;", "null.marker=NIL")
TUNED = (
    "--timeout 10 --batch-size 100 --max-block-ms 9000 --max-memory-bytes 1000000 --message-send-max-retries 0 "
    "--metadata-expiry-ms 5000 --request-required-acks 1 --request-timeout-ms 9000 --retry-backoff-ms 5 "
    "--socket-buffer-size 100000 --compression-codec lz4"
)
TYPED = [
    (read("parse.key=true"), "k\tv\nk\t\n\tv\nno key\nk\tv\n"),
    (read("parse.key=true", "ignore.error=true"), "k\tv\nno key\n"),
    (read("parse.key=true", "key.separator=::", "null.marker=NIL"), "NIL::v\nk::NIL\nk::::v\n"),
    (HEADED.replace("headers.delimiter=;", "headers.key.separator=="), "a=1,b=NIL\tk:v\nNIL\tk:v\n\tk:v\n"),
    (HEADED, "a:1;k:v\nNIL:1;k:v\n"),
    (read("parse.headers=true", "ignore.error=true"), "a:1,b\tv\nnothing\n"),
    (read("parse.headers=true", "headers.separator=[|]"), "a:1|b:2||\tv\na:1\tv\n"),
    (read("null.marker="), "\nv\n"),
    ("--sync", "a\rb\r\nc\n\nd"),
    ("--reader-config FILES/read --command-config FILES/settings", "k:v\n"),
    ("--reader-config FILES/read " + read("key.separator=-"), "k-v:w\n"),
    ("--line-reader org.apache.kafka.tools.LineMessageReader --compression-codec --sync", "v\n"),
    (TUNED, "a\nb\n"),
    (read("headers.delimiter=,"), "v\n"),
    (read("null.marker=:"), "v\n"),
    ("--line-reader nope.Nope", "v\n"),
    ("--reader-config FILES/nope", "v\n"),
    ("--command-config FILES/nope", "v\n"),
    ("--batch-size x", "v\n"),
    ("--timeout", "v\n"),
    ("--timeout -1", "v\n"),
    ("--socket-buffer-size -2", "v\n"),
    ("--message-send-max-retries -1", "v\n"),
    ("--reader-property a=b --property a=b", "v\n"),
    ("--producer-property a=b --command-property a=b", "v\n"),
    ("--producer.config FILES/nope --command-config FILES/nope", "v\n"),
]


@pytest.mark.parametrize("number", range(len(TYPED)))
def test_the_producer_writes_what_kafkas_own_writes(cluster, files, number):
    line, text = TYPED[number]
    said, written = by_both(cluster, f"typed-{number}", line.replace("FILES", files), text)
    same(*said)
    assert written[1] == written[0]


@pytest.mark.parametrize("script", TOOLS)
def test_every_option_of_kafkas_own_is_known(script):
    theirs, ours = (options(run(script, "--help")) for run in (kafka, ottla))
    assert theirs - ours == set()
    assert len(theirs) > 5


def options(reported: subprocess.CompletedProcess[str]) -> set[str]:
    """Those of the left column; several names of one option stand beside each other."""
    columns = re.findall(r"^--.*?(?=  | <| \[|$)", reported.stderr, re.MULTILINE)
    return {name for column in columns for name in column.split(", ")}
