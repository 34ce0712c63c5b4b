"""What a group remembers: commits, crashes between reading and committing, where a new group begins."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.local.waiting import wait_for
from tests.harness.groups import NAMES, produce

pytest_plugins = ["tests.harness.group_fixtures"]


@pytest.fixture
def broker(group_broker):
    """One with short sessions, in place of the session's."""
    return group_broker


@pytest.fixture(params=NAMES)
def client(request):
    return request.param


def committed(broker, group_id: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = ConsumerGroupTopicPartitions(group_id)
    answer = admin.list_consumer_group_offsets([asked])[group_id].result(10)
    return {partition.partition: partition.offset for partition in answer.topic_partitions if partition.topic == topic}


def test_two_groups_have_offsets_of_their_own(broker, topic, make_group, client):
    """S61, S74: what one has read does not concern the other."""
    produce(broker, topic, ["a", "b", "c"])
    fast = make_group(topic, client=client)
    reader = fast.add_one()
    wait_for(lambda: reader.values == ["a", "b", "c"], "the first group's records")
    reader.commit()
    slow = make_group(topic, client=client, commit="after", crash_at=2)
    dies = slow.add_one()
    dies.process.gone()
    assert committed(broker, fast.id, topic) == {0: 3}
    assert committed(broker, slow.id, topic) == {0: 1}
    again = slow.add_one(crash_at=0)
    wait_for(lambda: again.values == ["b", "c"], "the second group's records")
    assert reader.values == ["a", "b", "c"]


def test_a_consumer_that_dies_is_continued_where_it_committed(broker, topic, make_group, client):
    """S49, S50: what was read after the last commit is read again."""
    produce(broker, topic, ["a", "b"])
    group = make_group(topic, client=client)
    first = group.add_one()
    wait_for(lambda: first.values == ["a", "b"], "two records")
    first.commit()
    produce(broker, topic, ["c", "d"])
    wait_for(lambda: first.values == ["a", "b", "c", "d"], "four records")
    group.kill(first)
    second = group.add_one()
    wait_for(lambda: len(second.values) == 2, "the records after the commit")
    assert second.values == ["c", "d"]


def test_at_least_once_reads_again_and_loses_nothing(broker, topic, make_group, client):
    """Processed, then committed: the crash in between makes the third record come twice (S73)."""
    processed = crash_and_resume(broker, topic, make_group(topic, client=client, commit="after"))
    assert processed == ["1", "2", "3", "3", "4", "5"]


def test_at_most_once_loses_and_reads_nothing_again(broker, topic, make_group, client):
    """Committed, then processed: the crash in between loses the third record (S73)."""
    processed = crash_and_resume(broker, topic, make_group(topic, client=client, commit="before"))
    assert processed == ["1", "2", "4", "5"]


def crash_and_resume(broker, topic, group) -> list[str]:
    """A consumer kills itself at the third of five records; another goes on to the end."""
    produce(broker, topic, ["1", "2", "3", "4", "5"])
    first = group.add_one(crash_at=3)
    first.process.gone()
    second = group.add_one()
    wait_for(lambda: "5" in second.values, "the last record")
    return first.values + second.values


def test_a_new_group_begins_where_its_policy_says(broker, topic, make_group, client):
    """S70: earliest sees what is there, latest what comes."""
    produce(broker, topic, ["old"])
    earliest = make_group(topic, client=client, reset="earliest").add_one()
    latest = make_group(topic, client=client, reset="latest").add_one()
    wait_for(lambda: earliest.values == ["old"], "the old record")
    wait_for(lambda: latest.owned == {0}, "the partition")
    # The position of `latest` is fixed some time after the assignment: write until it sees something.
    written = 0

    def seen() -> bool:
        nonlocal written
        produce(broker, topic, [f"new {written}"])
        written += 1
        return bool(latest.values)

    wait_for(seen, "a new record")
    assert "old" not in latest.values
    wait_for(lambda: earliest.values == ["old", *(f"new {number}" for number in range(written))], "all records")


def test_the_policy_does_not_matter_once_there_is_a_commit(broker, topic, make_group, client):
    produce(broker, topic, ["a", "b"])
    group = make_group(topic, client=client, commit="after", crash_at=2)
    group.add_one().process.gone()
    late = group.add_one(reset="latest", crash_at=0)
    wait_for(lambda: late.values == ["b"], "the record after the commit")


def test_a_group_continues_at_offsets_set_by_an_administrator(broker, topic, make_group, client):
    produce(broker, topic, ["a", "b", "c"])
    group = make_group(topic, client=client)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = ConsumerGroupTopicPartitions(group.id, [TopicPartition(topic, 0, 2)])
    admin.alter_consumer_group_offsets([wanted])[group.id].result(10)
    reader = group.add_one()
    wait_for(lambda: reader.values == ["c"], "the record at the offset that was set")


def test_a_deleted_group_has_forgotten_everything(broker, topic, make_group, client):
    produce(broker, topic, ["a"])
    group = make_group(topic, client=client)
    reader = group.add_one()
    wait_for(lambda: reader.values == ["a"], "the record")
    reader.commit()
    reader.stop()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([group.id])[group.id].result(10)
    assert committed(broker, group.id, topic) == {}
    again = group.add_one()
    wait_for(lambda: again.values == ["a"], "the record again")
