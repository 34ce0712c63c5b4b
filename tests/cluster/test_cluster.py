"""The cluster metadata of a broker: creation, registration, topics, configs, producer ids, restarts, two brokers."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla.cluster import config_edits, controller_loop, layout
from ottla.cluster.changes import PartitionChanged, TopicCreated
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, PartitionsSpec, Rules, TopicSpec
from ottla.cluster.store import Create, Delete, Set
from ottla.errors import ErrorCode, Fault, Refused
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, registration, run, states


@pytest.fixture
def store(store_url):
    """The same must hold on every store."""
    return store_url


@pytest.fixture
def path(tmp_path):
    """For what only an embedded store does."""
    return tmp_path / "store.db"


async def loaded(cluster: Cluster) -> Image:
    return Image.load(await cluster._view.store.tree(*layout.IMAGE_PATHS))


def test_the_cluster_id_never_changes(store):
    async def test(runtime):
        async with cluster_on(store, runtime, None) as cluster:
            first = cluster.cluster_id
            assert len(first) == 22
            assert len(layout.id_bytes(first)) == 16
        async with cluster_on(store, runtime, None) as cluster:
            assert cluster.cluster_id == first

    run(test)


def test_a_single_broker_becomes_controller_when_it_registers(store):
    async def test(runtime):
        async with cluster_on(store, runtime, 7, rack="north") as cluster:
            assert cluster.is_controller
            image = cluster.image
            assert (image.controller_id, image.controller_epoch) == (7, 1)
            assert image.brokers[7].rack == "north"
            endpoint = image.brokers[7].endpoint("PLAINTEXT")
            assert endpoint is not None
            assert (endpoint.host, endpoint.port, endpoint.protocol) == ("127.0.0.1", 9099, "PLAINTEXT")
            assert await loaded(cluster) == image

    run(test)


def test_a_created_topic_is_in_the_image_and_led_when_the_call_returns(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            reported = []
            version = cluster.image.version
            cluster.subscribe(lambda old, new, change: reported.append((type(change), new.version > old.version)))
            spec = TopicSpec("orders", 3, 1, configs={"retention.ms": "1000"})
            (result,) = await cluster.create_topics([spec])
            assert (result.code, result.partitions, result.replication_factor) == (ErrorCode.none, 3, 1)
            assert states(cluster.image, "orders") == ["1@0 1/1 #0"] * 3
            topic = cluster.image.topic_by_id(result.topic_id)
            assert topic is cluster.image.topics["orders"]
            assert topic.configs == {"retention.ms": "1000"}
            assert reported == [(TopicCreated, True)] + [(PartitionChanged, True)] * 3
            assert cluster.image.version == version + 1
            assert await loaded(cluster) == cluster.image

    run(test)


def test_validate_only_answers_and_changes_nothing(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            before = cluster.image
            results = await cluster.create_topics([TopicSpec("a", 2, 1), TopicSpec("b", 0, 1)], validate_only=True)
            assert [result.code for result in results] == [ErrorCode.none, ErrorCode.invalid_partitions]
            assert cluster.image is before

    run(test)


def test_a_single_broker_leads_again_after_a_restart_under_a_new_epoch(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            await cluster.create_topics([TopicSpec("t", 2, 1)])
            first = cluster.image.brokers[1].epoch
        async with cluster_on(store, runtime, None) as cluster:
            assert states(cluster.image, "t") == ["1@0 1/1 #0"] * 2
            assert cluster.image.brokers == {}
            second = await cluster.register(registration(1))
            assert second > first
            assert states(cluster.image, "t") == ["1@1 1/1 #1"] * 2
            assert cluster.image.controller_epoch == 2
            assert await loaded(cluster) == cluster.image

    run(test)


def test_a_deleted_topic_has_a_tombstone_until_its_files_are_deleted(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            (created,) = await cluster.create_topics([TopicSpec("t", 2, 1)])
            (deleted, unknown) = await cluster.delete_topics([created.topic_id, "nothing"])
            assert (deleted.name, deleted.code) == ("t", ErrorCode.none)
            assert unknown.code == ErrorCode.unknown_topic_or_partition
            assert cluster.image.topics == {}
            assert cluster.image.tombstones[created.topic_id].replicas == (1,)
            assert await cluster._view.store.tree(layout.topic_path("t")) == []
            (again,) = await cluster.create_topics([TopicSpec("t", 1, 1)])
            assert again.code == ErrorCode.none
            assert again.topic_id != created.topic_id
        async with cluster_on(store, runtime) as cluster:
            assert list(cluster.image.tombstones) == [created.topic_id]
            await cluster.replicas_deleted([created.topic_id, created.topic_id, again.topic_id])
            assert cluster.image.tombstones == {}
            assert await loaded(cluster) == cluster.image

    run(test)


def test_a_topic_of_ten_thousand_partitions_is_created_and_deleted_in_several_commits(store, monkeypatch):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            sizes = []
            commit = cluster._view.store.commit

            async def measured(ops):
                data = sum(len(op.data) for op in ops if isinstance(op, Create | Set))
                sizes.append((len(ops), data))
                return await commit(ops)

            monkeypatch.setattr(cluster._view.store, "commit", measured)
            (result,) = await cluster.create_topics([TopicSpec("big", 10_000, 1)])
            assert result.code == ErrorCode.none
            assert set(states(cluster.image, "big")) == {"1@0 1/1 #0"}
            await cluster.delete_topics(["big"])
            assert max(sizes)[0] <= 500
            assert max(size for _, size in sizes) < 1_000_000
            assert await loaded(cluster) == cluster.image
            (refused,) = await cluster.create_topics([TopicSpec("bigger", 10_001, 1)])
            assert refused.code == ErrorCode.invalid_partitions

    run(test)


def test_partitions_are_added_and_led(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            await cluster.create_topics([TopicSpec("t", 1, 1)])
            (extended, same) = await cluster.create_partitions([PartitionsSpec("t", 3), PartitionsSpec("u", 3)])
            assert extended.code == ErrorCode.none
            assert same.code == ErrorCode.unknown_topic_or_partition
            assert states(cluster.image, "t") == ["1@0 1/1 #0"] * 3
            assert await loaded(cluster) == cluster.image

    run(test)


def test_configs_of_groups_are_altered_also_in_a_store_of_an_earlier_release(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            await cluster._view.store.commit([Delete(layout.GROUP_CONFIGS)])
        async with cluster_on(store, runtime) as cluster:
            for group in ("g", "a/b"):
                await cluster.alter_group_configs([ConfigAlteration(group, [ConfigEdit("x", "1")])])
            assert cluster.image.group_configs == {"g": {"x": "1"}, "a/b": {"x": "1"}}
            assert await loaded(cluster) == cluster.image
            await cluster.alter_group_configs([ConfigAlteration("g", [ConfigEdit("x", None, ConfigOp.delete)])])
            assert cluster.image.group_configs == {"a/b": {"x": "1"}}
            assert await loaded(cluster) == cluster.image
        async with cluster_on(store, runtime) as cluster:
            assert cluster.image.group_configs == {"a/b": {"x": "1"}}

    run(test)


def test_the_number_of_groups_with_settings_is_limited(monkeypatch):
    monkeypatch.setattr(config_edits, "GROUPS_WITH_CONFIGS_MAX", 1)
    edit = [ConfigEdit("x", "1")]
    alterations = [ConfigAlteration("g", edit), ConfigAlteration("h", edit), ConfigAlteration("x" * 1001, edit)]
    decision = config_edits.alter_group_configs(Image(), alterations, Rules())
    assert [result.code for result in decision.results] == [
        ErrorCode.none, ErrorCode.policy_violation, ErrorCode.invalid_request,
    ]  # fmt: skip
    image = Image().apply(*decision.changes)
    again = config_edits.alter_group_configs(image, [ConfigAlteration("g", [ConfigEdit("x", "2")])], Rules())
    assert [result.code for result in again.results] == [ErrorCode.none]


def test_configs_of_topics_and_brokers_are_altered(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            await cluster.create_topics([TopicSpec("t", 1, 1, configs={"a": "1", "b": "2"})])
            edits = [ConfigEdit("a", None, ConfigOp.delete), ConfigEdit("c", "3")]
            await cluster.alter_topic_configs([ConfigAlteration("t", edits)])
            assert cluster.image.topics["t"].configs == {"b": "2", "c": "3"}
            for broker in (1, None):
                await cluster.alter_broker_configs([ConfigAlteration(broker, [ConfigEdit("x", str(broker))])])
            assert cluster.image.broker_configs == {1: {"x": "1"}, None: {"x": "None"}}
            assert await loaded(cluster) == cluster.image
            await cluster.alter_broker_configs([ConfigAlteration(1, [], replace=True)])
            assert cluster.image.broker_configs == {None: {"x": "None"}}
            assert await loaded(cluster) == cluster.image

    run(test)


def test_producer_id_blocks_never_overlap(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as one, cluster_on(store, runtime, 2) as two:
            blocks = await asyncio.gather(*(c.allocate_producer_ids() for c in (one, two) * 5))
            ids = [id_ for block in blocks for id_ in block]
            assert len(ids) == len(set(ids)) == 10_000
        async with cluster_on(store, runtime) as one:
            assert (await one.allocate_producer_ids()).start == 10_000
            node = await one._view.store.read("/latest_producer_id_block")
            expected = {"version": 1, "broker": 1, "block_start": "10000", "block_end": "10999"}
            assert node is not None
            assert layout.decode(node.data) == expected

    run(test)


def test_a_second_broker_with_a_live_brokers_id_is_refused(store):
    async def test(runtime):
        async with cluster_on(store, runtime), cluster_on(store, runtime, None) as second:
            with pytest.raises(Fault, match=r"broker 1 is already running in this cluster at 127.0.0.1:9093"):
                await second.register(registration(1))

    run(test)


def test_one_of_two_brokers_on_a_store_is_controller(store):
    async def test(runtime):
        async with cluster_on(store, runtime, 1) as one, cluster_on(store, runtime, 2) as two:
            assert (one.is_controller, two.is_controller) == (True, False)
            await until(lambda: sorted(one.image.brokers) == [1, 2])
            (made,) = await one.create_topics([TopicSpec("t", 4, 2)])
            assert made.code == ErrorCode.none
            assert states(one.image, "t") == ["1@0 1,2/1,2 #0", "2@0 2,1/2,1 #0"] * 2
            await until(lambda: "t" in two.image.topics and two.image == one.image)
            with pytest.raises(Refused) as caught:
                await two.create_topics([TopicSpec("u", 1, 1)])
            assert caught.value.code == ErrorCode.not_controller

    run(test)


def test_a_lost_broker_is_noticed_and_its_partitions_are_led_by_others(store):
    async def test(runtime):
        async with cluster_on(store, runtime, 1) as one:
            async with cluster_on(store, runtime, 2):
                await until(lambda: sorted(one.image.brokers) == [1, 2])
                await one.create_topics([TopicSpec("t", 2, 2), TopicSpec("only-two", assignments=[(0, [2])])])
            await until(lambda: sorted(one.image.brokers) == [1])
            await until(lambda: states(one.image, "only-two") == ["-1@1 2/2 #1"])
            assert states(one.image, "t") == ["1@0 1/1,2 #1", "1@1 1/2,1 #1"]
            async with cluster_on(store, runtime, 2):
                await until(lambda: states(one.image, "only-two") == ["2@2 2/2 #2"])
                assert await loaded(one) == one.image

    run(test)


def test_when_the_controller_is_lost_another_takes_over_and_the_old_epoch_is_fenced(store):
    async def test(runtime):
        async with cluster_on(store, runtime, 2) as two:
            old_fence = two._controller._fence
            assert old_fence is not None
        async with cluster_on(store, runtime, 1) as one, cluster_on(store, runtime, 2) as two:
            await one.create_topics([TopicSpec("t", 1, 1)])
            one._controller._fence = old_fence  # what a controller holds that slept through its end
            with pytest.raises(Refused) as caught:
                await one.create_topics([TopicSpec("u", 1, 1)])
            assert caught.value.code == ErrorCode.not_controller
            assert not one.is_controller
            assert "u" not in one.image.topics
            await one.close()
            await until(lambda: two.is_controller)
            await until(lambda: sorted(two.image.brokers) == [2])
            await until(lambda: states(two.image, "t") == ["-1@1 1/1 #1"])
            (made,) = await two.create_topics([TopicSpec("u", 1, 1)])
            assert made.code == ErrorCode.none

    run(test)


def test_a_broker_whose_session_is_lost_registers_again_under_a_new_epoch(path):
    import sqlite3

    async def test(runtime):
        async with cluster_on(path, runtime) as cluster:
            await cluster.create_topics([TopicSpec("t", 1, 1)])
            epoch = cluster.image.brokers[1].epoch
            with sqlite3.connect(path) as db:
                db.execute("DELETE FROM node WHERE session IS NOT NULL")
                db.execute("DELETE FROM session")
            db.close()
            await until(lambda: cluster.image.brokers[1].epoch > epoch)
            await until(lambda: cluster.is_controller)
            await until(lambda: states(cluster.image, "t") == ["1@1 1/1 #1"])
            assert await loaded(cluster) == cluster.image

    run(test)


def test_the_change_log_is_trimmed_and_a_reader_behind_it_loads_the_image(store, monkeypatch):
    monkeypatch.setattr(controller_loop, "CHANGES_KEPT", 5)
    monkeypatch.setattr(controller_loop, "CHANGES_TRIMMED", 3)

    async def test(runtime):
        async with cluster_on(store, runtime) as one, cluster_on(store, runtime, None) as reader:
            reported = []
            reader.subscribe(lambda old, new, change: reported.append(change))
            await reader._view.close()  # asleep
            for n in range(20):
                await one.create_topics([TopicSpec(f"t{n}", 1, 1)])
            await one.delete_topics(["t3"])
            assert len(await one._view.store.children(layout.CHANGES)) <= 8
            version = reader.image.version
            await reader._view.catch_up()
            assert reader.image == one.image
            assert reader.image.version > version
            assert len([c for c in reported if isinstance(c, TopicCreated)]) == 19

    run(test)


def test_the_change_log_is_trimmed_by_size_too(store, monkeypatch):
    monkeypatch.setattr(controller_loop, "CHANGES_BYTES_MAX", 20_000)

    async def test(runtime):
        async with cluster_on(store, runtime) as one, cluster_on(store, runtime, None) as reader:
            for n in range(10):
                await one.create_topics([TopicSpec(f"t{n}", 50, 1)])
            log = await one._view.store.tree(layout.CHANGES)
            assert 0 < sum(len(node.data) for node in log) < 40_000
            await until(lambda: reader.image == one.image)

    run(test)


def test_the_work_of_a_cancelled_call_is_completed(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            task = asyncio.ensure_future(cluster.create_topics([TopicSpec("t", 1000, 1)]))
            await until(lambda: "t" in cluster.image.topics)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: all(p.leader == 1 for p in cluster.image.topics["t"].partitions))
            assert await loaded(cluster) == cluster.image

    run(test)


def test_a_commit_that_conflicts_with_foreign_nodes_is_a_fault_and_the_image_is_reloaded(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            await cluster._view.store.commit([Create(layout.topic_config_path("t"), b'{"version":1,"config":{}}')])
            with pytest.raises(Fault, match="no controller wrote"):
                await cluster.create_topics([TopicSpec("t", 1, 1)])
            assert "t" not in cluster.image.topics
            await cluster._view.store.commit([Delete(layout.topic_config_path("t"))])
            (result,) = await cluster.create_topics([TopicSpec("t", 1, 1)])
            assert result.code == ErrorCode.none

    run(test)


def test_a_store_url_of_an_unknown_kind_is_refused(tmp_path):
    async def test(runtime):
        with pytest.raises(Fault, match="embedded:PATH"):
            await Cluster("etcd:localhost", runtime, data_dir=str(tmp_path)).open()

    run(test)


def test_metadata_of_a_newer_layout_is_refused(store):
    async def test(runtime):
        async with cluster_on(store, runtime, None) as cluster:
            await cluster._view.store.commit([Set(layout.FORMAT, b'{"version":2}')])
        with pytest.raises(Fault, match="newer Ottla"):
            async with cluster_on(store, runtime, None):
                pass

    run(test)


def test_a_damaged_node_is_named(store):
    async def test(runtime):
        async with cluster_on(store, runtime) as cluster:
            await cluster.create_topics([TopicSpec("t", 1, 1)])
            await cluster._view.store.commit([Set(layout.state_path("t", 0), b"{")])
        with pytest.raises(Fault, match="/brokers/topics/t/partitions/0/state cannot be read"):
            async with cluster_on(store, runtime):
                pass

    run(test)


def test_a_fresh_store_is_ready_fast(path):
    async def test(runtime):
        import sqlite3  # noqa: F401 - loading it is not what is measured

        begin = time.perf_counter()
        async with cluster_on(path, runtime):
            return time.perf_counter() - begin

    assert run(test) < 0.5  # some 10 ms here; the limit allows for a slow disk


def test_rules_give_the_defaults(store):
    async def test(runtime):
        async with cluster_on(store, runtime, rules=Rules(partitions=4)) as cluster:
            (result,) = await cluster.create_topics([TopicSpec("t")])
            assert (result.partitions, result.replication_factor) == (4, 1)

    run(test)
