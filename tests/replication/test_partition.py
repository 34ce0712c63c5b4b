"""Decisions of one replica: appends, commits, and errors."""

from __future__ import annotations

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.leader import RESENT_MAX, Follower
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.runtime.disk import RealDisk
from ottla.wire.batch import read_header
from ottla.wire.records import Record, build_batch, iterate
from tests.harness.full_disk import FullDisk

NOW_MS = 1_790_000_000_000


def batch(*values: bytes, **how: object) -> memoryview:
    key = how.pop("key", b"k")
    timestamp = how.pop("timestamp", NOW_MS)
    records = [Record(i, timestamp, key, value) for i, value in enumerate(values)]  # type: ignore[arg-type]
    return memoryview(bytearray(build_batch(records, **how)))  # type: ignore[arg-type]


def leading(in_sync: tuple[int, ...] = (1,), epoch: int = 0, leader: int = 1) -> State:
    return State(replicas=in_sync, leader=leader, leader_epoch=epoch, in_sync=in_sync, partition_epoch=0)


@pytest.fixture
def partition(tmp_path):
    def make(state: State | None = None, disk: RealDisk | None = None, **policy: object) -> Partition:
        log = PartitionLog.open(disk or RealDisk(), str(tmp_path / "t-0"), LogConfig(), now_ms=NOW_MS)
        made = Partition("t", bytes(16), 0, 1, log, AppendPolicy(**policy))  # type: ignore[arg-type]
        made.become(state or leading())
        return made

    return make


def refusal(act, *args, **how) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        act(*args, **how)
    return refused.value.code


def read(partition, offset, **how):
    how = {"isolation_level": 0, "leader_epoch": -1, "whole_first_batch": True, **how}
    piece = partition.read(offset, 1_000_000, **how)
    return None if piece is None else bytes(piece.load())


class Watch:
    def __init__(self):
        self.sizes = []

    def on_high_watermark(self, size):
        self.sizes.append(size)


def test_a_batch_gets_the_next_offsets_and_is_committed_when_the_leader_is_alone(partition):
    p = partition()
    assert p.append(batch(b"a", b"b"), ACKS_ALL, NOW_MS).base_offset == 0
    assert p.append(batch(b"c"), ACKS_ALL, NOW_MS).base_offset == 2
    assert (p.log.log_end, p.high_watermark, p.last_stable) == (3, 3, 3)


def test_records_are_read_up_to_the_high_watermark_only(partition):
    p = partition(leading(in_sync=(1, 2)))
    p.append(batch(b"a"), 1, NOW_MS)
    assert (p.log.log_end, p.high_watermark) == (1, 0)
    assert read(p, 0) is None
    p.become(leading(in_sync=(1,)))
    assert p.high_watermark == 1
    assert read(p, 0) is not None


def test_a_lower_min_insync_replicas_commits_what_waited_for_it(partition):
    p = partition(leading(in_sync=(1,))._replace(replicas=(1, 2)), in_sync_min=2)
    p.append(batch(b"a"), 1, NOW_MS)
    assert p.high_watermark == 0
    p.policy = AppendPolicy(in_sync_min=1)
    assert p.high_watermark == 1


def test_the_high_watermark_does_not_go_back(partition):
    p = partition()
    p.append(batch(b"a"), 1, NOW_MS)
    p.become(leading(in_sync=(1, 2)))
    assert p.high_watermark == 1


def test_a_replica_that_does_not_lead_refuses_writes_and_reads(partition):
    p = partition(leading(in_sync=(1, 2), leader=2))
    assert refusal(p.append, batch(b"a"), 1, NOW_MS) == ErrorCode.not_leader_or_follower
    assert refusal(read, p, 0) == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("known", [True, False])
def test_batches_behind_a_refused_batch_are_refused_with_the_same_error(partition, known):
    """Not told that it is out of order: librdkafka would renumber everything, and write some of it twice."""
    p = partition(leading())
    first = 1 if known else 0
    if known:
        p.append(batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0), 1, NOW_MS)
    one, two = ({"producer_id": 7, "producer_epoch": 0, "base_sequence": first + n} for n in (0, 1))
    p.become(leading(in_sync=(1, 2), leader=2, epoch=1))
    assert refusal(p.append, batch(b"b", **one), 1, NOW_MS) == ErrorCode.not_leader_or_follower
    p.become(leading(in_sync=(1, 2), epoch=2))
    assert refusal(p.append, batch(b"c", **two), 1, NOW_MS) == ErrorCode.not_leader_or_follower
    assert p.append(batch(b"b", **one), 1, NOW_MS).base_offset == first
    assert p.append(batch(b"c", **two), 1, NOW_MS).base_offset == first + 1
    later = {**two, "base_sequence": first + 5}
    assert refusal(p.append, batch(b"d", **later), 1, NOW_MS) == ErrorCode.out_of_order_sequence_number


def sent_by(partition, *sequences):
    """What becomes of batches of one producer, one record each: their offset, or the refusal."""
    reported = []
    for sequence in sequences:
        try:
            sent = batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
            reported.append(partition.append(sent, 1, NOW_MS).base_offset)
        except Refused as refused:
            reported.append(refused.code)
    return reported


def test_refused_batches_are_taken_again_in_sequence_order(partition):
    p = partition(leading())
    away, none = ErrorCode.not_leader_or_follower, ErrorCode.out_of_order_sequence_number
    assert sent_by(p, 0) == [0]
    p.become(leading(in_sync=(1, 2), leader=2, epoch=1))
    assert sent_by(p, 1, 2, 3) == [away] * 3
    p.become(leading(in_sync=(1, 2), epoch=2))
    assert sent_by(p, 4, 5) == [away] * 2
    assert sent_by(p, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    # Later the same again: what was refused before does not count any more.
    p.become(leading(in_sync=(1, 2), leader=2, epoch=3))
    assert sent_by(p, 6) == [away]
    p.become(leading(in_sync=(1, 2), epoch=4))
    # A producer that has given up the first hears soon that it is missing.
    assert sent_by(p, 7, 7, 7, 7, 7) == [away] * 4 + [none]
    assert sent_by(p, 6, 7) == [6, 7]


def test_batches_behind_one_that_a_full_disk_refused_are_refused_with_the_same_error(partition):
    p = partition(disk=(disk := FullDisk()))
    assert sent_by(p, 0) == [0]
    disk.fill("/t-0/")
    assert sent_by(p, 1) == [ErrorCode.kafka_storage_error]
    disk.make_room()
    assert sent_by(p, 2, 1, 2) == [ErrorCode.kafka_storage_error, 1, 2]


def test_a_batch_behind_one_that_the_previous_leader_refused_is_refused(partition):
    """librdkafka sends what follows to the new leader before the old one has answered."""
    p = partition(leading(in_sync=(1, 2)))
    away, none = ErrorCode.not_leader_or_follower, ErrorCode.out_of_order_sequence_number
    assert sent_by(p, 0, 1) == [0, 1]
    assert sent_by(p, 4) == [none]  # within a leader epoch nobody else can have refused what is missing
    p.become(leading(in_sync=(1, 2), epoch=1))
    assert sent_by(p, 3, 4) == [away] * 2
    assert sent_by(p, 2, 3, 4) == [2, 3, 4]
    assert sent_by(p, 6) == [none]
    # Whoever goes on without what is missing hears of it.
    p.become(leading(in_sync=(1, 2), epoch=2))
    assert sent_by(p, 6, 6, 6, 6, 6, 6) == [away] * 4 + [none] * 2
    # It renumbers everything then, and may do that out of order, too.
    resent = [batch(b"n", producer_id=7, producer_epoch=1, base_sequence=n) for n in (1, 0, 1)]
    assert refusal(p.append, resent[0], 1, NOW_MS) == away
    assert [p.append(each, 1, NOW_MS).base_offset for each in resent[1:]] == [5, 6]


def test_a_batch_that_arrives_before_a_new_producers_first_one_is_held_back(partition):
    """Or the first, when it comes, would count as one that was written long ago: acknowledged, and lost."""
    p = partition(leading(in_sync=(1, 2)))
    away = ErrorCode.not_leader_or_follower
    assert sent_by(p, 1, 2) == [away] * 2
    assert sent_by(p, 0, 1, 2, 3) == [0, 1, 2, 3]


def test_an_expired_producer_continues_with_its_next_sequence(partition):
    p = partition(leading(in_sync=(1, 2)))
    away = ErrorCode.not_leader_or_follower
    assert sent_by(p, 40, 41, 42, 43, 44) == [away] * 5  # as many as a client may have under way
    assert sent_by(p, 40, 41, 42, 43, 44) == [0, 1, 2, 3, 4]


def test_with_one_replica_a_sequence_gap_is_out_of_order_at_once(partition):
    p = partition()
    assert sent_by(p, 0) == [0]
    p.become(leading(epoch=1))
    assert sent_by(p, 2, 1) == [ErrorCode.out_of_order_sequence_number, 1]


def test_acks_all_needs_enough_replicas_in_sync_and_acks_one_does_not(partition):
    p = partition(leading()._replace(replicas=(1, 2, 3)), in_sync_min=2)
    assert refusal(p.append, batch(b"a"), ACKS_ALL, NOW_MS) == ErrorCode.not_enough_replicas
    assert p.append(batch(b"a"), 1, NOW_MS).base_offset == 0


def test_requests_of_an_older_and_of_a_newer_leader_epoch_are_refused(partition):
    p = partition(leading(epoch=5))
    assert refusal(read, p, 0, leader_epoch=4) == ErrorCode.fenced_leader_epoch
    assert refusal(read, p, 0, leader_epoch=6) == ErrorCode.unknown_leader_epoch
    assert read(p, 0, leader_epoch=5) is None


def test_batches_carry_the_epoch_of_their_leader(partition):
    p = partition(leading(epoch=3))
    p.append(batch(b"a"), 1, NOW_MS)
    p.become(leading(epoch=7))
    p.append(batch(b"b"), 1, NOW_MS)
    data = read(p, 0)
    first = read_header(data)
    assert [first.leader_epoch, read_header(data, first.size).leader_epoch] == [3, 7]
    assert p.log.end_offset_for_epoch(3) == (3, 1)


def test_a_retry_gets_the_offset_of_the_first_time_and_is_not_written_again(partition):
    p = partition()
    how = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    assert p.append(batch(b"a", **how), 1, NOW_MS).base_offset == 0
    assert p.append(batch(b"a", **how), 1, NOW_MS).base_offset == 0
    assert p.log.log_end == 1
    skipped = batch(b"c", **{**how, "base_sequence": 5})
    assert refusal(p.append, skipped, 1, NOW_MS) == ErrorCode.out_of_order_sequence_number


def test_log_append_time_replaces_the_producers_timestamps(partition):
    p = partition(log_append_time=True)
    assert p.append(batch(b"a", timestamp=17), 1, NOW_MS).log_append_time_ms == NOW_MS
    (record,) = iterate(read(p, 0), bytes_max=10_000)
    assert record.timestamp == NOW_MS


@pytest.mark.parametrize(("timestamp", "refused"), [(NOW_MS + 10_000, True), (NOW_MS - 10_000, True), (NOW_MS, False)])
def test_timestamps_out_of_bounds_are_refused(partition, timestamp, refused):
    p = partition(timestamp_before_ms_max=5000, timestamp_after_ms_max=5000)
    if refused:
        assert refusal(p.append, batch(b"a", timestamp=timestamp), 1, NOW_MS) == ErrorCode.invalid_timestamp
    else:
        assert p.append(batch(b"a", timestamp=timestamp), 1, NOW_MS).base_offset == 0


def test_a_batch_over_the_limit_is_refused(partition):
    p = partition(bytes_max=100)
    assert refusal(p.append, batch(b"x" * 200), 1, NOW_MS) == ErrorCode.message_too_large


def test_a_compacted_topic_takes_no_record_without_a_key(partition):
    p = partition(keys_required=True)
    assert refusal(p.append, batch(b"a", key=None), 1, NOW_MS) == ErrorCode.invalid_record
    assert p.append(batch(b"a"), 1, NOW_MS).base_offset == 0


@pytest.mark.parametrize("kept", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_kept_in_the_codec_the_topic_names(partition, kept):
    p = partition(codec=kept)
    p.append(batch(b"a" * 500, b"b" * 500, codec="gzip"), 1, NOW_MS)
    data = read(p, 0)
    assert ("none", "gzip", "snappy", "lz4", "zstd")[read_header(data).codec] == kept
    assert [r.value for r in iterate(data, bytes_max=10_000)] == [b"a" * 500, b"b" * 500]


def test_deleted_records_cannot_be_read_any_more(partition):
    p = partition()
    p.append(batch(b"a", b"b", b"c"), 1, NOW_MS)
    assert p.delete_before(2) == 2
    assert refusal(read, p, 1) == ErrorCode.offset_out_of_range
    assert p.delete_before(-1) == 3
    assert refusal(p.delete_before, 4) == ErrorCode.offset_out_of_range


def test_records_are_gone_when_all_that_are_in_sync_have_deleted_them(partition):
    p = partition(leading(in_sync=(1, 2, 3)))
    p.append(batch(b"a", b"b", b"c"), 1, NOW_MS)
    p.leader.fetched_by(2, 8, 3, 0, 0)
    p.leader.fetched_by(3, 8, 3, 0, 0)
    assert p.delete_before(-1) == 3
    assert p.leader.low_watermark == 0
    p.leader.fetched_by(2, 8, 3, -1, 3)
    assert p.leader.low_watermark == 0
    p.become(leading(in_sync=(1, 2))._replace(replicas=(1, 2, 3), partition_epoch=1))
    assert p.leader.low_watermark == 3


def test_listeners_are_notified_of_bytes_and_of_other_changes(partition):
    p = partition()
    watch = Watch()
    p.high_watermark_listeners[watch] = None
    view = batch(b"a")
    p.append(view, 1, NOW_MS)
    p.become(leading(epoch=1))
    assert watch.sizes == [len(view), 0]


def test_a_batch_of_very_many_records_is_not_validated_record_by_record(partition):
    view = batch(*[b""] * 200_001)
    p = partition(validate_records=True, bytes_max=10_000_000)
    assert refusal(p.append, view, 1, NOW_MS) == ErrorCode.message_too_large


def test_fetch_offsets_from_before_a_followers_new_registration_do_not_count(partition):
    p = partition(leading(in_sync=(1, 2)))
    p.append(batch(b"a"), 1, NOW_MS)
    p.append(batch(b"b"), 1, NOW_MS)
    p.leader.fetched_by(2, 8, 1, 0)  # it came back without its end
    assert refusal(p.leader.fetched_by, 2, 7, 2, 0) is ErrorCode.stale_broker_epoch  # late
    assert p.high_watermark == 1
    p.leader.fetched_by(2, 8, 2, 0)
    assert p.high_watermark == 2


def test_a_follower_whose_empty_log_begins_behind_the_leaders_end_is_not_counted(partition):
    p = partition(leading(in_sync=(1, 2)))
    p.append(batch(b"a"), 1, NOW_MS)
    p.leader.fetched_by(2, 8, 5, -1)
    for value in (b"b", b"c", b"d", b"e"):
        p.append(batch(value), 1, NOW_MS)
    assert p.high_watermark == 0
    p.leader.fetched_by(2, 8, 5, 0)
    assert p.high_watermark == 5


def test_a_follower_with_records_of_an_unknown_leader_epoch_must_truncate(partition):
    p = partition(leading(in_sync=(1, 2)))
    p.append(batch(b"a"), 1, NOW_MS)
    assert p.leader.fetched_by(2, 8, 2, 70_000) == (0, 1)
    assert p.high_watermark == 0


def test_the_high_watermark_stays_within_a_log_that_was_truncated_halfway(partition):
    partition = partition()
    for value in b"abcd":
        partition.append(batch(bytes([value])), ACKS_ALL, NOW_MS)
    partition.become(leading((1, 2), epoch=1, leader=2))
    disk = partition.log.disk
    sync_dir = disk.sync_dir
    disk.sync_dir = lambda path: disk.open(path + "/not/there").sync()
    with pytest.raises(StorageFault):
        partition.follower.truncate(0, 2, NOW_MS)
    disk.sync_dir = sync_dir
    assert (partition.log.log_end, partition.high_watermark) == (2, 2)
    partition.become(leading((1, 2), epoch=2))
    partition.append(batch(b"e"), ACKS_ALL, NOW_MS)
    assert (partition.log.log_end, partition.high_watermark) == (3, 2)


def test_a_follower_that_fetches_the_same_offset_again_and_again_is_noticed():
    follower = Follower(2)
    assert not any(follower.sent_again(7) for _ in range(RESENT_MAX - 1))
    assert follower.sent_again(7)
    assert not any(follower.sent_again(7) for _ in range(RESENT_MAX - 1))
    assert not any(follower.sent_again(offset) for offset in range(8, 100))
