"""Scrub of a broker: reads and checks all records on disk in the background.

A thread reads one chunk. Then the task waits as long as `scrub_schedule` says, so that a full pass takes
`ottla.scrub.interval.ms`. Damage is read a second time, through the log's own file handle, before it is accepted as
damage. Then its offsets are marked as missing, in memory and in the manifest (`log.scrub`). If another replica has the
records, this one leaves the ISR and ELR, drops the damaged part and copies it again as a follower. If not, reads there
fail with KAFKA_STORAGE_ERROR until the loss is accepted. Indexes are rebuilt at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.config.broker_config import LiveConfig
from ottla.errors import Fault, Refused, StorageFault
from ottla.log import scrub
from ottla.log.scrub import Found, SegmentScrub
from ottla.log.scrub_schedule import FILE_NAME, SEGMENT_COST_BYTES, Progress, Schedule, status_text
from ottla.log.slice import SegmentSlice, Slice
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime import Runtime

if TYPE_CHECKING:
    from ottla.log.segment import Segment

log = logging.getLogger("ottla.scrub")

LOOK_SECONDS: Final = 60.0
"""How soon a changed interval is seen, and how old the checkpoint of the progress may be."""
COUNTS_PER_PASS: Final = 20
"""How often in a pass the bytes to read are counted."""


class Scrubber:
    """The scrub of one broker. The counters are for metrics, and start at 0 with the process."""

    def __init__(self, runtime: Runtime, config: LiveConfig, replica_manager: ReplicaManager) -> None:
        self._runtime = runtime
        self._config = config
        self._replica_manager = replica_manager
        self._replicas = replica_manager.replicas
        self._path = f"{config.current.data_dir}/{FILE_NAME}"
        self._schedule = Schedule(Progress(), 0.0)
        self._counted_at = self._saved_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self.passes = 0
        self.passes_tried = 0
        """Passes, and looks that found nothing to read."""
        self.read_bytes = 0
        self.damaged = 0
        """Damaged ranges of segments."""
        self.rebuilt = 0
        """Derived files that differed from the manifest."""
        self.unreadable = 0
        """Segments that could not be read."""

    @property
    def ratio(self) -> float:
        return self._schedule.ratio

    @property
    def progress(self) -> Progress:
        return self._schedule.progress(self._runtime.now())

    def status(self) -> str:
        """In one line, for DescribeConfigs."""
        lacking = sum(partition.log.damage is not None for partition in self._replicas)
        return status_text(
            {
                "progress": f"{self.ratio:.3f}",
                "passes": self._schedule.passes,
                "finished_ms": self.progress.finished_ms,
                "found": self.damaged,
                "rebuilt": self.rebuilt,
                "unreadable": self.unreadable,
                "damaged_partitions": lacking,
            }
        )

    def start(self) -> None:
        self._task = self._runtime.spawn(self._run(), name="scrub")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._save()

    def sent(self, partition: Partition, replica: int, offset: int, piece: Slice | None) -> None:
        """A follower is sent the records at an offset. If this is repeated many times, it cannot append them: they may
        be damaged. Then the segment is checked now."""
        follower = partition.leader.followers.get(replica)
        if isinstance(piece, SegmentSlice) and follower is not None and follower.sent_again(offset):
            self._runtime.spawn(self._look(partition, piece.segment), name=f"look at {partition}")

    async def _look(self, partition: Partition, segment: Segment) -> None:
        walk = SegmentScrub(partition.log, segment, again=True)
        try:
            while not walk.done and walk.current:
                self.read_bytes += await self._runtime.offload(walk.step)
            if walk.current and walk.found:
                await self._lost(partition, segment, walk.found, walk)
        except (Fault, Refused) as failure:
            log.error("scrub: %s: %s cannot be checked: %s", partition, segment.log.path, failure)

    @property
    def _interval_s(self) -> float:
        return self._config.current.ottla_scrub_interval_ms / 1000

    async def _run(self) -> None:
        self._schedule = Schedule(await self._runtime.offload(self._load), self._runtime.now())
        while True:
            if self._interval_s <= 0:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                await self._scrub_next()
            except (Fault, Refused) as failure:
                log.error("scrub: %s; going on in %g s", failure, LOOK_SECONDS)
                await asyncio.sleep(LOOK_SECONDS)
            except Exception as failure:  # a mistake with one log must not leave all others unread
                log.error("scrub failed; going on in %g s", LOOK_SECONDS, exc_info=failure)
                await asyncio.sleep(LOOK_SECONDS)

    async def _scrub_next(self) -> None:
        """One partition, or the pause between two passes."""
        await self._count()
        schedule = self._schedule
        if not schedule.total_bytes and not schedule.has_read:
            self.passes_tried += 1
            await self._wait(min(LOOK_SECONDS, self._interval_s))  # nothing is on the device for certain yet
            schedule.restart_pass(self._runtime.now())
            return
        key = schedule.next_partition(sorted((p.topic, p.index) for p in self._replicas))
        if key is None:
            await self._finish()
            return
        partition = self._replicas.get(*key)
        while partition is not None and not partition.log.dropped:
            segments = {segment.base_offset: segment for segment in readable(partition)}
            base = schedule.next_segment(key, list(segments))
            if base is None:
                break
            try:
                await self._scrub(partition, segments[base])
            except (Fault, Refused) as failure:  # the next pass tries again
                self.unreadable += 1
                log.error("scrub: %s: %s cannot be checked: %s", partition, segments[base].log.path, failure)
            schedule.done((*key, base))
            await self._count()
            await self._pace(SEGMENT_COST_BYTES)
        schedule.done_with(key)
        await asyncio.sleep(0)

    async def _finish(self) -> None:
        schedule = self._schedule
        if not schedule.has_read:
            schedule.restart_pass(self._runtime.now())
            return
        pause = schedule.finish(self._interval_s, self._runtime.now(), self._runtime.wall_ms())
        self.passes += 1
        self.passes_tried += 1
        log.info("scrub: pass %d is complete, %d damaged ranges found so far", schedule.passes, self.damaged)
        await self._save()
        await self._wait(pause)

    async def _count(self) -> None:
        now = self._runtime.now()
        if self._schedule.total_bytes and now - self._counted_at < self._interval_s / COUNTS_PER_PASS:
            return
        self._counted_at = now
        sizes: list[int] = []
        for number, partition in enumerate(list(self._replicas)):
            if number % 100 == 99:
                await asyncio.sleep(0)  # ten thousand logs must not hold up a request
            sizes += [segment.size for segment in readable(partition)]
        self._schedule.counted(sizes)

    async def _pace(self, size: int) -> None:
        await self._wait(self._schedule.read(size, self._interval_s, self._runtime.now()))

    async def _wait(self, pause: float) -> None:
        """At most until another interval is set."""
        interval_s, until = self._interval_s, self._runtime.now() + pause
        while (left := until - self._runtime.now()) > 0 and self._interval_s == interval_s:
            await asyncio.sleep(min(left, LOOK_SECONDS))
            if self._runtime.now() - self._saved_at >= LOOK_SECONDS:
                await self._save()

    # One segment.

    async def _scrub(self, partition: Partition, segment: Segment) -> None:
        walk = SegmentScrub(partition.log, segment)
        truncations = partition.log.truncations
        try:
            while not walk.done and walk.current and self._interval_s > 0:
                size = await self._runtime.offload(walk.step)
                self.read_bytes += size
                await self._pace(size)
        except StorageFault as fault:
            if walk.current:
                await self._unreadable(partition, segment, fault)
            return
        finally:
            walk.close()
        if walk.found:
            await self._found(partition, segment)
        elif walk.current:
            await self._check_snapshot(partition, segment.base_offset)
            if walk.current and not walk.active:
                await self._check_derived(partition, segment, truncations)

    async def _unreadable(self, partition: Partition, segment: Segment, fault: StorageFault) -> None:
        """A missing file is damage. A read error of the device may be temporary."""
        self.unreadable += 1
        log.error("scrub: %s: %s", partition, fault)
        partition_log = partition.log
        following = partition_log.segment_after(segment)
        exists = partition_log.disk.exists
        if following is not None and exists(partition_log.path) and not exists(segment.log.path):
            offsets = (segment.base_offset, following.base_offset)
            await self._lost(partition, segment, [Found(0, 0, offsets, "the file is missing")])

    async def _found(self, partition: Partition, segment: Segment) -> None:
        """Read it again: it may have been removed from the log meanwhile."""
        again = SegmentScrub(partition.log, segment, again=True)
        while not again.done and again.current:
            await self._runtime.offload(again.step)
        if not again.current:
            return
        if not again.found:
            log.warning("scrub: %s: %s was damaged in one read and correct in the next", partition, segment.log.path)
            return
        await self._lost(partition, segment, again.found, again)

    async def _lost(
        self, partition: Partition, segment: Segment, found: list[Found], walk: SegmentScrub | None = None
    ) -> None:
        partition_log = partition.log
        patches: list[scrub.Patch] = []
        try:
            patches = await self._runtime.offload(scrub.prepare, partition_log, segment, found)
        except StorageFault as fault:  # it is not read in any case
            log.error("scrub: %s: %s", partition, fault)
        if partition_log.dropped or (walk is not None and not walk.current):
            return
        self.damaged += len(found)
        for each in found:
            log.error(
                "scrub: %s is damaged: %s at byte %d: %s. Offsets %d..%d are missing. They are copied again from "
                "another replica if one has them; until then, or until the loss is accepted (ottla log accept-loss), "
                "reads there fail with KAFKA_STORAGE_ERROR.",
                partition, segment.log.path, each.start, each.problem, each.offsets[0], each.offsets[1] - 1,
            )  # fmt: skip
        try:
            scrub.apply(partition_log, segment, found, patches)
            if patches:
                await self._rebuild_indexes(partition, segment)
        except (StorageFault, Refused) as fault:
            log.error("scrub: %s: %s", partition, fault)
        self._replica_manager.follow(partition)

    async def _rebuild_indexes(self, partition: Partition, segment: Segment) -> None:
        """Empty batches took the place of damaged ones: the indexes of a closed segment follow."""
        partition_log = partition.log
        if partition_log.segment_after(segment) is None:
            return
        wrong = [segment.offsets.path, segment.times.path]
        await self._runtime.offload(scrub.rebuild_derived, partition_log, segment, wrong, partition_log.truncations)
        if segment in partition_log.segments:
            scrub.take_up(partition_log, segment, wrong)

    async def _check_snapshot(self, partition: Partition, offset: int) -> None:
        snapshots = partition.log.snapshots
        if await self._runtime.offload(snapshots.is_damaged, offset):
            snapshots.discard(offset)
            self.rebuilt += 1
            log.warning("scrub: %s: the producer snapshot at offset %d was damaged: removed", partition, offset)

    async def _check_derived(self, partition: Partition, segment: Segment, truncations: int) -> None:
        partition_log = partition.log
        claim = partition_log.manifest.claim(segment.base_offset)
        following = partition_log.segment_after(segment)
        if (
            claim is None
            or following is None
            or (claim.end_offset, claim.size) != (following.base_offset, segment.size)
        ):
            return
        wrong = await self._runtime.offload(scrub.derived_damage, partition_log, claim)
        unchanged = partition_log.truncations == truncations and segment in partition_log.segments
        if not wrong or not unchanged or partition_log.swap is not None or partition_log.dropped:
            return
        await self._runtime.offload(scrub.rebuild_derived, partition_log, segment, wrong, truncations)
        scrub.take_up(partition_log, segment, wrong)
        self.rebuilt += len(wrong)
        log.warning("scrub: %s: not what the manifest says, rebuilt from the log: %s", partition, ", ".join(wrong))

    # Where it has come to.

    def _load(self) -> Progress:
        try:
            return Progress.decode(self._runtime.disk.read(self._path))
        except FileNotFoundError:
            return Progress()

    async def _save(self) -> None:
        self._saved_at = self._runtime.now()
        data = self.progress.encode()
        try:
            await self._runtime.offload(self._runtime.disk.write_atomic, self._path, data)
        except StorageFault as fault:
            log.warning("scrub: %s", fault)


def readable(partition: Partition) -> list[Segment]:
    """The segments of a log that are flushed and may be checked."""
    partition_log = partition.log
    recovery_point = partition_log.recovery_point
    segments = partition_log.segments
    ends = [*(segment.base_offset for segment in segments[1:]), recovery_point]
    return [
        segment
        for segment, end in zip(segments, ends, strict=True)
        if segment.size and segment.base_offset < end <= recovery_point
    ]
