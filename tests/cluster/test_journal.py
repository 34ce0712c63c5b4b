"""The journal: log lines about brokers, topics, leaders with the reason, ISRs and reassignments."""

from __future__ import annotations

import logging

import pytest

from ottla.cluster import changes as c
from ottla.cluster.image import EMPTY, Image
from ottla.cluster.journal import Journal
from ottla.cluster.model import NO_BROKER, BrokerRegistration, Endpoint, PartitionState

ORDERS = b"orders".ljust(16)
INFO, WARNING = logging.INFO, logging.WARNING


def registered(broker_id: int, epoch: int, *, draining: bool = False) -> c.BrokerRegistered:
    endpoint = Endpoint("PLAINTEXT", "here", 9090 + broker_id)
    return c.registered(BrokerRegistration(broker_id, epoch, (endpoint,), None, draining))


def state(index: int, leader: int, in_sync: tuple[int, ...], epoch: int, **more) -> c.PartitionChanged:
    replicas = more.pop("replicas", (1, 2, 3))
    partition = PartitionState(replicas, leader, epoch, in_sync, epoch, 1, in_sync_epochs=(1,) * len(in_sync), **more)
    before = PartitionState((1, 2, 3)) if replicas != (1, 2, 3) or more.get("adding") or more.get("removing") else None
    return c.partition_changed(ORDERS, index, partition, before)


def cluster(partitions: int = 1) -> Image:
    """Three brokers, and a topic that broker 1 leads."""
    created = c.TopicCreated(ORDERS, "orders", ((1, 2, 3),) * partitions, {})
    brokers = [registered(number, number) for number in (1, 2, 3)]
    return EMPTY.apply(*brokers, created, *(state(index, 1, (1, 2, 3), 0) for index in range(partitions)))


def reported(old: Image, *changes: c.Change, in_sync_min: int = 2) -> list[tuple[int, str]]:
    """Each change is a commit of its own, and all happen within what is told together."""
    journal = Journal(lambda topic: in_sync_min)
    image = old
    for change in changes:
        before, image = image, image.apply(change)
        journal.note(before, change)
    return [(event.level, event.text) for event in journal.events(image)]


def test_without_changes_there_are_no_events():
    journal = Journal(lambda topic: 1)
    assert journal.events(cluster()) == []


def test_brokers_that_join_and_leave_are_reported_with_the_reason():
    assert reported(EMPTY, registered(7, 4)) == [(INFO, "broker 7 joined the cluster: here:9097, broker epoch 4")]
    assert reported(cluster(0), c.BrokerGone(2, 2)) == [
        (INFO, "broker 2 left the cluster: its session ended (killed, hung, or cut off from the store)")
    ]
    draining = registered(2, 2, draining=True)
    assert reported(cluster(0), draining) == [(INFO, "broker 2 is stopping, and hands over what it leads")]
    assert reported(cluster(0), draining, c.BrokerGone(2, 2)) == [(INFO, "broker 2 left the cluster: it has stopped")]
    assert reported(cluster(0), c.BrokerGone(2, 2), registered(2, 9)) == [
        (INFO, "broker 2 joined the cluster again: here:9092, broker epoch 9")
    ]


def test_created_changed_and_deleted_topics_are_reported():
    created = c.TopicCreated(b"n" * 16, "new", ((1, 2), (2, 3)), {})
    assert reported(cluster(), created) == [(INFO, "topic new created: 2 partitions, 2 replicas each")]
    added = c.PartitionsAdded(ORDERS, 1, ((1, 2, 3), (1, 2, 3)))
    assert reported(cluster(), added) == [(INFO, "topic orders has 3 partitions now, 2 more")]
    config = c.TopicConfigChanged(ORDERS, {"retention.ms": "5"})
    assert reported(cluster(), config) == [(INFO, "topic orders: settings are now retention.ms=5")]
    assert reported(cluster(), c.TopicDeleted(ORDERS, "orders", (1,))) == [(INFO, "topic orders deleted")]
    assert reported(cluster(), c.BrokerConfigChanged(None, {"log.retention.ms": "5"})) == [
        (INFO, "all brokers: dynamic settings are now log.retention.ms=5")
    ]


def test_a_changed_min_insync_replicas_is_reported_with_its_effect_on_acks_all():
    image = cluster().apply(state(0, 1, (1,), 1))
    image = image.apply(c.TopicConfigChanged(ORDERS, {"min.insync.replicas": "2"}))

    def after(old: Image, least: str) -> list[tuple[int, str]]:
        journal = Journal(lambda topic: int(topic.configs["min.insync.replicas"]))
        change = c.TopicConfigChanged(ORDERS, {"min.insync.replicas": least})
        journal.note(old, change)
        return [(event.level, event.text) for event in journal.events(old.apply(change))]

    lowered = image.apply(c.TopicConfigChanged(ORDERS, {"min.insync.replicas": "1"}))
    assert after(image, "1")[1:] == [(INFO, "orders-0: enough replicas in sync, acks=all is accepted again")]
    refused = "orders-0: fewer replicas in sync than min.insync.replicas, acks=all is refused"
    assert after(lowered, "2")[1:] == [(WARNING, refused)]
    assert len(after(image, "3")) == 1, "it was refused before"


def test_many_topics_are_reported_in_one_line():
    many: list[c.Change] = [c.TopicCreated(bytes([number]) * 16, f"t{number}", ((1,),), {}) for number in range(40)]
    assert reported(cluster(0), *many) == [
        (INFO, "40 topics (t0, t1, t2, t3, t4, and 35 more) created: 40 partitions in all")
    ]


def test_new_leaders_of_many_partitions_are_reported_in_one_line():
    lost: list[c.Change] = [c.BrokerGone(1, 1), *(state(index, 2, (2, 3), 1) for index in range(30))]
    some = "30 partitions (orders-0, orders-1, orders-2, orders-3, orders-4, and 25 more)"
    assert reported(cluster(30), *lost) == [
        (INFO, "broker 1 left the cluster: its session ended (killed, hung, or cut off from the store)"),
        (INFO, f"{some} have leader 2, broker 1 led: broker 1 left"),
        (INFO, f"replica 1 of {some} is out of the in-sync set: it left"),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([registered(1, 1, draining=True)], "broker 1 is stopping"),
        ([registered(1, 8)], "broker 1 restarted"),
        ([], "elected on request"),
    ],
)
def test_elections_are_reported_with_the_reason(changes, reason):
    events = reported(cluster(), *changes, state(0, 2, (1, 2, 3), 1))
    assert (INFO, f"orders-0 has leader 2, broker 1 led: {reason}") in events


def test_a_preferred_leader_election_is_reported():
    elsewhere = cluster().apply(state(0, 2, (1, 2, 3), 1))
    assert reported(elsewhere, state(0, 1, (1, 2, 3), 2)) == [
        (INFO, "orders-0 has leader 1, broker 2 led: it is the preferred replica")
    ]


def test_a_partition_without_a_leader_is_a_warning_with_the_brokers_that_could_lead():
    alone = cluster().apply(state(0, 1, (1,), 1, eligible=(2,), eligible_epochs=(2,)))
    gone = state(0, NO_BROKER, (1,), 2, eligible=(2,), eligible_epochs=(2,), last_leader=1)
    events = reported(alone, c.BrokerGone(1, 1), gone)
    why = "no broker is alive that has all acknowledged records (1, 2); start one of them"
    assert events[1] == (WARNING, f"orders-0 has no leader, broker 1 led: {why}")
    stopped = reported(alone, registered(1, 1, draining=True), c.BrokerGone(1, 1), gone)
    assert stopped[1] == (INFO, events[1][1]), "somebody wanted it so"
    back = reported(alone.apply(c.BrokerGone(1, 1), gone), registered(1, 9), state(0, 1, (1,), 3))
    assert back[1] == (INFO, "orders-0 has leader 1, no leader before: broker 1 is back")


def test_an_unclean_election_is_a_warning():
    alone = cluster().apply(state(0, 1, (1,), 1, last_leader=1))
    events = reported(alone, c.BrokerGone(1, 1), state(0, 3, (3,), 2, last_leader=3))
    why = "unclean election, the new leader was not in sync: acknowledged records may be lost"
    assert (WARNING, f"orders-0 has leader 3, broker 1 led: {why}") in events


def test_a_replica_that_joined_the_isr_just_before_its_election_is_no_unclean_leader():
    alone = cluster().apply(state(0, 1, (1,), 1, last_leader=1))
    events = reported(alone, state(0, 1, (1, 2), 2, last_leader=1), c.BrokerGone(1, 1), state(0, 2, (2,), 3))
    assert not [text for _, text in events if "unclean" in text]


def test_isr_changes_are_reported_and_whether_acks_all_is_refused():
    assert reported(cluster(), state(0, 1, (1, 2), 1)) == [
        (INFO, "replica 3 of orders-0 is out of the in-sync set: it fell behind")
    ]
    short = state(0, 1, (1,), 2)
    assert reported(cluster(), c.BrokerGone(2, 2), c.BrokerGone(3, 3), short)[-1] == (
        WARNING,
        "orders-0: fewer replicas in sync than min.insync.replicas, acks=all is refused",
    )
    assert reported(cluster().apply(short), state(0, 1, (1, 3), 3)) == [
        (INFO, "replica 3 of orders-0 is in sync"),
        (INFO, "orders-0: enough replicas in sync, acks=all is accepted again"),
    ]


def test_a_controlled_shutdown_causes_no_warning():
    stopping = [registered(2, 2, draining=True), registered(3, 3, draining=True)]
    assert [level for level, _ in reported(cluster(), *stopping, state(0, 1, (1,), 2))] == [INFO] * 5


def test_reassignments_are_reported_when_they_begin_and_end():
    both = {"replicas": (4, 1, 2, 3), "adding": (4,), "removing": (3,)}
    begun = state(0, 1, (1, 2, 3), 1, **both)
    assert reported(cluster(), begun) == [
        (INFO, "orders-0: reassignment begins from brokers 1, 2, 3 to brokers 4, 1, 2")
    ]
    moving = cluster().apply(begun)
    assert reported(moving, state(0, 1, (4, 1, 2), 2, replicas=(4, 1, 2))) == [
        (INFO, "replica 4 of orders-0 is in sync"),
        (INFO, "orders-0: reassignment done, the replicas are 4, 1, 2 (they were 1, 2, 3)"),
    ]
    cancelled = c.PartitionChanged(ORDERS, 0, 1, 1, (1, 2, 3), 2, 1, (1, 1, 1), replicas=(1, 2, 3))
    assert reported(moving, cancelled) == [(INFO, "orders-0: reassignment cancelled, the replicas are 1, 2, 3")]


NEW = b"new".ljust(16)


def new_topic(leader: int, in_sync: tuple[int, ...], epoch: int, replicas: tuple[int, ...]) -> c.PartitionChanged:
    partition = PartitionState(replicas, leader, epoch, in_sync, epoch, 1, in_sync_epochs=(1,) * len(in_sync))
    return c.partition_changed(NEW, 0, partition, None)


LEFT = "broker 3 left the cluster: its session ended (killed, hung, or cut off from the store)"
WHY = "no broker is alive that has all acknowledged records (3); start one of them"
LEADERLESS = f"new-0 has no leader, broker 3 led: {WHY}"


def test_a_broker_lost_right_after_the_creation_of_a_topic_is_reported_in_order():
    created: list[c.Change] = [c.TopicCreated(NEW, "new", ((3,),), {}), new_topic(3, (3,), 0, (3,))]
    lost = new_topic(NO_BROKER, (3,), 1, (3,))
    creation = (INFO, "topic new created: 1 partition, 1 replica each")
    events = reported(cluster(0), *created, c.BrokerGone(3, 3), lost, in_sync_min=1)
    assert events == [creation, (INFO, LEFT), (WARNING, LEADERLESS)]
    events = reported(cluster(0), c.BrokerGone(3, 3), *created, lost, in_sync_min=1)
    assert events == [(INFO, LEFT), creation, (WARNING, LEADERLESS)]


def test_too_few_in_sync_replicas_right_after_the_creation_of_a_topic_are_reported():
    created: list[c.Change] = [c.TopicCreated(NEW, "new", ((1, 2, 3),), {}), new_topic(1, (1, 2, 3), 0, (1, 2, 3))]
    gone: list[c.Change] = [c.BrokerGone(2, 2), c.BrokerGone(3, 3)]
    refused = (WARNING, "new-0: fewer replicas in sync than min.insync.replicas, acks=all is refused")
    assert reported(cluster(0), *created, *gone, new_topic(1, (1,), 1, (1, 2, 3)))[-1] == refused
    assert reported(cluster(0), *gone, *created, new_topic(1, (1,), 1, (1, 2, 3)))[-1] == refused
    assert reported(cluster(0), *gone, created[0], new_topic(1, (1,), 0, (1, 2, 3)))[-1] == refused


def test_added_partitions_that_lose_their_leader_at_once_are_reported():
    added = c.PartitionsAdded(ORDERS, 1, ((3,),))
    first, lost = (state(1, leader, (3,), epoch) for leader, epoch in ((3, 0), (NO_BROKER, 1)))
    events = reported(cluster(), added, first, c.BrokerGone(3, 3), lost, in_sync_min=1)
    assert events[0] == (INFO, "topic orders has 2 partitions now, 1 more")
    assert events[-1] == (WARNING, LEADERLESS.replace("new-0", "orders-1"))
