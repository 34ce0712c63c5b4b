"""Administration with a real broker."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import Admin, NewTopic, ResourceKind
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import BadSetting, ClientError, CommitFailed, Several, TopicExists, UnknownTopic
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from tests.client.clients import create, read, run, write
from tests.conftest import Served


async def listed(admin: Admin, *topics: str, there: bool) -> bool:
    """The brokers of Apache Kafka hear of what its controller did a little later."""
    names = {topic.name for topic in await admin.list_topics()}
    return names >= set(topics) if there else not names & set(topics)


def test_a_partial_failure_raises_one_error_that_names_the_failed_items(broker: Served, fresh_name):
    async def scenario() -> None:
        old, new, bad = fresh_name(), fresh_name(), "no/name"
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([old])
            with pytest.raises(Several, match="2 failed") as several:
                await admin.create_topics([NewTopic(old), NewTopic(new), NewTopic(bad)])
            errors = several.value.errors
            assert isinstance(errors[old], TopicExists)
            assert errors[bad].code is ErrorCode.invalid_topic_exception
            assert set(errors) == {old, bad}
            assert set(several.value.results) == {new}
            assert not several.value.retriable
            await until(lambda: listed(admin, old, new, there=True), "brokers that know both")
            with pytest.raises(UnknownTopic) as one:
                await admin.delete_topics([old, "never-there", new])
            assert set(one.value.errors) == {"never-there"}
            await until(lambda: listed(admin, old, new, there=False), "brokers that know neither")

    run(scenario())


def test_a_topic_is_only_checked_when_that_is_asked_for(broker: Served, fresh_name):
    async def scenario() -> None:
        name = fresh_name()
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 3)], validate_only=True)
            with pytest.raises(UnknownTopic):
                await admin.describe_topics([name])
            await admin.create_topics([NewTopic(name, assignment={0: [1], 1: [1]})])
            assert len((await admin.describe_topics([name]))[name].partitions) == 2

    run(scenario())


def test_offsets_of_partitions_that_were_just_added_are_found(broker: Served, fresh_name):
    """The client knew the topic with fewer partitions, and the broker that answers Metadata may do so for a while."""

    async def scenario() -> None:
        topic = fresh_name()
        async with Admin(broker.bootstrap) as admin, Admin(broker.bootstrap) as other:
            await other.create_topics([NewTopic(topic, 1)])
            assert len(await admin.list_offsets({TopicPartition(topic, 0): "latest"})) == 1
            adding = asyncio.create_task(admin.list_offsets({TopicPartition(topic, 3): "latest"}))
            await asyncio.wait([adding], timeout=0.3)
            assert not adding.done(), "a partition that is not there yet is asked for again"
            await other.create_partitions(topic, 4)
            assert (await adding)[TopicPartition(topic, 3)].offset == 0

    run(scenario())


def test_records_are_deleted_up_to_an_offset(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        partition = TopicPartition(topic, 0)
        await create(broker.bootstrap, topic)
        await write(broker.bootstrap, topic, [b"v"] * 10)
        async with Admin(broker.bootstrap) as admin:
            assert await admin.delete_records({partition: 4}) == {partition: 4}
            assert (await admin.list_offsets({partition: "earliest"}))[partition].offset == 4
            assert (await admin.list_offsets({partition: "latest"}))[partition].offset == 10
            newest = (await admin.list_offsets({partition: "max_timestamp"}))[partition]
            assert newest.timestamp > 0
            with pytest.raises(BadSetting, match="no time"):
                await admin.list_offsets({partition: "yesterday"})
            with pytest.raises(ClientError) as beyond:
                await admin.delete_records({partition: 400})
            assert beyond.value.code is ErrorCode.offset_out_of_range

    run(scenario())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_its_lag_set_back_and_deleted(broker: Served, fresh_name, protocol):
    async def scenario() -> None:
        topic = fresh_name()
        group = f"group-{topic}"
        partition = TopicPartition(topic, 0)
        await create(broker.bootstrap, topic)
        await write(broker.bootstrap, topic, [b"v"] * 10)
        async with Admin(broker.bootstrap) as admin:
            async with Consumer(
                topic,
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                group_protocol=protocol,
                auto_offset_reset="earliest",
                client_id="reader",
                enable_auto_commit=False,
            ) as consumer:
                await read(consumer, 10)
                await consumer.commit({partition: 6})
                described = (await admin.describe_groups([group]))[group]
                assert (described.group_id, described.kind) == (group, protocol)
                (member,) = described.members
                assert (member.client_id, member.partitions) == ("reader", (partition,))
                assert (await admin.group_lag(group))[partition] == (6, 10, 4)
                with pytest.raises(CommitFailed):
                    await admin.alter_group_offsets(group, {partition: 0})
                with pytest.raises(ClientError) as busy:
                    await admin.delete_groups([group])
                assert busy.value.code is ErrorCode.non_empty_group
            listed = {each.group_id: each for each in await admin.list_groups()}
            assert listed[group].kind == protocol
            assert listed[group].state.lower() == "empty"
            await admin.alter_group_offsets(group, {partition: (2, "again")})
            assert (await admin.group_offsets(group))[partition][:2] == (2, "again")
            assert (await admin.group_offsets(group, [TopicPartition("other", 0)])) == {}
            await admin.delete_group_offsets(group, [partition])
            assert await admin.group_offsets(group) == {}
            await admin.delete_groups([group])
            with pytest.raises(ClientError) as gone:
                await admin.describe_groups([group])
            assert gone.value.code is ErrorCode.group_id_not_found

    run(scenario())


def test_the_cluster_and_its_disks_are_described(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        await write(broker.bootstrap, topic, [bytes(1000)])
        async with Admin(config={"bootstrap.servers": broker.bootstrap}) as admin:
            cluster = await admin.describe_cluster()
            assert cluster.cluster_id
            assert cluster.controller in {each.node_id for each in cluster.brokers}
            dirs = await admin.log_dirs()
            sizes = [entry.replicas[TopicPartition(topic, 0)].size for entry in dirs[cluster.brokers[0].node_id]]
            assert sum(sizes) > 1000
            with pytest.raises(ClientError, match="no broker 77"):
                await admin.log_dirs([77])
            with pytest.raises(ClientError, match="no broker 77"):
                await admin.describe_configs(ResourceKind.BROKER, "77")
            with pytest.raises(BadSetting, match="a number"):
                await admin.describe_configs(ResourceKind.BROKER, "first")

    run(scenario())


def test_leaders_are_elected_and_partitions_moved(broker: Served, fresh_name):
    """With one broker there is nothing to do, and nothing else wrong."""

    async def scenario() -> None:
        topic = fresh_name()
        partition = TopicPartition(topic, 0)
        await create(broker.bootstrap, topic)
        async with Admin(broker.bootstrap) as admin:
            assert await admin.elect_leaders([partition]) == set()
            assert await admin.list_reassignments() == {}
            await admin.reassign({partition: [1]})
            with pytest.raises(ClientError) as nowhere:
                await admin.reassign({partition: [1, 77]})
            assert nowhere.value.code is ErrorCode.invalid_replica_assignment
            with pytest.raises(ClientError) as idle:
                await admin.reassign({partition: None})
            assert idle.value.code is ErrorCode.no_reassignment_in_progress

    run(scenario())


@pytest.mark.ottla(brokers=3)
def test_the_configs_of_a_topic_can_be_read_right_after_it_was_created(ottla_cluster, fresh_name):
    """Asked of the controller: more than half of these questions would meet a broker that has not heard of it yet."""

    async def scenario() -> None:
        async with Admin(ottla_cluster.bootstrap_servers) as admin:
            for _ in range(20):
                name = fresh_name()
                await admin.create_topics([NewTopic(name, 1, 1, {"retention.ms": "5000"})])
                entries = await admin.describe_configs(ResourceKind.TOPIC, name)
                assert {each.name: each.value for each in entries}["retention.ms"] == "5000"

    run(scenario())
