"""Transactions of our producer with a real broker."""

from __future__ import annotations

import asyncio

import pytest

from ottla.blocking import Producer as BlockingProducer
from ottla.client.admin import Admin
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import BadSetting, ClientError
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from tests.client.clients import create, read, run
from tests.conftest import Served


async def committed(broker: Served, topic: str, count: int) -> list[bytes]:
    async with Consumer(
        topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        return [record.value for record in await read(consumer, count)]


class Oops(Exception):
    pass


async def fail_inside(producer: Producer, topic: str) -> None:
    async with producer.transaction():
        for number in range(10):
            await producer.send(topic, b"no %d" % number)
        await producer.flush()
        raise Oops


def test_committed_records_are_read_and_aborted_records_are_not(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 2)
        async with Producer(broker.bootstrap, transactional_id=topic) as producer:
            for attempt in range(3):
                with pytest.raises(Oops):
                    await fail_inside(producer, topic)
                async with producer.transaction():
                    await producer.send(topic, b"yes %d" % attempt, partition=attempt % 2)
            await producer.begin_transaction()
            await producer.send(topic, b"left open")
        assert sorted(await committed(broker, topic, 3)) == [b"yes 0", b"yes 1", b"yes 2"]

    run(scenario())


def test_a_transaction_that_cannot_be_committed_is_aborted_when_it_is_left(broker: Served, fresh_name):
    topic = fresh_name()
    run(create(broker.bootstrap, topic, max_message_bytes="1000"))

    async def scenario() -> None:
        async with Producer(broker.bootstrap, transactional_id=topic) as producer:
            with pytest.raises(ClientError) as failed:
                async with producer.transaction():
                    sent = await producer.send(topic, bytes(5000))
            assert failed.value is sent.exception()
            assert failed.value.code is ErrorCode.message_too_large
            async with producer.transaction():
                await producer.send(topic, b"first")

    run(scenario())
    with BlockingProducer(broker.bootstrap, transactional_id=topic) as producer:
        with pytest.raises(ClientError) as failed, producer.transaction():
            producer.send(topic, bytes(5000))
        assert failed.value.code is ErrorCode.message_too_large
        with producer.transaction():
            producer.send(topic, b"second")
    assert run(committed(broker, topic, 2)) == [b"first", b"second"]


def test_a_record_refused_after_send_returned_fails_the_transaction(broker: Served, fresh_name):
    topic = fresh_name()
    run(create(broker.bootstrap, topic))

    def choosy(_, record, partitions):
        if record.value == b"bad":
            raise KeyError("bad")
        return partitions[0]

    with BlockingProducer(broker.bootstrap, transactional_id=topic, partitioner=choosy) as producer:
        for refused, words in ((bytes(2_000_000), "max_request_size"), (b"bad", "KeyError")):
            with pytest.raises(ClientError, match=words), producer.transaction():
                _ = [producer.send(topic, value) for value in (b"before it", refused)]
        producer.begin_transaction()
        producer.send(topic, b"bad")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"whole")
    assert run(committed(broker, topic, 1)) == [b"whole"]


def test_offsets_count_with_the_transaction(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        partition = TopicPartition(topic, 0)
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, transactional_id=topic) as producer, Admin(broker.bootstrap) as admin:
            await producer.begin_transaction()
            await producer.send(topic, b"v")
            await producer.send_offsets_to_transaction({partition: 5}, "g-" + topic)
            await producer.abort_transaction()
            assert await admin.group_offsets("g-" + topic) == {}
            async with producer.transaction():
                await producer.send(topic, b"v")
                await producer.send_offsets_to_transaction({partition: (7, "so far")}, "g-" + topic)

            async def counts() -> bool:
                found = (await admin.group_offsets("g-" + topic)).get(partition)
                return found is not None and found[:2] == (7, "so far")

            await until(counts, "the group's coordinator to hear how the transaction ended")
            async with producer.transaction():
                await producer.send_offsets_to_transaction({partition: (8, "not yet")}, "g-" + topic)
                before = await admin.group_offsets("g-" + topic, [partition], stable=False)
                assert before[partition][:2] == (7, "so far")

    run(scenario())


def test_the_second_producer_with_a_transactional_id_fences_the_first(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, transactional_id=topic) as old:
            await old.begin_transaction()
            await old.send_and_wait(topic, b"old")
            async with Producer(broker.bootstrap, transactional_id=topic) as new:
                async with new.transaction():
                    await new.send(topic, b"new")
                with pytest.raises(ClientError) as fenced:
                    await old.commit_transaction()
                assert fenced.value.fatal
                with pytest.raises(ClientError):
                    await old.begin_transaction()
        assert await committed(broker, topic, 1) == [b"new"]

    run(scenario())


def test_records_outside_a_transaction_are_refused(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, transactional_id=topic) as producer:
            with pytest.raises(ClientError, match="begin_transaction") as outside:
                await producer.send(topic, b"v")
            assert outside.value.code is ErrorCode.invalid_txn_state
            with pytest.raises(ClientError):
                await producer.commit_transaction()
        async with Producer(broker.bootstrap) as plain:
            with pytest.raises(BadSetting, match="transactional_id"):
                await plain.begin_transaction()

    run(scenario())


def test_transactions_without_async(broker: Served, fresh_name):
    topic = fresh_name()
    asyncio.run(create(broker.bootstrap, topic))
    with BlockingProducer(broker.bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            sent = [producer.send(topic, b"%d" % number) for number in range(1000)]
        assert [each.result().offset for each in sent] == list(range(1000))
        producer.begin_transaction()
        producer.send(topic, b"no")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"last")
    assert run(committed(broker, topic, 1001))[-1] == b"last"


def test_a_handed_over_transaction_is_ended_by_an_admin_client(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        handed = []
        for number, name in enumerate((f"{topic}-kept", f"{topic}-dropped", f"{topic}-taken-over")):
            async with Producer(broker.bootstrap, transactional_id=name) as producer:
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % number)
                handed.append(await producer.hand_over_transaction())
                with pytest.raises(ClientError, match="another process ends"):
                    await producer.commit_transaction()
        async with Producer(broker.bootstrap, transactional_id=f"{topic}-taken-over"):
            pass
        async with Admin(broker.bootstrap) as admin:
            for committed_, transaction in ((True, handed[0]), (False, handed[1]), (True, handed[0])):
                await admin.end_transaction(transaction, committed=committed_)
            with pytest.raises(ClientError) as fenced:
                await admin.end_transaction(handed[2], committed=True)
            assert fenced.value.fatal
        assert await committed(broker, topic, 1) == [b"0"]

    run(scenario())


def test_a_producer_that_has_handed_over_takes_its_id_over_for_the_next_transaction(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, transactional_id=topic) as producer, Admin(broker.bootstrap) as admin:
            for number, outcome in enumerate((True, False, None, True)):
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % number)
                handed = await producer.hand_over_transaction()
                if outcome is not None:  # else it is aborted as the id is taken over
                    await admin.end_transaction(handed, committed=outcome)
                with pytest.raises(ClientError, match="another process ends"):
                    await producer.begin_transaction()
                await producer.init_transactions()
            async with Producer(broker.bootstrap, transactional_id=topic):
                pass
            await producer.init_transactions()  # also outside a transaction, when another one may have the id
            async with producer.transaction():
                await producer.send(topic, b"last")
                with pytest.raises(ClientError, match="inside a transaction"):
                    await producer.init_transactions()
        assert await committed(broker, topic, 3) == [b"0", b"3", b"last"]

    run(scenario())
