"""The layout of the store: escaped names, ids, and nodes that read like Kafka's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster import layout
from tests.cluster.world import World


def test_names_are_escaped_in_paths():
    assert layout.topic_path("plain.Name_1-2") == "/brokers/topics/plain.Name_1-2"
    for name in ("../x", "..", ".", "a/b", "ü%", "", "a\x00b", "<default>"):
        step = layout.escaped(name)
        assert "/" not in step
        assert "\x00" not in step
        assert step not in (".", "..")
        assert layout.unescaped(step) == name


@given(st.binary(min_size=16, max_size=16))
def test_ids_are_written_as_kafka_writes_them(raw):
    new = layout.new_id(raw)
    text = layout.id_text(new)
    assert len(text) == 22
    assert not text.startswith("-")
    assert layout.id_bytes(text) == new


def test_nodes_have_the_fields_of_kafka():
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
