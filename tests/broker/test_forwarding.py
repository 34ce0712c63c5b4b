"""Forwarding to the controller: another broker, a new controller, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ottla.broker import topic_creation
from ottla.broker.broker import Broker
from ottla.cluster.requests import TopicResult, TopicSpec
from ottla.errors import ErrorCode, Fault, Refused
from ottla.local.waiting import until
from ottla.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.harness.in_process import Client, brokers, run, start_broker, stop_broker


def creation(*names: str, timeout_ms: int = 10_000) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)


async def create(broker: Broker, *names: str, timeout_ms: int = 10_000) -> dict[str, int]:
    async with Client.to(broker) as client:
        answer = await client.call(creation(*names, timeout_ms=timeout_ms), CreateTopicsResponse, 7)
        return {topic.name: topic.error_code for topic in answer.topics}


Create = Callable[[Sequence[TopicSpec]], Awaitable[list[TopicResult]]]


def hang_up_when(broker: Broker, *, done: bool) -> list[int]:
    """Break off connections of other brokers as soon as a topic was created, or before. Counts what was asked."""
    really: Create = broker.cluster.create_topics
    asked: list[int] = []

    async def create_topics(specs: Sequence[TopicSpec], *, validate_only: bool = False) -> list[TopicResult]:
        asked.append(len(specs))
        results = await really(specs) if done else []
        for connection in list(broker._server.inter_broker_connections):
            connection.abort()
        return results

    broker.cluster.create_topics = create_topics  # type: ignore[method-assign]
    return asked


def refuse_all(broker: Broker) -> None:
    """The controller does not think it is."""

    class Nobody(type(broker.cluster)):  # type: ignore[misc]
        is_controller = False

    broker.cluster.__class__ = Nobody


def test_a_request_that_may_have_been_done_is_not_sent_again(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            asked = hang_up_when(one, done=True)
            assert await create(two, "a", "b") == dict.fromkeys("ab", ErrorCode.request_timed_out)
            assert asked == [2]
            await until(lambda: {"a", "b"} <= set(two.image.topics))  # it was done, and nobody could know

    run(test)


def test_an_idempotent_request_is_sent_again(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            assert await create(two, "a") == {"a": 0}
            really = one.cluster.alter_topic_configs
            breaks = [True]

            async def alter_topic_configs(*args, **options):
                if breaks and breaks.pop():
                    for connection in list(one._server.inter_broker_connections):
                        connection.abort()
                return await really(*args, **options)

            one.cluster.alter_topic_configs = alter_topic_configs  # type: ignore[method-assign]
            edit = AlterableConfig(name="retention.ms", value="4711")
            request = IncrementalAlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=2, resource_name="a", configs=[edit])]
            )
            async with Client.to(two) as client:
                answer = await client.call(request, IncrementalAlterConfigsResponse, 1)
            assert [each.error_code for each in answer.responses] == [0]
            assert two.image.topics["a"].configs == {"retention.ms": "4711"}

    run(test)


def test_a_request_waits_for_the_next_controller(tmp_path):
    async def test() -> None:
        one, two = await start_broker(tmp_path, 1), await start_broker(tmp_path, 2)
        await until(lambda: len(two.image.brokers) == 2)
        try:
            refuse_all(one)
            waiting = asyncio.create_task(create(two, "a"))
        finally:
            await stop_broker(one)
        try:
            assert await waiting == {"a": 0}
            assert two.cluster.is_controller
        finally:
            await stop_broker(two)

    run(test)


def test_an_old_controller_answers_not_controller_and_the_request_finds_the_new_one(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            deposed = [True, True]
            really = type(one.cluster).is_controller

            class Deposed(type(one.cluster)):  # type: ignore[misc]
                @property
                def is_controller(self) -> bool:
                    return not (deposed and deposed.pop()) and really.fget(self)  # type: ignore[attr-defined]

            one.cluster.__class__ = Deposed
            assert await create(two, "a") == {"a": 0}
            assert not deposed

    run(test)


def test_without_a_controller_the_request_times_out(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            controller = one.cluster.image.controller_id
            assert controller == 1
            refuse_all(one)
            began = two.runtime.now()
            answer = await create(two, "a", "b", timeout_ms=300)
            assert answer == dict.fromkeys("ab", ErrorCode.not_controller)
            assert 0.3 <= two.runtime.now() - began < 5

    run(test)


def test_automatically_created_topics_are_in_the_same_metadata_response(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (_, two), Client.to(two) as client:
            wanted = [MetadataRequestTopic(name="first-use"), MetadataRequestTopic(name="no/topic")]
            answer = await client.call(MetadataRequest(topics=wanted), MetadataResponse, 9)
            codes = {topic.name: topic.error_code for topic in answer.topics}
            assert codes == {"first-use": 0, "no/topic": ErrorCode.invalid_topic_exception}

    run(test)


def test_topics_that_cannot_be_created_now_get_an_error_that_clients_retry(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two), Client.to(two) as client:

            async def out_of_reach(*_: object, **__: object) -> list[TopicResult]:
                raise Fault("the store is out of reach")

            async def deposed(*_: object, **__: object) -> list[TopicResult]:
                raise Refused(ErrorCode.not_controller)

            wanted = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
            for failing, code in ((out_of_reach, ErrorCode.request_timed_out), (deposed, ErrorCode.not_controller)):
                one.cluster.create_topics = failing  # type: ignore[method-assign]
                for broker in (one, two):
                    (result,) = await broker.context.topic_creation.create([TopicSpec("t")])
                    assert result.code == code
                answer = await client.call(wanted, MetadataResponse, 9)
                assert answer.topics[0].error_code == ErrorCode.leader_not_available

    run(test)


def test_the_error_names_a_store_that_does_not_answer_and_what_to_do(tmp_path):
    async def asked(broker: Broker, timeout_ms: int = 10_000) -> tuple[int, str | None]:
        async with Client.to(broker) as client:
            answer = await client.call(creation("t", timeout_ms=timeout_ms), CreateTopicsResponse, 7)
            return answer.topics[0].error_code, answer.topics[0].error_message

    async def out_of_reach(*_: object, **__: object) -> list[TopicResult]:
        raise Fault("the store is out of reach")

    async def test() -> None:
        async with brokers(tmp_path, 1) as (broker,):
            broker.cluster.create_topics = out_of_reach  # type: ignore[method-assign]
            code, words = await asked(broker)
            store = f"The store of the cluster (embedded:{tmp_path}/store.db)"
            doubt = "did not answer: whether this was done is not known. Look at its disk, and at the log of broker 1"
            assert (code, words) == (ErrorCode.request_timed_out, f"{store} {doubt}. Then try again.")
            object.__setattr__(broker.config, "ottla_store", "zookeeper:here:2181/ottla")
            code, words = await asked(broker)
            assert words is not None
            assert words.startswith("The store of the cluster (zookeeper:here:2181/ottla) did not answer: whether")
            assert "Start ZooKeeper again, or look at its log and at the network between it and broker 1" in words
            refuse_all(broker)
            broker.cluster.__class__.has_session_lease = False  # type: ignore[method-assign, assignment]
            code, words = await asked(broker, timeout_ms=200)
            assert code == ErrorCode.request_timed_out
            assert words is not None
            assert "does not answer, so there is no controller, and nothing was done. Start ZooKeeper again" in words

    run(test)


def test_a_topic_has_the_same_specification_on_controller_and_broker():
    spec = TopicSpec("t", 2, 3, [(0, (1, 2)), (1, (2, 3))], {"retention.ms": "1", "cleanup.policy": None})
    made = topic_creation._creatable(spec)
    assert (made.name, made.num_partitions, made.replication_factor) == ("t", 2, 3)
    assert [(each.partition_index, each.broker_ids) for each in made.assignments] == [(0, [1, 2]), (1, [2, 3])]
    assert {each.name: each.value for each in made.configs} == {"retention.ms": "1", "cleanup.policy": None}


def test_a_timed_out_client_does_not_fail_requests_of_others(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            really = one.cluster.create_topics
            goes_on = asyncio.Event()
            asked: list[str] = []

            async def create_topics(specs: Sequence[TopicSpec], *, validate_only: bool = False) -> list[TopicResult]:
                asked.extend(spec.name for spec in specs)
                await goes_on.wait()
                return await really(specs)

            one.cluster.create_topics = create_topics  # type: ignore[method-assign]
            patient = asyncio.create_task(create(two, "patient"))
            await until(lambda: asked == ["patient"])
            assert await create(two, "hurried", timeout_ms=100) == {"hurried": ErrorCode.request_timed_out}
            goes_on.set()
            assert await patient == {"patient": 0}
            assert await create(two, "later") == {"later": 0}

    run(test)
