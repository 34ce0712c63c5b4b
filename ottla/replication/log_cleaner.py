"""Log cleaner: chooses the log with the highest dirty ratio and compacts it in a child process.

One log at a time. The child process reads and writes files. The event loop swaps each new segment into the log, and
only if the log is still the one that the child has read. A pass whose process was killed is tried again. A log whose
records cannot be read is skipped until the next start, with a warning: compaction must not stop a broker or lose a
record.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from ottla.config.broker_config import LiveConfig
from ottla.errors import Fault, Refused
from ottla.log import checkpoints, compaction
from ottla.log.cleaning import WORK, CleanedSegment, Job, Summary, decode_report
from ottla.log.compaction import Dirt, FairChoice
from ottla.log.swap import Swap
from ottla.replication.deletion import SegmentDeletion
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime import ChildFailed, ChildStarved, Runtime

log = logging.getLogger("ottla.cleaner")

WATCH_SECONDS = 1.0
"""How often it is checked whether the log of a child process has changed."""
BACKOFF_SECONDS_MIN = 0.01
UNLIMITED_BYTES_PER_SECOND = 1e15


class LogCleaner:
    def __init__(
        self, runtime: Runtime, config: LiveConfig, replica_manager: ReplicaManager, segment_deletion: SegmentDeletion
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._replicas = replica_manager.replicas
        self._flusher = replica_manager.flusher
        self._segment_deletion = segment_deletion
        self._uncleanable: set[Partition] = set()
        self._resting: dict[Partition, float] = {}
        self._choice: FairChoice[Partition] = FairChoice()
        self._insists = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._config.current.log_cleaner_enable:
            self._task = self._runtime.spawn(self._run(), name="cleaner")

    async def stop(self) -> None:
        """Ends the child, too."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            dirtiest = await self._find_dirtiest()
            if dirtiest is None:
                await asyncio.sleep(max(self._config.current.log_cleaner_backoff_ms / 1000, BACKOFF_SECONDS_MIN))
            else:
                await self._try(dirtiest)

    # Which log.

    async def _find_dirtiest(self) -> Partition | None:
        now_ms = self._runtime.wall_ms()
        dirty: dict[Partition, float] = {}
        hosted = list(self._replicas)
        self._uncleanable.intersection_update(hosted)
        for number, partition in enumerate(hosted):
            if number % 100 == 99:
                await asyncio.sleep(0)  # ten thousand logs must not hold up a request
            if partition.log.damage is not None:
                continue  # missing records may still be copied from another replica
            if not partition.log.config.cleanup_compact or partition in self._uncleanable or self._rests(partition):
                continue
            try:
                found = self._look_at(partition, now_ms)
            except Refused as refused:
                self._give_up(partition, refused)
                continue
            except Fault as fault:
                self._postpone(partition, fault)
                continue
            if found is not None and found.worthwhile:
                dirty[partition] = found.ratio
        return self._choice.choose(dirty)

    def _look_at(self, partition: Partition, now_ms: int) -> Dirt | None:
        if compaction.must_roll(partition.log, now_ms):
            partition.log.roll(now_ms)
        return compaction.dirt(partition.log, partition.last_stable, now_ms)

    def _rests(self, partition: Partition) -> bool:
        return self._resting.get(partition, 0.0) > self._runtime.now()

    def _hosts(self, partition: Partition) -> bool:
        return self._replicas.get(partition.topic_id, partition.index) is partition

    # What becomes of it.

    async def _try(self, partition: Partition) -> None:
        try:
            await self._compact(partition)
            self._insists = False
        except ChildStarved as starved:
            log.info("compacting %s: %s; the next try has normal priority", partition, starved)
            self._insists = True
        except (Refused, ChildFailed) as failure:
            self._give_up(partition, failure)
        except Fault as fault:  # it was killed, or the disk is full
            self._postpone(partition, fault)

    def _postpone(self, partition: Partition, fault: Fault) -> None:
        if self._hosts(partition):
            log.warning("compacting %s: %s; it will be tried again", partition, fault)
            self._rest(partition)

    def _rest(self, partition: Partition) -> None:
        """Skip this log for a while."""
        now = self._runtime.now()
        self._resting = {known: until for known, until in self._resting.items() if until > now}
        self._resting[partition] = now + self._config.current.log_cleaner_backoff_ms / 1000

    def _give_up(self, partition: Partition, failure: Exception) -> None:
        if self._hosts(partition):
            self._uncleanable.add(partition)
            log.warning(
                "%s cannot be compacted: %s. Nothing is lost, but its disk space grows; it will be tried again after a "
                "restart.", partition, failure, exc_info=failure if isinstance(failure, ChildFailed) else None,
            )  # fmt: skip

    async def _compact(self, partition: Partition) -> None:
        """As many passes as needed: each covers the keys that fit into its memory."""
        partition_log = partition.log
        if partition_log.swap is not None:
            await self._finish(partition, partition_log.swap)  # the disk refused, the last time
        sync = partition_log.prepare_sync(closed_only=True)
        if sync is not None:
            await self._flusher.carry_out(partition_log, sync)
        while (job := self._plan(partition)) is not None:
            since = self._runtime.now()
            summary = await self._watch(partition, job)
            if summary is None:
                log.info("%s has changed while it was compacted: beginning again", partition)
                self._rest(partition)
                return
            partition_log.cleaned = summary.end
            await self._replicas.save_checkpoints(checkpoints.CLEANED)
            log.info(
                "%s: compacted up to offset %d, %d of %d records kept, %.1f MB read and %.1f MB written in %.1f s",
                partition, summary.end, summary.records_kept, summary.records_seen, summary.read_bytes / 1e6,
                summary.written_bytes / 1e6, self._runtime.now() - since,
            )  # fmt: skip
            if summary.end >= job.end:
                return

    def _plan(self, partition: Partition) -> Job | None:
        config, now_ms = self._config.current, self._runtime.wall_ms()
        found = compaction.dirt(partition.log, partition.last_stable, now_ms)
        if found is None or not self._hosts(partition):
            return None
        return compaction.plan(
            partition.log,
            found,
            token=f"{self._runtime.random.getrandbits(64):016x}",
            now_ms=now_ms,
            map_bytes=config.log_cleaner_dedupe_buffer_size,
            map_load=config.log_cleaner_io_buffer_load_factor,
        )

    # One pass.

    async def _watch(self, partition: Partition, job: Job) -> Summary | None:
        """Run the pass. Stops it if its log is truncated or deleted; None: there is no result."""
        truncations = partition.log.truncations
        running = asyncio.ensure_future(self._pass(partition, job))
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=WATCH_SECONDS)
                if (
                    not self._hosts(partition)
                    or partition.log.truncations != truncations
                    or partition.log.segments[0].base_offset != job.sources[0].base_offset
                ):
                    return None
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _pass(self, partition: Partition, job: Job) -> Summary | None:
        limit = self._config.current.log_cleaner_io_max_bytes_per_second
        reports = self._runtime.offload_process(
            WORK,
            job.encode(),
            bytes_per_second=limit if limit < UNLIMITED_BYTES_PER_SECOND else None,
            insist=self._insists,
        )
        async with aclosing(reports):
            async for message in reports:
                report = decode_report(message)
                if isinstance(report, Summary):
                    return report
                if not await self._take(partition, report, job.token):
                    return None
        return None

    async def _take(self, partition: Partition, cleaned: CleanedSegment, token: str) -> bool:
        """Swap a new segment into the log; False: the log has changed since the pass began."""
        swap = Swap(partition.log, cleaned, token)
        if not self._hosts(partition) or not swap.begin():
            return False
        try:
            await self._runtime.offload(swap.sync)
            return self._hosts(partition) and await self._finish(partition, swap)
        finally:
            swap.abandon()  # unless it is done

    async def _finish(self, partition: Partition, swap: Swap) -> bool:
        old = swap.finish()
        if old is None:
            return False
        await self._runtime.offload(swap.sync)
        self._segment_deletion.schedule(old, partition.log.config.file_delete_delay_ms)
        return True
