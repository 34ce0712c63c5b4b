"""Log manager: retention, flush, checkpoints, expiration of producer ids.

Decisions run on the event loop, blocking calls in threads.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from ottla.cluster.journal import count
from ottla.config.broker_config import LiveConfig
from ottla.errors import Fault, Refused
from ottla.log import checkpoints
from ottla.log.retention import start_after
from ottla.log.segment import Segment
from ottla.replication.deletion import SegmentDeletion
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime import Runtime
from ottla.runtime.scheduler import Scheduler

log = logging.getLogger("ottla.log")

SYNC_MS = 5000
NEVER = 2**63 - 1


class LogManager:
    def __init__(
        self, runtime: Runtime, config: LiveConfig, replica_manager: ReplicaManager, segment_deletion: SegmentDeletion
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._replica_manager = replica_manager
        self._replicas = replica_manager.replicas
        self._segment_deletion = segment_deletion

    def start(self, scheduler: Scheduler) -> None:
        config = self._config.current
        for interval_ms, chore, name in (
            (config.log_retention_check_interval_ms, self._retain, "retention"),
            (SYNC_MS, self._sync, "flush"),
            (config.producer_id_expiration_check_interval_ms, self._expire_producers, "producer expiration"),
        ):
            scheduler.every(interval_ms / 1000, chore, name=name)
        for interval_ms, file in (
            (config.replica_high_watermark_checkpoint_interval_ms, checkpoints.HIGH_WATERMARKS),
            (config.log_flush_offset_checkpoint_interval_ms, checkpoints.RECOVERY_POINTS),
            (config.log_flush_start_offset_checkpoint_interval_ms, checkpoints.LOG_STARTS),
        ):
            save = partial(self._replicas.save_checkpoints, file)
            scheduler.every(interval_ms / 1000, save, name="checkpoint")

    async def _retain(self) -> None:
        """Retention: drop segments by age and size; their files are deleted after `file.delete.delay.ms`."""
        for number, partition in enumerate(list(self._replicas)):
            if number % 100 == 99:
                await asyncio.sleep(0)  # ten thousand logs must not hold up a request
            dropped = await self._drop_segments(partition)
            partition.log.release_memory(partition.high_watermark)
            self._segment_deletion.schedule(dropped, partition.log.config.file_delete_delay_ms)

    async def make_room(self, partitions: list[Partition]) -> None:
        """The disk is full: apply retention to these logs and delete the files at once."""
        for partition in partitions:
            try:
                for segment in await self._drop_segments(partition, " to make room"):
                    await self._runtime.offload(segment.unlink)
            except Fault as fault:
                log.error("%s: old segments are not deleted: %s", partition, fault)

    async def _drop_segments(self, partition: Partition, why: str = "") -> list[Segment]:
        now_ms = self._runtime.wall_ms()
        try:
            await self._prove_start(partition, now_ms)
            dropped = partition.log.retain(now_ms, partition.high_watermark)
        except (Fault, Refused) as failure:  # of one: the others need their room all the same
            log.error("%s: old segments are not dropped: %s", partition, failure)
            return []
        if dropped:
            went = count(len(dropped), "segment")
            log.info("%s: dropped %s%s, log start is %d", partition, went, why, partition.log.log_start)
            self._replica_manager.follow(partition)  # the leader refers consumers to this replica, and has to know
        return dropped

    async def _prove_start(self, partition: Partition, now_ms: int) -> None:
        """A file is renamed only after the manifest has the new log start."""
        start = start_after(partition.log, now_ms, partition.high_watermark) or partition.log.log_start
        if start > partition.log.manifest.proven_start and start:
            await self._runtime.offload(partition.log.prove_start, start)

    async def _sync(self) -> None:
        """Flush closed segments, and whole logs as `flush.ms` and `flush.messages` require."""
        for partition in list(self._replicas):
            log_ = partition.log
            whole = log_.config.flush_ms != NEVER or log_.config.flush_messages != NEVER
            if not whole and log_.active.base_offset <= log_.recovery_point:
                continue
            try:
                job = log_.prepare_sync(closed_only=not whole)
                if job is not None:
                    await self._replica_manager.flusher.carry_out(log_, job)
            except (Fault, Refused) as failure:
                log.error("%s is not synced: %s; trying again in %g s", partition, failure, SYNC_MS / 1000)

    async def _expire_producers(self) -> None:
        now_ms = self._runtime.wall_ms()
        for partition in self._replicas:
            partition.log.producers.expire(now_ms, self._config.current.producer_id_expiration_ms)
