"""A query that failed is started again with a growing delay, and not forever; a process that has ended does not run."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from ottla.spark.pipeline import document, storage
from ottla.spark.pipeline.document import Pipeline, Restart
from ottla.spark.pipeline.query_runner import BACKOFF_MAX_S, Restarts


def test_delays_grow_up_to_a_limit_of_restarts_within_some_time():
    restarts = Restarts(Restart(limit=3, within_s=100.0, backoff_s=5.0))
    assert [restarts.failed(now) for now in (0.0, 10.0, 30.0, 60.0)] == [5.0, 10.0, 20.0, None]
    assert restarts.failed(115.0) == 10.0  # two are forgotten, one is left within the time


def test_no_delay_is_longer_than_the_longest():
    restarts = Restarts(Restart(limit=50, within_s=1e9, backoff_s=5.0))
    assert [restarts.failed(float(now)) for now in range(20)][-1] == BACKOFF_MAX_S


def test_a_limit_of_zero_restarts_nothing():
    assert Restarts(Restart(limit=0)).failed(0.0) is None


def test_a_busy_machine_does_not_use_up_the_restarts():
    restarts = Restarts(Restart(limit=2, within_s=1e9, backoff_s=5.0))
    busy = [restarts.failed(float(now), busy=True) for now in range(21)]
    assert busy[:3] == [5.0, 10.0, 20.0]
    assert busy[-2:] == [BACKOFF_MAX_S, None]
    assert "20 restarts" in restarts.spent
    assert [restarts.failed(50.0) for _ in range(3)] == [5.0, 10.0, None]


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    text = f"name: n\nstorage: {tmp_path}\nsinks: {{a: {{from: b, format: noop}}}}\n"
    return document.parse(text, str(tmp_path / "p.yaml"), {})


def state(pipeline: Pipeline) -> str:
    told = storage.status(pipeline, "a")
    assert told is not None
    return str(told["state"])


@pytest.mark.parametrize("said", ["running", "restarting"])
def test_a_query_runs_only_while_its_lock_is_held(pipeline, said):
    with storage.running(pipeline, "a"):
        storage.keep_status(pipeline, "a", {"state": said})
        assert state(pipeline) == said
    assert state(pipeline) == "ended"
    storage.keep_status(pipeline, "a", {"state": "stopped"})
    assert state(pipeline) == "stopped"


def test_a_query_that_is_locked_cannot_be_run_twice(pipeline):
    twice = lambda: storage.running(pipeline, "a")  # noqa: E731
    with twice(), pytest.raises(storage.AlreadyRunning, match="run by another process"), twice():
        pass


def test_the_checkpoint_of_a_query_that_runs_is_not_removed(pipeline, tmp_path):
    (tmp_path / "checkpoints" / "a").mkdir(parents=True)
    with storage.running(pipeline, "a"), pytest.raises(storage.AlreadyRunning, match="a is running; stop it first"):
        storage.forget(pipeline, "a")
    assert storage.forget(pipeline, "a") == [str(tmp_path / "checkpoints" / "a")]


def test_a_process_that_is_killed_holds_nothing_any_more(pipeline, tmp_path):
    storage.keep_status(pipeline, "a", {"state": "running"})
    holder = (
        "import sys\nfrom pathlib import Path\nfrom ottla.spark.pipeline import document, storage\n"
        f"pipeline = document.read(Path({str(tmp_path / 'p.yaml')!r}))\n"
        "with storage.running(pipeline, 'a'):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    text = f"name: n\nstorage: {tmp_path}\nsinks: {{a: {{from: b, format: noop}}}}\n"
    (tmp_path / "p.yaml").write_text(text)
    process = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        assert state(pipeline) == "running"
    finally:
        process.kill()
        process.communicate()
    assert state(pipeline) == "ended"
