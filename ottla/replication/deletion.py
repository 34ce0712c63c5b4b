"""Deletion of files: segments that a log has dropped, and partitions whose topic was deleted or that were reassigned.

Files are deleted in a thread; those of segments after `file.delete.delay.ms`. The deletion of a topic leaves a
tombstone in the metadata until all brokers have confirmed that its files are deleted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import TopicImage
from ottla.errors import Fault, Refused
from ottla.log.segment import Segment
from ottla.replication.replicas import CHECKPOINTS, Replicas
from ottla.runtime import Runtime

log = logging.getLogger("ottla.replication")

RETRY_SECONDS: Final = 60.0


class SegmentDeletion:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def schedule(self, dropped: list[Segment], delay_ms: int) -> None:
        if dropped:
            self._runtime.call_at(self._runtime.now() + delay_ms / 1000, self._begin, dropped)

    def _begin(self, dropped: list[Segment]) -> None:
        self._runtime.spawn(self._delete(dropped), name="delete segments")

    async def _delete(self, dropped: list[Segment]) -> None:
        for number, segment in enumerate(dropped):
            try:
                await self._runtime.offload(segment.unlink)
            except Fault as fault:
                log.warning("%s; trying again in %g s", fault, RETRY_SECONDS)
                self.schedule(dropped[number:], int(RETRY_SECONDS * 1000))
                return


class TopicDeletion:
    def __init__(self, runtime: Runtime, cluster: Cluster, replicas: Replicas) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._replicas = replicas
        self._running: set[asyncio.Task[None]] = set()
        self._checkpointing: asyncio.Task[Fault | None] | None = None

    def begin(self, topic: TopicImage, directories: list[str], *, deleted: bool) -> None:
        """`deleted`: the topic was deleted, and the controller waits for this broker's confirmation."""
        task = self._runtime.spawn(self._delete(topic, directories, deleted), name=f"deleting {topic.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self) -> None:
        """Wait for all deletions in progress."""
        if self._running:
            await asyncio.wait(self._running)

    async def confirm_earlier(self, broker_id: int) -> None:
        """Confirm topics that were deleted while this broker was stopped: their files are removed by now."""
        tombstones = self._cluster.image.tombstones
        if gone := [topic_id for topic_id, tombstone in tombstones.items() if broker_id in tombstone.replicas]:
            await self._cluster.replicas_deleted(gone)

    async def _delete(self, topic: TopicImage, directories: list[str], deleted: bool) -> None:
        try:
            await self._remove(directories)
            if deleted:
                await self._cluster.replicas_deleted([topic.id])
        except (Fault, Refused) as fault:
            log.warning("deleting %s: %s; the rest is removed at the next start", topic.name, fault)

    async def _remove(self, directories: list[str]) -> None:
        """Removes the partitions from the checkpoints first: a partition in a checkpoint without a directory would
        count as lost. Checkpoints cover all partitions, so for many dropped partitions they are written once."""
        if self._checkpointing is None:
            self._checkpointing = self._runtime.spawn(self._checkpoint(), name="checkpoints of what is left")
        if (fault := await asyncio.shield(self._checkpointing)) is not None:
            raise fault
        for directory in directories:
            await self._runtime.offload(self._runtime.disk.rmtree, directory)

    async def _checkpoint(self) -> Fault | None:
        await asyncio.sleep(0)  # everything dropped in this iteration of the loop is dropped together
        self._checkpointing = None
        try:
            await self._replicas.save_checkpoints(*CHECKPOINTS)
        except Fault as fault:  # for all waiting callers
            return fault
        return None
