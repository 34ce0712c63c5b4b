"""The hand-made frames of transactions, compared with kio."""

from __future__ import annotations

import struct

import crc32c
import pytest

from bench import frames, transaction_frames
from bench.transaction_frames import Identity
from tests.wire.oracle import kio_class, kio_message

ID, TOPIC, GROUP = "some-producer", "some-topic", "some-group"
PRODUCER = Identity(4711, 3)
HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(frames.CLIENT_ID) + 1


def decoded(api, version, frame):
    assert frames.I32.unpack_from(frame)[0] == len(frame) - 4
    return kio_message(kio_class(api, "request", version), bytes(frame[HEADER_BYTES:]))


def test_a_producer_starts_without_an_id():
    message = decoded("init_producer_id", 4, transaction_frames.init(ID))
    assert (message.transactional_id, message.producer_id, message.producer_epoch) == (ID, -1, -1)


def test_find_coordinator_asks_for_a_transaction_coordinator():
    message = decoded("find_coordinator", 3, transaction_frames.find_coordinator(ID))
    assert (message.key, message.key_type) == (ID, 1)


def test_a_partition_and_the_offsets_of_a_group_are_added():
    added = decoded("add_partitions_to_txn", 3, transaction_frames.add_partition(ID, PRODUCER, TOPIC, 2))
    (topic,) = added.v3_and_below_topics
    assert added.v3_and_below_transactional_id == ID
    assert (added.v3_and_below_producer_id, added.v3_and_below_producer_epoch) == (*PRODUCER,)
    assert (topic.name, topic.partitions) == (TOPIC, (2,))
    offsets = decoded("add_offsets_to_txn", 3, transaction_frames.add_offsets(ID, PRODUCER, GROUP))
    assert (offsets.transactional_id, offsets.producer_id, offsets.producer_epoch, offsets.group_id) == (
        ID,
        *PRODUCER,
        GROUP,
    )


@pytest.mark.parametrize("version", [3, 5])
def test_an_offset_is_committed_and_the_transaction_with_it(version):
    committed = decoded(
        "txn_offset_commit",
        version,
        transaction_frames.commit_offset(ID, PRODUCER, GROUP, TOPIC, 77, version=version),
    )
    (partition,) = committed.topics[0].partitions
    assert (committed.transactional_id, committed.group_id, committed.generation_id) == (ID, GROUP, -1)
    assert (committed.topics[0].name, partition.partition_index, partition.committed_offset) == (TOPIC, 0, 77)
    ended = decoded("end_txn", version, transaction_frames.end(ID, PRODUCER, version=version))
    assert (ended.transactional_id, ended.producer_id, ended.producer_epoch, ended.committed) == (ID, *PRODUCER, True)


@pytest.mark.parametrize("version", [9, 12])
def test_produce_has_the_transactional_id(version):
    batch = bytes(transaction_frames.in_transaction(frames.batch(100, 3), PRODUCER, 5))
    header = frames.BATCH_HEADER.unpack_from(batch)
    assert header[4] == crc32c.crc32c(batch[21:])
    assert (header[5], header[9:12]) == (transaction_frames.TRANSACTIONAL, (*PRODUCER, 5))
    frame = frames.produce(TOPIC, 1, batch, transactional_id=ID, version=version)
    message = decoded("produce", version, frame)
    assert (message.transactional_id, message.topic_data[0].name) == (ID, TOPIC)
    assert bytes(message.topic_data[0].partition_data[0].records) == batch


def test_producer_id_and_epoch_are_read():
    answer = memoryview(struct.pack(">ibihqhb", 1, 0, 0, 0, *PRODUCER, 0))
    assert transaction_frames.read_identity(answer) == PRODUCER
