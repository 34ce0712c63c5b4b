"""`ottla log remove-strays`: removes only strays, only while the broker is stopped and the metadata is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from ottla.cli.main import cli
from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.log.manifest import read
from ottla.log.manifest_file import ManifestFile
from ottla.runtime.disk import RealDisk
from tests.harness.brokers import WatchedBroker

KEPT, GONE = "kept", "gone"


def remove(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["log", "remove-strays", *map(str, arguments)], prog_name="ottla", input=answer)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped broker's directory with a stray: a partition of a topic that its cluster does not know."""
    process = WatchedBroker(tmp_path_factory.mktemp("written")).start()
    try:
        producer = Producer({"bootstrap.servers": process.bootstrap, "log_level": 0})
        producer.produce(KEPT, b"value", partition=0)
        assert producer.flush(30) == 0
        del producer
        assert "Stop it first" in remove(process.data).output
        process.stop()
        lost = process.data / f"{GONE}-0"
        shutil.copytree(process.data / f"{KEPT}-0", lost)
        (lost / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        (lost / MANIFEST).unlink()  # it names the topic that was copied
        process.start()
        process.stop()
    finally:
        process.close()
    return process.data


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy."""
    return Path(shutil.copytree(written, tmp_path / "data"))


def strays(data: Path) -> list[str]:
    return sorted(path.name for path in data.glob("*-stray"))


def test_strays_are_listed_and_removed_after_confirmation(data):
    (stray,) = strays(data)
    assert stray.startswith(f"{GONE}-0.")
    noted = CliRunner().invoke(cli, ["log", "verify", str(data)], prog_name="ottla")
    assert noted.exit_code == 0, noted.output
    assert f"{stray}: a stray directory" in noted.output
    declined = remove(data, answer="n\n")
    assert declined.exit_code == 1
    assert stray in declined.output
    assert strays(data) == [stray]
    done = remove(data, "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"removed": [str(data / stray)], "kept": []}
    assert strays(data) == []
    assert (data / f"{KEPT}-0").is_dir()
    assert "there are no stray directories" in remove(data).output


def test_a_stray_that_may_be_the_only_copy_of_missing_offsets_stays(data):
    """A flipped bit in the file that says whose it is, and no manifest: the broker took it for another topic's."""
    (stray,) = strays(data)
    alike = data / stray.replace(GONE, KEPT)
    (data / stray).rename(alike)
    manifest = read(RealDisk(), str(data / f"{KEPT}-0"))
    assert manifest is not None
    ManifestFile(RealDisk(), str(data / f"{KEPT}-0")).save(manifest._replace(missing=((0, 1),)))
    done = remove(data, "--yes")
    assert done.exit_code == 0, done.output
    assert f"perhaps the only copy of offsets 0..0, which {KEPT}-0 lacks" in done.output
    assert strays(data) == [alike.name]


def test_a_stray_that_the_metadata_assigns_to_this_broker_stays(data):
    ours = (data / f"{KEPT}-0" / "partition.metadata").read_text()
    (stray,) = strays(data)
    renamed = data / stray.replace(GONE, KEPT)
    (data / stray).rename(renamed)
    (renamed / "partition.metadata").write_text(ours)
    shown = remove(data, "--yes")
    assert shown.exit_code == 0
    assert f"a copy of {KEPT}-0, which this broker holds" in shown.output
    assert "nothing was removed" in shown.output
    assert renamed.is_dir()
    (data / f"{KEPT}-0").rename(data / "away")
    assert f"{KEPT}-0, which this broker holds: move it back" in remove(data, "--yes").output
    (data / "away").rename(data / f"{KEPT}-0")
    link = data / f"x-0.{'0' * 32}-0-stray"
    link.symlink_to(renamed)
    unknown = data / "mine-stray"
    unknown.mkdir()
    (unknown / "file").write_text("")
    kept = json.loads(remove(data, "--yes", "--json").stdout)
    assert kept["removed"] == []
    assert {Path(each["path"]).name for each in kept["kept"]} == {renamed.name, link.name, unknown.name}


def test_nothing_is_removed_without_the_clusters_metadata(data):
    before = strays(data)
    (data / "store.db").rename(data / "elsewhere.db")
    refused = remove(data, "--yes")
    assert refused.exit_code == 1
    assert "there is no store" in refused.output
    other = WatchedBroker(data.parent / "other").start()
    other.close()
    foreign = remove(data, "--yes", "--store", f"embedded:{other.data}/store.db")
    assert foreign.exit_code == 1
    assert "belongs to the cluster" in foreign.output
    assert strays(data) == before
    assert remove(data, "--yes", "--store", f"embedded:{data}/elsewhere.db").exit_code == 0
    assert strays(data) == []
    assert remove(data.parent).exit_code == 2
