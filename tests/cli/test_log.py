"""`ottla log verify` on directories that a broker left, undamaged and damaged on purpose."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from ottla.cli.main import cli
from ottla.log import checkpoints
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME
from ottla.log.partition_log import PartitionLog
from ottla.runtime.disk import RealDisk
from tests.harness.brokers import WatchedBroker

TOPIC = "scrubbed"
DECIDED = "decided"


def verify(*arguments):
    return CliRunner().invoke(cli, ["log", "verify", *map(str, arguments)], prog_name="ottla")


def abort_some(bootstrap: str) -> None:
    """Transactions, every other one aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(DECIDED, b"%d" % number, partition=0)
        assert producer.flush(30) == 0, "what was not sent is not aborted"
        producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A data directory with several segments, closed cleanly."""
    process = WatchedBroker(tmp_path_factory.mktemp("written"), "--set", "log.segment.bytes=1048576").start()
    try:
        producer = Producer({"bootstrap.servers": process.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        for number in range(600):
            at_ms = 1_700_000_000_000 + (number - number % 7 * 2) * 1000  # forth and back
            producer.produce(TOPIC, b"%03d " % number * 2000, timestamp=at_ms)
            if number % 5 == 0:
                producer.flush(10)
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": process.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        assert consumer.poll(30) is not None
        consumer.close()
        abort_some(process.bootstrap)
        running = verify(process.data)
        assert running.exit_code == 0, running.output
    finally:
        process.close()
    return process.data


def dump(*arguments):
    done = CliRunner().invoke(cli, ["log", "dump", *map(str, arguments)], prog_name="ottla")
    assert done.exit_code == 0, done.output
    return done.output


def test_batches_are_printed(written):
    batches = json.loads(dump(written / f"{TOPIC}-0", "--json"))
    assert sum(batch["records"] for batch in batches) == 600
    assert batches[-1]["last_offset"] == 599
    assert len({batch["file"] for batch in batches}) > 1
    assert all(batch["producer_id"] >= 0 and batch["codec"] == "none" for batch in batches)
    lines = dump(written / f"{TOPIC}-0", "-c", "3").splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("0..")


def test_records_are_printed(written):
    first = written / f"{TOPIC}-0" / f"{0:020d}.log"
    records = json.loads(dump(first, "--records", "-c", "3", "--from-offset", "5", "--json"))
    assert [record["offset"] for record in records] == [5, 6, 7]
    assert records[0]["value"].startswith("005 005 ")
    assert len(dump(first, "--records", "-c", "2").splitlines()) == 3


def test_records_of_groups_are_decoded(written):
    shards = [path for path in written.glob("__consumer_offsets-*") if [*path.glob("*.log")]]
    printed = "".join(dump(shard, "--records") for shard in shards)
    assert "GroupMetadataKey(group_id='g')" in printed
    assert f"topic='{TOPIC}'" in printed


def test_a_path_that_cannot_be_dumped_is_named(written, tmp_path):
    for path in (tmp_path, tmp_path / "none.log", written / "meta.properties"):
        done = CliRunner().invoke(cli, ["log", "dump", str(path)], prog_name="ottla")
        assert done.exit_code == 2
        assert "directory of a partition" in done.output


def test_a_dump_stops_at_damage_and_reports_it(data):
    segment = data / f"{TOPIC}-0" / f"{0:020d}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    done = CliRunner().invoke(cli, ["log", "dump", str(segment)], prog_name="ottla")
    assert done.exit_code == 1
    assert "the checksum of a batch is wrong" in done.output
    assert "`ottla log verify`" in done.output


@pytest.fixture
def data(written, tmp_path):
    """A copy to damage."""
    for name in [".", *sorted(str(path.relative_to(written)) for path in written.rglob("*") if path.is_dir())]:
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
    for path in written.rglob("*"):
        if path.is_file() and not path.name.startswith("store.db"):
            (tmp_path / "data" / path.relative_to(written)).write_bytes(path.read_bytes())
    return tmp_path / "data"


def segments(data: Path) -> list[Path]:
    return sorted((data / f"{TOPIC}-0").glob("*.log"))


def flip(path: Path, at: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)


def digest(data):
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


def test_an_undamaged_directory_is_reported_as_undamaged_and_not_changed(data):
    assert len(segments(data)) > 3, "the test needs several segments"
    before = digest(data)
    result = verify(data)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("nothing is damaged\n")
    assert digest(data) == before
    assert verify(data / f"{TOPIC}-0").exit_code == 0, "a single partition may be named"


def test_a_read_only_directory_is_verified(data):
    for path in [data, *data.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert verify(data).exit_code == 0
    finally:
        for path in [data, *data.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)


def test_a_flipped_bit_in_a_record_is_found_with_its_position_and_the_rest_is_read(data):
    damaged = segments(data)[1]
    flip(damaged, 200)
    flip(damaged, damaged.stat().st_size - 10)
    result = verify("--json", data)
    assert result.exit_code == 1
    findings = json.loads(result.stdout)
    assert [(each["path"], each["records"]) for each in findings["damaged"]] == [(str(damaged), True)] * 2
    first, second = findings["damaged"]
    assert first["position"] == 0
    assert first["offset"] == int(damaged.stem)
    assert first["position"] < second["position"] < damaged.stat().st_size
    shown = verify(data)
    assert f"{damaged}, byte 0, offset {int(damaged.stem)}: the checksum of a batch is wrong" in shown.output
    assert "copies them again" in shown.output
    assert "ottla: error: records are damaged in 2 places" in shown.output


def test_a_flip_of_any_bit_of_a_batch_is_found(data):
    damaged = segments(data)[0]
    good = damaged.read_bytes()
    for at in (0, 7, 8, 11, 12, 15, 16, 17, 21, 23, 27, 35, 43, 51, 53, 57, 60, 61, 100):
        flip(damaged, at, 0x40)
        assert verify(data / f"{TOPIC}-0").exit_code == 1, f"byte {at}"
        damaged.write_bytes(good)
    assert verify(data).exit_code == 0


def test_a_torn_tail_is_damage_except_in_the_active_segment_after_a_crash(data):
    os.truncate(segments(data)[-1], segments(data)[-1].stat().st_size - 5)
    assert verify(data).exit_code == 1
    (data / ".kafka_cleanshutdown").unlink()
    assert verify(data).exit_code == 1, "its manifest says that it was there"
    (data / f"{TOPIC}-0" / FILE_NAME).unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    assert verify(data).exit_code == 1, "the high watermark says that it was there, and was committed"
    (data / "replication-offset-checkpoint").unlink()
    result = verify(data)
    assert result.exit_code == 0, result.output
    assert "the broker cuts it off at its next start" in result.output
    os.truncate(segments(data)[1], segments(data)[1].stat().st_size - 5)
    assert verify(data).exit_code == 1


def test_bytes_behind_the_recovery_point_after_a_crash_are_not_damage(data):
    (data / ".kafka_cleanshutdown").unlink()
    with segments(data)[-1].open("ab") as last:
        last.write(segments(data)[-1].read_bytes()[:100])
    result = verify(data)
    assert result.exit_code == 0, result.output
    assert "the broker cuts it off at its next start" in result.output


def last_batch(segment: Path) -> int:
    """Where it begins."""
    content, at = segment.read_bytes(), 0
    while (end := at + 12 + int.from_bytes(content[at + 8 : at + 12], "big")) < len(content):
        at = end
    return at


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def remove_all_traces(data: Path) -> None:
    shutil.rmtree(data / f"{TOPIC}-0")
    for path in data.glob("*-checkpoint"):
        path.unlink()


LOSSES: dict[str, Callable[[Path], object]] = {
    "directory removed": lambda data: shutil.rmtree(data / f"{TOPIC}-0"),
    "directory removed with all checkpoints": lambda data: remove_all_traces(data),
    "directory emptied": lambda data: empty(data / f"{TOPIC}-0"),
    "active segment removed": lambda data: segments(data)[-1].unlink(),
    "active segment emptied": lambda data: segments(data)[-1].write_bytes(b""),
    "active segment cut at a batch": lambda data: os.truncate(segments(data)[-1], last_batch(segments(data)[-1])),
    "first segment removed": lambda data: segments(data)[0].unlink(),
    "closed segment removed": lambda data: segments(data)[2].unlink(),
    "closed segment emptied": lambda data: segments(data)[2].write_bytes(b""),
    "closed segment cut at a batch": lambda data: os.truncate(segments(data)[2], last_batch(segments(data)[2])),
}


@pytest.mark.parametrize("proof", ["manifest", "checkpoints"])
@pytest.mark.parametrize("what", LOSSES)
def test_losses_are_found_and_no_hint_removes_evidence(data, what, proof):
    if proof == "checkpoints":
        (data / f"{TOPIC}-0" / FILE_NAME).unlink()
    LOSSES[what](data)
    result = verify("--json", data)
    assert result.exit_code == 1, result.output
    findings = json.loads(result.stdout)["damaged"]
    assert any(each["records"] for each in findings)
    assert all(each["path"].startswith(str(data / f"{TOPIC}-0")) for each in findings)
    assert not any("delete" in each["remedy"] or "move" in each["remedy"] for each in findings)


@pytest.mark.parametrize("proof", ["manifest", "log"])
@pytest.mark.parametrize("what", ["flipped", "removed", "emptied"])
def test_a_wrong_transaction_index_is_found(data, what, proof):
    (index,) = (data / f"{DECIDED}-0").glob("*.txnindex")
    if proof == "log":
        (data / f"{DECIDED}-0" / FILE_NAME).unlink()
    whole = index.read_bytes()
    if what == "flipped":
        for at in (9, 17, 25):  # the last bytes of the producer id, the first and the last offset
            flip(index, at, 0x10)
            assert f"{index}: " in verify(data).output
            index.write_bytes(whole)
        return
    index.unlink() if what == "removed" else index.write_bytes(b"")
    result = verify("--json", data)
    assert result.exit_code == 1
    findings = [(each["path"], each["records"]) for each in json.loads(result.stdout)["damaged"]]
    manifest = [(str(data / f"{DECIDED}-0" / FILE_NAME), False)] if proof == "log" else []
    assert findings == [(str(index), False), *manifest]


def test_leftover_files_of_one_kind_are_one_note(data):
    for base in (7, 8, 9):
        (data / f"{TOPIC}-0" / f"{base:020}.log.deleted").touch()
        (data / f"{TOPIC}-0" / f"{base:020}.log.damaged").touch()
    notes = [line for line in verify(data).output.splitlines() if "and 2 more" in line]
    assert [line.split(": ")[2] for line in notes] == ["quarantined by the broker", "left over"]


def test_a_damaged_or_removed_manifest_after_a_clean_shutdown_is_reported(data):
    manifest = data / f"{TOPIC}-0" / FILE_NAME
    assert "left over" not in verify(data).output
    flip(manifest, 30)
    result = verify(data)
    assert f"{manifest}: its checksum is wrong" in result.output
    assert "the broker rebuilds it" in result.output
    manifest.unlink()
    result = verify(data)
    assert result.exit_code == 1
    assert f"{manifest}: it is missing" in result.output
    assert "the broker rebuilds it" in result.output
    (data / ".kafka_cleanshutdown").unlink()
    assert verify(data).exit_code == 0, "another release may have removed it"


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_removed_producer_snapshot_after_a_clean_shutdown_is_reported(data, which):
    snapshots = sorted((data / f"{TOPIC}-0").glob("*.snapshot"))
    assert len(snapshots) > 2, "one for each segment, and one at the end"
    victim = snapshots[0 if which == "first" else -1]
    victim.unlink()
    result = verify("--json", data)
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["damaged"]
    assert (finding["path"], finding["records"]) == (str(victim), False)
    assert "the broker rebuilds it" in finding["remedy"]
    (data / ".kafka_cleanshutdown").unlink()
    assert verify(data).exit_code == 0, "a broker that was killed may not have written it"


def test_a_segment_with_the_offsets_of_another_is_found(data):
    first, second = segments(data)[:2]
    second.write_bytes(first.read_bytes())
    result = verify(data)
    assert result.exit_code == 1
    assert f"{second}, byte 0, offset 0: offsets 0.." in result.output


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_that_does_not_match_its_segment_is_found(data, kind):
    index = segments(data)[1].with_suffix(f".{kind}")
    assert index.stat().st_size, "the test needs an entry"
    flip(index, 7)
    result = verify(data)
    assert result.exit_code == 1
    assert f"{index}: " in result.output
    assert "the broker rebuilds it" in result.output
    index.unlink()
    assert f"{index}: it is missing" in verify(data).output


def test_other_derived_files_are_checked(data):
    partition = data / f"{TOPIC}-0"
    snapshot = max(partition.glob("*.snapshot"))
    flip(snapshot, 12)
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n7 0\n")
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\nnonsense\n")
    result = verify("--json", data)
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["damaged"]
    assert {Path(each["path"]).name for each in findings} == {
        snapshot.name,
        "leader-epoch-checkpoint",
        "recovery-point-offset-checkpoint",
    }
    assert not any(each["records"] for each in findings)


def test_a_path_that_is_not_a_data_directory_is_refused(tmp_path):
    assert verify(tmp_path).exit_code == 2
    assert verify(tmp_path / "nothing").exit_code == 2


def accept(data: Path, partition: str):
    return CliRunner().invoke(cli, ["log", "accept-loss", str(data), partition], prog_name="ottla")


def test_a_loss_that_the_broker_has_not_detected_cannot_be_accepted(data):
    assert accept(data, f"{TOPIC}-0").exit_code == 0
    assert "nothing is missing" in accept(data, f"{TOPIC}-0").output
    segments(data)[1].unlink()
    refused = accept(data, f"{TOPIC}-0")
    assert refused.exit_code == 1
    assert "the broker has not detected it yet" in refused.output
    shutil.rmtree(data / f"{TOPIC}-0")
    refused = accept(data, f"{TOPIC}-0")
    assert refused.exit_code == 1
    assert "is lost, and the broker has not detected it yet" in refused.output
    assert accept(data, "unknown-0").exit_code == 2


def test_offsets_that_were_given_up_are_not_damage(data):
    victim = segments(data)[1]
    victim.unlink()
    disk, shutdown = RealDisk(), checkpoints.read_clean_shutdown(RealDisk(), str(data))
    assert shutdown is not None
    closed = next(each for each in shutdown.logs or () if each.topic == TOPIC)
    log = PartitionLog.open(
        disk, str(data / f"{TOPIC}-0"), LogConfig(), recovery_point=closed.end, high_watermark=closed.end,
        closed_start=closed.start, closed_end=closed.end, clean=True, now_ms=0,
    )  # fmt: skip
    log.close()
    assert "are missing" in verify(data).output
    assert "are given up" in accept(data, f"{TOPIC}-0").output
    result = verify(data)
    assert result.exit_code == 0, result.output
    (data / ".kafka_cleanshutdown").unlink()
    result = verify(data)
    assert result.exit_code == 0, result.output
