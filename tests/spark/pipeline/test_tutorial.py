"""The tutorial of docs/pipelines.md does what it says, block after block."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from tests.harness.brokers import WatchedBroker
from tests.spark.conftest import REPOSITORY

pytestmark = pytest.mark.timeout(1800)


def blocks() -> list[tuple[str, str]]:
    text = (REPOSITORY / "docs" / "pipelines.md").read_text()
    tutorial = text.partition("## Ten minutes\n")[2].partition("\n## ")[0]
    return re.findall(r"```(sh|yaml)\n(.*?)```", tutorial, flags=re.DOTALL)


def test_the_tutorial_does_what_it_says(tmp_path):
    broker = WatchedBroker(tmp_path / "broker").start()
    try:
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OTTLA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "BOOTSTRAP": broker.bootstrap,
            "STORAGE": str(tmp_path / "shop"),
        }
        said = []
        for language, text in blocks():
            if language == "yaml":
                (tmp_path / "pipeline.yaml").write_text(text)
                continue
            done = subprocess.run(
                ["bash", "-c", "set -e\n" + text],
                cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=560, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            said.append(done.stdout)
        _, checked, first, second = said
        assert "pipeline.yaml: valid. 1 source, 2 sinks, exactly-once" in checked
        large = [line for line in first.splitlines() if line.startswith(("ann {", "bob {", "eve {"))]
        assert sorted(re.findall(r'"id":(\d)', " ".join(large))) == ["1", "3"]
        assert {"tea 10:00: 250", "jam 10:00: 40", "tea 11:00: 120"} <= set(first.splitlines())
        assert "tea 11:00: 150" in second.splitlines()
        assert second.splitlines().count("jam 10:00: 40") == 1  # what did not change is not written again
        assert "large: done" in second
        settings = json.loads((tmp_path / "shop/checkpoints/per_hour/offsets/0").read_text().splitlines()[1])["conf"]
        assert settings["spark.sql.shuffle.partitions"] == str(len(os.sched_getaffinity(0)))
        assert settings["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")
    finally:
        broker.close()
