"""The image: applying changes gives the same as loading the store, for any history."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster import changes as c
from ottla.cluster import controller, layout
from ottla.cluster.image import PartitionState
from ottla.cluster.requests import Rules, TopicSpec
from tests.cluster.world import World, acts, lived


@settings(max_examples=60, deadline=None)
@given(st.lists(acts, max_size=25))
def test_the_loaded_image_equals_the_image_that_changes_were_applied_to(history):
    world = lived(history)  # compares after every commit
    for partition in (p for t in world.image.topics.values() for p in t.partitions):
        assert set(partition.in_sync) <= set(partition.replicas)
        assert partition.leader == -1 or partition.leader in partition.in_sync


@settings(max_examples=40, deadline=None)
@given(st.lists(acts, max_size=20), st.randoms(use_true_random=False))
def test_changes_that_are_applied_twice_give_the_same_image(history, chance):
    world = lived(history)
    behind = chance.randint(0, len(world.log))
    image = world.tree.image()
    for changes in world.log[behind:]:
        image = image.apply(*changes)
    assert image == world.image


def test_an_image_is_immutable_and_shares_unchanged_parts():
    world = World()
    world.register(1)
    world.create("a", 3, 1)
    world.create("b", 3, 1)
    before = world.image
    kept = before.topics["a"].partitions
    world.commit([c.partition_changed(before.topics["a"].id, 1, kept[1]._replace(leader_epoch=9, partition_epoch=1))])
    after = world.image
    assert before.topics["a"].partitions is kept
    assert after.version == before.version + 1
    assert after.topics["a"].partitions[1].leader_epoch == 9
    assert after.topics["a"].partitions[0] is kept[0]
    assert after.topics["b"] is before.topics["b"]
    assert after.names is before.names
    assert after.brokers is before.brokers


def test_a_late_change_of_a_deleted_topic_does_not_apply_to_a_new_one_with_its_name():
    world = World()
    world.register(1)
    world.create("a", 1, 1)
    late = c.partition_changed(world.image.topics["a"].id, 0, PartitionState((1,), 1, 99, (1,), 99, 1))
    world.delete("a")
    world.create("a", 1, 1)
    assert world.image.apply(late) == world.image


def test_a_change_costs_little_in_an_image_of_ten_thousand_partitions():
    world = World()
    world.register(1)
    ids = [layout.new_id(world.random.randbytes(16)) for _ in range(1000)]
    specs = [TopicSpec(f"t{n}", 10, 1) for n in range(1000)]
    image = world.image.apply(*controller.create_topics(world.image, specs, ids, Rules()).changes)
    assert image.partition_count() == 10_000
    partition = image.topics["t7"].partitions[3]
    change = c.partition_changed(image.topics["t7"].id, 3, partition._replace(partition_epoch=1))
    begin = time.perf_counter()
    for _ in range(100):
        image = image.apply(change)
    assert time.perf_counter() - begin < 0.5  # some 10 ms here
