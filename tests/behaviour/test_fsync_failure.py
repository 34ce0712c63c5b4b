"""A failed fsync: the broker stops, and every acknowledged record survives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker
from tests.harness.cluster import read

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs a broker process of its own")

PROGRAM = """
import errno, os, sys
from ottla.cli.main import main
kept, broken = os.fsync, sys.argv.pop(1)
def fsync(fd):
    if os.path.exists(broken):
        os.unlink(broken)  # once: the second try would be told that all is well
        raise OSError(errno.EIO, "Input/output error")
    kept(fd)
os.fsync = fsync
main()
"""


def write(producer: Producer, value: str) -> list[KafkaError | None]:
    reported: list[KafkaError | None] = []
    producer.produce("t", value, partition=0, on_delivery=lambda error, _: reported.append(error))
    producer.flush(20)
    return reported


def test_a_broker_stops_when_fsync_fails_and_keeps_every_acknowledged_record(tmp_path: Path):
    broken = tmp_path / "broken"
    broker = WatchedBroker(tmp_path / "broker", program=(sys.executable, "-c", PROGRAM, str(broken))).start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1, config={"flush.messages": "1"})])["t"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 3_000})
    assert write(producer, "kept") == [None]
    broken.touch()
    (error,) = write(producer, "not promised")
    assert error is not None, "acknowledged, though the device had failed"
    assert broker.wait() == 1
    assert "may not be on the device" in broker.log_text()
    again = WatchedBroker(tmp_path / "broker").start()
    try:
        assert read(again.bootstrap, "t", 1)[:1] == ["kept"]
    finally:
        again.close()
