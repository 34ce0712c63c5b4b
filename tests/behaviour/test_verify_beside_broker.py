"""`ottla log verify` beside a broker that compacts, deletes, rolls and aborts: nothing is alleged that is not so, and
what is lost there is found."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.main import cli
from ottla.local.waiting import wait_for
from ottla.log.manifest import FILE_NAME
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(EXTERNAL), reason="needs a broker process of its own")]

TOPICS = {
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"},
    "retained": {"retention.bytes": "3000000"},
    "cut": {},
    "decided": {},
}
SETTINGS = (
    "log.segment.bytes=1048576", "log.cleaner.backoff.ms=300", "log.retention.check.interval.ms=500",
    "log.segment.delete.delay.ms=200", "log.flush.offset.checkpoint.interval.ms=500",
)  # fmt: skip
LOOKS = 12


def verify(path: Path) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["log", "verify", "--json", str(path)], prog_name="ottla")
    reported: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == bool(reported["damaged"])
    return reported


class Load:
    """Writes until it is told to stop."""

    def __init__(self, process: WatchedBroker) -> None:
        self._settings = {"bootstrap.servers": process.bootstrap, "linger.ms": 0, "log_level": 0}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._write, self._decide)]
        self.iterations = 0

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _write(self) -> None:
        producer = Producer({**self._settings, "enable.idempotence": True})
        admin = AdminClient(self._settings)
        while not self._stop.is_set():
            for number in range(40):
                producer.produce("compacted", b"%d" % self.iterations * 2000, key=b"%d" % (number % 7), partition=0)
                producer.produce("retained", b"%d" % number * 9000, partition=0)
                producer.produce("cut", b"%d" % number * 4000, partition=0)
            producer.flush(30)
            self.iterations += 1
            before = TopicPartition("cut", 0, self.iterations * 20)
            admin.delete_records([before])[before].result(30)

    def _decide(self) -> None:
        producer = Producer({**self._settings, "transactional.id": "t"})
        producer.init_transactions(30)
        number = 0
        while not self._stop.is_set():
            number += 1
            producer.begin_transaction()
            producer.produce("decided", b"%d" % number * 3000, partition=0)
            producer.flush(30)
            producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)


@pytest.fixture
def process(tmp_path):
    started = WatchedBroker(tmp_path, *(word for each in SETTINGS for word in ("--set", each))).start()
    yield started
    started.close()


def test_log_verify_reports_nothing_on_a_healthy_broker(process):
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    created = admin.create_topics([NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()])
    for each in created.values():
        each.result(30)
    with Load(process) as load:
        wait_for(lambda: load.iterations > 5, "some load", 60)
        for _ in range(LOOKS):
            assert verify(process.data)["damaged"] == []
    process.kill()
    assert verify(process.data)["damaged"] == []
    process.start()
    with Load(process) as load:
        wait_for(lambda: load.iterations > 5 and len([*(process.data / "cut-0").glob("*.log")]) > 4, "some load", 60)
    assert verify(process.data)["damaged"] == []
    segments = sorted((process.data / "cut-0").glob("*.log"))
    assert len(segments) > 3
    manifest = process.data / "cut-0" / FILE_NAME
    claim = b"\nsegment %d " % int(segments[-3].stem)
    wait_for(lambda: claim in manifest.read_bytes(), "the segment to be on the device and in the manifest", 60)
    segments[-3].rename(segments[-3].with_suffix(".gone"))
    reported = verify(process.data)["damaged"]
    assert {each["path"] for each in reported} == {str(segments[-3])}
    segments[-3].with_suffix(".gone").rename(segments[-3])
    (index,) = sorted((process.data / "decided-0").glob("*.txnindex"))[:1]
    manifest = process.data / "decided-0" / FILE_NAME
    claim = b"\nsegment %d " % int(index.stem)
    wait_for(lambda: claim in manifest.read_bytes(), "the segment of the index in the manifest", 60)
    whole = index.read_bytes()
    index.write_bytes(whole[:9] + bytes([whole[9] ^ 4]) + whole[10:])
    assert [each["path"] for each in verify(process.data)["damaged"]] == [str(index)]
    index.write_bytes(whole)
    process.stop()
    assert verify(process.data)["damaged"] == []
