"""The replicas that this broker hosts: opened at the start, created and dropped according to the metadata image.

Directories have Kafka's names, `topic-partition`, and the topic id in `partition.metadata`. A directory that is not in
the image is a stray: it is renamed to `-stray` and never deleted, since missing metadata is no reason to lose data. The
directory of a deleted topic is renamed to `-delete` at once, and its files are deleted later in a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial

from ottla.cluster.image import Image, TopicImage
from ottla.cluster.layout import id_text
from ottla.config.topic_config import TopicConfig
from ottla.errors import Fault, Refused, StorageFault
from ottla.log import checkpoints, scrub_schedule
from ottla.log.evidence import NOT_KNOWN
from ottla.log.partition_log import PartitionLog
from ottla.log.quarantine import quarantine_file
from ottla.replication.admission import append_policy, log_config
from ottla.replication.leader import NO_EPOCH
from ottla.replication.partition import NO_LEADER, Partition
from ottla.replication.partition_directory import Key, has_log, partition_of, topic_id_of
from ottla.runtime import Runtime

log = logging.getLogger("ottla.replicas")

STRAY = "-stray"
DELETED = "-delete"
NAME_BYTES_MAX = 255
RENAMED_MAX = 10_000
"""Limit of the number in the name of a renamed directory of one partition."""
TOGETHER_FROM = 50
"""From this number of logs on, syncing the whole filesystem is faster than one log after the other."""
CHECKPOINTS = (
    checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANED,
)  # fmt: skip
EVIDENCE = (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS)
"""The checkpoints that show that a log had records."""
WRITTEN_ATOMICALLY = (*CHECKPOINTS, checkpoints.META_PROPERTIES, checkpoints.CLEAN_SHUTDOWN, scrub_schedule.FILE_NAME)
UNFINISHED = ".tmp"
"""The suffix of a file whose writer was killed."""
LOGS_AT_ONCE = 100
"""How many logs a thread opens before the event loop continues."""


class Replicas:
    """All replicas of one broker in one data directory."""

    def __init__(
        self,
        runtime: Runtime,
        data_dir: str,
        broker_id: int,
        resolve: Callable[[TopicImage], TopicConfig],
        producer_ids_max: int,
    ) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._data_dir = data_dir
        self._broker_id = broker_id
        self._resolve = resolve
        self._producer_ids_max = producer_ids_max
        self._by_name: dict[Key, Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._known: dict[str, dict[Key, int]] = {name: {} for name in CHECKPOINTS}  # of logs not opened yet
        self._left: dict[str, str] = {}
        self._clean = False
        self._forgot = False
        self._closed: dict[Key, checkpoints.ClosedLog] = {}  # as the clean stop before this start left them
        self.unopened: set[tuple[bytes, int]] = set()
        """Those that could not be opened at the start: by topic id and number."""
        self.outdated = False
        """The data directory is an older copy that was restored: every log may lack later records."""
        self.broker_epoch = NO_EPOCH
        """The broker epoch of this broker; without it nothing is led, and neither is what was led under another."""
        self._session_expired = False
        self.on_write_refused: Callable[[Partition, StorageFault], object] = lambda partition, fault: None
        """Called when the disk refuses an append."""
        self._written: dict[str, dict[Key, int]] = {}  # what each file says; none while it is not known
        self._handed_out: dict[str, dict[Key, int]] = {}  # the entries after all writes in progress are complete
        self._newest: dict[str, int] = {}
        self._checkpoints = 0
        self._writing = threading.Lock()

    # Finding.

    def get(self, topic: str | bytes, index: int) -> Partition | None:
        """The replica by the topic's name or id."""
        if type(topic) is str:
            return self._by_name.get((topic, index))
        return self._by_id.get((topic, index))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def damaged(self) -> tuple[tuple[str, int], ...]:
        """Damaged replicas, by topic id and partition: they must not count as in sync, and not be elected before
        others."""
        lacking = [(id_text(p.topic_id), p.index) for p in self if p.log.damage is not None]
        return (*lacking, *((id_text(topic_id), index) for topic_id, index in self.unopened))

    # Opening.

    def logs(self) -> tuple[checkpoints.ClosedLog, ...]:
        """The logs that have ever had records."""
        return tuple(
            checkpoints.ClosedLog(p.topic, id_text(p.topic_id), p.index, p.log.log_start, p.log.log_end)
            for p in self
            if p.log.log_end
        )

    async def load(self, image: Image, mark: checkpoints.CleanShutdown | None) -> None:
        """Open the logs on disk. `mark`: the clean shutdown file; None: the stop was not clean. Then records that were
        not flushed are checked batch by batch, which may take longer than a session timeout: so it runs in threads, a
        few logs at a time. The broker serves nothing before it is done."""
        self._clean = mark is not None
        self._forgot = mark is None or mark.logs is None
        self._closed = {} if mark is None else _of_these_topics(mark.logs or (), image)
        await self._runtime.offload(self._look_through, image)
        here = [
            (topic, index)
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if self._broker_id in state.replicas
        ]
        for start in range(0, len(here), LOGS_AT_ONCE):
            some = here[start : start + LOGS_AT_ONCE]
            for partition in await self._runtime.offload(self._opened, some):
                partition.forgot, partition.outdated = self._forgot, self.outdated
                self._take_in(partition)
            for topic, index in some:
                if (topic.id, index) not in self.unopened:
                    self.host_partition(topic, index)

    def _look_through(self, image: Image) -> None:
        """Read the data directory: the checkpoints of its logs, and entries that are no log of this broker. Blocks."""
        disk, directory = self._disk, self._data_dir
        names = disk.listdir(directory)
        here = {key for name in names if (key := self._look_at(name, image)) is not None}
        here |= self._without_directory(names, here, image)
        for name in CHECKPOINTS:
            found = self._read_checkpoint(name)
            self._written[name] = self._handed_out[name] = found
            # An entry for another partition would count for a log that later gets this name.
            self._known[name] = {key: offset for key, offset in found.items() if key in here}
        self._forgot = self._forgot and not any(map(self._written.get, EVIDENCE))
        points, starts = self._known[checkpoints.RECOVERY_POINTS], self._known[checkpoints.LOG_STARTS]
        points.update((key, max(closed.end, points.get(key, 0))) for key, closed in self._closed.items())
        starts.update((key, max(closed.start, starts.get(key, 0))) for key, closed in self._closed.items())
        try:
            self.write_checkpoints()
        except StorageFault as fault:  # tried again by the first log for which it matters
            log.warning("%s", fault)
            return
        for name in names:  # only now: a checkpoint entry for a partition without a directory means damage
            if name.endswith(DELETED):
                disk.rmtree(f"{directory}/{name}")

    def _without_directory(self, names: list[str], here: set[Key], image: Image) -> set[Key]:
        """Lost partitions: the clean shutdown file or checkpoints say that they have a log, and they have no directory,
        or one without log and metadata. A dropped partition still has its renamed directory as long as checkpoints name
        it."""
        recorded = set(self._closed)
        for name in EVIDENCE:
            recorded.update(key for key, offset in self._read_checkpoint(name).items() if offset > 0)
        now = set(self._disk.listdir(self._data_dir))
        lost = set()
        for topic, index in recorded - here:
            known, directory = image.topic(topic), f"{topic}-{index}"
            states = () if known is None else known.partitions[index : index + 1]
            if not states or self._broker_id not in states[0].replicas:
                continue
            renamed = directory in names and directory not in now  # it was another topic's
            renamed |= any(name.startswith(f"{directory}.") and name.endswith((DELETED, STRAY)) for name in names)
            if (topic, index) in self._closed or not renamed:
                lost.add((topic, index))
                if directory in now and not self._disk.listdir(f"{self._data_dir}/{directory}"):
                    self._quarantine(directory)
        return lost

    def _quarantine(self, name: str) -> None:
        """Rename an entry with the name of a partition that is a file, a broken link or an empty directory; or a
        directory with the name of a checkpoint."""
        path = f"{self._data_dir}/{name}"
        log.warning("%s is not what should be there: renamed to %s", path, quarantine_file(self._disk, path))

    def _read_checkpoint(self, name: str) -> dict[Key, int]:
        """Read a checkpoint. A damaged one counts as missing: the logs prove its content, or it is computed again."""
        try:
            return checkpoints.read_offsets(self._disk, self._data_dir, name)
        except StorageFault:
            if not self._disk.is_directory(f"{self._data_dir}/{name}"):
                raise
            self._quarantine(name)
            return {}
        except Fault as fault:
            log.warning("%s It is rebuilt.", fault)
            return {}

    def _opened(self, some: list[tuple[TopicImage, int]]) -> list[Partition]:
        opened = []  # an error of one log does not prevent opening the others
        for topic, index in some:
            try:
                opened.append(self._open(topic, index))
            except Exception as failure:
                unexpected = None if isinstance(failure, Fault | Refused) else failure
                log.error("%s-%d cannot be opened: %s", topic.name, index, failure, exc_info=unexpected)
                self.unopened.add((topic.id, index))
        return opened

    def _look_at(self, name: str, image: Image) -> Key | None:
        """The partition of a directory, if this broker hosts it. If its topic is not the one in the image, the
        directory is renamed to `-stray`."""
        path = f"{self._data_dir}/{name}"
        if name.endswith(UNFINISHED) and name.startswith(WRITTEN_ATOMICALLY):
            self._disk.remove(path)
        key = None if name.endswith((DELETED, STRAY)) else partition_of(name)
        if key is None:
            return None
        if not self._disk.exists(f"{path}/{checkpoints.PARTITION_METADATA}") and not has_log(self._disk, path):
            return None  # not a partition of this broker
        topic = image.topic(key[0])
        deleted = any(each.name == key[0] and self._broker_id in each.replicas for each in image.tombstones.values())
        topic_id = topic_id_of(self._disk, path, None if topic is None else topic.id, deleted=deleted)
        known = topic is not None and key[1] < len(topic.partitions) and topic_id in (None, topic.id)
        if topic is not None and known and self._broker_id in topic.partitions[key[1]].replicas:
            return key
        if topic_id is not None and topic_id in image.tombstones:
            self._disk.rmtree(path)  # deleted while we were away
            return None
        stray = self._free_name(name, topic_id or bytes(16), key[1], STRAY)
        log.warning(
            "%s belongs to no partition that this broker holds: renamed to %s. Rename it back if it is to be one "
            "again, or delete it if you are sure.", path, stray,
        )  # fmt: skip
        self._disk.rename(path, stray)
        return None

    def _free_name(self, name: str, topic_id: bytes, index: int, suffix: str) -> str:
        """An unused name for the directory of a dropped partition: the same partition may have been here before."""
        stem = f"{self._data_dir}/{name[: NAME_BYTES_MAX - 60]}.{topic_id.hex()}-{index}"
        names = (f"{stem}{f'.{number}' if number > 1 else ''}{suffix}" for number in range(1, RENAMED_MAX))
        return next((name for name in names if not self._disk.exists(name)), f"{stem}{suffix}")

    def host(self, topic: TopicImage) -> None:
        """Host a replica of every partition of the topic that is assigned to this broker, in its present state."""
        for index in range(len(topic.partitions)):
            self.host_partition(topic, index)

    def host_partition(self, topic: TopicImage, index: int) -> Partition | None:
        state = topic.partitions[index]
        if self._broker_id not in state.replicas:
            return None
        partition = self._by_name.get((topic.name, index))
        if partition is None:
            partition = self._open(topic, index)
            self._take_in(partition)
        if state.initialized:
            current = state.broker_epoch == self.broker_epoch and not self._session_expired
            partition.become(state, leads=state.leader == self._broker_id and current)
        return partition

    def registered(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self._session_expired = False

    def session_expired(self) -> None:
        """The session has expired: other brokers lead these partitions now, or soon. If this broker went on as leader,
        it would refuse producers with fatal errors that the real leader would not return."""
        self._session_expired = True
        for partition in self:
            if partition.leads or partition.doubt is not None:
                partition.step_down()
                partition.wake()

    def _open(self, topic: TopicImage, index: int) -> Partition:
        key = (topic.name, index)
        config = self._resolve(topic)
        path = f"{self._data_dir}/{topic.name}-{index}"
        if path in self._left:  # leftovers of another partition do not belong to this one
            self._disk.rename(path, self._left[path])
            del self._left[path]
        if self._disk.exists(path) and not self._disk.is_directory(path):
            self._quarantine(f"{topic.name}-{index}")
        closed = self._closed.pop(key, None)
        opened = PartitionLog.open(
            self._disk,
            path,
            log_config(config, self._producer_ids_max),
            recovery_point=self._known[checkpoints.RECOVERY_POINTS].get(key, 0),
            log_start=self._known[checkpoints.LOG_STARTS].get(key, 0),
            high_watermark=self._known[checkpoints.HIGH_WATERMARKS].get(key, 0),
            closed_start=NOT_KNOWN if closed is None else closed.start,
            closed_end=NOT_KNOWN if closed is None else closed.end,
            started=self._known[checkpoints.LOG_STARTS].get(key, NOT_KNOWN),
            alone=len(topic.partitions[index].replicas) == 1,
            cleaned=self._known[checkpoints.CLEANED].get(key, 0),
            clean=self._clean,
            topic_id=topic.id,
            now_ms=self._runtime.wall_ms(),
        )
        if not self._disk.exists(path):
            opened.before_files = partial(self._drop_stale_checkpoints, key)
        notes = "; ".join(opened.recovery.notes)
        if opened.damage is not None:
            log.error(
                "%s-%d is damaged: %s. It is copied again from another replica if one has them; until then, or until "
                "the loss is accepted (ottla log accept-loss), reads there fail with KAFKA_STORAGE_ERROR.%s",
                topic.name, index, opened.damage, f" Found: {notes}" if notes else "",
            )  # fmt: skip
        elif notes:
            log.warning("%s-%d: %s", topic.name, index, notes)
        partition = Partition(
            topic.name, topic.id, index, self._broker_id, opened, append_policy(config, index, self._broker_id)
        )
        checkpointed = self._known[checkpoints.HIGH_WATERMARKS].get(key, 0)
        partition.high_watermark = min(max(checkpointed, opened.log_start), opened.log_end)
        partition.end_known = partition.follower.watermark_known = closed is not None
        self.unopened.discard((topic.id, index))
        opened.on_refused = lambda fault: self.on_write_refused(partition, fault)
        return partition

    def _take_in(self, partition: Partition) -> None:
        self._by_name[partition.topic, partition.index] = partition
        self._by_id[partition.topic_id, partition.index] = partition

    def configure(self, topic: TopicImage) -> list[Partition]:
        """The topic's settings changed. Its partitions that are here."""
        config = self._resolve(topic)
        here = []
        for index in range(len(topic.partitions)):
            partition = self._by_name.get((topic.name, index))
            if partition is not None:
                partition.log.config = log_config(config, self._producer_ids_max)
                partition.policy = append_policy(config, index, self._broker_id)
                here.append(partition)
        return here

    def drop(self, topic: TopicImage, *, suffix: str = DELETED) -> list[str]:
        """Forget a deleted topic. Gives the directories that may now be removed, beside the loop."""
        return [path for index in range(len(topic.partitions)) for path in self.drop_partition(topic, index, suffix)]

    def drop_partition(self, topic: TopicImage, index: int, suffix: str = DELETED) -> list[str]:
        """Remove one partition, which is deleted or whose replica is now on another broker. Returns its renamed
        directory."""
        partition = self._by_name.pop((topic.name, index), None)
        self._by_id.pop((topic.id, index), None)
        for known in self._known.values():
            known.pop((topic.name, index), None)  # a topic that takes its name begins at 0
        if partition is None:
            return []
        partition.log.dropped = True
        partition.leader_id = NO_LEADER
        partition.step_down()
        partition.wake()
        path = f"{self._data_dir}/{topic.name}-{index}"
        if not self._disk.exists(path):  # made by the first append
            return []
        for segment in partition.log.segments:  # nothing is written: a topic may be deleted because the disk is full
            segment.close()
        renamed = self._free_name(f"{topic.name}-{index}", topic.id, index, suffix)
        try:
            self._disk.rename(path, renamed)
        except StorageFault as fault:
            # The metadata image must not wait for this: a remaining directory is a stray partition at the next start.
            log.error("%s is dropped, but its files stay until the next start: %s", partition, fault)
            self._left[path] = renamed
            return []
        return [renamed]

    # Checkpoints.

    def checkpoint(self, name: str) -> Callable[[], None] | None:
        """The blocking part of writing a checkpoint file; None when nothing changed since it was last written."""
        offsets = dict(self._known[name])
        offsets.update((key, _offset_for(name, partition)) for key, partition in self._by_name.items())
        offsets = {key: offset for key, offset in offsets.items() if offset > 0 or self._says_zero(name, key)}
        logs = (partition.log for partition in self._by_name.values() if name == checkpoints.RECOVERY_POINTS)
        cuts = [(log.manifest, log.manifest.cuts) for log in logs if log.manifest.cuts]
        if offsets == self._handed_out.get(name) and not self._under_way(name) and not cuts:
            return None
        before = self.checkpoint(checkpoints.HIGH_WATERMARKS) if cuts else None
        self._checkpoints += 1
        number = self._checkpoints
        self._handed_out[name] = offsets

        def write() -> None:
            if before is not None:  # a truncation is forgotten when no checkpoint says more any longer
                before()
            with self._writing:  # two loops may have cut a log each, and housekeeping has its turn too
                if self._newest.get(name, 0) < number:
                    self._written.pop(name, None)
                    checkpoints.write_offsets(self._disk, self._data_dir, name, offsets)
                    self._newest[name] = number
                    self._written[name] = offsets
                for manifest, count in cuts:
                    manifest.checkpointed(count)

        return write

    def _says_zero(self, name: str, key: Key) -> bool:
        """Whether a log start of 0 is written: for every log that has had records. So a log that has lost its first
        segment and its manifest differs from one whose log start was never written."""
        partition = self._by_name.get(key)
        return name == checkpoints.LOG_STARTS and (partition is None or partition.log.log_end > 0)

    def _under_way(self, name: str) -> bool:
        """A write of the file is in progress, or the last one failed."""
        return self._written.get(name) is not self._handed_out.get(name)

    def write_checkpoints(self) -> None:
        """Write all changed checkpoints. Blocks."""
        for write in filter(None, map(self.checkpoint, CHECKPOINTS)):
            write()

    async def save_checkpoints(self, *names: str) -> None:
        """Write the changed ones of these checkpoints, in a thread."""
        for write in filter(None, [self.checkpoint(name) for name in names]):
            await self._runtime.offload(write)

    def _drop_stale_checkpoints(self, key: Key) -> None:
        """A log is about to create its directory. Entries under its name in the checkpoints belong to a dropped
        partition: after a kill they would count for this one, and records would be lost."""
        if any(self._under_way(name) or key in self._written.get(name, ()) for name in CHECKPOINTS):
            self.write_checkpoints()

    def close(self) -> bool:
        """Flush and close every log, then write the checkpoints. Returns whether all of it succeeded."""
        written = [partition for partition in self._by_name.values() if self._disk.exists(partition.log.path)]
        with self._disk.together(self._data_dir) if len(written) > TOGETHER_FROM else nullcontext():
            closed = [self._close(partition) for partition in written]
        self.write_checkpoints()
        return all(closed)

    def _close(self, partition: Partition) -> bool:
        try:
            partition.log.close()
        except (Refused, Fault) as failure:
            log.error("cannot close %s: %s", partition, failure)
            return False
        return True


def _offset_for(name: str, partition: Partition) -> int:
    if name == checkpoints.RECOVERY_POINTS:
        return partition.log.recovery_point
    if name == checkpoints.LOG_STARTS:
        return partition.log.log_start
    if name == checkpoints.CLEANED:
        return partition.log.cleaned
    if partition.high_watermark > partition.log.checkpointed_end:
        partition.log.checkpointed_end = partition.high_watermark
    return partition.high_watermark


def _of_these_topics(logs: Iterable[checkpoints.ClosedLog], image: Image) -> dict[Key, checkpoints.ClosedLog]:
    """Those of topics that are still there."""
    topics = {topic.name: id_text(topic.id) for topic in image.topics.values()}
    return {(each.topic, each.partition): each for each in logs if topics.get(each.topic) == each.topic_id}
