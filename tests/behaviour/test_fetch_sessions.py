"""Incremental fetch sessions (KIP-227): a response names only changed partitions."""

from __future__ import annotations

from typing import Any

import kafka
import pytest

from tests.harness.raw import Connection, batch, produce
from tests.interop.clients import CLIENTS, Client, KafkaPython, Record

PARTITIONS = 10
SESSION_NOT_FOUND, INVALID_SESSION_EPOCH = 70, 71


class Session:
    """The client's half of a session over one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self.connection, self.topic = connection, topic
        self.session_id, self.epoch = 0, 0

    def fetch(self, offsets: dict[int, int], forget: list[int] | None = None, **options: Any) -> dict[str, Any]:
        partitions = [
            {
                "partition": partition,
                "current_leader_epoch": -1,
                "fetch_offset": offset,
                "log_start_offset": -1,
                "partition_max_bytes": 1 << 20,
            }
            for partition, offset in offsets.items()
        ]
        fields: dict[str, Any] = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 24,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": [{"topic": self.topic, "partitions": partitions}] if partitions else [],
            "forgotten_topics_data": [{"topic": self.topic, "partitions": forget}] if forget else [],
            **options,
        }
        answer = self.connection.call("fetch", 11, **fields)
        if answer["error_code"] == 0 and not options:
            self.session_id = answer["session_id"]
            self.epoch += 1
        return answer


def reported(answer: dict[str, Any]) -> dict[int, int]:
    """Partition and high watermark of everything in an answer."""
    return {p["partition_index"]: p["high_watermark"] for t in answer["responses"] for p in t["partitions"]}


@pytest.fixture
def session(broker, make_topic):
    topic = make_topic(partitions=PARTITIONS)
    with Connection(broker) as connection:
        session = Session(connection, topic)
        opened = session.fetch(dict.fromkeys(range(PARTITIONS), 0))
        assert opened["error_code"] == 0
        assert opened["session_id"] != 0
        assert len(reported(opened)) == PARTITIONS, "a full fetch tells of every partition"
        yield session


def test_an_incremental_fetch_returns_only_changed_partitions(session):
    assert reported(session.fetch({})) == {}
    produce(session.connection, session.topic, batch([b"x"]), partition=3)
    produce(session.connection, session.topic, batch([b"x"] * 2), partition=7)
    assert reported(session.fetch({})) == {3: 1, 7: 2}
    assert reported(session.fetch({3: 1, 7: 2})) == {}


def test_a_delayed_incremental_fetch_completes_for_any_partition_of_its_session(session, broker):
    fields = {
        "replica_id": -1,
        "max_wait": 30_000,
        "min_bytes": 1,
        "max_bytes": 1 << 24,
        "session_id": session.session_id,
        "session_epoch": session.epoch,
    }
    correlation_id = session.connection.send_request("fetch", 11, fields)
    with Connection(broker) as writer:
        produce(writer, session.topic, batch([b"x"]), partition=9)
    assert reported(session.connection.receive_response("fetch", 11, correlation_id)) == {9: 1}


def test_a_forgotten_partition_is_not_returned_again(session):
    session.fetch({}, forget=[3])
    produce(session.connection, session.topic, batch([b"x"]), partition=3)
    produce(session.connection, session.topic, batch([b"x"]), partition=4)
    assert reported(session.fetch({})) == {4: 1}


def test_a_partition_can_be_added_later(session):
    session.fetch({}, forget=[3])
    produce(session.connection, session.topic, batch([b"x"]), partition=3)
    assert reported(session.fetch({3: 0})) == {3: 1}


def test_a_wrong_epoch_and_an_unknown_session_are_refused(session):
    wrong = session.fetch({}, session_epoch=session.epoch + 5)
    assert (wrong["error_code"], wrong["session_id"]) == (INVALID_SESSION_EPOCH, 0)
    unknown = session.fetch({}, session_id=123_456_789)
    assert unknown["error_code"] == SESSION_NOT_FOUND


def test_a_closed_session_is_gone(session):
    closed = session.fetch(dict.fromkeys(range(PARTITIONS), 0), session_epoch=-1)
    assert (closed["error_code"], closed["session_id"]) == (0, 0)
    assert session.fetch({}, session_epoch=session.epoch)["error_code"] == SESSION_NOT_FOUND


def test_a_client_reads_five_hundred_partitions(broker, make_topic):
    """kafka-python uses sessions; every partition of a wide topic must come through them."""
    topic = make_topic(partitions=500)
    writer: Client = CLIENTS[0]
    records = [Record(str(i).encode(), partition=i) for i in range(500)] * 2
    writer.produce(broker.bootstrap, topic, records)
    consumer = KafkaPython().consumer(broker.bootstrap)
    try:
        partitions = [kafka.TopicPartition(topic, i) for i in range(500)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        seen: dict[int, list[bytes]] = {i: [] for i in range(500)}
        for _ in range(200):
            for partition, messages in consumer.poll(1_000, max_records=2_000).items():
                seen[partition.partition] += [message.value for message in messages]
            if sum(map(len, seen.values())) >= 1_000:
                break
        assert seen == {i: [str(i).encode()] * 2 for i in range(500)}
    finally:
        consumer.close()


def test_metadata_names_five_hundred_partitions(broker, make_topic):
    topic = make_topic(partitions=500)
    with Connection(broker) as connection:
        for version in (0, 5, 9, 12):
            answer = connection.call("metadata", version, topics=[{"name": topic}])
            partitions = answer["topics"][0]["partitions"]
            assert sorted(p["partition_index"] for p in partitions) == list(range(500))
            assert {p["error_code"] for p in partitions} == {0}
