"""The image: what is applied, what is loaded and what is told are the same thing, for any history."""

from __future__ import annotations

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster import changes as c
from ottla.cluster import config_edits, controller, layout
from ottla.cluster.diff import changes_between
from ottla.cluster.elections import unfinished
from ottla.cluster.image import BrokerRegistration, Endpoint, Image, PartitionState
from ottla.cluster.persist import STEP_OPS_MAX, steps
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, PartitionsSpec, Rules, TopicSpec
from ottla.cluster.store import Create, Delete, Node, Set

NAMES = ["a", "b", "a.b", "a_b", "__consumer_offsets"]


class Tree:
    """The simplest store there is: a dict, and the same rules for operations."""

    def __init__(self):
        self.nodes = {}
        self.commit(layout.first_nodes("cluster"))

    def commit(self, ops):
        for op in ops:
            parent = op.path.rpartition("/")[0]
            if isinstance(op, Create):
                assert parent == "" or parent in self.nodes, op
                assert op.path not in self.nodes, op
                self.nodes[op.path] = (op.data, 0)
            elif isinstance(op, Set):
                _, version = self.nodes[op.path]
                assert op.version in (-1, version), op
                self.nodes[op.path] = (op.data, version + 1)
            else:
                assert isinstance(op, Delete)
                assert not any(path.startswith(op.path + "/") for path in self.nodes), op
                del self.nodes[op.path]

    def image(self):
        return Image.load(
            Node(path, data, version)
            for path, (data, version) in sorted(self.nodes.items())
            if path.startswith(layout.IMAGE_PATHS)
        )


class World:
    """A tree and an image that is only ever changed by applying."""

    def __init__(self, racks=True):
        self.racks = racks
        self.tree = Tree()
        self.image = self.tree.image()
        self.history = [self.image]
        self.log = []
        self.random = random.Random(1)
        self.epoch = 0
        self.rules = Rules()

    def commit(self, changes):
        for step in steps(self.image, changes):
            assert len(step.ops) <= STEP_OPS_MAX
            self.tree.commit(step.ops)
            self.announce(*step.changes)

    def announce(self, *changes):
        data = c.encoded(changes)
        assert c.decoded(data) == changes
        self.log.append(changes)
        self.image = self.image.apply(*c.decoded(data))
        self.history.append(self.image)
        assert self.image == self.tree.image()

    def register(self, broker, since=0):
        """With `since` 0 it has never lost anything; None: it may just have."""
        self.epoch += 1
        endpoints = (Endpoint("A", "::1", 9092, "SSL"), Endpoint("B", "host", 1))
        new = BrokerRegistration(broker, self.epoch, endpoints, f"r{broker % 2}" if self.racks else None)
        self.put_broker(new._replace(clean_since=self.epoch if since is None else since))

    def put_broker(self, broker):
        self.tree.nodes[layout.broker_path(broker.id)] = (layout.broker_data(broker, 0), 0)
        self.announce(c.registered(broker))

    def lose(self, broker):
        if self.tree.nodes.pop(layout.broker_path(broker), None) is not None:
            live = [(b.id, b.epoch) for b in self.image.brokers.values() if b.id != broker]
            self.commit(controller.brokers_gone(self.image, live))
            self.settle()

    def settle(self):
        self.commit(unfinished(self.image, self.rules))

    def campaign(self, broker):
        epoch = self.image.controller_epoch + 1
        self.tree.nodes[layout.CONTROLLER] = (layout.controller_data(broker, 0), 0)
        self.tree.nodes[layout.CONTROLLER_EPOCH] = (str(epoch).encode(), 0)
        live = tuple((b.id, b.epoch) for b in self.image.brokers.values())
        self.announce(c.ControllerChanged(broker, epoch, live))
        self.settle()

    def create(self, name, partitions, factor):
        spec = TopicSpec(name, partitions, factor, configs={"k": "v"})
        ids = [layout.new_id(self.random.randbytes(16))]
        self.commit(controller.create_topics(self.image, [spec], ids, Rules()).changes)

    def delete(self, name):
        self.commit(controller.delete_topics(self.image, [name]).changes)

    def half_delete(self, name):
        """A controller that dies after its first commit of a deletion."""
        changes = controller.delete_topics(self.image, [name]).changes
        self.commit(changes[:1])

    def grow(self, name, partitions):
        self.commit(controller.create_partitions(self.image, [PartitionsSpec(name, partitions)], self.rules).changes)

    def configure(self, name, value):
        edit = [ConfigEdit("k", value)]
        self.commit(config_edits.alter_topic_configs(self.image, [ConfigAlteration(name, edit)], Rules()).changes)

    def configure_broker(self, broker, value):
        alteration = ConfigAlteration(broker, [ConfigEdit("k", value)] if value else [], replace=True)
        self.commit(config_edits.alter_broker_configs(self.image, [alteration], Rules()).changes)

    def configure_group(self, group, value):
        alteration = ConfigAlteration(group, [ConfigEdit("k", value)] if value else [], replace=True)
        self.commit(config_edits.alter_group_configs(self.image, [alteration], Rules()).changes)

    def delete_files(self, broker):
        held = (topic_id for topic_id, tombstone in self.image.tombstones.items() if broker in tombstone.replicas)
        self.commit([c.ReplicaDeleted(topic_id, broker) for topic_id in held])


brokers = st.integers(1, 4)
names = st.sampled_from(NAMES)
acts = st.one_of(
    st.tuples(st.just("register"), brokers),
    st.tuples(st.just("lose"), brokers),
    st.tuples(st.just("campaign"), brokers),
    st.tuples(st.just("create"), names, st.integers(0, 4), st.integers(1, 4)),
    st.tuples(st.just("create"), names, st.just(300), st.just(1)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("half_delete"), names),
    st.tuples(st.just("grow"), names, st.integers(1, 6)),
    st.tuples(st.just("configure"), names, st.sampled_from(["1", "2"])),
    st.tuples(st.just("configure_broker"), st.none() | brokers, st.sampled_from(["1", ""])),
    st.tuples(st.just("configure_group"), st.sampled_from(["g", "a/b", "..", "\u00fc %"]), st.sampled_from(["1", ""])),
    st.tuples(st.just("delete_files"), brokers),
)


def lived(history):
    world = World()
    world.register(1)
    for act, *arguments in history:
        getattr(world, act)(*arguments)
    return world


@settings(max_examples=60, deadline=None)
@given(st.lists(acts, max_size=25))
def test_the_image_loaded_after_any_history_is_the_image_changes_were_applied_to(history):
    world = lived(history)  # compares after every commit
    for partition in (p for t in world.image.topics.values() for p in t.partitions):
        assert set(partition.in_sync) <= set(partition.replicas)
        assert partition.leader == -1 or partition.leader in partition.in_sync


@settings(max_examples=40, deadline=None)
@given(st.lists(acts, max_size=20), st.randoms(use_true_random=False))
def test_a_reader_that_loaded_late_and_sees_old_changes_again_ends_with_the_same_image(history, chance):
    world = lived(history)
    behind = chance.randint(0, len(world.log))
    image = world.tree.image()
    for changes in world.log[behind:]:
        image = image.apply(*changes)
    assert image == world.image


@settings(max_examples=40, deadline=None)
@given(st.lists(acts, max_size=20), st.randoms(use_true_random=False))
def test_the_difference_between_two_images_leads_from_one_to_the_other(history, chance):
    world = lived(history)
    old = chance.choice(world.history)
    new = old.apply(*changes_between(old, world.image))
    settings = ("broker_configs", "group_configs")
    for part in ("brokers", "topics", "names", *settings, "tombstones", "controller_id", "controller_epoch"):
        assert getattr(new, part) == getattr(world.image, part), part


def test_an_image_never_changes_and_shares_what_a_change_does_not_touch():
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


def test_a_late_change_of_a_deleted_topic_does_not_touch_the_new_one_of_the_same_name():
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


def test_a_name_becomes_a_path_only_escaped():
    assert layout.topic_path("plain.Name_1-2") == "/brokers/topics/plain.Name_1-2"
    for name in ("../x", "..", ".", "a/b", "ü%", "", "a\x00b", "<default>"):
        step = layout.escaped(name)
        assert "/" not in step
        assert "\x00" not in step
        assert step not in (".", "..")
        assert layout.unescaped(step) == name


@given(st.binary(min_size=16, max_size=16))
def test_ids_read_as_kafka_writes_them(raw):
    new = layout.new_id(raw)
    text = layout.id_text(new)
    assert len(text) == 22
    assert not text.startswith("-")
    assert layout.id_bytes(text) == new


def test_the_nodes_read_like_kafkas():
    world = World()
    world.register(1)
    world.campaign(1)
    world.create("orders", 2, 1)
    topic_id = layout.id_text(world.image.topics["orders"].id)

    def node(path):
        return layout.decode(world.tree.nodes[path][0])

    assert node("/brokers/topics/orders") == {
        "version": 3,
        "topic_id": topic_id,
        "partitions": {"0": [1], "1": [1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    state = node("/brokers/topics/orders/partitions/0/state")
    ours = {"broker_epoch": 1, "isr_epochs": [1], "eligible": [], "eligible_epochs": [], "last_leader": 1}
    kafkas = {"controller_epoch": 1, "leader": 1, "version": 1, "leader_epoch": 0, "isr": [1]}
    assert state == kafkas | ours
    assert node("/config/topics/orders") == {"version": 1, "config": {"k": "v"}}
    assert world.tree.nodes["/controller_epoch"][0] == b"1"
    assert node("/controller")["brokerid"] == 1
    assert node("/cluster/id") == {"version": "1", "id": "cluster"}
    broker = node("/brokers/ids/1")
    assert broker["endpoints"] == ["A://[::1]:9092", "B://host:1"]
    assert broker["listener_security_protocol_map"] == {"A": "SSL", "B": "PLAINTEXT"}
    assert (broker["version"], broker["host"], broker["port"]) == (5, "::1", 9092)
