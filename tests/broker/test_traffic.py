"""/metrics of topics and errors: exact, limited in number, and never decreasing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ottla.broker.traffic import OTHERS, TopicTraffic
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.harness.in_process import Client, brokers, run

METRICS = {"ottla_metrics_port": "0"}


def test_topics_beyond_the_limit_share_one_counter():
    traffic = TopicTraffic(2)
    for number, topic in enumerate(["a", "b", "c", "d"], 1):
        traffic[topic].bytes_in += number
    assert [(topic, counted.bytes_in) for topic, counted in traffic.series()] == [("a", 1), ("b", 2), (OTHERS, 7)]
    traffic.forget("a")
    traffic["e"].bytes_in += 5
    traffic["c"].bytes_in += 1
    traffic.forget("d")
    assert [(topic, counted.bytes_in) for topic, counted in traffic.series()] == [("b", 2), ("e", 5), (OTHERS, 8)]


def test_below_the_limit_there_is_no_shared_counter():
    traffic = TopicTraffic(1)
    traffic["a"].bytes_in += 1
    assert [topic for topic, _ in traffic.series()] == ["a"]
    none = TopicTraffic(0)
    none["a"].bytes_in += 1
    assert [topic for topic, _ in none.series()] == [OTHERS]


async def page(broker):
    text = (await broker._status._metrics.page(serving=True)).decode()
    return {name: float(value) for name, value in re.findall(r"^(ottla_[^ ]+) (\S+)$", text, re.MULTILINE)}


async def with_topics(broker, *names):
    await broker.cluster.create_topics([TopicSpec(name, 1, 1) for name in names])
    await until(lambda: all(broker.replicas.get(name, 0) for name in names))
    return f"127.0.0.1:{broker.listeners[0].port}"


@pytest.mark.parametrize("fetch_bytes", [64 * 1024 * 1024, 5000], ids=["whole log", "in slices"])
def test_bytes_and_records_of_a_topic_are_exact_in_and_out(tmp_path, fetch_bytes):
    async def test():
        async with brokers(tmp_path, 1, **METRICS) as (broker,):
            bootstrap = await with_topics(broker, "orders", "idle")
            async with Producer(bootstrap, batch_size=700) as producer:
                for _ in range(500):
                    await producer.send("orders", b"x" * 50)
            written = broker.replica_manager.find("orders", 0).log.size_bytes
            settings = {"max_partition_fetch_bytes": fetch_bytes, "auto_offset_reset": "earliest"}
            read = 0
            async with Consumer("orders", bootstrap_servers=bootstrap, **settings) as consumer:
                while read < 500:
                    for records in (await consumer.getmany(timeout_ms=1000)).values():
                        read += len(records)
            metrics = await page(broker)
            assert metrics['ottla_topic_records_in_total{topic="orders"}'] == 500
            assert metrics['ottla_topic_bytes_in_total{topic="orders"}'] == written
            assert metrics['ottla_topic_records_out_total{topic="orders"}'] >= 500
            if fetch_bytes > written:
                assert metrics['ottla_topic_records_out_total{topic="orders"}'] == 500
                assert metrics['ottla_topic_bytes_out_total{topic="orders"}'] == written
            assert not [name for name in metrics if "idle" in name and "ottla_topic" in name]
            await broker.cluster.delete_topics(["orders"])
            await until(lambda: broker.image.topic("orders") is None)
            assert not [name for name in await page(broker) if "ottla_topic" in name]

    run(test)


def test_errors_are_counted_by_api_and_kafkas_name_for_them(tmp_path):
    async def test():
        async with brokers(tmp_path, 1, **METRICS, auto_create_topics_enable="false") as (broker,):
            bootstrap = await with_topics(broker, "orders")
            assert not [name for name in await page(broker) if "ottla_errors" in name]
            async with Client.to(broker) as client:
                for partition in (0, 7, 8):
                    wanted = ListOffsetsPartition(partition_index=partition, timestamp=-1)
                    topics = [ListOffsetsTopic(name="orders", partitions=[wanted])]
                    await client.call(ListOffsetsRequest(replica_id=-1, topics=topics), ListOffsetsResponse, 8)
            limited = broker.replica_manager.find("orders", 0)
            limited.policy = replace(limited.policy, bytes_max=10)
            async with Producer(bootstrap) as producer:
                with pytest.raises(ClientError):
                    await producer.send_and_wait("orders", b"x" * 100)
            metrics = await page(broker)
            assert metrics['ottla_errors_total{api="ListOffsets",error="UNKNOWN_TOPIC_OR_PARTITION"}'] == 2
            assert metrics['ottla_errors_total{api="Produce",error="MESSAGE_TOO_LARGE"}'] == 1
            assert metrics['ottla_request_seconds_count{api="ListOffsets"}'] == 3

    run(test)
