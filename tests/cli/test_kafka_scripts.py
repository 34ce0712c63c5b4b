"""Options and messages of Kafka's scripts, on a real broker."""

from __future__ import annotations

import pytest

from ottla.cli.kafka_scripts.options import kafka_message
from ottla.client.errors import NotUnderstood
from tests.cli.shell import Shell


@pytest.fixture(scope="module")
def shell(shared_broker, tmp_path_factory):
    with Shell(tmp_path_factory.mktemp("shell"), shared_broker.bootstrap) as shell:
        yield shell


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
def test_wrong_usage_of_the_console_commands_is_reported(shell, command, words):
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
def test_unsupported_entities_are_refused(shell, command, words):
    done = shell.run(f"bin/{command} --bootstrap-server {shell.bootstrap}")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_bootstrap_controller_is_refused_with_a_hint(shell):
    for command in ("kafka-configs.sh --describe --topic t", "kafka-reassign-partitions.sh --list"):
        done = shell.run(f"bin/{command} --bootstrap-controller {shell.bootstrap} 2>&1")
        assert (done.returncode, "use --bootstrap-server" in done.stdout) == (1, True)


def test_settings_are_described_in_kafkas_order(shell):
    configs = "max.message.bytes=1000 cleanup.policy=compact retention.ms=5 flush.ms=9 compression.type=lz4"
    given = " ".join(f"--config {each}" for each in configs.split())
    kafka_topics = f"bin/kafka-topics.sh --bootstrap-server {shell.bootstrap} --topic in-order"
    done = shell.run(f"{kafka_topics} --create --config min.insync.replicas=1 {given} && {kafka_topics} --describe")
    order = "compression.type=lz4,min.insync.replicas=1,cleanup.policy=compact,flush.ms=9,retention.ms=5"
    assert f"\tConfigs: {order},max.message.bytes=1000\n" in done.stdout


def test_the_console_consumer_accepts_an_offset_beyond_the_end(shell):
    address = f"--bootstrap-server {shell.bootstrap} --topic beyond"
    consume = f"bin/kafka-console-consumer.sh {address} --partition 0 --offset 500 --timeout-ms 300"
    done = shell.run(f"bin/kafka-topics.sh {address} --create && {consume}")
    assert (done.returncode, done.stderr) == (0, "Processed a total of 0 messages\n")


def test_a_port_that_speaks_http_is_recognised():
    error = NotUnderstood("127.0.0.1:8080 does not speak Kafka's protocol: it speaks HTTP")
    assert kafka_message(error) == str(error)
