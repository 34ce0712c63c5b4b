"""Checkpoint files: Kafka's bytes, and an error with the remedy for a damaged one."""

from __future__ import annotations

import pytest

from ottla.errors import Fault
from ottla.log import checkpoints
from ottla.runtime.disk import RealDisk

TOPIC_ID = bytes(range(240, 256))


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


disk = RealDisk()


def put(directory, name, text):
    disk.write_atomic(f"{directory}/{name}", text.encode() if isinstance(text, str) else text)


def test_offsets_of_many_partitions_are_written_as_kafka_writes_them(directory):
    offsets = {("orders", 0): 17, ("a.b-c_d", 11): 0}
    checkpoints.write_offsets(disk, directory, checkpoints.RECOVERY_POINTS, offsets)
    assert disk.read(f"{directory}/recovery-point-offset-checkpoint") == b"0\n2\norders 0 17\na.b-c_d 11 0\n"
    assert checkpoints.read_offsets(disk, directory, checkpoints.RECOVERY_POINTS) == offsets


def test_an_absent_checkpoint_knows_no_offsets(directory):
    assert checkpoints.read_offsets(disk, directory, checkpoints.LOG_STARTS) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0\n1\n",
        "0\n1\norders 0\n",
        "0\n1\norders 0 17 4\n",
        "0\n1\norders zero 17\n",
        "0\n1\norders 0 -5\n",
        "0\n2\norders 0 1\norders 0 2\n",
        "1\n1\norders 0 17\n",
        "0\n99\norders 0 17\n",
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_checkpoint_names_itself_and_the_remedy(directory, text):
    put(directory, checkpoints.RECOVERY_POINTS, text)
    with pytest.raises(Fault, match=r"recovery-point-offset-checkpoint is damaged.*Without it"):
        checkpoints.read_offsets(disk, directory, checkpoints.RECOVERY_POINTS)


def test_partition_metadata_holds_the_topic_id_as_kafka_prints_it(directory):
    checkpoints.write_partition_metadata(disk, directory, TOPIC_ID)
    text = disk.read(f"{directory}/partition.metadata")
    assert text == b"version: 0\ntopic_id: 8PHy8_T19vf4-fr7_P3-_w"
    assert checkpoints.read_partition_metadata(disk, directory) == TOPIC_ID


def test_a_directory_without_partition_metadata_belongs_to_no_topic_yet(directory):
    assert checkpoints.read_partition_metadata(disk, directory) is None


def test_partition_metadata_that_a_full_disk_cut_short_is_written_again(directory):
    put(directory, checkpoints.PARTITION_METADATA, "version: 0\ntop")
    checkpoints.write_partition_metadata(disk, directory, TOPIC_ID)
    checkpoints.write_partition_metadata(disk, directory, TOPIC_ID)
    assert checkpoints.read_partition_metadata(disk, directory) == TOPIC_ID


@pytest.mark.parametrize(
    "text", [b"", bytes(43), b"vers", b"version: 0\n" + bytes(32), b"version: 0\ntopic_id: AAEC" + bytes(18)]
)
def test_unflushed_partition_metadata_is_ignored(directory, text):
    put(directory, checkpoints.PARTITION_METADATA, text)
    assert checkpoints.read_partition_metadata(disk, directory) is None


@pytest.mark.parametrize(
    "text", ["version: 0\ntopic_id: %%%", "version: 0\ntopic_id: A\n", "version: 7\ntopic_id: x", "hi"]
)
def test_damaged_partition_metadata_is_a_fault_that_keeps_the_records(directory, text):
    put(directory, checkpoints.PARTITION_METADATA, text)
    with pytest.raises(Fault, match=r"partition\.metadata is damaged"):
        checkpoints.read_partition_metadata(disk, directory)


def test_meta_properties_are_read_as_java_properties(directory):
    put(directory, checkpoints.META_PROPERTIES, "#\n#Mon Nov 13\nversion=1\nnode.id = 3\n\ncluster.id=abc=\n")
    expected = {"version": "1", "node.id": "3", "cluster.id": "abc="}
    assert checkpoints.read_meta_properties(disk, directory) == expected
    checkpoints.write_meta_properties(disk, directory, expected)
    assert checkpoints.read_meta_properties(disk, directory) == expected


def test_damaged_meta_properties_are_a_fault(directory):
    put(directory, checkpoints.META_PROPERTIES, "no setting at all")
    with pytest.raises(Fault, match=r"meta\.properties is damaged"):
        checkpoints.read_meta_properties(disk, directory)


def test_the_clean_shutdown_file_is_used_for_one_start_only(directory):
    assert checkpoints.take_clean_shutdown(disk, directory) is None
    mark = checkpoints.CleanShutdown(42, 40, (checkpoints.ClosedLog("orders", "an id", 3, 12, 561),))
    checkpoints.write_clean_shutdown(disk, directory, mark)
    expected = b'{"version": 0, "brokerEpoch": 42, "cleanSince": 40, "logs": [["orders", "an id", 3, 12, 561]], "crc": '
    assert disk.read(f"{directory}/.kafka_cleanshutdown").startswith(expected)
    assert checkpoints.take_clean_shutdown(disk, directory) == mark
    assert checkpoints.take_clean_shutdown(disk, directory) is None


def test_an_old_kafka_s_empty_clean_shutdown_file_counts(directory):
    put(directory, checkpoints.CLEAN_SHUTDOWN, "")
    assert checkpoints.take_clean_shutdown(disk, directory) == checkpoints.CleanShutdown(-1, -1)


@pytest.mark.parametrize("content", ['{"version":0,"brokerEpoch":7}', '{"version": "0", "broker_epoch": "7"}'])
def test_a_clean_shutdown_file_with_fewer_fields_is_clean_since_its_own_stop(directory, content):
    put(directory, checkpoints.RECOVERY_POINTS, "0\n0\n")
    put(directory, checkpoints.CLEAN_SHUTDOWN, content)
    assert checkpoints.take_clean_shutdown(disk, directory) == checkpoints.CleanShutdown(7, 7)


def test_a_clean_shutdown_file_without_logs_needs_recovery_points(directory):
    put(directory, checkpoints.CLEAN_SHUTDOWN, '{"version":0,"brokerEpoch":7}')
    assert checkpoints.take_clean_shutdown(disk, directory) == checkpoints.CleanShutdown(-1, -1)


def test_a_clean_shutdown_file_with_a_flipped_bit_is_ignored(directory):
    mark = checkpoints.CleanShutdown(42, 40, (checkpoints.ClosedLog("orders", "an id", 3, 12, 561),))
    checkpoints.write_clean_shutdown(disk, directory, mark)
    path = f"{directory}/{checkpoints.CLEAN_SHUTDOWN}"
    whole = disk.read(path)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        disk.write_atomic(path, bytes(data))
        said = checkpoints.take_clean_shutdown(disk, directory)
        assert said in (checkpoints.CleanShutdown(), mark), data  # a blank that is another kind of blank


@pytest.mark.parametrize("content", ["[]", "7", '{"version":0}', '{"brokerEpoch":[]}'])
def test_an_unreadable_clean_shutdown_file_is_ignored(directory, content):
    put(directory, checkpoints.CLEAN_SHUTDOWN, content)
    assert checkpoints.take_clean_shutdown(disk, directory) == checkpoints.CleanShutdown(-1, -1)
