"""A data directory of release 0.1.0, recorded: this release opens it, and leaves nothing in it that 0.1.0 would not
understand, so that one may go back.

tests/data/data-directory-0.1.0.tar.gz.txt (in base64) was written by 0.1.0 and closed cleanly: `plain` and `cut` in
several segments, `cut` deleted up to offset 3, `compacted` compacted, `decided` with every other
transaction aborted, group `readers`.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.cli.main import cli
from ottla.local.waiting import wait_for
from ottla.log import checkpoints
from ottla.log.manifest import FILE_NAME
from ottla.runtime.disk import RealDisk
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs a broker process of its own")

RECORDED = Path(__file__).parents[1] / "data" / "data-directory-0.1.0.tar.gz.txt"
COUNT = 6
HELD = {
    ("plain", 0): [b"plain %d" % number for number in range(COUNT)],
    ("plain", 1): [b"plain %d" % number for number in range(COUNT)],
    ("cut", 0): [b"cut 3", b"cut 4", b"cut 5"],
    ("compacted", 0): [b"value 3", b"value 4", b"value 5"],
    ("decided", 0): [b"decided 0", b"decided 2", b"decided 4"],
}
KNOWN_TO_0_1_0 = re.compile(
    r"\d{20}\.(log|index|timeindex|txnindex|snapshot)(\.swap)?|leader-epoch-checkpoint|partition\.metadata|.*\.damaged"
)
REMOVED_BY_0_1_0 = (".deleted", ".cleaned", ".tmp")
"""It removes such files from a partition's directory before it looks at the others."""
FILES_OF_0_1_0 = {
    ".kafka_cleanshutdown", ".lock", "cleaner-offset-checkpoint", "log-start-offset-checkpoint", "meta.properties",
    "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "store.db", "store.db-wal", "store.db-shm",
}  # fmt: skip

PASSED_OVER_BY_0_1_0 = {"ottla-scrub-checkpoint"}
"""It looks at nothing else in a data directory but at what is named like a partition."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[WatchedBroker]:
    process = WatchedBroker(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(RECORDED.read_text()))) as recorded:
        recorded.extractall(process.data, filter="data")
    yield process
    process.close()


def verify(data: Path) -> None:
    done = CliRunner().invoke(cli, ["log", "verify", str(data)], prog_name="ottla")
    assert done.exit_code == 0, done.output


def held(process: WatchedBroker) -> dict[tuple[str, int], list[bytes]]:
    """What a reader of committed records sees of every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": process.bootstrap, "group.id": "unused", "isolation.level": "read_committed",
            "enable.partition.eof": True, "auto.offset.reset": "earliest", "log_level": 0,
        }
    )  # fmt: skip
    seen: dict[tuple[str, int], list[bytes]] = {}
    for topic, partition in HELD:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []

        def ended(values: list[bytes] = values) -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value())
            return message is not None and message.error() is not None

        wait_for(ended, f"the end of {topic}-{partition}", 30)
        seen[topic, partition] = values
    consumer.close()
    return seen


def test_a_data_directory_of_0_1_0_is_opened_and_opened_again_by_0_1_0(process):
    verify(process.data)
    process.start()
    assert held(process) == HELD
    consumer = Consumer({"bootstrap.servers": process.bootstrap, "group.id": "readers", "log_level": 0})
    assert consumer.committed([TopicPartition("plain", 0)], timeout=30)[0].offset == 4
    consumer.close()
    producer = Producer({"bootstrap.servers": process.bootstrap, "enable.idempotence": True, "log_level": 0})
    offsets: list[int] = []
    producer.produce("plain", b"new", partition=0, on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(30) == 0
    assert offsets == [COUNT]
    assert not [line for line in process.log_text().splitlines() if "WARNING" in line or "ERROR" in line]
    assert process.stop() == 0
    verify(process.data)
    for path in process.data.iterdir():
        if not path.is_dir():
            assert path.name in FILES_OF_0_1_0 or path.name in PASSED_OVER_BY_0_1_0
            continue
        assert (path / FILE_NAME).exists()
        unknown = [each.name for each in path.iterdir() if not KNOWN_TO_0_1_0.fullmatch(each.name)]
        assert all(name.endswith(REMOVED_BY_0_1_0) for name in unknown)
    process.start()
    assert held(process) == {**HELD, ("plain", 0): [*HELD["plain", 0], b"new"]}


@pytest.mark.long
def test_changes_made_by_0_1_0_after_this_release_are_kept(process):
    """0.1.0 removes the manifest when it opens a log, and its clean-shutdown mark names no logs: what was claimed
    before does not hold against what it left."""
    process.start()
    process.stop()
    mark = process.data / checkpoints.CLEAN_SHUTDOWN
    mark.write_text(json.dumps({"version": 0, "brokerEpoch": json.loads(mark.read_text())["brokerEpoch"]}))
    for manifest in process.data.glob(f"*/{FILE_NAME}"):
        manifest.unlink()
    (first,) = sorted((process.data / "plain-1").glob("*.log"))[:1]
    for kind in ("log", "index", "timeindex"):  # as its retention would have done
        first.with_suffix(f".{kind}").unlink()
    disk, directory = RealDisk(), str(process.data)
    starts = checkpoints.read_offsets(disk, directory, checkpoints.LOG_STARTS)
    checkpoints.write_offsets(disk, directory, checkpoints.LOG_STARTS, {**starts, ("plain", 1): 1})
    verify(process.data)
    process.start()
    assert held(process) == {**HELD, ("plain", 1): HELD["plain", 1][1:]}
    assert "is damaged" not in process.log_text()
