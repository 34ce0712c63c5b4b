"""Deletion of the files of partitions that were dropped: their topic is deleted, or other brokers hold them now.

The files go beside the loop. Whoever deletes a topic leaves a tombstone in the metadata until all brokers have
confirmed that its files are gone.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Topic
from ottla.errors import Fault, Refused
from ottla.replication.replicas import CHECKPOINTS, Replicas
from ottla.runtime import Runtime

log = logging.getLogger("ottla.broker")


class TopicDeletion:
    def __init__(self, runtime: Runtime, cluster: Cluster, replicas: Replicas) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._replicas = replicas
        self._running: set[asyncio.Task[None]] = set()
        self._checkpointing: asyncio.Task[Fault | None] | None = None

    def begin(self, topic: Topic, directories: list[str], *, deleted: bool) -> None:
        """`deleted`: the topic is, and the cluster waits for this broker's word."""
        task = self._runtime.spawn(self._delete(topic, directories, deleted), name=f"deleting {topic.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self) -> None:
        """Wait for all that has begun."""
        if self._running:
            await asyncio.wait(self._running)

    async def confirm_earlier(self, broker_id: int) -> None:
        """Topics deleted while this broker was away: their files are gone by now, and the cluster may forget them."""
        tombstones = self._cluster.image.tombstones
        if gone := [topic_id for topic_id, tombstone in tombstones.items() if broker_id in tombstone.replicas]:
            await self._cluster.replicas_deleted(gone)

    async def _delete(self, topic: Topic, directories: list[str], deleted: bool) -> None:
        try:
            await self._remove(directories)
            if deleted:
                await self._cluster.replicas_deleted([topic.id])
        except (Fault, Refused) as fault:
            log.warning("deleting %s: %s; the rest is removed at the next start", topic.name, fault)

    async def _remove(self, directories: list[str]) -> None:
        """First what checkpoints say of them goes: of a partition without a directory they would say that it is lost.
        They cover all partitions, so when many are dropped at once they are written once."""
        if self._checkpointing is None:
            self._checkpointing = self._runtime.spawn(self._checkpoint(), name="checkpoints of what is left")
        if (fault := await asyncio.shield(self._checkpointing)) is not None:
            raise fault
        for directory in directories:
            await self._runtime.offload(self._runtime.disk.rmtree, directory)

    async def _checkpoint(self) -> Fault | None:
        await asyncio.sleep(0)  # all that is dropped in this turn of the loop is dropped together
        self._checkpointing = None
        try:
            for write in [self._replicas.checkpoint(name) for name in CHECKPOINTS]:
                if write is not None:
                    await self._runtime.offload(write)
        except Fault as fault:  # for all who wait for it
            return fault
        return None
