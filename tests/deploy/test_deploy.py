"""The files under deploy/: they parse, and every option and setting in them exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.cli.serve import command as serve
from ottla.config import BrokerConfig, load_broker_config
from tests.harness.brokers import WatchedBroker

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HAND_OVER_SECONDS = 30
USER = 10001


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text()).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    last = max(at for at, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def image_environment() -> dict[str, str]:
    pairs = [shlex.split(rest) for word, rest in final_stage() if word == "ENV"]
    return dict(pair.split("=", 1) for each in pairs for pair in each)


def settings_of(environment: dict[str, str]) -> BrokerConfig:
    """Loaded as a broker loads it, which refuses what it does not know."""
    return load_broker_config(environment=environment)


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def kubernetes(kind: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if each["kind"] == kind]


# The image.


def test_the_image_runs_a_broker_without_root_and_stops_it_cleanly():
    stage = dict(final_stage())
    assert stage["USER"] == f"{USER}:{USER}"
    assert stage["STOPSIGNAL"] == "SIGTERM"
    assert stage["ENTRYPOINT"] == '["ottla", "serve"]', "without a shell, which would not pass signals on"
    config = settings_of(image_environment())
    assert config.data_dir == stage["VOLUME"]
    exposed = set(map(int, stage["EXPOSE"].split()))
    assert exposed == {config.endpoints[0].port, config.ottla_metrics_port}


def test_the_image_is_built_from_files_that_exist_and_are_not_ignored():
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in kept, source


def test_a_broker_with_the_images_settings_stops_cleanly_on_sigterm(tmp_path):
    environment = {**os.environ, **image_environment(), "PATH": os.environ["PATH"], "OTTLA_LOG_DIRS": str(tmp_path)}
    environment |= {"OTTLA_LISTENERS": "PLAINTEXT://127.0.0.1:0", "OTTLA_METRICS_PORT": "0"}
    environment |= {"OTTLA_ADVERTISED_LISTENERS": "", "OTTLA_METRICS_HOST": "127.0.0.1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "serve"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        assert b"ready on" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(HAND_OVER_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


# Compose.


def brokers() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if name.startswith("broker-")}


def test_the_compose_file_has_three_brokers_with_valid_settings():
    configs = {
        name: settings_of(image_environment() | {key: str(value) for key, value in service["environment"].items()})
        for name, service in brokers().items()
    }
    assert sorted(config.broker_id for config in configs.values()) == [1, 2, 3]
    assert len({config.ottla_store for config in configs.values()}) == 1
    assert len({config.broker_rack for config in configs.values()}) == 3
    for name, config in configs.items():
        inside, outside = config.endpoints
        assert inside.advertised_address == f"{name}:9092"
        published = {each.split(":")[1]: each.split(":")[2] for each in brokers()[name]["ports"]}
        assert published[str(outside.advertised_port)] == str(outside.port), "clients outside are sent where it is open"
        assert all(each.startswith("127.0.0.1:") for each in brokers()[name]["ports"]), "not beyond the machine"


def test_the_compose_file_has_a_stop_timeout_and_a_volume_for_each_broker():
    volumes = [service["volumes"] for service in brokers().values()]
    assert len({tuple(each) for each in volumes}) == 3
    declared = set(compose()["volumes"])
    for service in brokers().values():
        assert int(service["stop_grace_period"].removesuffix("s")) > HAND_OVER_SECONDS
        assert service["volumes"][0].partition(":")[0] in declared
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().exists()
        assert set(service["depends_on"]) <= set(compose()["services"])


# systemd.


def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "ottla.service").read_text())
    return parser


def test_the_unit_uses_valid_options_and_a_stop_timeout():
    program, noun, *arguments = shlex.split(unit()["Service"]["ExecStart"])
    assert (Path(program).name, noun) == ("ottla", "serve")
    context = serve.make_context("serve", list(arguments), resilient_parsing=True)
    assert context.params["file"] == "/etc/ottla/server.properties"
    assert context.params["data"] == "/var/lib/" + unit()["Service"]["StateDirectory"]
    assert int(unit()["Service"]["TimeoutStopSec"]) > HAND_OVER_SECONDS
    assert unit()["Service"]["User"] != "root"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path):
    program = tmp_path / "ottla"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (DEPLOY / "ottla.service").read_text()
    copy = tmp_path / "ottla.service"
    copy.write_text(text.replace("/opt/ottla/bin/ottla", str(program)))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in said.stderr.splitlines() if "ottla.service" in line]
    assert not complaints, complaints


def test_the_properties_file_is_a_configuration():
    config = load_broker_config(file=str(DEPLOY / "server.properties"))
    assert config.default_replication_factor == 3
    assert config.min_insync_replicas == 2
    assert not config.inert


# Kubernetes.


def pod() -> dict[str, Any]:
    (stateful_set,) = kubernetes("StatefulSet")
    return stateful_set["spec"]["template"]["spec"]


def test_the_stateful_set_configures_brokers_with_settings_that_exist():
    (container,) = pod()["containers"]
    environment = {each["name"]: each.get("value", "0") for each in container["env"]}
    pod_name = "ottla-0"
    for name, value in environment.items():
        environment[name] = value.replace("$(POD_NAME)", pod_name)
    config = settings_of(image_environment() | environment)
    assert config.broker_id == 0
    (headless,) = [each for each in kubernetes("Service") if each["spec"].get("clusterIP") == "None"]
    assert config.endpoints[0].advertised_host == f"{pod_name}.{headless['metadata']['name']}"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"kafka": config.endpoints[0].port, "metrics": config.ottla_metrics_port}
    assert headless["spec"]["publishNotReadyAddresses"], "brokers find each other before they are ready"
    assert not pod()["enableServiceLinks"], "its variables look like settings"


def test_the_stateful_set_selects_its_pods_and_runs_them_without_root():
    (stateful_set,) = kubernetes("StatefulSet")
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    selectors = [stateful_set["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in kubernetes("Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in kubernetes("PodDisruptionBudget")]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert stateful_set["spec"]["serviceName"] in {each["metadata"]["name"] for each in kubernetes("Service")}
    assert pod()["securityContext"]["runAsUser"] == USER
    assert pod()["terminationGracePeriodSeconds"] > HAND_OVER_SECONDS
    (container,) = pod()["containers"]
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert mounted[settings_of(image_environment()).data_dir] == "data"
    assert [each["metadata"]["name"] for each in stateful_set["spec"]["volumeClaimTemplates"]] == ["data"]


def test_the_probes_use_pages_that_a_broker_has(tmp_path):
    process = WatchedBroker(tmp_path, "--metrics-port", "0").start()
    try:
        found = re.search(r"http://([^/]+)/metrics", process.log_text())
        assert found is not None
        import urllib.request

        (container,) = pod()["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            deadline = time.monotonic() + 10
            while True:
                try:
                    with urllib.request.urlopen(f"http://{found[1]}{path}", timeout=5) as answer:
                        assert answer.status == 200
                    break
                except OSError:
                    assert time.monotonic() < deadline, path
    finally:
        process.close()
