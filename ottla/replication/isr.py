"""ISR manager: sends the ISR changes of all partitions that this broker leads to the controller, in one AlterPartition.

Each led partition is checked in intervals, and at once when a follower has caught up. One request is in flight at a
time; later changes go with the next.

A replica whose log is damaged leaves the ISR, as a leader (then it names the complete replicas) and as a follower.

If no response comes, it is not known whether the change was made. So the proposal stays (the high watermark waits for
both sets) and is sent again, until the controller refuses it or the metadata shows the new state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.cluster import changes as c
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image
from ottla.config.broker_config import LiveConfig
from ottla.errors import ErrorCode, Fault, Refused
from ottla.replication.doubt import resolve
from ottla.replication.gaps import unsettled
from ottla.replication.leader import UNKNOWN, Proposal
from ottla.replication.partition import Partition
from ottla.replication.ports import Peers
from ottla.replication.replicas import Replicas
from ottla.runtime import Runtime
from ottla.wire.schema.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)

log = logging.getLogger("ottla.replication")

RETRY_SECONDS = 0.2
TIMEOUT_SECONDS = 10.0
PARTITIONS_MAX = 1000
"""Of one request."""
CHECKS_PER_LAG = 4
"""How often followers are checked within `replica.lag.time.max.ms`."""
CHECK_SECONDS_MIN = 0.05

_OVERTAKEN = frozenset({ErrorCode.fenced_leader_epoch, ErrorCode.invalid_update_version, ErrorCode.new_leader_elected})
"""Errors that say that the partition has a newer state: it will arrive, and says what became of the proposal."""


class IsrManager:
    def __init__(
        self, runtime: Runtime, config: LiveConfig, cluster: Cluster, replicas: Replicas, peers: Peers
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._replicas = replicas
        self._peers = peers
        self.on_leads: Callable[[Partition], None] = lambda partition: None
        """Called when a last leader in doubt has the longest log: its state is applied again."""
        self._wanted: dict[Partition, None] = {}
        self._leaving: dict[Partition, None] = {}
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            self._runtime.spawn(self._check(), name="check followers"),
            self._runtime.spawn(self._send(), name="change in-sync sets"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def look_at(self, partition: Partition) -> None:
        """A follower has fetched: it may be in sync again."""
        if len(partition.in_sync) < len(partition.replicas):
            self._propose(partition)

    def leave(self, partition: Partition) -> None:
        """The log of this replica is damaged: it leaves the ISR, and leadership if another replica can lead."""
        if _decides(partition):
            self._propose(partition)
        else:
            self._leaving[partition] = None
            self._news.set()

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        """A broker has registered: its replicas may have caught up before this broker saw the registration."""
        if not isinstance(change, c.BrokerRegistered):
            return
        for partition in self._replicas:
            if _decides(partition):
                self.look_at(partition)

    def _propose(self, partition: Partition) -> None:
        if partition.doubt is not None:
            self._resolve(partition)
        elif partition.leader.propose(self._runtime.now(), self._lag_s_max, self._able):
            self._wanted[partition] = None
            self._news.set()

    def _resolve(self, partition: Partition) -> None:
        alive, doubt = self._cluster.image.brokers.__contains__, partition.doubt
        if resolve(partition, self._runtime.now(), self._lag_s_max, self._able, alive):
            me = partition.broker_id
            if doubt is not None and doubt.whole:
                log.info("%s: no other available replica has more records: broker %d leads", partition, me)
            else:
                log.warning("%s: no other replica has the missing records: broker %d leads", partition, me)
            self.on_leads(partition)
        elif partition.leader.proposed is not None:
            self._wanted[partition] = None
            self._news.set()

    def _able(self, replica: int, epoch: int) -> bool:
        live = self._cluster.image.brokers.get(replica)
        return live is not None and live.epoch == epoch and not live.draining

    @property
    def _lag_s_max(self) -> float:
        return self._config.current.replica_lag_time_max_ms / 1000

    async def _check(self) -> None:
        while True:
            pause = max(self._lag_s_max / CHECKS_PER_LAG, CHECK_SECONDS_MIN)
            due = self._runtime.now() + pause
            await asyncio.sleep(pause)
            late = self._runtime.now() - due > pause
            for partition in list(self._replicas):
                try:
                    if late:
                        partition.leader.forgive()  # this broker itself was paused
                    elif partition.leader.followers or partition.doubt is not None:
                        self._propose(partition)
                except Exception as failure:  # an error with one must not stop the checks of all others
                    log.error("the followers of %s cannot be checked", partition, exc_info=failure)

    async def _send(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                self._leaving = {p: None for p in self._leaving if _leaves(p)}
                if leaving := list(self._leaving)[:PARTITIONS_MAX]:
                    await self._put_leaving(leaving)
                self._wanted = {p: None for p in self._wanted if _decides(p) and p.leader.proposed is not None}
                if partitions := list(self._wanted)[:PARTITIONS_MAX]:
                    await self._put(partitions)
            except (Fault, Refused) as failure:
                log.info("ISRs cannot be changed now: %s", failure)
                await asyncio.sleep(RETRY_SECONDS)
                self._news.set()
            except Exception as failure:  # without this loop no follower would rejoin an ISR
                log.error("changing ISRs failed", exc_info=failure)
                await asyncio.sleep(RETRY_SECONDS)
                self._news.set()
            if self._wanted:
                self._news.set()

    async def _put_leaving(self, partitions: list[Partition]) -> None:
        """Repeats the requests of damaged replicas until the metadata shows their new state."""
        codes = await self._ask(list(map(_without_itself, partitions)))
        for partition in partitions:
            code = codes.get((partition.topic_id, partition.index), ErrorCode.unknown_server_error)
            if code:
                log.debug("%s cannot leave the in-sync set: %s", partition, ErrorCode(code).name)
        self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._news.set)

    async def _put(self, partitions: list[Partition]) -> None:
        image = self._cluster.image
        proposals = [
            p.leader.proposal(lambda replica: image.brokers[replica].epoch if replica in image.brokers else -1)
            for p in partitions
        ]
        codes = await self._ask(proposals)
        asked = dict(zip(partitions, proposals, strict=True))
        for partition, proposal in asked.items():
            if partition.partition_epoch != proposal.partition_epoch:
                continue  # its new state is here already, and its next proposal was not in this request
            self._wanted.pop(partition, None)
            code = codes.get((partition.topic_id, partition.index), ErrorCode.unknown_server_error)
            if code and code not in _OVERTAKEN:
                refused = partition.leader.proposed
                log.debug("%s: the controller refused %s: %s", partition, refused, ErrorCode(code).name)
                partition.leader.withdraw()
                self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self.look_at, partition)

    async def _ask(self, proposals: list[Proposal]) -> dict[tuple[bytes, int], int]:
        """AlterPartition: the controller's answer for each partition."""
        request = AlterPartitionRequest(
            broker_id=self._config.current.broker_id,
            broker_epoch=self._replicas.broker_epoch,
            topics=_by_topic(proposals),
        )
        answer = await self._peers.ask_controller(request, AlterPartitionResponse, timeout_s=TIMEOUT_SECONDS)
        if answer.error_code:
            raise Refused(ErrorCode(answer.error_code))
        return {
            (topic.topic_id, result.partition_index): result.error_code
            for topic in answer.topics
            for result in topic.partitions
        }


def _decides(partition: Partition) -> bool:
    return partition.leads or partition.doubt is not None


def _leaves(partition: Partition) -> bool:
    return unsettled(partition) is not None and not _decides(partition) and partition.counts_as_whole


def _without_itself(partition: Partition) -> Proposal:
    """The ISR without this replica, which does not lead. The registrations of the others stay as they are."""
    others = tuple((replica, UNKNOWN) for replica in partition.in_sync if replica != partition.broker_id)
    return Proposal(partition.topic_id, partition.index, partition.leader_epoch, partition.partition_epoch, others)


def _by_topic(proposals: list[Proposal]) -> list[AlterPartitionRequestTopicData]:
    topics: dict[bytes, list[AlterPartitionRequestPartitionData]] = {}
    for proposal in proposals:
        topics.setdefault(proposal.topic_id, []).append(
            AlterPartitionRequestPartitionData(
                partition_index=proposal.partition,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=replica, broker_epoch=epoch) for replica, epoch in proposal.in_sync
                ],
            )
        )
    return [
        AlterPartitionRequestTopicData(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in topics.items()
    ]
