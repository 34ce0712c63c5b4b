"""`ottla serve` as a process: the ready line, refusals, and advertised addresses."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Connection, batch, produce

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="about Ottla's own command line")


def serve(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `ottla serve` when it is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ottla", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_exactly_one_line_is_printed_when_it_serves(start_broker):
    broker = start_broker("--id", "7")
    assert broker.stop() == 0
    printed = broker.printed().decode()
    assert printed == f"ottla: broker 7 ready on {broker.bootstrap}\n"


def test_the_broker_imports_no_library_it_does_not_need():
    """Neither kio nor the heavy extras: start-up and memory depend on it."""
    unwanted = ("kio", "rich", "pyarrow", "hypothesis", "numpy", "kazoo", "pyspark")
    imports = "import sys, ottla.cli.serve, ottla.broker.main"
    code = f"{imports}; print([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_second_broker_on_the_same_directory_is_refused(start_broker):
    first = start_broker()
    second = serve("--port", "0", "--data", str(first.data))
    assert second.returncode != 0
    assert str(first.data) in second.stderr
    assert "Traceback" not in second.stderr
    with Connection(first) as connection:
        assert connection.call("api_versions", 0)["error_code"] == 0


def test_the_directory_of_another_broker_is_refused(start_broker):
    broker = start_broker("--id", "1")
    broker.stop()
    other = serve("--port", "0", "--data", str(broker.data), "--id", "2")
    assert other.returncode != 0
    assert re.search(r"broker.*1", other.stderr)
    assert "Traceback" not in other.stderr


def test_the_directory_of_another_cluster_or_a_newer_format_is_refused(start_broker):
    broker = start_broker()
    broker.stop()
    meta = next(broker.data.rglob("meta.properties"))
    original = meta.read_text()
    for name, value in (("cluster.id", "another-cluster-entirely"), ("version", "99")):
        meta.write_text(re.sub(rf"^{re.escape(name)}=.*$", f"{name}={value}", original, flags=re.MULTILINE))
        done = serve("--port", "0", "--data", str(broker.data))
        assert done.returncode != 0, name
        assert value in done.stderr, name
        assert "Traceback" not in done.stderr
    meta.write_text(original)
    broker.start()


def test_a_port_in_use_is_named(start_broker, tmp_path):
    broker = start_broker()
    done = serve("--port", str(broker.port), "--data", str(tmp_path / "other"))
    assert done.returncode != 0
    assert str(broker.port) in done.stderr
    assert "Traceback" not in done.stderr


REFUSED = {
    "unknown name": (["--set", "retension.ms=1"], "retention"),
    "bad value": (["--set", "log.retention.hours=soon"], "log.retention.hours"),
    "bad boolean": (["--set", "auto.create.topics.enable=perhaps"], "true"),
    "every address without one to advertise": (["--host", "0.0.0.0"], "advertised.listeners"),
    "missing file": (["--config", "no-such-file.properties"], "no-such-file.properties"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_configuration_is_refused_with_a_hint(tmp_path, name):
    arguments, hint = REFUSED[name]
    done = serve("--port", "0", "--data", str(tmp_path / "data"), *arguments)
    assert done.returncode != 0
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists(), "nothing is touched before the configuration is accepted"


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=1\nnum.partitions=2\nlog.segment.bytes=2000000\n")
    done = serve(
        *("--config", str(file), "--set", "log.segment.bytes=3000000", "--print-config"),
        env={"OTTLA_NUM_PARTITIONS": "5", "OTTLA_LOG_SEGMENT_BYTES": "4000000"},
    )
    assert done.returncode == 0, done.stderr
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines() if re.match(r"[a-z]", line))
    settings = {name.strip(): value.split("#")[0].strip() for name, value in settings.items()}
    assert settings["log.retention.hours"] == "1"
    assert settings["num.partitions"] == "5"
    assert settings["log.segment.bytes"] == "3000000"


STOCK_SERVER_PROPERTIES = """\
broker.id=3
listeners=PLAINTEXT://127.0.0.1:0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=4
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def test_a_stock_server_properties_file_is_understood(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(STOCK_SERVER_PROPERTIES.format(data=tmp_path / "data"))
    process = WatchedBroker(tmp_path / "broker", "--config", str(file), port=None)
    process.data = tmp_path / "data"
    process.start()
    try:
        assert "broker 3 ready" in process.printed().decode()
        with Connection(process) as connection:
            topics = connection.call("metadata", 9, topics=[{"name": "auto"}], allow_auto_topic_creation=True)
        assert topics["brokers"][0]["node_id"] == 3
        assert (tmp_path / "data" / "meta.properties").exists()
    finally:
        process.close()
    assert process.complaints() == []


def test_metadata_answers_with_the_address_of_the_listener_asked(start_broker):
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    broker = start_broker(
        *("--set", f"listeners=INSIDE://127.0.0.1:{ports[0]},OUTSIDE://127.0.0.1:{ports[1]}"),
        *("--set", f"advertised.listeners=INSIDE://127.0.0.1:{ports[0]},OUTSIDE://public.example:19092"),
        *("--set", "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"),
        *("--set", "inter.broker.listener.name=INSIDE"),
        port=None,
    )
    seen = {}
    for port in ports:
        broker.port = port
        with Connection(broker) as connection:
            answer = connection.call("metadata", 9, topics=[])
        seen[port] = [(node["host"], node["port"]) for node in answer["brokers"]]
    assert seen == {ports[0]: [("127.0.0.1", ports[0])], ports[1]: [("public.example", 19092)]}


@pytest.mark.broker_may_log("without authentication")
def test_listening_beyond_loopback_prints_one_warning(start_broker):
    broker = start_broker(
        *("--set", "listeners=PLAINTEXT://0.0.0.0:0"),
        *("--set", "advertised.listeners=PLAINTEXT://127.0.0.1:9092"),
        port=None,
    )
    broker.stop()
    warnings = [line for line in broker.log_text().splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert "without authentication" in warnings[0]


def test_with_json_every_line_is_json_the_ready_line_and_the_last_included(start_broker):
    broker = start_broker("--log-format", "json", "--id", "5")
    second = serve("--log-format", "json", "--id", "5", "--port", "0", "--data", str(broker.data))
    broker.stop()
    lines = broker.log_text().splitlines()
    assert lines, "the broker logs its start and its stop"
    for line in lines:
        assert isinstance(json.loads(line), dict)
    ready = json.loads(broker.printed().decode())
    assert (ready["broker"], ready["ready"]) == (5, [broker.bootstrap])
    assert set(ready) == {"broker", "ready", *json.loads(lines[0])}, "it has what every line has"
    assert (ready["level"], ready["message"]) == ("INFO", f"broker 5 ready on {broker.bootstrap}")
    assert all(json.loads(line)["broker"] == 5 for line in (*lines, *second.stderr.splitlines()))
    assert second.returncode == 1
    *_, last = map(json.loads, second.stderr.splitlines())
    assert "another broker is running on" in last["message"]
    wrong = serve("--log-format", "json", "--set", "no.such.setting=1")
    assert wrong.returncode == 2
    assert "no.such.setting" in json.loads(wrong.stderr)["message"]


def test_start_recovery_and_stop_are_logged(start_broker):
    broker = start_broker("--id", "4")
    with Connection(broker) as connection:
        connection.call("metadata", 9, topics=[{"name": "told"}], allow_auto_topic_creation=True)
        wait_for(lambda: produce(connection, "told", batch())["error_code"] == 0, "the new topic")
    wait_for(lambda: "topic told created" in broker.log_text(), "the line that tells of it")
    broker.kill()
    broker.start()
    assert broker.stop() == 0
    lines = broker.log_text().splitlines()
    assert all(re.match(r"\S+Z \[broker 4\] [A-Z]+ ottla", line) for line in lines), lines
    assert lines[-1].endswith("broker 4 has stopped, its logs are closed cleanly")
    said = [line.split(" ", 5)[5] for line in lines]
    before = said[: said.index("topic told created: 1 partition, 1 replica each")]
    assert not [line for line in before if line.startswith("scrub")], "there was nothing to read"
    cluster_id = re.search(r"cluster.id=(\S+)", (broker.data / "meta.properties").read_text())
    assert cluster_id is not None
    expected = [
        rf"Ottla \S+, broker 4 is starting: data directory {broker.data}, store embedded:{broker.data}/store.db",
        rf"cluster id {cluster_id[1]}: 0 topics with 0 partitions, brokers alive: none",
        r"no logs here yet",
        r"broker 4 is controller, epoch 1",
        rf"broker 4 is listening on PLAINTEXT://{broker.bootstrap}",
        rf"broker 4 joined the cluster: {broker.bootstrap}, broker epoch 1",
        r"topic told created: 1 partition, 1 replica each",
        rf"Ottla \S+, broker 4 is starting: data directory {broker.data}, store .*",
        rf"cluster id {cluster_id[1]}: 1 topic with 1 partition, brokers alive: .*",
        r"the last stop was not clean: 1 log opened in \S+ s, 1 checked, [1-9]\d* bytes read, 0 bytes truncated",
        r"broker 4 is controller, epoch 2",
        rf"broker 4 is listening on PLAINTEXT://{broker.bootstrap}",
        r"broker 4 is stopping \(SIGTERM\)",
        r"broker 4 has stopped, its logs are closed cleanly",
    ]
    rest = iter(said)
    for pattern in expected:
        assert any(re.fullmatch(pattern, line) for line in rest), f"{pattern} in its place among {said}"


def test_debug_adds_connections_and_changes(start_broker):
    broker = start_broker("--log-level", "debug")
    with Connection(broker) as connection:
        connection.call("api_versions", 0)
    broker.stop()
    assert "DEBUG ottla.net connection from 127.0.0.1 on PLAINTEXT" in broker.log_text()
    assert "DEBUG ottla.cluster.view change 0: BrokerRegistered(" in broker.log_text()


def test_start_up_is_quick_and_memory_small(start_broker):
    """Loose bounds that hold on a busy machine; the benchmarks have the exact figures."""
    broker = start_broker()
    assert broker.resident_bytes() < 80 << 20


def test_the_files_have_kafkas_names(start_broker):
    broker = start_broker()
    with Connection(broker) as connection:
        connection.call("metadata", 9, topics=[{"name": "shaped"}], allow_auto_topic_creation=True)
        wait_for(lambda: produce(connection, "shaped", batch())["error_code"] == 0, "the new topic")
    broker.stop()
    names = {str(path.relative_to(broker.data)) for path in broker.data.rglob("*") if path.is_file()}
    expected = {
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        ".kafka_cleanshutdown",
        "shaped-0/00000000000000000000.log",
        "shaped-0/00000000000000000000.index",
        "shaped-0/00000000000000000000.timeindex",
        "shaped-0/leader-epoch-checkpoint",
        "shaped-0/partition.metadata",
    }
    assert expected <= names, expected - names
    assert Path(broker.data / "shaped-0" / "00000000000000000000.log").stat().st_size > 61
