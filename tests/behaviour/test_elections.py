"""Leader elections, on request and automatic, and refused reassignments, with kafka-python's admin client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from ottla.errors import ErrorCode
from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.cluster import Brokers, produce, read
from tests.interop.clients import kafka_python_admin

pytestmark = [
    pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own"),
    pytest.mark.timeout(120),
]

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def admin(brokers: Brokers) -> Iterator[KafkaAdminClient]:
    with kafka_python_admin(brokers.bootstrap) as client:
        yield client


def topic_led_by(brokers: Brokers, admin: KafkaAdminClient, leader: int, **configs: str) -> str:
    """A topic with one partition, which prefers this broker."""
    replicas = [leader, *(number for number in (1, 2, 3) if number != leader)]
    config = {key.replace("_", "."): value for key, value in configs.items()}
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, replica_assignments={0: replicas}, topic_configs=config)])
    wait_for(lambda: brokers.leader(name) == leader and len(brokers.partition(name).isrs) == 3, "the topic")
    return name


def elect(admin: KafkaAdminClient, kind: int, partitions: dict[str, list[int]]) -> dict[tuple[str, int], str]:
    """What became of each partition that the answer speaks of."""
    answer = admin.elect_leaders(kind, partitions, raise_errors=False)
    return {
        (topic.topic, each.partition_id): ErrorCode(each.error_code).name
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


def test_the_preferred_replica_leads_again_when_asked_to(brokers, admin):
    topic = topic_led_by(brokers, admin, 2)
    assert elect(admin, PREFERRED, {topic: [0]}) == {(topic, 0): "election_not_needed"}
    assert brokers[2].stop() == 0
    wait_for(lambda: brokers.leader(topic) != 2, "another leader")
    assert elect(admin, PREFERRED, {topic: [0]}) == {(topic, 0): "preferred_leader_not_available"}
    brokers[2].start()
    brokers.in_sync(topic, 3)
    assert elect(admin, PREFERRED, {topic: [0]}) == {(topic, 0): "none"}
    wait_for(lambda: brokers.leader(topic) == 2, "the preferred leader")  # others hear of it a little later
    assert elect(admin, PREFERRED, {topic: [1]}) == {(topic, 1): "unknown_topic_or_partition"}
    assert produce(brokers.bootstrap, topic, "a") == [0]


def test_an_unclean_election_happens_only_on_request(brokers, admin):
    topic = topic_led_by(brokers, admin, 1, min_insync_replicas="1")
    assert elect(admin, UNCLEAN, {topic: [0]}) == {(topic, 0): "election_not_needed"}
    produce(brokers.bootstrap, topic, "a")
    brokers[3].kill()
    brokers[2].kill()
    brokers.in_sync(topic, 1)
    assert produce(brokers[1].bootstrap, topic, "b") == [1]
    brokers[1].kill()
    brokers[2].start()
    wait_for(lambda: brokers.partition(topic).leader == -1, "nobody leads")
    with kafka_python_admin(brokers[2].bootstrap) as survivor:  # the other does not let go of brokers it knew
        assert elect(survivor, UNCLEAN, {topic: [0]}) == {(topic, 0): "none"}
    assert brokers.leader(topic) == 2
    assert read(brokers[2].bootstrap, topic, 1) == ["a"]


def test_auto_leader_rebalance_restores_preferred_leaders(tmp_path):
    brokers = Brokers(tmp_path, **{"leader.imbalance.check.interval.seconds": "1"})
    with closing(brokers), kafka_python_admin(brokers.bootstrap) as admin:
        topic = topic_led_by(brokers, admin, 3)
        brokers[3].kill()
        wait_for(lambda: brokers.leader(topic) != 3, "another leader")
        brokers[3].start()
        wait_for(lambda: brokers.leader(topic) == 3, "the preferred leader", 30)


@pytest.mark.parametrize(
    ("replicas", "refusal"),
    [
        ([9], ErrorCode.invalid_replica_assignment),
        ([1, 1], ErrorCode.invalid_replica_assignment),
        (None, ErrorCode.no_reassignment_in_progress),
    ],
)
def test_invalid_reassignments_and_cancellations_are_refused(brokers, admin, replicas, refusal):
    topic = topic_led_by(brokers, admin, 1)
    partition = TopicPartition(topic, 0)
    answer = admin.alter_partition_reassignments({partition: replicas})
    assert {each: error.errno for each, error in answer.items()} == {partition: refusal}
    assert not admin.list_partition_reassignments()
