"""`ottla topics` against a running broker."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.cli.topics import _replicas_each
from ottla.client.admin import Admin, NewTopic, ResourceKind
from ottla.client.admin.topic_admin import Partition, TopicDescription
from ottla.client.errors import BadSetting, ClientError, UnknownTopic
from ottla.local.waiting import wait_for
from tests.cli.commands import Ottla


@pytest.fixture
def topics(broker):
    def run(*arguments):
        return CliRunner(env={"OTTLA_BOOTSTRAP_SERVERS": broker.bootstrap}).invoke(
            cli, ["topics", *arguments], prog_name="ottla"
        )

    return run


@pytest.fixture
def succeed(topics):
    def run(*arguments):
        result = topics(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_a_topic_is_created_listed_described_and_deleted(succeed, fresh_name):
    name = fresh_name()
    assert succeed("create", name, "--partitions", "3", "--config", "retention.ms=1000") == f"created topic {name}\n"
    assert name in succeed("list", "--names").splitlines()
    listed = next(line for line in succeed("list").splitlines() if line.startswith(f"{name} "))
    assert listed.split() == [name, "3", "1", "0", "B", "0"]
    description = succeed("describe", name)
    assert "partitions          3\n" in description
    assert "retention.ms=1000\n" in description
    assert description.splitlines()[-1].split() == ["2", "1", "0", "1", "1", "0", "0", "0", "B"]
    assert succeed("delete", name) == f"deleted topic {name}\n"
    assert name not in succeed("list", "--names").splitlines()


def test_a_topic_is_described_in_json(succeed, fresh_name):
    name = fresh_name()
    created = json.loads(succeed("create", name, "--json"))
    assert created == {"created": [name], "failed": {}}
    listed = {each["name"]: each for each in json.loads(succeed("list", "--json"))}
    assert listed[name]["records"] == 0
    assert name in json.loads(succeed("list", "--names", "--json"))
    [described] = json.loads(succeed("describe", name, "--json"))
    assert described["name"] == name
    assert described["replication_factor"] == 1
    assert [partition["in_sync"] for partition in described["partitions"]] == [[1]]
    assert [partition["high_watermark"] for partition in described["partitions"]] == [0]
    assert name in [each["name"] for each in json.loads(succeed("describe", "--json"))]


def test_creating_an_existing_topic_fails_unless_if_not_exists(topics, fresh_name):
    name = fresh_name()
    assert topics("create", name).exit_code == 0
    again = topics("create", name)
    assert again.exit_code == 1
    assert "already exists" in again.output
    assert topics("create", name, "--if-not-exists").exit_code == 0


@pytest.mark.parametrize("verb", ["describe", "delete"])
def test_a_topic_that_does_not_exist_is_an_error_with_a_hint(topics, fresh_name, verb):
    name = fresh_name()
    result = topics(verb, name)
    assert result.exit_code == 1
    assert f"ottla: error: topic {name}: " in result.output
    assert "`ottla topics list`" in result.output
    assert topics("delete", name, "--if-exists").exit_code == 0


def test_describing_a_topic_does_not_create_it(topics, succeed, fresh_name):
    name = fresh_name()
    topics("describe", name)
    assert name not in succeed("list", "--names").splitlines()


def test_the_others_succeed_if_one_topic_fails(topics, succeed, fresh_name):
    name = fresh_name()
    result = topics("create", name, "not/a/name")
    assert result.exit_code == 1
    assert f"created topic {name}\n" in result.output
    assert name in succeed("list", "--names").splitlines()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "no.such=1"], "no.such"),
        (["--config", "retention.ms=x"], "retention.ms"),
        (["--replication-factor", "3"], "replication factor"),
    ],
)
def test_an_error_of_the_broker_is_printed(topics, fresh_name, arguments, words):
    result = topics("create", fresh_name(), *arguments)
    assert result.exit_code == 1
    assert words in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["create"],
        ["create", "t", "--partitions", "0"],
        ["create", "t", "--config", "novalue"],
        ["list", "-b", "host:port"],
        ["describe", "--no-such-option"],
    ],
)
def test_misuse_ends_with_status_2(arguments):
    assert CliRunner().invoke(cli, ["topics", *arguments]).exit_code == 2


def test_without_a_broker_the_status_is_75_with_a_hint():
    result = CliRunner().invoke(cli, ["topics", "list", "-b", "127.0.0.1:1"])
    assert result.exit_code == 75
    assert result.output.startswith("ottla: error: cannot connect to 127.0.0.1:1: Connection refused\n")
    assert "`ottla serve`" in result.output


def test_the_first_broker_that_answers_is_used(succeed, broker):
    assert succeed("list", "-b", f"127.0.0.1:1,{broker.bootstrap}") is not None


def test_settings_are_changed_and_returned_to_their_default(broker, fresh_name):
    name = fresh_name()

    async def scenario():
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name)])
            await admin.alter_configs(ResourceKind.TOPIC, name, put={"retention.ms": "5", "flush.ms": "6"})
            await admin.alter_configs(ResourceKind.TOPIC, name, remove=["flush.ms"])
            entries = await admin.describe_configs(ResourceKind.TOPIC, name)
            with pytest.raises(BadSetting):
                await admin.alter_configs(ResourceKind.TOPIC, name, put={"retention.ms": "x"})
            return {entry.name: entry.value for entry in entries if entry.source == 1}

    assert asyncio.run(scenario()) == {"retention.ms": "5"}


def test_a_broker_shows_its_settings(broker):
    async def scenario():
        async with Admin(broker.bootstrap) as admin:
            return {entry.name: entry for entry in await admin.describe_configs(ResourceKind.BROKER, "1")}

    entries = asyncio.run(scenario())
    assert entries["broker.id"].value == "1"
    assert entries["broker.id"].read_only


def test_partitions_are_added_to_a_topic(broker, fresh_name):
    name = fresh_name()

    async def scenario():
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, partitions=1)])
            await admin.create_partitions(name, 4)
            with pytest.raises(ClientError):
                await admin.create_partitions(name, 2)
            with pytest.raises(UnknownTopic) as missing:
                await admin.describe_topics([name, "no-such-topic"])
            assert set(missing.value.errors) == {"no-such-topic"}
            assert set(missing.value.results) == {name}
            return (await admin.describe_topics([name]))[name]

    extended = asyncio.run(scenario())
    assert [partition.partition for partition in extended.partitions] == [0, 1, 2, 3]


def test_different_numbers_of_replicas_are_shown():
    parts = [Partition(number, 1, 0, tuple(range(1, 3 + number)), (1,)) for number in (0, 1)]
    assert _replicas_each(TopicDescription("orders", bytes(16), False, tuple(parts))) == "2-3"
    assert _replicas_each(TopicDescription("orders", bytes(16), False, (parts[0],))) == "2"


def test_records_are_deleted_with_execute_only(broker, succeed, topics, fresh_name):
    name = fresh_name()
    succeed("create", name, "--partitions", "2")
    run = CliRunner(env={"OTTLA_BOOTSTRAP_SERVERS": broker.bootstrap}).invoke
    assert run(cli, ["produce", name, "-p", "0"], input="a\nb\nc\n").exit_code == 0
    shown = succeed("delete-records", name, "--before-offset", "2")
    assert "nothing was changed" in shown
    assert [line.split() for line in shown.splitlines()[1:3]] == [["0", "0", "2", "2"], ["1", "0", "0", "0"]]
    for beyond in (["-p", "0", "--before-offset", "4"], ["-p", "1", "--before-offset", "1"], ["--before-offset", "4"]):
        refused = topics("delete-records", name, *beyond, "--execute")
        assert refused.exit_code == 1
        assert f"ends at offset {0 if '1' in beyond else 3}: --before-offset {beyond[-1]} is beyond" in refused.output
    done = succeed("delete-records", name, "-p", "0", "--before-offset", "2", "--execute")
    assert [line.split() for line in done.splitlines()[1:]] == [["0", "0", "2", "2"], ["deleted:", "2", "records"]]
    assert "DELETED" in done
    wait_for(lambda: f"{name}-0: records deleted before offset 2 (it started at 0)" in broker.log_text(), "the line")
    [described] = json.loads(succeed("describe", name, "--json"))
    assert [part["log_start"] for part in described["partitions"]] == [2, 0]
    output = json.loads(succeed("delete-records", name, "--all", "--execute", "--json"))
    assert [part["delete_before"] for part in output["partitions"]] == [3, 0]
    assert [(part["log_start_before"], part["log_start"]) for part in output["partitions"]] == [(2, 3), (0, 0)]
    succeed("delete-records", name, "--before-time", "2020-01-01", "--execute")
    assert "no partition 7" in topics("delete-records", name, "-p", "7", "--all").output
    assert topics("delete-records", name).exit_code == 2


def test_a_topic_is_altered(ottla, topic):
    output = ottla("topics", "alter", topic, "--partitions", "5", "--config", "retention.ms=7")
    assert output == f"altered topic {topic}\n"
    [described] = ottla.json("topics", "describe", topic)
    assert (len(described["partitions"]), described["configs"]) == (5, {"retention.ms": "7"})
    ottla("topics", "alter", topic, "--delete-config", "retention.ms")
    assert ottla.json("topics", "describe", topic)[0]["configs"] == {}
    assert "nothing to change" in ottla("topics", "alter", topic, status=2)
    ottla("topics", "alter", topic, "--partitions", "2", status=1)


def test_describe_can_be_limited_to_partitions_in_trouble(ottla, topic):
    assert ottla.json("topics", "describe", topic, "--under-replicated") == []
    assert ottla("topics", "describe", "--unavailable") == ""


def test_a_plan_is_explained():
    output = Ottla("127.0.0.1:1")(
        "topics", "plan", "--rate", "20000", "--record-size", "500B", "--consumer-rate", "3000"
    )
    assert output.startswith("partitions   15\n")
    assert "ottla topics create NAME --partitions 15 --replication-factor 3" in output
    assert Ottla("127.0.0.1:1").json("topics", "plan", "--rate", "10")["partitions"] == 3
    Ottla("127.0.0.1:1")("topics", "plan", "--rate", "10", "--brokers", "1", status=2)
