"""The wheel, installed where nothing else is, serves and administers topics."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.harness.brokers import WatchedBroker

REPOSITORY = Path(__file__).resolve().parent.parent
CONSTRAINTS = REPOSITORY / "constraints.txt"
RUN_TIME = {"click", "cramjam", "crc32c", "google-re2", "ottla", "uvloop"}
LIVE_VIEW = {"markdown-it-py", "mdurl", "pygments", "rich"}

pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path) -> str:
    """Run a command outside the checkout, so that only what is installed can be imported."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=os.sep,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as packagers do: files that it lacks are missing here."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, REPOSITORY)
    return next(out.glob("ottla-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel and what it asks for."""
    home = tmp_path_factory.mktemp("empty-environment")
    venv.create(home, with_pip=True)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, wheel)
    return home / "bin"


def test_the_wheel_holds_the_package_and_its_licences(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "ottla/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)
    # Spark finds a data source by the name of a module beside the package.
    sources = {path.name for path in REPOSITORY.glob("pyspark_*")}
    assert len(sources) == 3
    tops = {name.split("/")[0] for name in names if not name.startswith("ottla-")}
    assert tops == {"ottla", "ottla_workers.pth", *sources}


def test_the_install_brings_only_what_the_broker_needs(installed):
    listed = run(installed / "python", "-m", "pip", "list", "--format", "freeze").splitlines()
    names = {line.split("==")[0].lower() for line in listed} - {"pip", "setuptools"}
    assert names == RUN_TIME | LIVE_VIEW


def test_an_installed_broker_serves_and_topics_are_made_and_listed(installed, tmp_path):
    ottla = str(installed / "ottla")
    broker = WatchedBroker(tmp_path, program=(ottla,)).start()
    try:
        server = ("--bootstrap-server", broker.bootstrap)
        run(ottla, "topics", "create", "first", "--partitions", "3", *server)
        assert "first" in run(ottla, "topics", "list", *server).split()
        assert "first" in run(ottla, "topics", "describe", "first", *server)
        assert broker.stop() == 0
    finally:
        broker.close()
    assert broker.complaints() == []


def test_the_installed_command_knows_its_version(installed):
    assert run(installed / "ottla", "--version").strip() == "ottla 0.1.0"


def test_a_missing_extra_is_named(installed, tmp_path):
    file = tmp_path / "pipeline.yaml"
    run(installed / "ottla", "pipeline", "init", file)
    done = subprocess.run(
        [installed / "ottla", "pipeline", "validate", file], cwd=os.sep, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        "ottla: error: this needs the module yaml\n  pip install 'ottla[spark]'\n",
    )
