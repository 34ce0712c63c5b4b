"""Group coordinator over the wire: every version of every group and offset request, and errors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL, Served, StartBroker
from tests.harness.raw import Connection, batch, produce, record
from tests.interop.member import NO_ERROR, RawMember

pytest_plugins = ["tests.harness.group_fixtures"]

NO_TOPIC, METADATA_TOO_LARGE, NOT_AVAILABLE, INCONSISTENT_PROTOCOL, INVALID_GROUP_ID = 3, 12, 15, 23, 24
INVALID_TOPIC, UNKNOWN_MEMBER, INVALID_SESSION_TIMEOUT, INVALID_REQUEST = 17, 25, 26, 42
NON_EMPTY_GROUP, GROUP_NOT_FOUND, SUBSCRIBED, NO_TOPIC_ID = 68, 69, 86, 100


def subscription(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)


@pytest.fixture
def broker(group_broker: Served) -> Served:
    """Its coordinators of groups are loaded: so each test may be the first, or the only one."""
    with Connection(group_broker) as connected:
        wait_for(lambda: not connected.call("find_coordinator", 3, key="any", key_type=0)["error_code"], "groups")
        wait_for(lambda: not connected.call("list_groups", 5)["error_code"], "all coordinators")
    return group_broker


@pytest.fixture
def connection(broker: Served) -> Iterator[Connection]:
    with Connection(broker) as connected:
        yield connected


@pytest.fixture
def topic(connection: Connection, fresh_name: Callable[[], str]) -> str:
    return made_topic(connection, fresh_name())


@pytest.fixture
def other_topic(connection: Connection, fresh_name: Callable[[], str]) -> str:
    return made_topic(connection, fresh_name())


def made_topic(connection: Connection, name: str) -> str:
    topics = [{"name": name, "num_partitions": 2, "replication_factor": 1}]
    answer = connection.call("create_topics", 5, topics=topics, timeout=10_000)
    assert answer["topics"][0]["error_code"] == NO_ERROR
    return name


@pytest.fixture
def make_member(broker: Served, fresh_name: Callable[[], str]) -> Iterator[Callable[..., RawMember]]:
    made: list[RawMember] = []
    group_id = fresh_name()

    def make(**settings: Any) -> RawMember:
        made.append(RawMember(broker, settings.pop("group_id", group_id), **settings))
        return made[-1]

    yield make
    for member in made:
        member.close()


def topic_id(connection: Connection, topic: str) -> Any:
    answer = connection.call("metadata", 12, topics=[{"name": topic, "topic_id": None}])
    return answer["topics"][0]["topic_id"]


# FindCoordinator.


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_found(connection: Connection, broker: Served, version: int):
    answer = connection.call("find_coordinator", version, key="g", key_type=0, coordinator_keys=["g", "another group"])
    found = answer["coordinators"] if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    for each in found:
        assert (each["error_code"], each["node_id"]) == (NO_ERROR, 1)
        assert f"{each['host']}:{each['port']}" == broker.bootstrap


def test_find_coordinator_refuses_unknown_key_types(connection: Connection):
    assert connection.call("find_coordinator", 2, key_type=1, key="x")["error_code"] == NO_ERROR
    for key_type, code in ((2, INVALID_REQUEST), (77, INVALID_REQUEST)):
        if EXTERNAL:
            continue
        answer = connection.call("find_coordinator", 4, key_type=key_type, coordinator_keys=["x"])
        assert answer["coordinators"][0]["error_code"] == code
        assert connection.call("find_coordinator", 2, key_type=key_type, key="x")["error_code"] == code


@pytest.mark.broker_may_log("needs 3 brokers")
def test_no_coordinator_while_the_offsets_topic_needs_more_brokers(start_broker: StartBroker):
    with Connection(start_broker("--set", "offsets.topic.replication.factor=3")) as connection:
        answer = connection.call("find_coordinator", 3, key="g", key_type=0)
        assert answer["error_code"] == NOT_AVAILABLE
        assert "__consumer_offsets" not in {each["name"] for each in metadata_of_all(connection)}


def metadata_of_all(connection: Connection) -> list[dict[str, Any]]:
    topics: list[dict[str, Any]] = connection.call("metadata", 8, topics=None)["topics"]
    return topics


def test_the_offsets_topic_is_internal_and_compacted(connection: Connection):
    listed = {each["name"]: each for each in metadata_of_all(connection)}
    assert listed["__consumer_offsets"]["is_internal"]
    resources = [{"resource_type": 2, "resource_name": "__consumer_offsets", "configuration_keys": None}]
    answer = connection.call("describe_configs", 4, resources=resources)
    configs = {each["name"]: each["value"] for each in answer["results"][0]["configs"]}
    assert configs["cleanup.policy"] == "compact"
    assert configs["segment.bytes"] == "104857600"


def test_only_coordinators_write_the_offsets_topic(connection: Connection):
    answer = produce(connection, "__consumer_offsets", batch(records=record(0, b"v", key=b"k")))
    assert answer["error_code"] == INVALID_TOPIC


# The classic protocol.


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_and_leaves(make_member: Callable[..., RawMember], version: int):
    member = make_member(session_timeout=6000)
    assert member.join(version) == NO_ERROR
    assert member.generation_id == 1
    assert member.leads
    assert member.members == [member.member_id]
    assert member.sync(min(version, 5)) == (NO_ERROR, member.member_id.encode())
    assert member.heartbeat(min(version, 4)) == NO_ERROR
    assert member.leave(min(version, 5)) == NO_ERROR
    assert member.heartbeat(min(version, 4)) == UNKNOWN_MEMBER


def test_sync_group_checks_protocol_type_and_name(make_member: Callable[..., RawMember]):
    member = make_member()
    assert member.join() == NO_ERROR
    member.protocol = (None, None)
    assert member.sync(5)[0] == INCONSISTENT_PROTOCOL
    member.protocol = ("consumer", "roundrobin")
    assert member.sync(5)[0] == INCONSISTENT_PROTOCOL
    member.protocol = ("consumer", "range")
    assert member.sync(5)[0] == NO_ERROR


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"session_timeout": 1}, INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 1_800_001}, INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, INVALID_GROUP_ID),
    ],
)
def test_invalid_members_are_refused(connection: Connection, make_member, settings: dict[str, Any], code: int):
    member = make_member(**settings)
    fields = {"group_id": member.group_id, "member_id": "", **member.settings}
    assert connection.call("join_group", 7, **fields)["error_code"] == code


@pytest.mark.parametrize(("api", "version"), [("sync_group", 5), ("heartbeat", 4), ("leave_group", 5)])
def test_an_empty_group_id_is_refused_for_members(connection: Connection, api: str, version: int):
    fields = {"members": [{"member_id": "m"}], "protocol_type": "consumer", "protocol_name": "range"}
    assert connection.call(api, version, group_id="", member_id="m", **fields)["error_code"] == INVALID_GROUP_ID


def test_offsets_may_be_committed_under_the_empty_group_id(connection: Connection, make_member, topic: str):
    member = make_member(group_id="")
    assert member.commit(topic, 3) == NO_ERROR
    assert fetch(connection, 7, "", [{"name": topic, "partition_indexes": [0]}])[topic][0] == (3, "note 3", NO_ERROR)


def test_a_hundred_members_that_join_at_once_settle_with_one_rebalance(start_broker: StartBroker):
    """After the delay, not before, and in one generation."""
    broker = start_broker("--set", "group.initial.rebalance.delay.ms=1000")
    with Connection(broker) as connection:
        connection.call("find_coordinator", 3, key="g", key_type=0)
    members = [RawMember(broker, "g") for _ in range(100)]
    try:
        for member in members:
            member.send_join()
        assert {member.joined() for member in members} == {NO_ERROR}
        assert {member.generation_id for member in members} == {1}
        (leader,) = (member for member in members if member.leads)
        assert sorted(leader.members) == sorted(member.member_id for member in members)
        for member in members:
            member.send_sync()
        for member in members:
            assert member.synced() == (NO_ERROR, member.member_id.encode())
        assert {member.heartbeat() for member in members} == {NO_ERROR}
        assert {member.generation_id for member in members} == {1}
    finally:
        for member in members:
            member.close()


# Offsets.


@pytest.mark.parametrize("version", range(2, 10))
def test_an_offset_is_committed_and_fetched(connection: Connection, make_member, topic: str, version: int):
    member = make_member()
    assert member.commit(topic, 5, version) == NO_ERROR
    for fetch_version in range(1, 10):
        for topics in ([{"name": topic, "partition_indexes": [0, 1]}], None):
            if topics is None and fetch_version < 2:
                continue
            found = fetch(connection, fetch_version, member.group_id, topics)
            assert found[topic][0] == (5, f"note {5}", NO_ERROR)
            assert (topics is None and 1 not in found[topic]) or found[topic][1] == (-1, "", NO_ERROR)


def fetch(
    connection: Connection, version: int, group_id: str, topics: list[dict[str, Any]] | None
) -> dict[str, dict[int, tuple[int, str, int]]]:
    group = {"group_id": group_id, "topics": topics, "member_id": None, "member_epoch": -1}
    answer = connection.call("offset_fetch", version, group_id=group_id, topics=topics, groups=[group])
    found = answer["groups"][0] if version >= 8 else answer
    assert found.get("error_code", NO_ERROR) == NO_ERROR
    return {
        each["name"]: {
            partition["partition_index"]: (
                partition["committed_offset"], partition["metadata"], partition["error_code"]
            )
            for partition in each["partitions"]
        }
        for each in found["topics"]
    }  # fmt: skip


def test_offsets_by_topic_id(connection: Connection, make_member, topic: str):
    member = make_member()
    known = topic_id(connection, topic)
    assert member.commit("", 7, 10, topic_id=known) == NO_ERROR
    assert fetch(connection, 9, member.group_id, None) == {topic: {0: (7, "note 7", NO_ERROR)}}
    wanted = [{"topic_id": known, "partition_indexes": [0]}]
    group = {"group_id": member.group_id, "topics": wanted, "member_epoch": -1}
    found = connection.call("offset_fetch", 10, groups=[group])["groups"][0]["topics"][0]
    assert found["topic_id"] == known
    assert found["partitions"][0]["committed_offset"] == 7


def test_offsets_of_an_unknown_topic_id_are_refused(connection: Connection, make_member, topic: str):
    member = make_member()
    unknown = uuid4()
    assert member.commit("", 7, 10, topic_id=unknown) == NO_TOPIC_ID
    group = {
        "group_id": member.group_id, "topics": [{"topic_id": unknown, "partition_indexes": [0]}], "member_epoch": -1,
    }  # fmt: skip
    found = connection.call("offset_fetch", 10, groups=[group])["groups"][0]["topics"][0]["partitions"][0]
    assert (found["committed_offset"], found["error_code"]) == (-1, NO_TOPIC_ID)


def test_offset_fetch_of_several_groups(connection: Connection, make_member, topic: str, fresh_name):
    member = make_member()
    assert member.commit(topic, 5) == NO_ERROR
    unknown = fresh_name()
    groups = [{"group_id": each, "topics": None, "member_epoch": -1} for each in (member.group_id, unknown)]
    groups.append({"group_id": unknown, "topics": [{"name": topic, "partition_indexes": [0]}], "member_epoch": -1})
    answer = connection.call("offset_fetch", 9, groups=groups)["groups"]
    assert [each["error_code"] for each in answer] == [NO_ERROR] * 3
    assert answer[0]["topics"][0]["partitions"][0]["committed_offset"] == 5
    assert answer[1]["topics"] == []
    assert answer[2]["topics"][0]["partitions"][0]["committed_offset"] == -1


def test_offset_metadata_may_have_4096_characters(connection: Connection, make_member, topic: str):
    def commit(note: str) -> int:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": note}
        topics = [{"name": topic, "partitions": [partition]}]
        fields = {"group_id": make_member().group_id, "generation_id_or_member_epoch": -1}
        answer = connection.call("offset_commit", 8, topics=topics, **fields)
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    assert commit("x" * 4096) == NO_ERROR
    assert commit("x" * 4097) == METADATA_TOO_LARGE


def test_offset_delete_refuses_subscribed_topics(connection: Connection, make_member, topic: str, other_topic: str):
    member = make_member(protocols=[{"name": "range", "metadata": subscription(other_topic)}])

    def delete(name: str) -> tuple[int, list[int]]:
        topics = [{"name": name, "partitions": [{"partition_index": 0}]}]
        answer = connection.call("offset_delete", 0, group_id=member.group_id, topics=topics)
        return answer["error_code"], [each["partitions"][0]["error_code"] for each in answer["topics"]]

    assert delete(topic) == (GROUP_NOT_FOUND, [])
    assert member.join() == NO_ERROR
    assert member.sync()[0] == NO_ERROR
    assert member.commit(topic, 5) == NO_ERROR
    assert member.commit(other_topic, 6) == NO_ERROR
    assert delete(other_topic) == (NO_ERROR, [SUBSCRIBED])
    assert delete("no-such-topic") == (NO_ERROR, [NO_TOPIC])
    assert delete(topic) == (NO_ERROR, [NO_ERROR])
    assert fetch(connection, 7, member.group_id, None) == {other_topic: {0: (6, "note 6", NO_ERROR)}}


# Looking after groups.


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described(connection: Connection, make_member, version: int):
    member = make_member(protocol_type="connect", protocols=[{"name": "default", "metadata": b"url"}])
    assert member.join() == NO_ERROR
    assert member.sync()[0] == NO_ERROR
    fields = {"groups": [member.group_id, "no such group"], "include_authorized_operations": True}
    shown, unknown = connection.call("describe_groups", version, **fields)["groups"]
    assert (shown["error_code"], shown["group_state"]) == (NO_ERROR, "Stable")
    assert (shown["protocol_type"], shown["protocol_data"]) == ("connect", "default")
    assert shown["members"][0]["member_metadata"] == b"url"
    assert shown["members"][0]["member_assignment"] == member.member_id.encode()
    assert shown["members"][0]["client_id"] == "raw"
    assert shown["members"][0]["client_host"] == "/127.0.0.1"
    assert unknown["group_state"] == "Dead"
    assert unknown["error_code"] == (GROUP_NOT_FOUND if version >= 6 else NO_ERROR)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(connection: Connection, make_member, topic: str, version: int, fresh_name):
    member, idle = make_member(), make_member(group_id=fresh_name())
    assert member.join() == NO_ERROR
    assert member.sync()[0] == NO_ERROR
    assert idle.commit(topic, 1) == NO_ERROR

    def listed(**filters: list[str]) -> dict[str, dict[str, Any]]:
        answer = connection.call("list_groups", version, **filters)
        assert answer["error_code"] == NO_ERROR
        return {each["group_id"]: each for each in answer["groups"]}

    everybody = listed()
    assert everybody[member.group_id]["protocol_type"] == "consumer"
    assert everybody[idle.group_id]["protocol_type"] == ""
    if version >= 4:
        assert everybody[member.group_id]["group_state"] == "Stable"
        assert idle.group_id not in listed(states_filter=["Stable"])
        assert member.group_id in listed(states_filter=["stable"])
    if version >= 5:
        assert everybody[member.group_id]["group_type"] == "classic"
        assert member.group_id in listed(types_filter=["classic"])
        assert member.group_id not in listed(types_filter=["consumer"])


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_when_they_are_empty(connection: Connection, make_member, topic: str, version: int):
    member = make_member()
    assert member.join() == NO_ERROR
    assert member.sync()[0] == NO_ERROR
    assert member.commit(topic, 1) == NO_ERROR

    def delete() -> list[int]:
        answer = connection.call("delete_groups", version, groups_names=[member.group_id, "no such group"])
        codes = {each["group_id"]: each["error_code"] for each in answer["results"]}
        return [codes[member.group_id], codes["no such group"]]

    assert delete() == [NON_EMPTY_GROUP, GROUP_NOT_FOUND]
    assert member.leave() == NO_ERROR
    assert delete() == [NO_ERROR, GROUP_NOT_FOUND]
    assert fetch(connection, 7, member.group_id, None) == {}
    assert delete() == [GROUP_NOT_FOUND, GROUP_NOT_FOUND]
