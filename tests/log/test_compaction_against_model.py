"""Compaction, crashes, truncation and retention in any order: every key keeps its last value, at its offset."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.errors import Refused, StorageFault
from ottla.log.cleaning import CleanedSegment, Job, Summary, clean, decode_report
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from ottla.log.swap import Swap
from ottla.sim.disk import SimDisk
from tests.log.batches import NOW, cut_unsynced_damage
from tests.log.compacting import InlineChild, contents, headers_of, job_for, put
from tests.log.manifests import contradictions

PATH = "data/topic-0"
KEYS = [b"k%d" % number for number in range(8)]
VALUES = st.one_of(st.none(), st.binary(min_size=0, max_size=40))
DELETE_RETENTION_MS = 1000
PRODUCER_ID = 5


class Crashed(BaseException):
    """The machine went down."""


class CrashingDisk(SimDisk):
    """Goes down before the so many-th change from now on."""

    changes_left = -1

    def room(self, path: str) -> int:
        if self.changes_left == 0:
            raise Crashed
        self.changes_left -= 1
        return super().room(path)


class CompactionMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**32),
        segment_bytes=st.sampled_from([250, 600, 2000]),
        interval=st.sampled_from([0, 4096]),
        map_bytes=st.sampled_from([24 * 7, 2**16]),
    )
    def begin(self, seed, segment_bytes, interval, map_bytes):
        self.disk = CrashingDisk(Random(seed))
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_compact=True,
            cleanup_delete=False,
            delete_retention_ms=DELETE_RETENTION_MS,
        )
        self.map_bytes = map_bytes
        self.written: list[tuple[bytes, bytes | None]] = []  # by offset
        self.batch_ends: list[int] = []
        self.log_start = 0
        self.stable = 0
        self.now_ms = NOW
        self.sequences: list[tuple[int, int]] = []  # offset behind a batch of the producer, its next sequence
        self.checkpointed = (0, 0)  # recovery point, cleaned
        self.reports: Iterator[CleanedSegment | Summary] = iter(())
        self.job: Job | None = None
        self.swap: Swap | None = None
        self.unlinked: list[Segment] = []
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> PartitionLog:
        assert contradictions(self.disk) == []
        recovery_point, cleaned = self.checkpointed
        log = PartitionLog.open(
            self.disk,
            PATH,
            self.config,
            recovery_point=recovery_point,
            log_start=self.log_start,
            clean=clean,
            now_ms=self.now_ms,
        )
        log.cleaned = min(cleaned, log.log_end)
        return log

    def checkpoint(self) -> None:
        self.checkpointed = (self.log.recovery_point, self.log.cleaned)

    @property
    def next_sequence(self) -> int:
        return self.sequences[-1][1] if self.sequences else 0

    # -- writing

    @rule(key=st.sampled_from(KEYS), value=VALUES)
    def append_segment(self, key, value):
        """One that is sealed and on the device."""
        self.append([(key, value)], "none", False)
        self.roll()
        self.sync()

    @rule(
        pairs=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=5),
        codec=st.sampled_from(["none", "gzip"]),
        idempotent=st.booleans(),
    )
    def append(self, pairs, codec, idempotent):
        options = {}
        if idempotent:
            options = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": self.next_sequence}
            self.sequences.append((len(self.written) + len(pairs), self.next_sequence + len(pairs)))
        assert put(self.log, pairs, now_ms=self.now_ms, codec=codec, **options) == len(self.written)
        self.written += pairs
        self.batch_ends.append(len(self.written))

    @rule()
    def roll(self):
        self.log.roll(self.now_ms)

    @rule()
    def sync(self):
        self.log.sync()
        self.checkpoint()

    @rule(later_ms=st.sampled_from([1, DELETE_RETENTION_MS]))
    def wait(self, later_ms):
        self.now_ms += later_ms

    # -- compacting, step by step

    @precondition(lambda self: self.job is None)
    @rule(stable=st.floats(0.0, 1.0))
    def start_pass(self, stable):
        committed = [end for end in self.batch_ends if end <= self.log.log_end * stable]
        self.stable = max([self.stable, *committed])
        self.job = job_for(
            self.log, now_ms=self.now_ms, last_stable=self.stable, map_bytes=self.map_bytes, token=str(self.now_ms)
        )
        if self.job is not None:
            self.reports = map(decode_report, clean(InlineChild(self.disk), self.job.encode()))

    @precondition(lambda self: self.job is not None)
    @rule()
    def go_on(self):
        assert self.job is not None
        if self.swap is None:
            try:
                report = next(self.reports)
            except (StorageFault, Refused):
                there = {(segment.base_offset, segment.size) for segment in self.log.segments[:-1]}
                assert any(source[:2] not in there for source in self.job.sources), "the log had not changed"
                self.job = None
                return
            if isinstance(report, Summary):
                self.end_pass(report)
            else:
                self.announce(report)
        else:
            self.take_over()

    def announce(self, cleaned: CleanedSegment) -> None:
        assert self.job is not None
        swap = Swap(self.log, cleaned, self.job.token)
        if swap.begin():
            swap.sync()
            self.swap = swap
        else:
            self.job = None  # the log has changed: no use to go on

    def take_over(self) -> None:
        assert self.swap is not None
        old = self.swap.finish()
        self.swap.sync()
        self.swap = None
        if old is None:
            self.job = None
        else:
            self.unlinked += old

    def end_pass(self, summary: Summary) -> None:
        self.log.cleaned = summary.end
        self.checkpoint()
        self.job = None

    @rule()
    def unlink(self):
        for segment in self.unlinked:
            segment.unlink()
        self.unlinked.clear()

    # -- losing

    def stop_compacting(self):
        self.job = self.swap = None
        self.unlinked.clear()

    @rule(changes=st.integers(0, 80), sync=st.booleans())
    def crash_while_compacting(self, changes, sync):
        self.disk.changes_left = changes
        try:
            self.roll()
            if sync:
                self.sync()
            while self.job is not None:
                self.go_on()
            self.start_pass(1.0)
            while self.job is not None:
                self.go_on()
        except Crashed:
            pass
        self.disk.changes_left = -1
        self.crash()

    @rule()
    def crash(self):
        self.disk.crash()
        self.stop_compacting()
        self.log = self.open(clean=False)
        cut_unsynced_damage(self.log, self.checkpointed[0])
        assert self.log.log_end >= self.checkpointed[0]
        self.lose_from(self.log.log_end)

    @rule()
    def restart(self):
        if self.swap is not None:
            self.swap.abandon()
        self.stop_compacting()
        self.log.close()
        self.checkpoint()
        self.log = self.open(clean=True)
        assert self.log.damage is None, "a false alarm"
        assert self.log.log_end == len(self.written)

    @rule(part=st.floats(0.0, 1.0))
    def truncate(self, part):
        """A follower loses what was never committed."""
        for segment in self.log.truncate_to(self.stable + int((len(self.written) - self.stable) * part), self.now_ms):
            segment.unlink()
        self.lose_from(self.log.log_end)
        self.checkpoint()

    @rule(part=st.floats(0.0, 1.0))
    def delete_records(self, part):
        self.log.raise_log_start(int(self.stable * part))
        dropped = self.log.retain(self.now_ms, self.stable)
        self.log_start = self.log.log_start
        for segment in dropped:
            segment.unlink()
        self.unlinked = [segment for segment in self.unlinked if segment not in dropped]

    def lose_from(self, log_end: int) -> None:
        assert log_end <= len(self.written), "what was lost came back"
        del self.written[log_end:]
        self.batch_ends = [end for end in self.batch_ends if end <= log_end]
        self.sequences = [sequence for sequence in self.sequences if sequence[0] <= log_end]
        self.stable = min(self.stable, log_end)

    # -- what must hold

    @invariant()
    def every_key_keeps_its_last_value(self):
        if not hasattr(self, "log"):
            return
        assert self.log.log_end == len(self.written)
        found = [record for record in contents(self.log) if record[0] >= self.log_start]
        for offset, key, value in found:
            assert self.written[offset] == (key, value), "a record at an offset that was another's"
        last = {key: (offset, value) for offset, (key, value) in enumerate(self.written)}
        seen = {key: (offset, value) for offset, key, value in found}
        for key, (offset, value) in last.items():
            if offset >= self.log_start and value is not None:
                assert seen.get(key) == (offset, value), "the last value of a key is missing"
            elif value is None and offset >= self.log_start:
                assert key not in seen or seen[key] == (offset, None), "a deleted key came back"

    @invariant()
    def the_producer_can_go_on(self):
        if hasattr(self, "log") and self.sequences and self.sequences[-1][0] > self.log_start:
            producer = self.log.producers.get(PRODUCER_ID)
            assert producer is not None
            assert producer.next_sequence == self.next_sequence

    @invariant()
    def offsets_rise(self):
        if hasattr(self, "log"):
            before = -1
            for header in headers_of(self.log):
                assert before < header.base_offset <= header.last_offset
                before = header.last_offset

    def teardown(self):
        """Left alone, all that is cleanable becomes clean: one record a key."""
        if not hasattr(self, "log"):
            return
        self.crash()
        self.log.roll(self.now_ms)
        self.log.sync()
        for _ in range(100):
            self.stable = self.log.log_end
            self.start_pass(1.0)
            if self.job is None:
                break
            while self.job is not None:
                self.go_on()
        self.every_key_keeps_its_last_value()
        keys = [key for offset, key, _ in contents(self.log) if offset >= self.log_start]
        assert len(keys) == len(set(keys))


TestCompaction = CompactionMachine.TestCase
TestCompaction.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
