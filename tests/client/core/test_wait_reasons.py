"""Waits say why: a warning while it lasts, the reason in the error when time is up, and that mends the matter."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.client.admin import Admin, ResourceKind
from ottla.client.consuming.consumer import Consumer
from ottla.client.core import driver, wait_reasons
from ottla.client.core.requests import Node
from ottla.client.core.wait_reasons import (
    AGAIN_SECONDS,
    FORGOTTEN_SECONDS,
    PATIENCE_SECONDS,
    InFlightRequests,
    WaitReasons,
)
from ottla.client.errors import BUSY, ClientError, NotUnderstood, TimedOut, UnknownTopic
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.testing import Broker
from ottla.wire.schema.fetch import FetchRequest
from ottla.wire.schema.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.schema.metadata import MetadataRequest
from tests.harness.in_process import brokers, run, start_broker, stop_broker

# The machine.


def test_a_lasting_reason_is_logged_after_patience_and_again_every_minute():
    machine = WaitReasons()
    reported = [at for at in range(int(AGAIN_SECONDS) + 20) if machine.look([("orders-0", "no leader")], float(at))]
    assert reported == [PATIENCE_SECONDS, PATIENCE_SECONDS + AGAIN_SECONDS]


def test_a_reason_that_is_over_is_not_logged():
    machine = WaitReasons()
    machine.note("Heartbeat", "not coordinator", 0.0)
    assert machine.look([], FORGOTTEN_SECONDS - 1) == [], "it was met only once"
    machine.look([], FORGOTTEN_SECONDS + 1)
    assert not machine
    machine.note("Heartbeat", "not coordinator", 20.0)
    machine.over("Heartbeat")
    assert machine.reasons() == ""


def test_an_answer_is_noted_with_the_brokers_own_words_until_another_comes():
    machine = WaitReasons()
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    refused = Coordinator(key="g", error_code=ErrorCode.coordinator_not_available, error_message="it needs 3 brokers")
    machine.heard(request, FindCoordinatorResponse(coordinators=[refused]), 0.0)
    assert machine.reasons() == "coordinator of g: coordinator not available: it needs 3 brokers"
    machine.heard(request, FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1)]), 1.0)
    assert machine.reasons() == ""
    warned = Coordinator(key="g", node_id=1, error_message="1 of 3 replicas in sync")
    machine.heard(request, FindCoordinatorResponse(coordinators=[warned]), 2.0)
    assert machine.reasons() == "coordinator of g: 1 of 3 replicas in sync", "found, and it writes nothing down"
    kafkas = Coordinator(key="g", node_id=1, error_message="NONE")
    machine.heard(request, FindCoordinatorResponse(coordinators=[kafkas]), 3.0)
    assert machine.reasons() == ""


def test_find_coordinator_gives_the_reason_why_a_coordinator_is_not_available():
    machine = WaitReasons()
    found = FindCoordinatorRequest(coordinator_keys=["t"])
    refused = InitProducerIdResponse(error_code=ErrorCode.coordinator_not_available)
    for at in (0.0, 1.0, PATIENCE_SECONDS):
        machine.heard(InitProducerIdRequest(), refused, at)
    assert "InitProducerId: coordinator not available; " in machine.reasons(), "nobody knows more"
    warned = Coordinator(key="t", node_id=1, error_message="1 of 3 replicas in sync")
    for at in (0.0, 1.0, PATIENCE_SECONDS):
        machine.heard(found, FindCoordinatorResponse(coordinators=[warned]), at)
    assert machine.reasons() == "coordinator of t: 1 of 3 replicas in sync"
    assert machine.look([], PATIENCE_SECONDS) == ["coordinator of t: 1 of 3 replicas in sync"]


def test_a_broker_that_does_not_answer_is_reported_until_it_does():
    machine, unanswered = WaitReasons(), InFlightRequests()
    broker = Node(3, "here", 9092)
    fetch = FetchRequest(max_wait_ms=2000)
    number = unanswered.sent(broker, fetch, 0.0)
    reported = []
    for at in range(1, 12):
        unanswered.look(machine, float(at))
        reported += [(at, each) for each in machine.look([], float(at))]
    why = "broker 3 at here:9092 does not answer (Fetch): it hangs, is paused or busy, or waits for others"
    assert reported == [(7, f"{why}; look at its log")], "after the time that it may wait, and the patience"
    unanswered.over(number)  # given up: it is asked again
    number = unanswered.sent(broker, fetch, 12.0)
    again = unanswered.sent(broker, MetadataRequest(), 12.0)
    for at in range(12, 60):
        unanswered.look(machine, float(at))
        assert machine.look([], float(at)) == [], "it was told within this minute"
    unanswered.answered(again, machine, 60.0)
    assert machine, "one is still owed"
    unanswered.answered(number, machine, 60.0)
    assert not machine


def test_the_same_reason_of_many_partitions_is_logged_once():
    machine = WaitReasons()
    obstacles = [(f"orders-{n}", f"orders-{n}: no leader") for n in range(5)] + [("topic x", "topic x: unknown")]
    assert machine.look(obstacles, 0.0) == []
    reported = ["5 partitions (orders-0, orders-1, orders-2, and 2 more): no leader", "topic x: unknown"]
    assert machine.look(obstacles, PATIENCE_SECONDS) == reported
    assert machine.reasons() == "; ".join(reported)


# Whole clients.


@pytest.fixture
def warnings(monkeypatch, caplog):
    """The warnings so far, of clients that lose patience at once."""
    monkeypatch.setattr(wait_reasons, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(driver, "LOOK_SECONDS", 0.05)
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "ottla.client"]


def said(warnings, *parts):
    return lambda: any(all(part in line for part in ("still trying: ", *parts)) for line in warnings())


def address(broker):
    return f"127.0.0.1:{broker.listeners[0].port}"


def listening_at(broker):
    return {"listeners": f"PLAINTEXT://{address(broker)}"}


def test_a_group_without_enough_brokers_for_its_offsets_names_the_setting(tmp_path, warnings):
    async def test():
        broker = await start_broker(tmp_path, 1)
        async with Consumer("orders", bootstrap_servers=address(broker), group_id="g") as consumer:
            waiting = asyncio.create_task(consumer.getone())
            await until(said(warnings, "coordinator of g", "needs 3 brokers", "offsets.topic.replication.factor=1"))
            settings = listening_at(broker)
            await stop_broker(broker)
            broker = await start_broker(tmp_path, 1, offsets_topic_replication_factor="1", **settings)
            async with Producer(address(broker)) as producer:
                await producer.send_and_wait("orders", b"first")  # where the group begins: at the end
                await until(lambda: consumer.assignment())
                await consumer.seek_to_beginning()
                assert (await waiting).value == b"first"
        await stop_broker(broker)

    run(test)


def test_a_transaction_without_enough_brokers_for_its_state_names_the_setting(tmp_path, warnings):
    async def test():
        broker = await start_broker(tmp_path, 1)
        setting = "transaction.state.log.replication.factor=1"
        with pytest.raises(TimedOut, match=f"needs 3 brokers .the cluster has 1.*{setting}"):
            await Producer(address(broker), transactional_id="t", max_block_ms=900).start()
        assert said(warnings, "coordinator of t", setting)()
        await stop_broker(broker)
        broker = await start_broker(tmp_path, 1, transaction_state_log_replication_factor="1")
        async with Producer(address(broker), transactional_id="t") as producer, producer.transaction():
            await producer.send("orders", b"a")
        await stop_broker(broker)

    run(test)


def test_a_coordinator_with_too_few_in_sync_replicas_names_the_setting_and_the_brokers_to_start(tmp_path, warnings):
    settings = {"transaction_state_log_replication_factor": "2", "transaction_state_log_num_partitions": "1"}
    settings["offsets_commit_timeout_ms"] = "300"
    mends = "start broker 2, or `ottla configs set topic __transaction_state min.insync.replicas=1`"
    setting = "has 1 of 2 replicas in sync, fewer than min.insync.replicas=2 (from transaction.state.log.min.isr)"

    async def test():
        async with brokers(tmp_path, 1, **settings) as (first,):
            second = await start_broker(tmp_path, 2, **settings)
            await until(lambda: len(first.image.brokers) == 2)
            await first.cluster.create_topics([TopicSpec("orders", assignments=[(0, [1])])])
            async with Producer(address(first), transactional_id="t") as producer, producer.transaction():
                await producer.send("orders", b"a")
            await stop_broker(second)
            await until(lambda: first.replica_manager.find("__transaction_state", 0).in_sync == (1,))
            with pytest.raises(TimedOut, match=r"the transaction's coordinator did not answer within 0\.9 s") as failed:
                await Producer(address(first), transactional_id="u", max_block_ms=900).start()
            assert f"coordinator of u: __transaction_state-0 {setting}: {mends}" in str(failed.value)
            producer = Producer(address(first), transactional_id="u")
            starting = asyncio.create_task(producer.start())
            await until(said(warnings, setting, mends))
            async with Admin(address(first)) as admin:
                configs = {"min.insync.replicas": "1"}
                await admin.alter_configs(ResourceKind.TOPIC, "__transaction_state", put=configs)
            await starting
            async with producer.transaction():
                await producer.send("orders", b"b")
            await producer.stop()

    run(test)


def test_not_enough_replicas_is_reported_with_the_number_in_sync(tmp_path, warnings):
    async def test():
        async with brokers(tmp_path, 1) as (first,):
            second = await start_broker(tmp_path, 2)
            await until(lambda: len(first.image.brokers) == 2)
            spec = TopicSpec("orders", assignments=[(0, [1, 2])], configs={"min.insync.replicas": "2"})
            await first.cluster.create_topics([spec])
            await stop_broker(second)
            await until(lambda: first.replica_manager.find("orders", 0).in_sync == (1,))
            async with Producer(address(first), delivery_timeout_ms=800, request_timeout_ms=500) as producer:
                why = "1 in sync .broker 1., and min.insync.replicas is 2; `ottla topics describe orders` shows"
                with pytest.raises(TimedOut, match=f"not delivered within 800 ms; last: not enough replicas: {why}"):
                    await producer.send_and_wait("orders", b"refused")
                mends = "`ottla configs set topic orders min.insync.replicas=1`"
                assert said(warnings, "orders-0", "min.insync.replicas is 2", mends)()
                async with Admin(address(first)) as admin:
                    await admin.alter_configs(ResourceKind.TOPIC, "orders", put={"min.insync.replicas": "1"})
                assert (await producer.send_and_wait("orders", b"taken")).offset == 0

    run(test)


def test_a_partition_without_a_leader_names_the_brokers_to_start(tmp_path, warnings):
    async def test():
        async with brokers(tmp_path, 1) as (first,):
            second = await start_broker(tmp_path, 2)
            await until(lambda: len(first.image.brokers) == 2)
            await first.cluster.create_topics([TopicSpec("orders", assignments=[(0, [2])])])
            await stop_broker(second)
            await until(lambda: first.replica_manager.leader_of("orders", 0)[0] == -1)
            async with Consumer(bootstrap_servers=address(first), auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["orders"])
                waiting = asyncio.create_task(consumer.getone())
                why = "it has no leader; `ottla topics describe orders` shows which brokers have its replicas"
                await until(said(warnings, "orders-0", why))
                async with Producer(address(first), delivery_timeout_ms=600, request_timeout_ms=500) as producer:
                    with pytest.raises(TimedOut, match=f"not delivered within 600 ms; last: {why}"):
                        await producer.send_and_wait("orders", b"refused", partition=0)
                second = await start_broker(tmp_path, 2)
                async with Producer(address(first)) as producer:
                    await producer.send_and_wait("orders", b"taken")
                assert (await waiting).value == b"taken"
            await stop_broker(second)

    run(test)


def test_a_consumer_of_a_missing_topic_reports_it_and_reads_once_the_topic_exists(tmp_path, warnings):
    async def test():
        async with brokers(tmp_path, 1, offsets_topic_replication_factor="1") as (broker,):
            for group in (None, "g"):
                topic = f"orders-of-{group}"
                config = {"group.id": group, "auto.offset.reset": "earliest", "metadata.max.age.ms": 200}
                async with Consumer(topic, bootstrap_servers=address(broker), config=config) as consumer:
                    waiting = asyncio.create_task(consumer.getone())
                    await until(said(warnings, f"topic {topic}: unknown topic", f"`ottla topics create {topic}`"))
                    await broker.cluster.create_topics([TopicSpec(topic, 1, 1)])
                    async with Producer(address(broker)) as producer:
                        await producer.send_and_wait(topic, b"there")
                    assert (await waiting).value == b"there"

    run(test)


def test_a_producer_to_a_missing_topic_says_how_to_create_it(tmp_path, warnings):
    async def test():
        async with (
            brokers(tmp_path, 1, auto_create_topics_enable="false") as (broker,),
            Producer(address(broker), max_block_ms=600) as producer,
        ):
            with pytest.raises(UnknownTopic, match="topic orders: there is no such topic") as failed:
                await producer.send("orders", b"a")
            assert failed.value.hint is not None
            assert "ottla topics create" in failed.value.hint
            assert said(warnings, "topic orders", "`ottla topics create orders`")()

    run(test)


def test_a_port_that_is_no_broker_is_named(tmp_path, warnings):
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    async def test():
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        config = {"bootstrap.timeout.ms": 700, "request.timeout.ms": 60_000}
        why = f"127.0.0.1:{port} has not answered; is a Kafka broker there?"
        with pytest.raises(TimedOut, match=r"no broker has answered within 0\.7 s") as failed:
            await Producer(f"127.0.0.1:{port}", config=config).start()
        assert why in str(failed.value)
        assert said(warnings, why)()
        server.close()
        async with (
            brokers(tmp_path, 1) as (broker,),
            Producer([f"127.0.0.1:{port}", address(broker)], bootstrap_timeout_ms=20_000) as producer,
        ):
            await producer.send_and_wait("orders", b"a")

    run(test)


@pytest.mark.ottla(brokers=1)
def test_a_broker_that_hangs_is_named_by_clients_that_were_connected(ottla_cluster, warnings):
    async def test():
        address = ottla_cluster.bootstrap_servers
        async with Producer(address) as producer, Admin(address) as admin:
            await producer.send_and_wait("orders", b"a")
            await admin.list_topics()
            async with Consumer("orders", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
                assert (await consumer.getone()).value == b"a"
                reading = asyncio.create_task(consumer.getone())
                await asyncio.sleep(0.7)
                assert not warnings(), "a fetch may wait for records"
                with ottla_cluster.paused(1):
                    writing = asyncio.create_task(producer.send_and_wait("orders", b"b"))
                    listing = asyncio.create_task(admin.list_topics())
                    for api in ("Produce", "Fetch", "Metadata"):
                        await until(said(warnings, f"broker 1 at {address} does not answer ({api})", "look at its log"))
                await asyncio.gather(writing, listing)
                assert (await reading).value == b"b"

    run(test)


# Commands.

OWN_LIMITS = pytest.param([], marks=pytest.mark.long, id="the limits of the commands")
COMMANDS = [["topics", "list"], ["produce", "orders"], ["consume", "orders", "-e"], ["cluster"]]


@pytest.fixture
def silent_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("limits", [["-X", "socket.connection.setup.timeout.ms=300"], OWN_LIMITS])
def test_a_command_names_the_port_that_is_no_broker_at_the_end_too(silent_port, command, limits):
    done = CliRunner().invoke(cli, [*command, "-b", f"127.0.0.1:{silent_port}", *limits], input="x\n")
    assert done.exit_code == 75
    assert f"error: 127.0.0.1:{silent_port} has not answered; is a Kafka broker there?" in done.stderr
    assert "Another program may listen there, or a broker that hangs. Another address: -b HOST:PORT" in done.stderr
    assert "busy or paused" not in done.stderr


def test_a_port_that_speaks_http_is_recognised(tmp_path):
    async def test():
        async with brokers(tmp_path, 1, ottla_metrics_port="0") as (broker,):
            assert broker._status is not None
            with pytest.raises(NotUnderstood, match="does not speak Kafka's protocol: it speaks HTTP"):
                await Admin(f"127.0.0.1:{broker._status.port}").start()

    run(test)


def test_a_reason_has_no_contradicting_hint(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,), Producer(address(broker)) as producer:
            driver = producer._driver
            assert driver.timed_out("nothing came").hint == BUSY
            driver.waits.note("disk", "No space left on device; make room", driver.runtime.now())
            reported = driver.timed_out("nothing came")
            assert (str(reported), reported.hint) == ("nothing came; No space left on device; make room", None)
            assert TimedOut("orders-0: not delivered; last: No space left on device").hint is None

    run(test)


def test_a_command_prints_why_it_waits_on_standard_error_and_at_the_end(monkeypatch):
    monkeypatch.setattr(wait_reasons, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(driver, "LOOK_SECONDS", 0.05)
    with Broker({"offsets.topic.replication.factor": 3}) as broker:
        arguments = ["-b", broker.bootstrap_servers, "-X", "default.api.timeout.ms=1500"]
        done = CliRunner().invoke(cli, ["groups", "describe", "g", *arguments])
    needs = "__consumer_offsets cannot be created yet: it needs 3 brokers (the cluster has 1)"
    mends = "Start more, or all with --set offsets.topic.replication.factor=1."
    assert done.exit_code == 75
    assert done.stdout == ""
    first, *_, last = done.stderr.splitlines()
    assert first == f"ottla: still trying: coordinator of g: coordinator not available: {needs}. {mends}"
    assert last == f"ottla: error: coordinator of g: {needs}. {mends}"


def test_a_command_that_cannot_commit_ends_with_the_brokers_to_start(tmp_path):
    """The coordinator is found, and its refusals have no room for a reason."""

    async def commit(address: str) -> None:
        async with Admin(address, config={"default.api.timeout.ms": 900}) as admin:
            with pytest.raises(ClientError, match="coordinator not available") as failed:
                await admin.alter_group_offsets("g", {TopicPartition("orders", 0): 0})
        assert failed.value.hint is not None
        assert "__consumer_offsets-0 has 1 of 2 replicas in sync, fewer than min.insync.replicas=2" in failed.value.hint

    async def test():
        settings = {"offsets_topic_replication_factor": "2", "offsets_topic_num_partitions": "1"}
        settings |= {"offsets_commit_timeout_ms": "100", "min_insync_replicas": "2"}
        async with brokers(tmp_path, 1, **settings) as (first,):
            second = await start_broker(tmp_path, 2, **settings)
            await until(lambda: len(first.image.brokers) == 2)
            await first.cluster.create_topics([TopicSpec("orders", assignments=[(0, [1])])])
            async with Admin(address(first)) as admin:
                await admin.alter_group_offsets("g", {TopicPartition("orders", 0): 0})
            await stop_broker(second)
            await until(lambda: first.replica_manager.find("__consumer_offsets", 0).in_sync == (1,))
            await commit(address(first))

    run(test)
