"""Delayed replies: no response is written while a request of another connection is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from ottla.broker.broker import Broker
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.net.server import Connection, Pending, Reply, Serve
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.schema.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.harness.in_process import Client, brokers, run

FIND_VERSION, JOIN_VERSION, SYNC_VERSION, LEAVE_VERSION, COMMIT_VERSION = 4, 9, 5, 5, 9
TIMEOUT_MS = 30_000
R = TypeVar("R")


class Written:
    """Bytes that a broker wrote while it served a request: (API key, bytes) of each such request."""

    def __init__(self) -> None:
        self.inside: list[tuple[int, int]] = []
        self.served = 0
        self._brokers: list[Broker] = []

    def intercept(self, serve: Serve) -> Serve:
        def watched(connection: Connection, frame: memoryview) -> Reply | Pending:
            before = self._sent_bytes()
            reply = serve(connection, frame)
            self.served += 1
            if self._sent_bytes() > before:
                self.inside.append((int.from_bytes(frame[:2]), self._sent_bytes() - before))
            return reply

        return watched

    def watch(self, cluster: list[Broker]) -> None:
        self._brokers = cluster

    def _sent_bytes(self) -> int:
        return sum(broker._server.write_coalescing.sent_bytes for broker in self._brokers)


class Member:
    """A member of a classic group, on a connection of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.id = ""
        self._generation = -1

    async def join(self) -> None:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        while True:
            request = JoinGroupRequest(
                group_id="g", session_timeout_ms=TIMEOUT_MS, rebalance_timeout_ms=TIMEOUT_MS, member_id=self.id,
                protocol_type="consumer", protocols=protocols,
            )  # fmt: skip
            joined = await self._client.call(request, JoinGroupResponse, JOIN_VERSION)
            if joined.error_code == ErrorCode.none:
                break
            self.id = joined.member_id or self.id
            await asyncio.sleep(0.01)
        self._generation = joined.generation_id

    async def sync(self, *assigned: Member) -> int:
        assignments = [SyncGroupRequestAssignment(member_id=member.id, assignment=b"a") for member in assigned]
        request = SyncGroupRequest(
            group_id="g", generation_id=self._generation, member_id=self.id, protocol_type="consumer",
            protocol_name="range", assignments=assignments,
        )  # fmt: skip
        return (await self._client.call(request, SyncGroupResponse, SYNC_VERSION)).error_code

    async def commit(self) -> int:
        offsets = [OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=self._generation, member_id=self.id,
            topics=[OffsetCommitRequestTopic(name="__consumer_offsets", partitions=offsets)],
        )  # fmt: skip
        answer = await self._client.call(request, OffsetCommitResponse, COMMIT_VERSION)
        return answer.topics[0].partitions[0].error_code

    async def leave(self) -> None:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=self.id)])
        assert not (await self._client.call(request, LeaveGroupResponse, LEAVE_VERSION)).error_code


async def coordinator(cluster: list[Broker]) -> Broker:
    request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=0)
    async with Client.to(cluster[0]) as client:
        while True:
            (found,) = (await client.call(request, FindCoordinatorResponse, FIND_VERSION)).coordinators
            if not found.error_code:
                return next(broker for broker in cluster if broker.id == found.node_id)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def group(directory: Path, replicas: int, written: Written) -> AsyncIterator[tuple[Broker, Member, Member]]:
    """The coordinator, and the two members of a group: its leader, and another."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(replicas),
    }
    async with brokers(directory, replicas, (), written.intercept, **settings) as cluster:
        written.watch(cluster)
        broker = await coordinator(cluster)
        async with Client.to(broker) as one, Client.to(broker) as two:
            leader, follower = Member(one), Member(two)
            await leader.join()
            joining = await waiting(broker, follower.join())
            await leader.join()
            await joining
            yield broker, leader, follower


async def waiting(broker: Broker, request: Coroutine[object, object, R]) -> asyncio.Task[R]:
    """A request of a member, as soon as it waits for another member."""
    task = asyncio.create_task(request)
    await until(lambda: any(list(shard.machine.pending_replies()) for shard in broker.groups.active()))
    return task


def test_a_members_request_does_not_write_the_response_of_another_member(tmp_path: Path):
    """SyncGroup of the leader answers that of the follower; the last JoinGroup of a rebalance, and a LeaveGroup, answer
    the JoinGroup of the other member."""

    async def test() -> None:
        written = Written()
        async with group(tmp_path, 1, written) as (broker, leader, follower):
            syncing = await waiting(broker, follower.sync())
            assert await leader.sync(leader, follower) == await syncing == ErrorCode.none
            joining = await waiting(broker, leader.join())
            await follower.join()
            await joining
            syncing = await waiting(broker, follower.sync())
            assert await leader.sync(leader, follower) == await syncing == ErrorCode.none
            joining = await waiting(broker, leader.join())
            await follower.leave()
            await joining
            assert written.served
            assert written.inside == []

    run(test)


def test_the_fetch_of_a_follower_does_not_write_the_response_of_a_commit(tmp_path: Path):
    """OffsetCommit waits for a second replica of `__consumer_offsets`, whose Fetch says that it has the record."""

    async def test() -> None:
        written = Written()
        async with group(tmp_path, 2, written) as (_, leader, follower):
            answers = await asyncio.gather(leader.sync(leader, follower), follower.sync())
            assert not any(answers)
            for _ in range(5):
                assert await leader.commit() == ErrorCode.none
            assert written.inside == []

    run(test)
