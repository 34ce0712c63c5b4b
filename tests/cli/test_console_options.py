"""The options of Kafka's console commands: readers, formatters, deserializers, and what is refused."""

from __future__ import annotations

import json
import struct
import uuid

import pytest

from ottla.cli.cluster import Target
from ottla.cli.kafka_scripts import coordinator_formatters as coordinators
from ottla.cli.kafka_scripts import formatters
from ottla.cli.kafka_scripts.deserializers import PACKAGE, deserializer, fraction
from ottla.cli.kafka_scripts.hash_order import hash_order, table_size
from ottla.cli.kafka_scripts.line_reader import LineReader
from ottla.cli.kafka_scripts.options import ToolFailure, kafkas_words
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.client.errors import NotUnderstood
from ottla.coordinator import group_records, transaction_records
from ottla.coordinator.group_record_values import ClassicGroupMember, GroupMetadataValue
from tests.cli.shell import Shell

NOWHERE = Target("127.0.0.1:1", {})


@pytest.fixture(scope="module")
def shell(shared_broker, tmp_path_factory):
    with Shell(tmp_path_factory.mktemp("shell"), shared_broker.bootstrap) as shell:
        yield shell


def record(key=b"k", value=b"v", headers=()):
    return ConsumerRecord("t", 1, 2, 3, key, value, headers)


def typed(text, **properties):
    reader = LineReader({name.replace("_", "."): value for name, value in properties.items()})
    return [(each.headers, each.key, each.value) for each in reader.records(text.encode().splitlines(keepends=True))]


def test_a_line_is_a_value_and_ends_where_java_ends_it():
    assert typed("a\n\nb\r\nc") == [([], None, b"a"), ([], None, b""), ([], None, b"b"), ([], None, b"c")]
    assert [value for *_, value in typed("a\n", null_marker="a")] == [None]


def test_a_line_has_headers_and_a_key_where_the_properties_say_so():
    both = {"parse_headers": "TRUE", "parse_key": "true", "key_separator": ":", "headers_delimiter": ";"}
    assert typed("a:1,b:;k:v:w\n", **both) == [([("a", b"1"), ("b", b"")], b"k", b"v:w")]
    assert typed("NIL;NIL:NIL\n", null_marker="NIL", **both) == [([], None, None)]
    assert typed("a\tv\nv\n", parse_headers="true", ignore_error="true") == [
        ([("a", None)], None, b"v"),
        ([], None, b"v"),
    ]


@pytest.mark.parametrize(
    ("text", "properties", "words"),
    [
        ("a\nb\n", {"parse_key": "true", "key_separator": "a"}, "No key separator found on line number 2: 'b'"),
        ("a\n", {"parse_headers": "true"}, "No headers delimiter found on line number 1: 'a'"),
        ("a\tb\n", {"parse_headers": "true"}, "No header key separator found in pair 'a' on line number 1"),
        ("n:1\tb\n", {"parse_headers": "true", "null_marker": "n"}, "Header keys should not be equal"),
        ("", {"headers_delimiter": ","}, "headers.delimiter and headers.separator may not be equal"),
        ("", {"null_marker": "\t"}, "null.marker and key.separator may not be equal"),
        ("", {"headers_separator": "["}, "PatternSyntaxException"),
    ],
)
def test_a_line_that_is_no_record_is_refused(text, properties, words):
    with pytest.raises(ToolFailure, match=words.replace("(", r"\(")):
        typed(text, **properties)


def test_the_default_formatter_prints_what_its_properties_say():
    names = ("partition", "offset", "delivery", "epoch", "headers", "key")
    everything = formatters.default({f"print.{name}": "true" for name in names}, NOWHERE)
    assert everything(record(headers=[("a", b"1"), ("b", None)])) == (
        b"Partition:1\tOffset:2\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\ta:1,b:null\tk\tv\n"
    )
    assert formatters.default({"print.value": "false"}, NOWHERE)(record()) == b""
    odd = {"print.key": "true", "key.separator": "/", "line.separator": "|", "null.literal": "-"}
    assert formatters.default(odd, NOWHERE)(record(key=None)) == b"-/v|"


@pytest.mark.parametrize("name", [*formatters.OLD_NAMES, *formatters.FORMATTERS, formatters.DEFAULT])
def test_formatters_go_by_their_old_names_too(name):
    assert callable(formatters.formatter(name, {}, NOWHERE))


def test_formatters_of_share_groups_are_refused():
    with pytest.raises(ToolFailure, match="no share groups"):
        formatters.formatter(formatters.OF_SHARE_GROUPS[0], {}, NOWHERE)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("String", "ü".encode(), "ü"),
        ("Short", b"\xff\xff", "-1"),
        ("Integer", b"\0\0\0\5", "5"),
        ("Long", b"\0" * 7 + b"\7", "7"),
        ("Float", struct.pack(">f", 0.1), "0.1"),
        ("Double", struct.pack(">d", 1e10), "1.0E10"),
        ("Boolean", b"\1", "true"),
        ("UUID", str(uuid.UUID(int=7)).encode(), str(uuid.UUID(int=7))),
        ("Bytes", b"a\\\n", "a\\x5C\\x0A"),
        ("ByteBuffer", b"abc", "java.nio.HeapByteBuffer[pos=0 lim=3 cap=3]"),
        ("ByteArray", b"\xff", None),
    ],
)
def test_kafkas_own_deserializers(name, data, text):
    shown = deserializer(f"{PACKAGE}{name}Deserializer", {}, "value")
    assert shown is not None
    assert shown(data) == (data if text is None else text.encode())


@pytest.mark.parametrize("name", ["Short", "Double", "Boolean", "UUID", "Void"])
def test_what_is_no_value_of_a_type_is_refused(name):
    shown = deserializer(f"{PACKAGE}{name}Deserializer", {}, "value")
    assert shown is not None
    with pytest.raises(ToolFailure, match="Exception: "):
        shown(b"nonsense?")


def test_strings_have_an_encoding_and_other_classes_are_not_known():
    shown = deserializer(f"{PACKAGE}StringDeserializer", {"deserializer.encoding": "ISO-8859-1"}, "key")
    assert shown is not None
    assert shown(b"\xfc") == "ü".encode()
    assert deserializer("com.example.Deserializer", {}, "key") is None
    assert deserializer(f"{PACKAGE}NopeDeserializer", {}, "key") is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (-123.25, "-123.25"), (0.001, "0.001"), (9.5e-4, "9.5E-4"),
     (9999999.0, "9999999.0"), (1.5e7, "1.5E7"), (-1e-300, "-1.0E-300"), (float("inf"), "Infinity"),
     (float("nan"), "NaN")],
)  # fmt: skip
def test_fractions_are_written_as_java_writes_them(number, text):
    assert fraction(number, single=False) == text.encode()


def told(formatter, key, value, coder=group_records):
    data = formatter()(record(coder.encode_key(key), None if value is None else coder.encode_value(value)))
    return json.loads(data) if data else None


def test_committed_offsets_are_told_in_kafkas_words():
    key = group_records.OffsetCommitKey("g", "t", 3)
    value = group_records.OffsetCommitValue(7, 1, "note", 99, topic_id=bytes(15) + b"\1")
    assert told(coordinators.offsets, key, value) == {
        "key": {"type": 1, "data": {"group": "g", "topic": "t", "partition": 3}},
        "value": {
            "version": 4,
            "data": {
                "offset": 7, "leaderEpoch": 1, "metadata": "note", "commitTimestamp": 99,
                "topicId": "AAAAAAAAAAAAAAAAAAAAAQ",
            },
        },
    }  # fmt: skip
    old = told(coordinators.offsets, key, group_records.OffsetCommitValue(7, -1, "", 99, 100))
    assert old["value"] == {
        "version": 1,
        "data": {"offset": 7, "metadata": "", "commitTimestamp": 99, "expireTimestamp": 100},
    }
    assert told(coordinators.offsets, key, None)["value"] is None
    assert told(coordinators.groups, key, value) is None


def test_groups_are_told_in_kafkas_words():
    member = ClassicGroupMember(member_id="m", client_id="c", client_host="/h", subscription=b"s", assignment=b"a")
    value = GroupMetadataValue(protocol_type="consumer", generation=2, members=[member])
    assert told(coordinators.groups, group_records.GroupMetadataKey("g"), value)["value"] == {
        "version": 3,
        "data": {
            "protocolType": "consumer", "generation": 2, "protocol": None, "leader": None,
            "currentStateTimestamp": -1,
            "members": [{
                "memberId": "m", "groupInstanceId": None, "clientId": "c", "clientHost": "/h", "rebalanceTimeout": -1,
                "sessionTimeout": 0, "subscription": "cw==", "assignment": "YQ==",
            }],
        },
    }  # fmt: skip


def test_transactions_are_told_in_kafkas_words():
    key = transaction_records.TransactionKey("tx")
    value = transaction_records.TransactionValue(
        4,
        1,
        60_000,
        transaction_records.TransactionState.ONGOING,
        (("t", 0), ("t", 2)),
        9,
        8,
        previous_producer_id=3,
        version=2,
    )
    assert told(coordinators.transactions, key, value, transaction_records) == {
        "key": {"type": 0, "data": {"transactionalId": "tx"}},
        "value": {
            "version": 1,
            "data": {
                "producerId": 4, "previousProducerId": 3, "producerEpoch": 1, "transactionTimeoutMs": 60_000,
                "transactionStatus": 1, "transactionPartitions": [{"topic": "t", "partitionIds": [0, 2]}],
                "transactionLastUpdateTimestampMs": 9, "transactionStartTimestampMs": 8, "clientTransactionVersion": 2,
            },
        },
    }  # fmt: skip
    empty = transaction_records.TransactionValue(4, 0, 60_000)
    data = told(coordinators.transactions, key, empty, transaction_records)["value"]["data"]
    assert data["transactionPartitions"] is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"x", b"", "version from key's buffer"),
        (b"\0\1\0\7", b"", "record with version 1 from key's buffer"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0", "version from value's buffer"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\4\0", "record with version 4 from value's buffer"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\x09", "record with version 9 from value's buffer"),
    ],
)
def test_what_no_coordinator_wrote_is_refused(key, value, words):
    with pytest.raises(ToolFailure, match=f"Could not read record at offset 2 due to: Could not read {words}"):
        coordinators.offsets()(record(key, value))
    assert coordinators.offsets()(record(None, b"")) == b""


def test_the_console_commands_take_kafkas_options(shell, fresh_name):
    topic = fresh_name()
    tuned = (
        "--sync --timeout 5 --batch-size 100 --max-block-ms 9000 --max-memory-bytes 1000000 --compression-codec "
        "--message-send-max-retries 0 --metadata-expiry-ms 5000 --request-required-acks 1 --request-timeout-ms 9000 "
        "--retry-backoff-ms 5 --socket-buffer-size 100000 --max-partition-memory-bytes 200"
    )
    headed = "--reader-property parse.headers=true --reader-property parse.key=true"
    server = f"--bootstrap-server {shell.bootstrap}"
    produce = f"bin/kafka-console-producer.sh {server} --topic {topic} {headed} {tuned}"
    done = shell.run(
        f"ottla topics create {topic}; printf 'a:1\\tk\\tone\\nb:\\tk\\ttwo\\n' | {produce};"
        f"bin/kafka-console-consumer.sh {server} --include '{topic}|nothing' --from-beginning --max-messages 2"
        " --formatter-property print.headers=true --formatter-property print.key=true;"
        f"bin/kafka-console-consumer.sh {server} --topic {topic} --command-property auto.offset.reset=earliest"
        " --max-messages 2 --formatter kafka.tools.NoOpMessageFormatter --enable-systest-events"
    )
    assert done.stdout.splitlines()[-3:] == ["a:1\tk\tone", "b:\tk\ttwo", "shutdown_complete"]
    assert done.stderr.splitlines() == ["Processed a total of 2 messages"] * 2
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("consumer.sh --topic t --include t", "Exactly one of the following arguments is required: [topic], [include]"),
        ("consumer.sh --include t --partition 0", "The topic is required when partition is specified."),
        ("consumer.sh --include [", "PatternSyntaxException"),
        ("consumer.sh --topic t --formatter com.example.Mine", "com.example.Mine\nOption "),
        ("consumer.sh --topic t --formatter", "Option formatter requires an argument"),
        ("consumer.sh --topic t --formatter-config /nope", "/nope\nOption "),
        ("consumer.sh --topic t --command-config /nope", 'Exception in thread "main" java.nio.file.NoSuchFile'),
        ("consumer.sh --topic t --property a=b --formatter-property a=b", "Options --property and --formatter-"),
        ("consumer.sh --topic t --from-beginning --command-property auto.offset.reset=latest", "Can't simultaneously"),
        ("producer.sh --topic t --line-reader com.example.Mine", "java.lang.ClassNotFoundException: com.example.Mine"),
        ("producer.sh --topic t --batch-size x", "Cannot parse argument 'x' of option batch-size"),
        ("producer.sh --topic t --timeout -1", "Invalid value -1 for configuration linger.ms: Value must be"),
        ("producer.sh --topic t --socket-buffer-size -2", "send.buffer.bytes: Value must be at least -1"),
        ("producer.sh --topic t --reader-config /nope", "java.nio.file.NoSuchFileException: /nope"),
        ("producer.sh --topic t --property a=b --reader-property a=b", "cannot be specified together"),
    ],
)
def test_misuse_of_the_console_commands_is_told(shell, command, words):
    script, _, options = command.partition(" ")
    done = shell.run(f"bin/kafka-console-{script} --bootstrap-server {shell.bootstrap} {options} < /dev/null")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kafka-configs.sh --describe --user bob", "users: this cluster has no quotas, users"),
        ("kafka-configs.sh --describe --client-defaults", "clients: this cluster has no quotas"),
        ("kafka-configs.sh --describe --entity-type ips", "ips: this cluster has no quotas"),
    ],
)
def test_what_is_not_here_yet_is_refused(shell, command, words):
    done = shell.run(f"bin/{command} --bootstrap-server {shell.bootstrap}")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_controllers_are_asked_through_brokers(shell):
    for command in ("kafka-configs.sh --describe --topic t", "kafka-reassign-partitions.sh --list"):
        done = shell.run(f"bin/{command} --bootstrap-controller {shell.bootstrap} 2>&1")
        assert (done.returncode, "say --bootstrap-server" in done.stdout) == (1, True)


def test_topics_and_settings_come_in_the_order_of_javas_hash_table():
    kafkas = ["aa", "b2", "zeta", "alpha", "payments", "t_1", "Zed", "orders", "long-name-of-a-topic", "with.dots"]
    assert hash_order(sorted(kafkas), table_size(len(kafkas))) == kafkas, "as Kafka's own tool printed them"
    assert [table_size(count) for count in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    assert hash_order(["😀", "a"], 16) == ["a", "😀"]


def test_settings_are_described_in_kafkas_order(shell):
    configs = "max.message.bytes=1000 cleanup.policy=compact retention.ms=5 flush.ms=9 compression.type=lz4"
    given = " ".join(f"--config {each}" for each in configs.split())
    kafka_topics = f"bin/kafka-topics.sh --bootstrap-server {shell.bootstrap} --topic in-order"
    done = shell.run(f"{kafka_topics} --create --config min.insync.replicas=1 {given} && {kafka_topics} --describe")
    order = "compression.type=lz4,min.insync.replicas=1,cleanup.policy=compact,flush.ms=9,retention.ms=5"
    assert f"\tConfigs: {order},max.message.bytes=1000\n" in done.stdout


def test_an_offset_beyond_the_end_is_no_error_for_kafkas_consumer(shell):
    address = f"--bootstrap-server {shell.bootstrap} --topic beyond"
    consume = f"bin/kafka-console-consumer.sh {address} --partition 0 --offset 500 --timeout-ms 300"
    done = shell.run(f"bin/kafka-topics.sh {address} --create && {consume}")
    assert (done.returncode, done.stderr) == (0, "Processed a total of 0 messages\n")


def test_a_port_that_speaks_http_is_named():
    error = NotUnderstood("127.0.0.1:8080 does not speak Kafka's protocol: it speaks HTTP")
    assert kafkas_words(error) == str(error)
