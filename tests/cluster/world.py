"""A cluster without brokers for tests: a tree of nodes, an image that changes are applied to, and random histories."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from ottla.cluster import changes as c
from ottla.cluster import config_edits, controller, layout
from ottla.cluster.elections import unfinished
from ottla.cluster.image import BrokerRegistration, Endpoint, Image
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
