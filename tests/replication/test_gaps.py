"""Gaps: an offset is missing only if no replica has it, and no replica deletes its records because of another's gap."""

from __future__ import annotations

from random import Random

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.errors import Refused
from ottla.log.accept_loss import accept_loss
from ottla.log.damage import held_from
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication import gaps
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.runtime import Disk
from ottla.sim.disk import SimDisk
from tests.replication.test_partition import NOW_MS, batch

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)
PATH = "/t-0"
END = 14


def wanted_isr(partition: Partition) -> set[int]:
    """The ISR that the leader would propose; the one there is, if it has nothing to propose."""
    proposes = partition.leader.propose(0.0, 10.0, everybody)
    wanted = partition.leader.proposed if proposes else partition.in_sync
    partition.leader.withdraw()
    return set(wanted or ())


def everybody(replica: int, epoch: int = 0) -> bool:
    return True


def replica(broker_id: int, disk: Disk | None = None, **evidence) -> Partition:
    log = PartitionLog.open(disk or SimDisk(Random(broker_id)), PATH, CONFIG, now_ms=NOW_MS, **evidence)
    return Partition("t", bytes(16), 0, broker_id, log, AppendPolicy())


def state(leader: int, epoch: int) -> State:
    return State((1, 2, 3), leader, epoch, (leader,), epoch, last_leader=leader)


def lead(leader: Partition, *followers: Partition, epoch: int) -> None:
    for each in (leader, *followers):
        each.become(state(leader.broker_id, epoch))
    leader.doubt = None
    leader.become(state(leader.broker_id, epoch))
    assert leader.leads


def write(partition: Partition, count: int) -> None:
    for _ in range(count):
        partition.append(batch(b"%d" % partition.log.log_end), ACKS_ALL, NOW_MS)


def follow(follower: Partition, leader: Partition) -> None:
    """Until nothing more comes of it. As `broker.handlers.fetch` and `replication.follower` do it."""
    for _ in range(200):
        position = follower.follower.position()
        _, offset, last_epoch = position
        diverging = leader.leader.fetched_by(follower.broker_id, 1, offset, last_epoch, held_from(follower.log))
        if diverging is not None:
            follower.follower.truncate(*diverging, NOW_MS)
        elif (gap := gaps.gap_for(leader, follower.broker_id, offset)) is not None:
            assert gaps.pass_over(follower, gap, NOW_MS)
        else:
            piece = leader.read_tail(offset, 10_000, leader_epoch=leader.leader_epoch, whole_first_batch=True)
            data = b"" if piece is None else piece.load()
            if gaps.unsettled(follower) is not None and data:
                follower.follower.copy_again(NOW_MS)
                continue
            else:
                follower.replicate(memoryview(data), leader.high_watermark, leader.log.proven_start, NOW_MS)
                gaps.compare_start(follower, leader.log.proven_start)
        if follower.follower.position() == position:
            return
    raise AssertionError("it does not come to an end")


def readable(partition: Partition) -> set[int]:
    found = set()
    for offset in range(partition.log.log_end):
        try:
            piece = partition.log.read(offset, 1, limit=partition.log.log_end)
        except Refused:
            continue
        if piece is not None and int.from_bytes(piece.load()[:8], "big") == offset:
            found.add(offset)
    return found


@pytest.fixture
def cluster() -> tuple[Partition, Partition, Partition]:
    """1 and 2 have 0..9; 3, which led last, has lost its disk, and knows that it had 0..13."""
    first, second, third = replica(1), replica(2), replica(3)
    lead(third, first, second, epoch=0)
    write(third, 10)
    follow(first, third)
    follow(second, third)
    write(third, 4)
    lost = replica(3, high_watermark=END)
    lead(lost, first, second, epoch=1)
    return first, second, lost


def test_followers_keep_what_their_leader_lost_and_one_of_them_leads(cluster):
    first, second, third = cluster
    write(third, 2)
    for follower in (first, second):
        follow(follower, third)
        assert readable(follower) == {*range(10), 14, 15}
        assert follower.log.damage.missing == ((10, 14),)
        assert follower.log.log_end == third.log.log_end
    assert wanted_isr(third) == {1, 2}
    lead(first, second, third, epoch=2)
    write(first, 1)
    for follower in (second, third):
        follow(follower, first)
        assert readable(follower) == {*range(10), 14, 15, 16}
        assert follower.log.damage.missing == ((10, 14),)
    assert wanted_isr(first) == {1, 2, 3}, "nobody lacks less than the leader"


def test_a_follower_copies_what_only_it_lacks_from_a_replica_that_has_it(cluster):
    first, second, third = cluster
    second.log.truncate_to(6, NOW_MS)
    write(third, 1)
    follow(first, third)
    follow(second, third)
    assert second.log.damage.missing == ((6, 14),)
    assert wanted_isr(third) == {1}
    lead(first, second, third, epoch=2)
    for follower in (second, third):
        follow(follower, first)
        assert readable(follower) == {*range(10), 14}


def test_a_leader_that_has_all_is_copied_from_by_one_that_passed_over_it(cluster):
    first, _, third = cluster
    write(third, 1)
    follow(first, third)
    whole = replica(2)
    whole.become(state(2, 0))
    write(whole, 15)
    lead(whole, first, epoch=2)
    follow(first, whole)
    assert first.log.damage is None
    assert readable(first) == set(range(15))


def test_a_gap_that_was_given_up_deletes_nothing_elsewhere():
    first, third = replica(1), replica(3)
    lead(third, first, epoch=0)
    write(third, 10)
    follow(first, third)
    disk = SimDisk(Random(3))
    replica(3, disk, high_watermark=END).log.close()
    assert accept_loss(disk, PATH) == ((0, END),)
    third = replica(3, disk, high_watermark=END)
    assert (third.log.log_start, third.log.proven_start) == (END, 0)
    lead(third, first, epoch=1)
    write(third, 2)
    follow(first, third)
    assert readable(first) == {*range(10), 14, 15}
    assert first.log.damage is None
    assert first.log.given_up == ((10, 14),)
    again = PartitionLog.open(first.log.disk, PATH, CONFIG, high_watermark=16, now_ms=NOW_MS)
    assert (again.damage, again.log_end) == (None, 16), "it is remembered"
    empty = replica(2)
    lead(third, first, empty, epoch=2)
    follow(empty, third)
    assert readable(empty) == {14, 15}
    assert empty.log.damage is None


def test_a_leader_whose_log_start_is_a_guess_learns_from_its_followers_that_it_lost_the_first_segment():
    first, third = replica(1), replica(3)
    lead(third, first, epoch=0)
    write(third, 12)
    follow(first, third)
    second = third.log.segments[1].base_offset
    for name in third.log.disk.listdir(PATH):
        if name.startswith(f"{0:020d}."):
            third.log.disk.remove(f"{PATH}/{name}")
    third = replica(3, third.log.disk)
    assert (third.log.log_start, third.log.proven_start, third.log.damage) == (second, 0, None)
    lead(third, first, epoch=1)
    write(third, 1)
    follow(first, third)
    assert readable(first) == set(range(13)), "nobody deletes anything because of a guess"
    assert third.log.damage is not None
    assert third.log.damage.missing == ((0, second),)
    assert wanted_isr(third) == {1}
    lead(first, third, epoch=2)
    follow(third, first)
    assert readable(third) == set(range(13))


def test_a_follower_whose_log_start_is_a_guess_learns_from_its_leader_that_it_lost_the_first_segment():
    first, third = replica(1), replica(3)
    lead(third, first, epoch=0)
    write(third, 12)
    follow(first, third)
    for name in first.log.disk.listdir(PATH):
        if name.startswith(f"{0:020d}."):
            first.log.disk.remove(f"{PATH}/{name}")
    first = replica(1, first.log.disk)
    lead(third, first, epoch=1)
    write(third, 1)
    follow(first, third)
    assert readable(first) == set(range(13))


def test_a_loss_accepted_at_the_leader_is_no_damage_on_followers(cluster):
    first, second, third = cluster
    write(third, 1)
    follow(first, third)
    assert first.log.damage is not None
    first.log.close()
    accept_loss(first.log.disk, PATH)
    accepted = replica(1, first.log.disk)
    follow(second, third)
    lead(accepted, second, epoch=2)
    follow(second, accepted)
    assert second.log.damage is None
    assert second.log.given_up == ((10, 14),)


@pytest.mark.parametrize("point", [0, 10, 15])
def test_records_after_a_gap_survive_a_kill(cluster, point):
    """Wherever the recovery point is: what is behind a named gap is part of the log."""
    first, _, third = cluster
    write(third, 3)
    follow(first, third)
    again = PartitionLog.open(first.log.disk, PATH, CONFIG, recovery_point=point, high_watermark=17, now_ms=NOW_MS)
    assert again.damage is not None
    assert (again.damage.missing, again.log_end) == (((10, 14),), 17)
    assert not [name for name in first.log.disk.listdir(PATH) if name.endswith(".damaged")]


def test_a_single_replica_serves_records_after_its_lost_offsets(cluster, caplog):
    """As coordinators read their own logs: nothing else would ever let them go on."""
    _, _, third = cluster
    assert gaps.next_held(third, 3) == 3, "another replica may have it"
    third.replicas = (3,)
    assert gaps.next_held(third, 3) == END
    assert "are lost; continuing without them" in caplog.text
    assert gaps.next_held(third, END) == END


def test_records_of_leader_epochs_that_the_leader_has_lost_are_not_truncated_elsewhere():
    """An older copy of its directory knows nothing of later leader epochs, and its mark proves a later end."""
    first, third = replica(1), replica(3)
    lead(third, first, epoch=0)
    write(third, 10)
    follow(first, third)
    lead(first, third, epoch=1)
    write(first, 4)
    follow(third, first)
    disk = SimDisk(Random(7))
    older = replica(3, disk)
    lead(older, epoch=0)
    write(older, 10)
    older.log.close()
    older = replica(3, disk, high_watermark=END)
    assert older.log.damage is not None
    lead(older, first, epoch=3)
    write(older, 1)
    follow(first, older)
    assert readable(first) == set(range(15))
    assert first.log.damage is None
    assert wanted_isr(older) == {1}
