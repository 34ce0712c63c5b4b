"""Idempotent producers (KIP-98): each sequence once, a repeat answered with its old offset, a gap refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.raw import Connection, batch, fetch, produce

NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 6, 45, 47
SEQUENCE_MAX = 2**31 - 1


@dataclass
class IdempotentProducer:
    connection: Connection
    topic: str
    producer_id: int
    producer_epoch: int

    def send(self, sequence: int, count: int = 1, epoch: int | None = None) -> tuple[int, int]:
        """(error, base offset)"""
        data = batch(
            [b"v"] * count,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch if epoch is None else epoch,
            base_sequence=sequence,
        )
        answer = produce(self.connection, self.topic, data)
        return answer["error_code"], answer["base_offset"]


def new_producer_id(connection: Connection, version: int = 4) -> dict[str, Any]:
    return connection.call(
        "init_producer_id",
        version,
        transactional_id=None,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )


@pytest.fixture
def producer(broker, topic):
    with Connection(broker) as connection:
        answer = new_producer_id(connection)
        yield IdempotentProducer(connection, topic, answer["producer_id"], answer["producer_epoch"])


def test_producer_ids_are_handed_out_once(broker):
    with Connection(broker) as connection:
        answers = [new_producer_id(connection, version) for version in (0, 1, 2, 3, 4, 5)]
    assert {answer["error_code"] for answer in answers} == {0}
    assert {answer["producer_epoch"] for answer in answers} == {0}
    assert len({answer["producer_id"] for answer in answers}) == len(answers)


def test_a_repeated_batch_is_answered_with_its_old_offset_and_not_written_again(producer):
    assert producer.send(0, count=3) == (0, 0)
    assert producer.send(3, count=2) == (0, 3)
    assert producer.send(3, count=2) == (0, 3)
    assert producer.send(0, count=3) == (0, 0)
    assert producer.send(5) == (0, 5)
    assert fetch(producer.connection, producer.topic)["high_watermark"] == 6


def test_each_of_the_last_five_batches_is_recognised(producer):
    for sequence in range(6):
        assert producer.send(sequence) == (0, sequence)
    for sequence in (1, 2, 3, 4, 5):
        assert producer.send(sequence) == (0, sequence)
    assert fetch(producer.connection, producer.topic)["high_watermark"] == 6


def test_a_gap_in_the_sequence_is_refused_and_nothing_is_written(producer):
    assert producer.send(0) == (0, 0)
    assert producer.send(2)[0] == OUT_OF_ORDER_SEQUENCE
    assert producer.send(1) == (0, 1)
    assert fetch(producer.connection, producer.topic)["high_watermark"] == 2


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero(producer):
    assert producer.send(0, epoch=1) == (0, 0)
    assert producer.send(1, epoch=0)[0] == INVALID_PRODUCER_EPOCH
    assert producer.send(5, epoch=2)[0] == OUT_OF_ORDER_SEQUENCE
    assert producer.send(0, epoch=2) == (0, 1)


def test_sequences_wrap_around(producer):
    """A producer the broker has no memory of may start anywhere, if it comes again and nothing came before; and the
    number after 2^31-1 is 0."""
    assert producer.send(SEQUENCE_MAX - 1, count=2) == (NOT_LEADER_OR_FOLLOWER, -1)
    assert producer.send(SEQUENCE_MAX - 1, count=2) == (0, 0)
    assert producer.send(0) == (0, 2)
    assert producer.send(1) == (0, 3)


def test_partitions_count_separately(broker, make_topic):
    topic = make_topic(partitions=2)
    with Connection(broker) as connection:
        answer = new_producer_id(connection)
        for partition in (0, 1):
            data = batch(producer_id=answer["producer_id"], producer_epoch=0, base_sequence=0)
            written = produce(connection, topic, data, partition=partition)
            assert (written["error_code"], written["base_offset"]) == (0, 0)
