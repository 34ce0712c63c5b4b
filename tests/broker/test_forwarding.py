"""Forwarding to the controller: another broker, a new controller, lost connections."""

from __future__ import annotations

import asyncio

from ottla.access.session import Session
from ottla.broker import topic_creation
from ottla.broker.broker import Broker
from ottla.broker.peers import packed_address
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.net.server import Connection, Pending, Reply, Serve
from ottla.wire import messages
from ottla.wire.apis import ALTER_PARTITION, APIS, ENVELOPE
from ottla.wire.frame import framed, parse_request_header, request_header, response_header
from ottla.wire.schema.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.schema.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.harness.failing_store import store_of
from tests.harness.in_process import Client, brokers, run, start_broker, stop_broker


def creation(*names: str, timeout_ms: int = 10_000) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)


async def create(broker: Broker, *names: str, timeout_ms: int = 10_000) -> dict[str, int]:
    async with Client.to(broker) as client:
        answer = await client.call(creation(*names, timeout_ms=timeout_ms), CreateTopicsResponse, 7)
        return {topic.name: topic.error_code for topic in answer.topics}


class Forwarded:
    """What the first broker, the controller, does with the requests that others forward to it (Envelope)."""

    def __init__(self) -> None:
        self.requests: list[EnvelopeRequest] = []
        self.hangs_up_before = 0
        """So many requests break their connection instead of being served."""
        self.hangs_up_after = 0
        """So many break it when they have been served, before the response is sent."""
        self.not_controller = 0
        """So many are answered by a controller that was replaced."""
        self.error = ErrorCode.none
        """The answer to all of them."""
        self.waits: asyncio.Event | None = None
        """They are served when it is set."""

    def intercept(self, serve: Serve) -> Serve:
        def served(connection: Connection, frame: memoryview) -> Reply | Pending:
            key, version, correlation_id, _, pos = parse_request_header(frame)
            if key != ENVELOPE:
                return serve(connection, frame)
            self.requests.append(messages.decode(EnvelopeRequest, version, frame, pos))
            if self.hangs_up_before:
                self.hangs_up_before -= 1
                connection.abort()
                return None
            error = self.error
            if self.not_controller:
                self.not_controller -= 1
                error = ErrorCode.not_controller
            if error:
                body = messages.encode(EnvelopeResponse(error_code=error), version)
                return framed(response_header(ENVELOPE, version, correlation_id), body)
            if self.waits is not None and not self.waits.is_set():
                return self._later(serve, connection, bytes(frame))
            reply = serve(connection, frame)
            if self.hangs_up_after:
                self.hangs_up_after -= 1
                assert isinstance(reply, Pending)
                reply.ended = connection.abort
            return reply

        return served

    def _later(self, serve: Serve, connection: Connection, frame: bytes) -> Pending:
        later = Pending(overlaps=True)

        async def served() -> None:
            assert self.waits is not None
            await self.waits.wait()
            reply = serve(connection, memoryview(frame))
            assert isinstance(reply, Pending)
            reply.ended = lambda: later.resolve(reply.reply)

        self._serving = asyncio.create_task(served())
        return later


ALWAYS = 10**9


def test_a_request_that_may_have_been_done_is_not_sent_again(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        forwarded.hangs_up_after = 1
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (_, two):
            assert await create(two, "a", "b") == dict.fromkeys("ab", ErrorCode.request_timed_out)
            assert len(forwarded.requests) == 1
            await until(lambda: {"a", "b"} <= set(two.image.topics))  # it was done, and nobody could know

    run(test)


def test_an_idempotent_request_is_sent_again(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (_, two):
            assert await create(two, "a") == {"a": 0}
            forwarded.hangs_up_before = 1
            edit = AlterableConfig(name="retention.ms", value="4711")
            request = IncrementalAlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=2, resource_name="a", configs=[edit])]
            )
            async with Client.to(two) as client:
                answer = await client.call(request, IncrementalAlterConfigsResponse, 1)
            assert [each.error_code for each in answer.responses] == [0]
            assert two.image.topics["a"].configs == {"retention.ms": "4711"}
            assert len(forwarded.requests) == 3, "the second of them twice"

    run(test)


def test_a_request_waits_for_the_next_controller(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        forwarded.not_controller = ALWAYS
        one = await start_broker(tmp_path, 1, None, 1.0, forwarded.intercept)
        two = await start_broker(tmp_path, 2)
        await until(lambda: len(two.image.brokers) == 2)
        try:
            waiting = asyncio.create_task(create(two, "a"))
            await until(lambda: forwarded.requests)
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
        forwarded = Forwarded()
        forwarded.not_controller = 2
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (_, two):
            assert await create(two, "a") == {"a": 0}
            assert len(forwarded.requests) == 3

    run(test)


def test_without_a_controller_the_request_times_out(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        forwarded.not_controller = ALWAYS
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (one, two):
            controller = one.cluster.image.controller_id
            assert controller == 1
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
        store = f"failing:{tmp_path}/store.db"
        async with brokers(tmp_path, 2, ottla_store=store) as (one, two), Client.to(two) as client:
            wanted = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
            for code in (ErrorCode.request_timed_out, ErrorCode.not_controller):
                if code == ErrorCode.request_timed_out:
                    store_of(one).out_of_reach = True
                else:
                    store_of(one).lose_session()
                for broker in (one, two):
                    (result,) = await broker.context.topic_creation.create([TopicSpec("t")])
                    assert result.code == code
                answer = await client.call(wanted, MetadataResponse, 9)
                assert answer.topics[0].error_code == ErrorCode.leader_not_available
            store_of(one).out_of_reach = False

    run(test)


def test_the_error_names_a_store_that_does_not_answer_and_what_to_do(tmp_path):
    async def asked(broker: Broker, timeout_ms: int = 10_000) -> tuple[int, str | None]:
        async with Client.to(broker) as client:
            answer = await client.call(creation("t", timeout_ms=timeout_ms), CreateTopicsResponse, 7)
            return answer.topics[0].error_code, answer.topics[0].error_message

    async def test() -> None:
        async with brokers(tmp_path, 1, ottla_store=f"failing:{tmp_path}/store.db") as (broker,):
            store_of(broker).out_of_reach = True
            code, words = await asked(broker)
            store = f"The store of the cluster (failing:{tmp_path}/store.db)"
            doubt = "did not answer: whether this was done is not known. Look at its disk, and at the log of broker 1"
            assert (code, words) == (ErrorCode.request_timed_out, f"{store} {doubt}. Then try again.")
            object.__setattr__(broker.config, "ottla_store", "zookeeper:here:2181/ottla")
            code, words = await asked(broker)
            assert words is not None
            assert words.startswith("The store of the cluster (zookeeper:here:2181/ottla) did not answer: whether")
            assert "Start ZooKeeper again, or look at its log and at the network between it and broker 1" in words
            store_of(broker).lose_session()
            code, words = await asked(broker, timeout_ms=200)
            assert code == ErrorCode.request_timed_out
            assert words is not None
            assert "does not answer, so there is no controller, and nothing was done. Start ZooKeeper again" in words
            store_of(broker).out_of_reach = False

    run(test)


def test_a_topic_has_the_same_specification_on_controller_and_broker():
    spec = TopicSpec("t", 2, 3, [(0, (1, 2)), (1, (2, 3))], {"retention.ms": "1", "cleanup.policy": None})
    made = topic_creation._creatable(spec)
    assert (made.name, made.num_partitions, made.replication_factor) == ("t", 2, 3)
    assert [(each.partition_index, each.broker_ids) for each in made.assignments] == [(0, [1, 2]), (1, [2, 3])]
    assert {each.name: each.value for each in made.configs} == {"retention.ms": "1", "cleanup.policy": None}


def test_a_timed_out_client_does_not_fail_requests_of_others(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        forwarded.waits = asyncio.Event()
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (_, two):
            patient = asyncio.create_task(create(two, "patient"))
            await until(lambda: len(forwarded.requests) == 1)
            assert await create(two, "hurried", timeout_ms=100) == {"hurried": ErrorCode.request_timed_out}
            forwarded.waits.set()
            assert await patient == {"patient": 0}
            assert await create(two, "later") == {"later": 0}

    run(test)


def test_an_envelope_has_the_bytes_of_the_clients_address(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (_, two):
            assert await create(two, "a") == {"a": 0}
            assert [each.client_host_address for each in forwarded.requests] == [bytes([127, 0, 0, 1])]

    run(test)
    assert packed_address("::1") == bytes(15) + b"\x01"
    assert packed_address("?") == b""


def test_the_error_of_an_envelope_is_named(tmp_path):
    async def test() -> None:
        forwarded = Forwarded()
        forwarded.error = ErrorCode.unsupported_version
        async with brokers(tmp_path, 2, (), forwarded.intercept) as (_, two), Client.to(two) as client:
            answer = await client.call(creation("a"), CreateTopicsResponse, 7)
            assert answer.topics[0].error_code == ErrorCode.unsupported_version
            assert answer.topics[0].error_message == "The controller answered UNSUPPORTED_VERSION."

    run(test)


def test_a_forwarded_inter_broker_request_of_a_client_is_refused(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (broker,):
            api = APIS[ALTER_PARTITION]
            request = request_header(api.key, api.max, 7, "c") + messages.encode(AlterPartitionRequest(), api.max)
            client = Session("PLAINTEXT", forwarded=True)
            response = memoryview(await broker.context.serve_forwarded(memoryview(request), client))
            answer = messages.decode(AlterPartitionResponse, api.max, response, 5)
            assert answer.error_code == ErrorCode.cluster_authorization_failed

    run(test)
