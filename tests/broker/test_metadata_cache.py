"""Metadata lists a broker for a moment after it was removed, without partitions."""

from __future__ import annotations

from ottla.broker.metadata_cache import LINGER_SECONDS, RecentlyRemovedBrokers
from ottla.cluster.image import NO_BROKER, BrokerRegistration
from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.harness.in_process import Client, brokers, run, start_broker, stop_broker

ONE, TWO = (BrokerRegistration(each, each, (), None) for each in (1, 2))


def test_a_removed_broker_is_listed_for_a_while():
    removed = RecentlyRemovedBrokers()
    removed.note({1: ONE, 2: TWO}, {1: ONE}, now=10)
    assert removed.named(10) == (TWO,)
    assert removed.named(10 + LINGER_SECONDS) == ()


def test_a_broker_that_registers_again_is_not_removed():
    removed = RecentlyRemovedBrokers()
    removed.note({1: ONE, 2: TWO}, {1: ONE}, now=10)
    removed.note({1: ONE}, {1: ONE, 2: TWO}, now=11)
    assert removed.named(11) == ()


def test_metadata_lists_a_removed_broker_without_partitions(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (first,):
            second = await start_broker(tmp_path, 2)
            await until(lambda: len(first.image.brokers) == 2)
            await first.cluster.create_topics([TopicSpec("orders", 2, 1)])
            async with Client.to(first) as client:
                request = MetadataRequest(topics=None)
                before = await client.call(request, MetadataResponse, 12)
                assert {each.leader_id for each in before.topics[0].partitions} == {1, 2}
                await stop_broker(second)
                await until(lambda: 2 not in first.image.brokers)
                after = await client.call(request, MetadataResponse, 12)
                assert sorted(each.node_id for each in after.brokers) == [1, 2]
                assert {each.leader_id for each in after.topics[0].partitions} == {1, NO_BROKER}
                first.context.metadata_cache.removed._until.clear()  # its time is up
                later = await client.call(request, MetadataResponse, 12)
                assert [each.node_id for each in later.brokers] == [1]

    run(test)
