"""A round on each store: nothing acknowledged is lost, doubled or put out of order, whatever happens to the brokers.

Longer ones: `make soak MINUTES=60`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.harness.zookeeper import zookeeper_jars

SECONDS = 90
LIMIT = 300


@pytest.mark.timeout(2 * LIMIT)
def test_no_acknowledged_record_is_lost_duplicated_or_reordered_on_either_store():
    """Both at the same time, each in a process of its own: most of a round is waiting."""
    pytest.importorskip("confluent_kafka")
    stores = ["embedded"]
    environment = dict(os.environ)
    try:
        environment["OTTLA_ZOOKEEPER_JARS"] = zookeeper_jars()
        stores.append("zookeeper")
        skipped = ""
    except pytest.skip.Exception as skip:
        skipped = str(skip)
    seed = str(random.SystemRandom().getrandbits(32))
    runs = {store: start(store, seed, environment) for store in stores}
    failed = []
    for store, process in runs.items():
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, _ = process.communicate(timeout=60)
        print(said)
        if process.returncode:
            failed.append(f"{store}, seed {seed}:\n{said}")
    assert not failed, "\n\n".join(failed)
    if skipped:
        pytest.skip(f"only on the embedded store: {skipped}")


def start(store, seed, environment):
    command = [sys.executable, "-m", "tests.soak", "--store", store, "--seed", seed]
    command += ["--minutes", str(SECONDS / 60), "--seconds", str(SECONDS)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
