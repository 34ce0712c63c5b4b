"""Inter-broker connections: authentication, authorization, shared lanes."""

from __future__ import annotations

import asyncio
import os
import struct
from contextlib import AsyncExitStack

import pytest

from ottla.broker.broker import Broker
from ottla.broker.peers import Lane
from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode, Refused
from ottla.local.waiting import until
from ottla.net.authentication import MECHANISM, NONCE_BYTES, SECRET_BYTES, BrokerIdentity, Connecting
from ottla.net.connection_limits import (
    UNAUTHENTICATED_FRAME_BYTES_MAX,
    UNAUTHENTICATED_MAX,
    UNAUTHENTICATED_SECONDS_MAX,
)
from ottla.net.outbound import Unreached, open_to_broker
from ottla.wire import apis
from ottla.wire.frame import framed, request_header
from ottla.wire.schema import fetch, list_offsets, offset_for_leader_epoch, write_txn_markers
from ottla.wire.schema.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from ottla.wire.schema.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.harness.in_process import Client, brokers, endpoint_of, run, start_broker, stop_broker

DENIED = ErrorCode.cluster_authorization_failed
HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")
BETWEEN_BROKERS = {api.key for api in apis.APIS.values() if api.between_brokers}


async def make_topic(broker: Broker, name: str = "t", replication_factor: int = 1) -> bytes:
    (made,) = await broker.context.topic_creation.create([TopicSpec(name, 1, replication_factor)])
    assert made.code == ErrorCode.none
    return made.topic_id


def led_by(those: list[Broker], topic: str) -> Broker:
    state = those[0].image.partition(topic, 0)
    assert state is not None
    return next(broker for broker in those if broker.id == state.leader)


# Requests that only a replica, or a broker, may send. Each gives the code that comes back for it.


async def fetch_as(client: Client, version: int, replica: int, topic_id: bytes) -> int:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=-1, partition_max_bytes=1 << 20)
    request = fetch.FetchRequest(
        replica_id=replica,
        replica_state=fetch.ReplicaState(replica_id=replica, replica_epoch=1),
        max_wait_ms=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic="t", topic_id=topic_id, partitions=[partition])],
    )
    answer = await client.call(request, fetch.FetchResponse, version)
    codes = [each.error_code for topic in answer.responses for each in topic.partitions]
    return codes[0] if codes else answer.error_code


async def list_offsets_as(client: Client, version: int, replica: int, topic_id: bytes) -> int:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = list_offsets.ListOffsetsRequest(
        replica_id=replica, topics=[list_offsets.ListOffsetsTopic(name="t", partitions=[partition])]
    )
    answer = await client.call(request, list_offsets.ListOffsetsResponse, version)
    return answer.topics[0].partitions[0].error_code


async def epoch_end_as(client: Client, version: int, replica: int, topic_id: bytes) -> int:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        replica_id=replica,
        topics=[offset_for_leader_epoch.OffsetForLeaderTopic(topic="t", partitions=[partition])],
    )
    answer = await client.call(request, offset_for_leader_epoch.OffsetForLeaderEpochResponse, version)
    return answer.topics[0].partitions[0].error_code


async def alter_partition_as(client: Client, version: int, replica: int, topic_id: bytes) -> int:
    request = AlterPartitionRequest(broker_id=replica, broker_epoch=1)
    return (await client.call(request, AlterPartitionResponse, version)).error_code


async def write_markers_as(client: Client, version: int, replica: int, topic_id: bytes) -> int:
    topic = write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    marker = write_txn_markers.WritableTxnMarker(producer_id=1, transaction_result=True, topics=[topic])
    request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker])
    answer = await client.call(request, write_txn_markers.WriteTxnMarkersResponse, version)
    return answer.markers[0].topics[0].partitions[0].error_code


async def allocate_ids_as(client: Client, version: int, replica: int, topic_id: bytes) -> int:
    request = AllocateProducerIdsRequest(broker_id=replica, broker_epoch=1)
    return (await client.call(request, AllocateProducerIdsResponse, version)).error_code


WITH_REPLICA_ID = [
    *((fetch_as, version) for version in (4, 6, 7, 11, 12, 13, 14, 15, 17, 18)),
    *((epoch_end_as, version) for version in (3, 4)),
]
FOR_BROKERS_ONLY = [(alter_partition_as, 3), (write_markers_as, 1), (write_markers_as, 2), (allocate_ids_as, 0)]


def test_inter_broker_requests_of_clients_are_refused_in_every_version(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as those:
            topic_id = await make_topic(those[0])
            leader = led_by(those, "t")
            async with Client.to(leader) as client:
                for say, version in [*WITH_REPLICA_ID, *FOR_BROKERS_ONLY]:
                    for replica in (1, 2, 3, 0, 2**31 - 1):
                        code = await say(client, version, replica, topic_id)
                        assert code == DENIED, f"{say.__name__} of replica {replica}, version {version}"

    run(test)


def test_a_fetch_with_a_negative_replica_id_is_served(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (broker,):
            topic_id = await make_topic(broker)
            async with Client.to(broker) as client:
                for say, version in WITH_REPLICA_ID:
                    for replica in (-1, -2):
                        assert await say(client, version, replica, topic_id) == ErrorCode.none

    run(test)


def test_list_offsets_ignores_the_replica_id(tmp_path):
    """kafka-python says 0. What it hears is what any client hears: `test_offsets` has the offsets."""

    async def test() -> None:
        async with brokers(tmp_path, 1) as (broker,):
            topic_id = await make_topic(broker)
            async with Client.to(broker) as client:
                for version in range(1, 12):
                    for replica in (-2, -1, 0, 1, 2, 2**31 - 1):
                        assert await list_offsets_as(client, version, replica, topic_id) == ErrorCode.none

    run(test)


def test_a_broker_may_send_its_own_id_only(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as those:
            topic_id = await make_topic(those[0])
            leader = led_by(those, "t")
            other = next(broker for broker in those if broker is not leader)
            async with Client.to(leader, "REPLICATION") as client:
                await log_in(client, other.peers.identity, leader.id)
                for say, version in [*WITH_REPLICA_ID, (alter_partition_as, 3)]:
                    assert await say(client, version, 3, topic_id) == DENIED
                assert await fetch_as(client, 17, other.id, topic_id) != DENIED

    run(test)


def test_inter_broker_apis_are_advertised_to_brokers_only(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            for listener in ("PLAINTEXT", "REPLICATION"):
                async with Client.to(one, listener) as client:
                    response = await client.call(HELLO, ApiVersionsResponse, 4)
                    assert not BETWEEN_BROKERS & {each.api_key for each in response.api_keys}
            connection = await two.peers.open(1)
            assert connection.supports(apis.ALTER_PARTITION, 3)
            assert not connection.supports(apis.ALTER_PARTITION, 4)
            connection.close()

    run(test)


# Proving who one is.


async def log_in(
    client: Client, identity: BrokerIdentity, peer: int, nonce: bytes | None = None
) -> tuple[bytes, bytes]:
    """Authenticate as `identity`. Returns both messages, as an eavesdropper would see them."""
    handshake = await client.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
    assert (handshake.error_code, handshake.mechanisms) == (0, [MECHANISM])
    connecting = Connecting(identity, peer, nonce or os.urandom(NONCE_BYTES))
    challenge = await authenticate(client, connecting.hello)
    assert challenge.error_code == 0
    proof = connecting.answer(challenge.auth_bytes)
    assert (await authenticate(client, proof)).error_code == 0
    return connecting.hello, proof


async def authenticate(client: Client, data: bytes) -> SaslAuthenticateResponse:
    return await client.call(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse, 2)


def test_an_authenticated_broker_is_known_by_its_id(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            connection = await two.peers.open(1)
            assert [connection.session.broker_id for connection in one._server.inter_broker_connections] == [2]
            connection.close()
            await until(lambda: not one._server.inter_broker_connections)

    run(test)


def test_a_peer_without_the_secret_is_refused(tmp_path, caplog):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one, "REPLICATION") as client:
            await client.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
            guess = Connecting(BrokerIdentity(2, bytes(SECRET_BYTES)), 1, bytes(NONCE_BYTES))
            assert (await authenticate(client, guess.hello)).error_code == 0
            refused = await authenticate(client, bytes(32))
            assert refused.error_code == ErrorCode.sasl_authentication_failed
            assert refused.error_message == "Authentication failed"
            assert await client.closed()
            where = endpoint_of(one, "REPLICATION")
            outsider = BrokerIdentity(2, bytes(SECRET_BYTES))
            with pytest.raises(Unreached, match="does not know the secret"):
                await open_to_broker(one.runtime, where.host, where.port, outsider, 1)

    run(test)
    assert "a wrong proof from one that says it is broker 2" in caplog.text


def test_a_proof_cannot_be_replayed(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            async with Client.to(one, "REPLICATION") as client:
                hello, proof = await log_in(client, BrokerIdentity(2, one.cluster.secret), 1)
            async with Client.to(one, "REPLICATION") as client:
                await client.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
                assert (await authenticate(client, hello)).error_code == 0
                assert (await authenticate(client, proof)).error_code == ErrorCode.sasl_authentication_failed
                assert await client.closed()

    run(test)


def test_a_failed_authentication_needs_a_new_challenge(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1, inter_broker_listener_name="PLAINTEXT") as (one,), Client.to(one) as client:
            request = SaslHandshakeRequest(mechanism=MECHANISM)
            await client.call(request, SaslHandshakeResponse, 1)
            assert (await authenticate(client, b"nonsense")).error_code == ErrorCode.sasl_authentication_failed
            assert await client.closed()

    run(test)


def test_authentication_is_accepted_on_the_inter_broker_listener_only(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one) as client:
            for mechanism in (MECHANISM, "PLAIN"):
                answer = await client.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
                assert (answer.error_code, answer.mechanisms) == (ErrorCode.illegal_sasl_state, [])
            hello = Connecting(one.peers.identity, 1, bytes(NONCE_BYTES)).hello
            assert (await authenticate(client, hello)).error_code == ErrorCode.illegal_sasl_state
            assert (await client.call(HELLO, ApiVersionsResponse, 4)).error_code == 0  # and goes on as a client

    run(test)


def test_other_mechanisms_and_other_orders_of_requests_are_refused(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,), Client.to(one, "REPLICATION") as client:
            assert (await authenticate(client, b"")).error_code == ErrorCode.illegal_sasl_state
            answer = await client.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, [MECHANISM])
            old = await client.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 0)
            assert old.error_code == ErrorCode.illegal_sasl_state
            await log_in(client, BrokerIdentity(2, one.cluster.secret), 1)
            again = await client.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
            assert again.error_code == ErrorCode.illegal_sasl_state

    run(test)


# What a guarded listener hears before that.

GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    struct.pack(">i", -1),
    struct.pack(">i", 7) + bytes(7),
    struct.pack(">i", UNAUTHENTICATED_FRAME_BYTES_MAX + 1) + bytes(100),
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", 100) + bytes([255]) * 100,
    framed(request_header(apis.SASL_HANDSHAKE, 1, 1, "x"), struct.pack(">h", 30_000), b"SHORT"),
    framed(request_header(apis.SASL_AUTHENTICATE, 2, 1, "x"), b"\xff\xff\xff\xff\x0f", b"short"),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_invalid_bytes_of_an_unauthenticated_connection_close_only_that(tmp_path, data):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            connection = await two.peers.open(1)
            async with Client.to(one, "REPLICATION") as client:
                client.send(data)
                assert await client.closed()
            await connection.call(DescribeClusterRequest(), DescribeClusterResponse, 10)
            connection.close()

    run(test)


def test_unauthenticated_connections_get_no_other_responses(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            for key, api in apis.APIS.items():
                if key in (apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE):
                    continue
                async with Client.to(one, "REPLICATION") as client:
                    client.send(framed(request_header(key, api.max, 1, "x"), bytes(64)))
                    assert await client.closed(), api.name
            async with Client.to(one, "REPLICATION") as client:  # nor half-way
                await client.call(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
                await authenticate(client, Connecting(BrokerIdentity(2, bytes(32)), 1, bytes(NONCE_BYTES)).hello)
                client.send(framed(request_header(apis.METADATA, 12, 1, "x"), b"\0\0\0\0"))
                assert await client.closed()

    run(test)


def test_unauthenticated_connections_are_limited_in_time_and_number(tmp_path):
    async def test() -> None:
        one = await start_broker(tmp_path, 1, None, UNAUTHENTICATED_SECONDS_MAX)  # they have one second
        async with AsyncExitStack() as opened:
            opened.push_async_callback(stop_broker, one)
            silent, busy, *_ = [
                await opened.enter_async_context(Client.to(one, "REPLICATION")) for _ in range(UNAUTHENTICATED_MAX)
            ]
            await busy.call(HELLO, ApiVersionsResponse, 4)
            await silent.call(HELLO, ApiVersionsResponse, 4)
            async with Client.to(one, "REPLICATION") as third:
                assert await third.closed()
            assert await silent.closed()
            assert await busy.closed()
            async with Client.to(one, "REPLICATION") as broker:
                await log_in(broker, BrokerIdentity(2, one.cluster.secret), 1)
                closed_at = one.runtime.now() + 1.2 * UNAUTHENTICATED_SECONDS_MAX
                await until(lambda: one.runtime.now() > closed_at)
                await broker.call(DescribeClusterRequest(), DescribeClusterResponse, 1)

    run(test)


def test_the_connection_limit_of_clients_does_not_apply_to_brokers(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2, max_connections="1") as (one, two), Client.to(one) as first:
            await first.call(HELLO, ApiVersionsResponse, 4)
            async with Client.to(one) as second:
                assert await second.closed()
            connection = await two.peers.open(1)
            connection.close()

    run(test)


# Listeners.


def test_the_inter_broker_listener_is_registered_and_hidden_from_clients(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            where = endpoint_of(two, "REPLICATION")
            assert where.port not in (0, two.listeners[0].port)
            assert [listener.name for listener in two.listeners] == ["PLAINTEXT"]
            async with Client.to(one) as client:
                response = await client.call(MetadataRequest(topics=None), MetadataResponse, 12)
                ports = {broker.node_id: broker.port for broker in response.brokers}
                assert ports == {broker.id: broker.listeners[0].port for broker in (one, two)}

    run(test)


def test_brokers_may_share_a_listener_with_clients(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2, inter_broker_listener_name="PLAINTEXT") as (one, two):
            assert [e.listener for e in one.image.brokers[1].endpoints] == ["PLAINTEXT"]
            answer = await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)
            assert answer.controller_id == 1
            topic_id = await make_topic(one)
            async with Client.to(led_by([one, two], "t")) as client:
                assert await fetch_as(client, 17, 2, topic_id) == DENIED
                assert await fetch_as(client, 17, -1, topic_id) == ErrorCode.none
                assert await alter_partition_as(client, 3, 2, topic_id) == DENIED

    run(test)


# Shared connections.


def test_calls_share_a_connection_in_each_lane(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            calls = [two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse) for _ in range(20)]
            calls += [
                two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse, lane=Lane.controller)
                for _ in range(20)
            ]
            answers = await asyncio.gather(*calls)
            assert all(answer.cluster_id == one.image.cluster_id for answer in answers)
            assert len(one._server.inter_broker_connections) == 2

    run(test)


def test_a_broker_that_registers_with_a_new_address_is_found(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (one,):
            two = await start_broker(tmp_path, 2)
            await until(lambda: 2 in one.image.brokers)
            before = endpoint_of(two, "REPLICATION").port
            await one.peers.call(2, DescribeClusterRequest(), DescribeClusterResponse)
            await stop_broker(two)
            await until(lambda: 2 not in one.image.brokers)
            with pytest.raises(Unreached, match="broker 2 is not there"):
                await one.peers.call(2, DescribeClusterRequest(), DescribeClusterResponse)
            two = await start_broker(tmp_path, 2)
            await until(lambda: 2 in one.image.brokers)
            assert endpoint_of(two, "REPLICATION").port != before
            await one.peers.call(2, DescribeClusterRequest(), DescribeClusterResponse)
            await stop_broker(two)

    run(test)


def test_a_lost_connection_is_opened_again(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)
            connection = two.peers._lines[1, Lane.peers].connection
            assert connection is not None
            for accepted in list(one._server.inter_broker_connections):
                accepted.abort()
            await until(lambda: not one._server.inter_broker_connections and connection.closed)
            await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)

    run(test)


def test_an_idle_connection_is_replaced_before_use(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2, connections_max_idle_ms="60000") as (one, two):
            await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)
            (first,) = one._server.inter_broker_connections
            connection = two.peers._lines[1, Lane.peers].connection
            assert connection is not None
            connection.used_at -= 31  # the other side gives up after a minute
            await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)
            await until(lambda: first not in one._server.inter_broker_connections)
            assert len(one._server.inter_broker_connections) == 1

    run(test)


def test_a_stopping_broker_sends_no_requests(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (_, two):
            await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)
            two.peers.close()
            with pytest.raises(Unreached):
                await two.peers.call(1, DescribeClusterRequest(), DescribeClusterResponse)

    run(test)


def test_ask_controller_reaches_this_or_another_broker(tmp_path):
    async def test() -> None:
        async with brokers(tmp_path, 2) as (one, two):
            request = AlterPartitionRequest(broker_id=1, broker_epoch=one.image.brokers[1].epoch)
            assert (await one.peers.ask_controller(request, AlterPartitionResponse)).error_code == 0
            request = AlterPartitionRequest(broker_id=2, broker_epoch=two.image.brokers[2].epoch)
            assert (await two.peers.ask_controller(request, AlterPartitionResponse)).error_code == 0
            impostor = AlterPartitionRequest(broker_id=1, broker_epoch=one.image.brokers[1].epoch)
            assert (await two.peers.ask_controller(impostor, AlterPartitionResponse)).error_code == DENIED
            with pytest.raises(Refused):  # raised, since nothing became bytes
                await one.peers.ask_controller(request, AlterPartitionResponse)

    run(test)
