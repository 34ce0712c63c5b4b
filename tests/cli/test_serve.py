"""`ottla serve`: options, and invalid configurations."""

import json
import logging
import socket
import subprocess
import sys
import types

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.errors import Fault


def serve(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, ["serve", *arguments], prog_name="ottla")


def printed(*arguments, **environment):
    result = serve("--print-config", *arguments, **environment)
    assert result.exit_code == 0, result.output
    return result.output


def test_options_are_settings(tmp_path):
    output = printed("--id", "3", "--host", "::1", "--port", "0", "--data", str(tmp_path), "--store", "embedded:/x.db")
    flags = output.partition("# from default")[0]
    assert "broker.id=3\n" in flags
    assert "listeners=PLAINTEXT://[::1]:0\n" in flags
    assert f"log.dirs={tmp_path}\n" in flags
    assert "ottla.store=embedded:/x.db\n" in flags


def test_settings_and_the_ready_line_are_printed_as_json(tmp_path):
    settings = json.loads(printed("--id", "3", "--json"))
    assert settings["broker.id"] == "3"
    command = [sys.executable, "-m", "ottla", "serve", "--json", "--id", "3", "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        line = json.loads(broker.stdout.readline())
        broker.terminate()
        _, logged = broker.communicate(timeout=30)
    assert line["broker"] == 3
    assert line["ready"][0].startswith("127.0.0.1:")
    assert all(json.loads(each) for each in logged.splitlines())


def test_any_setting_can_be_given():
    assert "num.partitions=3\n" in printed("--set", "num.partitions=3").partition("# from default")[0]


def test_internal_topics_of_a_broker_with_its_own_store_have_one_replica():
    alone = printed()
    assert "offsets.topic.replication.factor=1\n" in alone
    assert "transaction.state.log.min.isr=1\n" in alone
    assert "# from flag" not in alone, "nobody gave one"
    assert "offsets.topic.replication.factor=3\n" in printed("--store", "embedded:/x.db")
    assert "offsets.topic.replication.factor=2\n" in printed("--set", "offsets.topic.replication.factor=2")


def test_the_environment_is_read(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=5\n")
    output = printed(OTTLA_CONFIG=str(file), OTTLA_ADVERTISED_LISTENERS="PLAINTEXT://h:1")
    assert "# from environment\nadvertised.listeners=PLAINTEXT://h:1\n" in output
    assert "# from file\nnum.partitions=5\n" in output


def test_an_invalid_configuration_ends_with_status_2_and_the_reason():
    result = serve("--set", "num.partition=3", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert result.output.startswith("ottla: error: the configuration has 2 errors:\n")
    assert "did you mean num.partitions?" in result.output
    assert "set advertised.listeners=PLAINTEXT://HOST:9092" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "novalue"],
        ["--set", "=1"],
        ["--port", "70000"],
        ["--id", "x"],
        ["--store", "foo:bar"],
        ["--store", "zookeeper:no port:x"],
        ["--set", "ottla.store=store.db"],
    ],
)
def test_misuse_ends_with_status_2(arguments):
    assert serve(*arguments).exit_code == 2


def test_a_setting_without_a_value_does_not_show_what_may_be_a_secret():
    assert "--set takes name=value" in serve("--set", "novalue").output


@pytest.fixture
def broker_main(monkeypatch):
    """Stands where the broker would start, so that what happens around it can be seen."""
    module = types.ModuleType("ottla.broker.main")
    monkeypatch.setitem(sys.modules, "ottla.broker.main", module)
    root, ours = logging.getLogger(), logging.getLogger("ottla")
    before = list(root.handlers), root.level, ours.level
    yield module
    root.handlers[:], level, our_level = before[0], before[1], before[2]
    root.setLevel(level)
    ours.setLevel(our_level)


def test_a_fault_ends_with_status_1_and_one_line(broker_main):
    def run(config, ready):
        raise Fault("the data directory is in use by another broker: stop it, or use another --data")

    broker_main.run = run
    result = serve()
    assert result.exit_code == 1
    assert result.output.startswith("ottla: error: the data directory is in use")
    assert "Traceback" not in result.output


def test_the_exit_status_is_that_of_the_broker(broker_main):
    broker_main.run = lambda config, ready: 0 if config.broker_id == 4 else 1
    assert serve("--id", "4").exit_code == 0
    assert serve("--id", "5").exit_code == 1


def test_settings_without_effect_are_logged_and_exposure_is_a_warning(broker_main):
    broker_main.run = lambda config, ready: 0
    output = serve(
        "--set",
        "num.io.threads=8",
        "--set",
        "listeners=PLAINTEXT://:0",
        "--set",
        "advertised.listeners=PLAINTEXT://h:1",
    ).output
    assert output.count("settings without effect: num.io.threads") == 1
    assert output.count("WARNING") == 1
    assert "listening beyond this machine (0.0.0.0:0) without authentication" in output
    assert "listener PLAINTEXT is advertised as h:1" in output


def test_zookeeper_connect_without_effect_is_a_warning(broker_main, tmp_path):
    broker_main.run = lambda config, ready: 0
    file = tmp_path / "server.properties"
    file.write_text("zookeeper.connect=zoo-1:2181,zoo-2:2181/kafka\n")
    output = serve("--config", str(file)).output
    assert "WARNING" in output
    assert "zookeeper.connect has no effect" in output
    assert "ottla.store=zookeeper:zoo-1:2181,zoo-2:2181/kafka uses the ensemble" in output
    assert "WARNING" not in serve("--config", str(file), "--store", "zookeeper:zoo-1:2181").output
    file.write_text("zookeeper.connect=\n")
    assert "WARNING" not in serve("--config", str(file)).output


def test_a_broker_on_loopback_logs_no_warning(broker_main):
    broker_main.run = lambda config, ready: 0
    assert serve().output == ""


def as_a_process(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ottla", "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("option", "advice"), [("--port", "--port, or"), ("--metrics-port", "with --metrics-port")])
def test_a_port_in_use_is_named_with_the_option_for_another(tmp_path, option, advice):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"--port": "0"} | {option: str(port)}
        done = as_a_process("--data", str(tmp_path), *(word for pair in ports.items() for word in pair))
    assert done.returncode == 1
    [error] = [line for line in done.stderr.splitlines() if line.startswith("ottla: error: ")]
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; is another broker running there?" in error
    assert advice in error


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_another_machine_is_named(tmp_path, host):
    done = as_a_process("--data", str(tmp_path), "--host", host, "--port", "0")
    assert done.returncode == 1
    assert f"cannot listen on {host}:0: " in done.stderr
    assert "it must be an address of this machine" in done.stderr
    assert "another broker" not in done.stderr


@pytest.mark.parametrize("typed", [["--log-format", "json"], ["--log-format=json"], ["--json"]])
def test_wrong_usage_is_logged_as_json(typed):
    mistakes = {"--prot": "--prot", "--port=abc": "abc", "--set=x": "--set takes name=value", "more": "more"}
    for mistake, said in mistakes.items():
        wrong = CliRunner().invoke(cli, ["serve", *typed, mistake])
        assert wrong.exit_code == 2
        assert said in json.loads(wrong.stderr)["message"]
    assert CliRunner().invoke(cli, ["serve", "--prot"]).stderr.startswith("Usage: ")
