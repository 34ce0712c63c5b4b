"""Flush (fsync) before the acknowledgement, for topics with `flush.messages=1`.

An append marks its partition. While an fsync runs, further appends gather, and the next fsync covers them all (group
commit). The high watermark waits for the fsync, on the leader and on every follower. So a record that was acknowledged
with acks=all survives even if all brokers lose power.

A failed fsync stops the broker: a second fsync would succeed although the data is lost, and the other replicas have the
records. An error before the fsync (no file descriptor, no directory) is tried again; nothing is acknowledged meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.errors import Fault, Refused
from ottla.replication.partition import Partition
from ottla.runtime import Runtime

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.log.sync import SyncJob

log = logging.getLogger("ottla.broker")

RETRY_SECONDS = 1.0


class Flusher:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._watches: dict[Partition, _Watch] = {}

    def look_at(self, partition: Partition) -> None:
        """The settings of the partition may have changed: start or stop flushing its appends."""
        watch = self._watches.get(partition)
        if partition.policy.synced and watch is None:
            watch = self._watches[partition] = _Watch(self, partition)
            partition.append_listeners[watch] = None
            watch.on_append(0)
        elif not partition.policy.synced and watch is not None:
            self.forget(partition)
            partition.advance()

    def forget(self, partition: Partition) -> None:
        watch = self._watches.pop(partition, None)
        if watch is not None:
            partition.append_listeners.pop(watch, None)

    async def sync(self, partition: Partition) -> None:
        """Flush everything that is in the log now."""
        job = partition.log.prepare_sync()
        if job is not None:
            await self.carry_out(partition.log, job)

    async def carry_out(self, partition_log: PartitionLog, job: SyncJob) -> None:
        await self._runtime.offload(job.run)
        partition_log.finish_sync(job)

    def begin(self, watch: _Watch) -> None:
        self._runtime.spawn(self._sync_all(watch), name=f"sync {watch.partition}")

    async def _sync_all(self, watch: _Watch) -> None:
        partition = watch.partition
        try:
            while partition in self._watches and partition.log.recovery_point < partition.log.log_end:
                try:
                    await self.sync(partition)
                    partition.advance()
                except (Fault, Refused) as failure:
                    log.error("%s cannot be synced, so nothing is acknowledged: %s", partition, failure)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            watch.syncing = False


class _Watch:
    """Listens to the appends of its partition."""

    __slots__ = ("_owner", "partition", "syncing")

    def __init__(self, owner: Flusher, partition: Partition) -> None:
        self._owner = owner
        self.partition = partition
        self.syncing = False

    def on_append(self, size: int) -> None:
        if not self.syncing and self.partition.leads:
            self.syncing = True
            self._owner.begin(self)
