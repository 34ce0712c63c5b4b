"""Files of a pipeline: the lock of a query, and its status after the process has ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from ottla.spark.pipeline import document, storage
from ottla.spark.pipeline.document import Pipeline


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    text = f"name: n\nstorage: {tmp_path}\nsinks: {{a: {{from: b, format: noop}}}}\n"
    return document.parse(text, str(tmp_path / "p.yaml"), {})


def state(pipeline: Pipeline) -> str:
    reported = storage.status(pipeline, "a")
    assert reported is not None
    return str(reported["state"])


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


def test_a_killed_process_has_no_open_files_or_locks(pipeline, tmp_path):
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
