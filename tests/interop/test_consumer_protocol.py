"""The next-generation group protocol with real members: librdkafka's `group.protocol=consumer`, alone and among classic
members of all three clients; and raw requests for what no polite member would send."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from ottla.errors import ErrorCode
from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL, Served, StartBroker
from tests.harness.groups import Group, Member, produce
from tests.harness.raw import Connection
from tests.harness.topics import MakeTopic, create_topic

pytest_plugins = ["tests.harness.group_fixtures"]

MakeGroup = Callable[..., Group]
SETTLE_S = 30.0


@pytest.fixture
def broker(group_broker: Served) -> Served:
    """One with short sessions, in place of the session's."""
    return group_broker


@pytest.fixture
def make_consumer_group(make_group: MakeGroup) -> MakeGroup:
    return lambda topic, **settings: make_group(topic, client="confluent-kafka", protocol="consumer", **settings)


@pytest.fixture
def raw(broker: Served) -> Iterator[Connection]:
    with Connection(broker) as connection:
        yield connection


def described(admin: AdminClient, group_id: str) -> Any:
    return admin.describe_consumer_groups([group_id])[group_id].result(10)


@pytest.mark.parametrize(
    ("members", "shares"),
    [(1, [4]), (2, [2, 2]), (3, [2, 1, 1]), (4, [1, 1, 1, 1]), (6, [1, 1, 1, 1, 0, 0])],
)
def test_members_share_all_partitions_evenly(
    admin: AdminClient, make_consumer_group: MakeGroup, make_topic: MakeTopic, members: int, shares: list[int]
):
    group = make_consumer_group(make_topic(4))
    group.add(members)

    def settled() -> bool:
        """A member that gets nothing is told nothing, so the group itself is asked."""
        held = sorted(partition for member in group.members for partition in member.owned)
        if group.shares() != shares or held != [0, 1, 2, 3]:
            return False
        shown = described(admin, group.id)
        return shown.state == ConsumerGroupState.STABLE and len(shown.members) == members

    wait_for(settled, f"shares {shares}", SETTLE_S)
    assert not any(member.errors or member.lost for member in group.members)


def test_a_new_member_gets_only_what_the_others_give_up(
    broker: Served, make_consumer_group: MakeGroup, make_topic: MakeTopic
):
    group = make_consumer_group(make_topic(4))
    first = group.add_one()
    group.settle([4])
    group.add_one()
    group.settle([2, 2])
    assert len(first.revoked) == 2
    assert not first.lost
    produce(broker, group.topic, [f"v{index}" for index in range(40)], partitions=4)
    wait_for(lambda: len(group.values()) == 40, "all records")
    assert sorted(group.values()) == sorted(f"v{index}" for index in range(40))


def test_partitions_of_a_member_that_leaves_go_to_the_others(make_consumer_group: MakeGroup, make_topic: MakeTopic):
    group = make_consumer_group(make_topic(4))
    leaver, *_ = group.add(3)
    group.settle([2, 1, 1])
    leaver.stop()
    group.members.remove(leaver)
    group.settle([2, 2])


def test_partitions_of_a_member_that_is_killed_go_to_the_others_when_its_session_ends(
    make_consumer_group: MakeGroup, make_topic: MakeTopic
):
    group = make_consumer_group(make_topic(4))
    group.add(2)
    group.settle([2, 2])
    group.kill(group.members[0])
    group.settle([4])


def test_twenty_members_settle_and_half_of_them_take_over(
    start_members: Callable[[list[dict[str, Any]]], list[Member]],
    make_consumer_group: MakeGroup,
    make_topic: MakeTopic,
    admin: AdminClient,
):
    group = make_consumer_group(make_topic(40))
    group.members += start_members([group.spec() for _ in range(20)])
    group.settle([2] * 20, 60)
    assert len(described(admin, group.id).members) == 20
    leavers = group.members[10:]
    for member in leavers:
        member.do("stop")
    wait_for(lambda: all("stopped" in member.events for member in leavers), "ten members to stop", 30)
    del group.members[10:]
    group.settle([4] * 10, 60)
    assert not any(member.errors or member.lost for member in group.members)


def test_partitions_that_are_added_are_read(
    broker: Served, admin: AdminClient, make_consumer_group: MakeGroup, make_topic: MakeTopic
):
    group = make_consumer_group(make_topic(2))
    group.add(2)
    group.settle([1, 1])
    admin.create_partitions([NewPartitions(group.topic, 4)])[group.topic].result(10)
    group.settle([2, 2])


def test_a_static_member_that_restarts_gets_its_partitions_without_a_rebalance(
    make_consumer_group: MakeGroup, make_topic: MakeTopic
):
    group = make_consumer_group(make_topic(4))
    one, other = group.add_one(instance="i1"), group.add_one(instance="i2")
    group.settle([2, 2])
    had = set(one.owned)
    heard = len(other.events)
    one.stop()
    group.members.remove(one)
    again = group.add_one(instance="i1")
    group.settle([2, 2])
    assert again.owned == had
    assert [event for event in other.events[heard:] if event in ("revoked", "lost")] == []


def test_offsets_are_committed_and_found_by_the_next_member(
    broker: Served, make_consumer_group: MakeGroup, make_topic: MakeTopic
):
    group = make_consumer_group(make_topic(1), commit="after")
    produce(broker, group.topic, ["a", "b", "c"])
    first = group.add_one()
    wait_for(lambda: first.values == ["a", "b", "c"], "the records")
    first.stop()
    group.members.clear()
    produce(broker, group.topic, ["d"])
    second = group.add_one()
    wait_for(lambda: second.values, "the next record")
    assert second.values == ["d"]


def test_a_regular_expression_follows_topics_as_they_come_and_go(broker: Served, admin: AdminClient):
    stem = f"re-{uuid.uuid4().hex[:8]}"
    create_topic(admin, f"{stem}-one")
    create_topic(admin, f"other-{stem}-one")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": stem, "group.protocol": "consumer"}
    )

    def has(*names: str) -> bool:
        consumer.poll(0.05)
        return {each.topic for each in consumer.assignment()} == {f"{stem}-{name}" for name in names}

    try:
        consumer.subscribe([f"^{stem}-.*"])
        wait_for(lambda: has("one"), "the topic that is there", SETTLE_S)
        create_topic(admin, f"{stem}-two")
        wait_for(lambda: has("one", "two"), "the topic that came", SETTLE_S)
        admin.delete_topics([f"{stem}-one"])[f"{stem}-one"].result(10)
        wait_for(lambda: has("two"), "the other without the topic that went", SETTLE_S)
    finally:
        consumer.close()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_classic_group_is_moved_to_the_new_protocol_and_back_while_it_reads(
    broker: Served, admin: AdminClient, make_group: MakeGroup, make_topic: MakeTopic, assignor: str
):
    if EXTERNAL and assignor == "cooperative-sticky":
        pytest.skip("Kafka takes what librdkafka's assignor remembers for that of a custom one")
    group = make_group(make_topic(4), client="confluent-kafka", assignor=assignor)
    everybody: list[Member] = []
    written: list[str] = []

    def write() -> None:
        values = [f"{len(written)}-{index}" for index in range(20)]
        written.extend(values)
        produce(broker, group.topic, values, partitions=4)
        wait_for(lambda: set(written) <= {value for each in everybody for value in each.values}, "all records", 30)
        for member in group.members:
            member.commit()

    def settle(*shares: int) -> None:
        """Even with its share a classic member may have to rejoin, to learn the epoch the others are in."""
        wait_for(lambda: described(admin, group.id).state == ConsumerGroupState.STABLE, "a stable group", SETTLE_S)
        group.settle(shares, SETTLE_S)

    def replace(member: Member, **settings: Any) -> None:
        everybody.extend(group.add(1, **settings))
        wait_for(lambda: len(described(admin, group.id).members) == 3, "three members", SETTLE_S)
        settle(2, 1, 1)
        write()
        member.stop()
        group.members.remove(member)
        settle(2, 2)
        write()

    everybody.extend(group.add(2))
    group.settle([2, 2], SETTLE_S)
    write()
    assert described(admin, group.id).type == ConsumerGroupType.CLASSIC
    for classic in list(group.members):
        replace(classic, protocol="consumer")
        assert described(admin, group.id).type == ConsumerGroupType.CONSUMER
    for modern in list(group.members):
        replace(modern, protocol="classic")
    assert described(admin, group.id).type == ConsumerGroupType.CLASSIC
    assert not any(member.errors for member in everybody)


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_members_of_both_protocols_share_a_group(
    make_group: MakeGroup, make_topic: MakeTopic, admin: AdminClient, client: str
):
    group = make_group(make_topic(4), client="confluent-kafka", protocol="consumer")
    group.add_one()
    group.settle([4])
    classic = group.add_one(client=client, protocol="classic")
    group.settle([2, 2], SETTLE_S)
    shown = described(admin, group.id)
    assert shown.type == ConsumerGroupType.CONSUMER
    assert len(shown.members) == 2
    group.kill(classic)
    group.settle([4], SETTLE_S)


def test_a_group_is_described_and_listed(admin: AdminClient, make_consumer_group: MakeGroup, make_topic: MakeTopic):
    group = make_consumer_group(make_topic(2))
    group.add_one(instance="here")
    group.settle([2])
    shown = described(admin, group.id)
    assert (shown.state, shown.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert shown.partition_assignor == "uniform"
    (member,) = shown.members
    assert member.group_instance_id == "here"
    assert member.host.startswith("/")
    partitions = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
    assert partitions == {(group.topic, 0), (group.topic, 1)}
    listed = {each.group_id: each for each in admin.list_consumer_groups().result(10).valid}
    assert (listed[group.id].state, listed[group.id].type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    group.members[0].stop()
    wait_for(lambda: described(admin, group.id).state == ConsumerGroupState.EMPTY, "the group to be empty")
    admin.delete_consumer_groups([group.id])[group.id].result(10)
    assert group.id not in {each.group_id for each in admin.list_consumer_groups().result(10).valid}


def test_the_group_continues_after_the_broker_was_killed(start_broker: StartBroker, fresh_name: Callable[[], str]):
    quick = "group.consumer.min.heartbeat.interval.ms=100", "group.consumer.heartbeat.interval.ms=200"
    broker = start_broker(*(word for setting in quick for word in ("--set", setting)))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = create_topic(admin, fresh_name(), 4)
    consumers = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": topic,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
            }
        )
        for _ in range(2)
    ]
    events: list[str] = []
    for consumer in consumers:
        consumer.subscribe([topic], on_lost=lambda *_: events.append("lost"))

    def settled() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return [len(consumer.assignment()) for consumer in consumers] == [2, 2]

    def committed(consumer: confluent_kafka.Consumer) -> bool:
        partitions = [TopicPartition(topic, partition.partition, 5) for partition in consumer.assignment()]
        try:
            consumer.commit(offsets=partitions, asynchronous=False)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].retriable() or failure.args[0].code() in RETRIED:
                return False
            raise
        return True

    try:
        wait_for(settled, "both to have their share", SETTLE_S)
        had = [sorted(partition.partition for partition in consumer.assignment()) for consumer in consumers]
        broker.kill()
        broker.start()
        wait_for(lambda: all(map(committed, consumers)), "commits to the broker that is back", SETTLE_S)
        assert settled()
        assert [sorted(partition.partition for partition in consumer.assignment()) for consumer in consumers] == had
        assert events == []
    finally:
        for consumer in consumers:
            consumer.close()


RETRIED = (
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._WAIT_COORD,
    confluent_kafka.KafkaError._TIMED_OUT,
    confluent_kafka.KafkaError.REQUEST_TIMED_OUT,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
)


# What no polite member sends.


def beat(raw: Connection, group_id: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    request = {
        "group_id": group_id,
        "member_id": "m1",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        **fields,
    }
    return raw.call("consumer_group_heartbeat", version, **request)


@pytest.fixture
def group_id(broker: Served, admin: AdminClient) -> str:
    """A group whose coordinator is up."""
    name = f"raw-{uuid.uuid4().hex[:8]}"
    with Connection(broker) as connection:
        wait_for(
            lambda: connection.call("find_coordinator", 3, key=name, key_type=0)["error_code"] == 0,
            "the coordinator",
        )
        wait_for(
            lambda: beat(connection, f"{name}-probe", member_epoch=1)["error_code"] == ErrorCode.group_id_not_found,
            "the coordinator to be ready",
        )
    return name


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"instance_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": ""}, ErrorCode.invalid_request),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"member_epoch": -2}, ErrorCode.invalid_request),
        ({"rebalance_timeout": -1}, ErrorCode.invalid_request),
        ({"topic_partitions": None}, ErrorCode.invalid_request),
        ({"subscribed_topic_names": None}, ErrorCode.invalid_request),
        ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "(t"}, ErrorCode.invalid_regular_expression),
        ({"member_epoch": 1}, ErrorCode.group_id_not_found),
        ({"member_epoch": -1}, ErrorCode.group_id_not_found),
    ],
)
def test_an_invalid_heartbeat_is_refused(raw: Connection, group_id: str, fields: dict[str, Any], code: ErrorCode):
    answer = beat(raw, **{"group_id": group_id, **fields})
    assert ErrorCode(answer["error_code"]) is code
    assert answer["error_message"]


def test_the_first_version_names_members_that_have_no_name(raw: Connection, group_id: str):
    answer = beat(raw, group_id, version=0, member_id="")
    assert answer["error_code"] == 0
    assert len(answer["member_id"]) > 10
    assert answer["member_epoch"] > 0


def test_commits_and_fetches_with_an_old_epoch_are_refused(raw: Connection, group_id: str, topic: str):
    beat(raw, group_id, subscribed_topic_names=[topic])
    epoch = beat(raw, group_id, member_id="m2", subscribed_topic_names=[topic])["member_epoch"]
    partition = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
    commit = {"group_id": group_id, "member_id": "m2", "topics": [{"name": topic, "partitions": [partition]}]}

    def committed(**fields: Any) -> ErrorCode:
        answer = raw.call("offset_commit", 9, **commit, **fields)
        return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])

    assert committed(generation_id_or_member_epoch=epoch - 1) is ErrorCode.stale_member_epoch
    assert committed(generation_id_or_member_epoch=epoch) is ErrorCode.none

    def fetched(with_epoch: int, member_id: str = "m2") -> ErrorCode:
        group = {
            "group_id": group_id,
            "member_id": member_id,
            "member_epoch": with_epoch,
            "topics": [{"name": topic, "partition_indexes": [0]}],
        }
        return ErrorCode(raw.call("offset_fetch", 9, groups=[group])["groups"][0]["error_code"])

    assert fetched(epoch) is ErrorCode.none
    assert fetched(epoch - 1) is ErrorCode.stale_member_epoch
    assert fetched(epoch, "m3") is ErrorCode.unknown_member_id


def test_groups_of_the_other_kind_or_none_are_not_described(raw: Connection, group_id: str):
    answer = raw.call("consumer_group_describe", 0, group_ids=[group_id])["groups"][0]
    assert ErrorCode(answer["error_code"]) is ErrorCode.group_id_not_found
    beat(raw, group_id)
    answer = raw.call("consumer_group_describe", 1, group_ids=[group_id])["groups"][0]
    assert answer["error_code"] == 0
    assert answer["group_epoch"] == answer["assignment_epoch"] > 0
    assert answer["members"][0]["member_type"] == 1
    classic = raw.call("describe_groups", 6, groups=[group_id])["groups"][0]
    assert ErrorCode(classic["error_code"]) is ErrorCode.group_id_not_found


def test_the_heartbeat_interval_is_in_the_answer(raw: Connection, group_id: str):
    assert beat(raw, group_id)["heartbeat_interval"] == 200
