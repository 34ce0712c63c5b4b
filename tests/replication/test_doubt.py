"""Last leader in doubt: it waits for the followers, and a replica with the missing records leads."""

from __future__ import annotations

from random import Random

import pytest

from ottla.cluster.model import PartitionState as State
from ottla.errors import ErrorCode, Refused
from ottla.log import damage
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.doubt import WHOLE_WAIT_SECONDS, Doubt, Position, resolve, shows_more
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.sim.disk import SimDisk
from tests.replication.test_partition import NOW_MS, batch

WAIT = 30.0


def no_broker(replica: int) -> bool:
    return False


def every_broker(replica: int, epoch: int = 0) -> bool:
    return True


def verdict(doubt, now=0.0, *, able=every_broker, alive=every_broker):
    return doubt.verdict([2, 3], now, WAIT, able, alive)


def test_the_replica_with_the_longest_log_leads_with_all_that_are_equal():
    doubt = Doubt(Position(4, 10), 5, wait_for_all=True)
    doubt.hear(2, 7, 12, 4, 0)
    assert verdict(doubt) is None
    doubt.hear(3, 7, 14, 4, 0)
    assert verdict(doubt) == (3,)
    doubt.hear(2, 7, 14, 4, 0)
    assert verdict(doubt) == (2, 3)


@pytest.mark.parametrize(
    ("offset", "epoch", "log_start"),
    [(9, 4, 0), (12, 3, 0), (12, 4, 6)],
    ids=["ends before", "an older leader epoch", "lacks the same"],
)
def test_a_replica_whose_log_ends_before_the_proven_end_does_not_lead(offset, epoch, log_start):
    doubt = Doubt(Position(4, 10), 5, wait_for_all=True)
    for replica in (2, 3):
        doubt.hear(replica, 7, offset, epoch, log_start)
    assert verdict(doubt) == ()


def test_only_live_replicas_are_waited_for_if_the_log_end_is_known():
    doubt = Doubt(Position(4, 10), 5, wait_for_all=False)
    assert verdict(doubt) is None
    assert verdict(doubt, alive=no_broker) == ()
    assert verdict(doubt, WAIT) == ()


def test_all_replicas_are_waited_for_with_a_limit_if_the_log_end_is_not_known():
    doubt = Doubt(Position(4, 10), 5, wait_for_all=True)
    doubt.hear(2, 7, 12, 4, 0)
    assert verdict(doubt, alive=no_broker) is None
    assert verdict(doubt, WAIT, alive=no_broker) == (2,)


def test_positions_from_before_a_brokers_new_registration_do_not_count():
    doubt = Doubt(Position(4, 10), 5, wait_for_all=False)
    doubt.hear(2, 7, 12, 4, 0)
    doubt.hear(2, 6, 14, 4, 0)
    assert doubt.registration(2) == 7
    gone = lambda replica, epoch: epoch != 7  # noqa: E731
    assert verdict(doubt, able=gone) is None
    assert verdict(doubt, WAIT, able=gone) == ()


def test_without_known_damage_only_a_replica_with_a_longer_log_leads_instead():
    doubt = Doubt(Position(4, 10), 0, wait_for_all=False, whole=True)
    doubt.hear(2, 7, 10, 4, 0)
    assert verdict(doubt) is None
    doubt.hear(3, 7, 9, 4, 0)
    assert verdict(doubt) == ()
    doubt.hear(3, 7, 11, 4, 0)
    assert verdict(doubt) == (3,)


def test_without_known_damage_it_waits_for_live_replicas_only_and_briefly():
    assert verdict(Doubt(Position(4, 10), 0, wait_for_all=False, whole=True), alive=no_broker) == ()
    doubt = Doubt(Position(4, 10), 0, wait_for_all=False, whole=True)
    assert verdict(doubt) is None
    assert verdict(doubt, WHOLE_WAIT_SECONDS) == ()


def last_leader_back(*, end_known: bool, led_last: int = 1) -> Partition:
    log = PartitionLog.open(SimDisk(Random(1)), "/t-0", LogConfig(), now_ms=NOW_MS)
    partition = Partition("t", bytes(16), 0, 1, log, AppendPolicy())
    partition.end_known = end_known
    partition.become(State((1, 2, 3), -1, 0, (), 0, last_leader=led_last))
    partition.become(State((1, 2, 3), 1, 1, (1,), 1))
    return partition


def test_a_last_leader_that_was_killed_asks_the_others_first():
    assert last_leader_back(end_known=False).doubt is not None
    assert last_leader_back(end_known=True).leads
    assert last_leader_back(end_known=False, led_last=2).leads, "an unclean election is the operator's decision"


def doubtful(**state) -> Partition:
    log = PartitionLog.open(SimDisk(Random(1)), "/t-0", LogConfig(), now_ms=NOW_MS)
    partition = Partition("t", bytes(16), 0, 1, log, AppendPolicy())
    partition.become(State((1, 2, 3), 1, 0, (1,), 0))
    partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
    damage.mark_missing(partition.log, [(0, 1)])
    partition.end_known = False  # as after a kill
    partition.become(State((1, 2, 3), 1, 1, (1,), 1)._replace(**state))
    return partition


def test_clients_and_followers_are_refused_meanwhile():
    partition = doubtful()
    assert partition.doubt is not None
    for act in (lambda: partition.append(batch(b"b"), ACKS_ALL, NOW_MS), lambda: partition.check_leads(1)):
        with pytest.raises(Refused) as refused:
            act()
        assert refused.value.code is ErrorCode.not_leader_or_follower
    assert partition.log.log_end == 1


def test_a_complete_replica_is_proposed_with_the_broker_epoch_of_its_fetch():
    partition = doubtful()
    assert partition.doubt is not None
    for replica in (2, 3):
        partition.doubt.hear(replica, 7, 1, 0, 0)
    assert not resolve(partition, 0.0, WAIT, every_broker, every_broker)
    assert partition.leader.proposal(lambda replica: 8).in_sync == ((2, 7), (3, 7))
    partition.leader.withdraw()
    assert partition.doubt is not None


def test_the_last_leader_leads_if_no_other_replica_has_the_missing_records():
    partition = doubtful()
    assert resolve(partition, 0.0, WAIT, every_broker, no_broker) is False
    assert resolve(partition, WAIT, WAIT, every_broker, no_broker)
    partition.become(State((1, 2, 3), 1, 1, (1,), 1))
    assert partition.leads
    assert partition.append(batch(b"b"), ACKS_ALL, NOW_MS).base_offset == 1


@pytest.mark.parametrize("state", [{"in_sync": (1, 2)}, {"eligible": (2,)}, {"replicas": (1,)}], ids=str)
def test_doubt_needs_other_replicas_and_a_last_leader_alone_in_the_isr(state):
    assert doubtful(**state).leads


def test_doubt_ends_with_the_leader_epoch():
    partition = doubtful()
    partition.become(State((1, 2, 3), 2, 2, (2,), 2))
    assert partition.doubt is None
    assert not partition.leads


def test_if_the_last_leader_lost_everything_any_replica_with_records_leads():
    doubt = Doubt(Position(-1, 0), None, wait_for_all=True)
    doubt.hear(2, 7, 130, 4, 20)
    doubt.hear(3, 7, 120, 4, 20)
    assert verdict(doubt) == (2,)


def test_a_last_leader_without_records_accepts_any_log_start_of_a_follower():
    log = PartitionLog.open(SimDisk(Random(1)), "/t-0", LogConfig(), high_watermark=30, now_ms=NOW_MS)
    partition = Partition("t", bytes(16), 0, 1, log, AppendPolicy())
    partition.become(State((1, 2, 3), 1, 1, (1,), 1, last_leader=1))
    assert partition.doubt is not None
    for replica in (2, 3):
        partition.doubt.hear(replica, 7, 40, 0, 20)
    assert not resolve(partition, 0.0, WAIT, every_broker, every_broker)
    assert partition.leader.proposed == (2, 3)


def test_an_older_copy_of_a_last_leader_waits_for_all_though_nothing_is_known_to_be_missing():
    log = PartitionLog.open(SimDisk(Random(1)), "/t-0", LogConfig(), now_ms=NOW_MS)
    partition = Partition("t", bytes(16), 0, 1, log, AppendPolicy())
    partition.outdated = True
    partition.become(State((1, 2, 3), 1, 1, (1,), 1, last_leader=1))
    assert partition.doubt is not None
    assert not resolve(partition, 0.0, WAIT, every_broker, no_broker)
    assert not resolve(partition, WHOLE_WAIT_SECONDS, WAIT, every_broker, no_broker)
    partition.doubt.hear(3, 7, 1, 0, 0)
    assert not resolve(partition, WAIT, WAIT, every_broker, no_broker)
    assert partition.leader.proposed == (3,)


def provisional() -> Partition:
    """A last leader that was killed leads, since no other replica was alive."""
    log = PartitionLog.open(SimDisk(Random(1)), "/t-0", LogConfig(), now_ms=NOW_MS)
    partition = Partition("t", bytes(16), 0, 1, log, AppendPolicy())
    partition.become(State((1, 2, 3), 1, 0, (1,), 0))
    for value in (b"a", b"b"):
        partition.append(batch(value), ACKS_ALL, NOW_MS)
    partition.end_known = False
    state = State((1, 2, 3), 1, 1, (1,), 1, last_leader=1)
    partition.last_leader = 1
    partition.become(state)
    assert resolve(partition, 0.0, WAIT, every_broker, no_broker)
    partition.become(state)
    assert partition.leads
    return partition


def test_a_provisional_leader_hands_over_to_a_follower_with_a_longer_log():
    partition = provisional()
    assert not shows_more(partition, 3, 7, 2, 0, 0), "it has the same"
    assert not shows_more(partition, 3, 7, 1, 0, 0), "it has less"
    assert shows_more(partition, 2, 7, 3, 0, 0)
    assert not partition.leads
    assert partition.doubt is not None
    assert partition.log.latest_epoch == 0, "nobody was ever told of a record of this leader epoch"
    with pytest.raises(Refused):
        partition.append(batch(b"c"), ACKS_ALL, NOW_MS)
    assert not resolve(partition, 0.0, WAIT, every_broker, lambda replica: replica == 2)
    assert partition.leader.proposed == (2,)


def test_a_provisional_leader_stays_after_its_first_append():
    partition = provisional()
    partition.append(batch(b"c"), ACKS_ALL, NOW_MS)
    assert not shows_more(partition, 2, 7, 5, 0, 0)
    assert partition.leads


def test_a_leader_without_doubt_does_not_hand_over():
    partition = last_leader_back(end_known=True)
    assert not shows_more(partition, 2, 7, 5, 0, 0)
    assert partition.leads
