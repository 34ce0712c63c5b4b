"""Random operations on a log: it equals a list of batches, or after a crash a prefix of one."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.errors import Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from ottla.wire.batch import read_header
from tests.log.batches import NOW, PATH, append, cut_unsynced_damage, make, stored
from tests.log.manifests import contradictions


class LogMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**32),
        segment_bytes=st.sampled_from([300, 1000, 5000]),
        interval=st.sampled_from([0, 100, 4096]),
        cold=st.sampled_from([0.0, 0.3]),
    )
    def begin(self, seed, segment_bytes, interval, cold):
        self.disk = SimDisk(Random(seed))
        self.disk.cold = cold
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=1200,
            retention_bytes=2000,
            retention_ms=-1,
        )
        self.model: list[bytes] = []
        self.log_start = 0  # also what the checkpoint of log starts says
        self.recovery_point = 0  # what the checkpoint of recovery points says
        self.now_ms = NOW
        self.sequence = 0
        self.epoch = 0
        self.log = self.open(clean=False)

    def open(self, *, clean):
        assert contradictions(self.disk) == []
        log = PartitionLog.open(
            self.disk,
            PATH,
            self.config,
            recovery_point=self.recovery_point,
            log_start=self.log_start,
            clean=clean,
            now_ms=self.now_ms,
        )
        return log

    @property
    def log_end(self):
        return read_header(self.model[-1]).next_offset if self.model else self.log_start

    def keep_from_log_start(self):
        self.model = [batch for batch in self.model if read_header(batch).last_offset >= self.log_start]

    @rule(
        records=st.integers(1, 4), bytes_each=st.integers(0, 200), idempotent=st.booleans(), later=st.integers(-5, 50)
    )
    def append(self, records, bytes_each, idempotent, later):
        self.now_ms += max(later, 0)
        values = [bytes([record]) * bytes_each for record in range(records)]
        producer_id, sequence = (7, self.sequence) if idempotent else (-1, -1)
        timestamp = self.now_ms + min(later, 0)
        view, header = make(values, timestamp=timestamp, producer_id=producer_id, sequence=sequence)
        if len(view) > self.config.segment_bytes:
            with pytest.raises(Refused):
                self.log.append(view, header, leader_epoch=self.epoch, now_ms=self.now_ms)
            return
        base = self.log.append(view, header, leader_epoch=self.epoch, now_ms=self.now_ms)
        assert base == self.log_end
        self.model.append(bytes(view))
        if idempotent:
            self.sequence += records

    @rule(copies=st.integers(1, 5))
    def append_replicated(self, copies):
        other = PartitionLog.open(SimDisk(Random(0)), PATH, LogConfig(), log_start=self.log_end, now_ms=NOW)
        sent = [append(other, 2, epoch=self.epoch, timestamp=self.now_ms) for _ in range(copies)]
        if any(len(batch) > self.config.segment_bytes for batch in sent):
            return
        self.log.append_replicated(memoryview(b"".join(sent) + sent[0][:30]), self.now_ms)
        self.model += sent

    @rule()
    def another_leader(self):
        self.epoch += 1

    @rule()
    def roll(self):
        self.log.roll(self.now_ms)

    @rule()
    def sync(self):
        self.recovery_point = self.log.sync()
        assert self.recovery_point == self.log_end

    @rule()
    def sync_closed(self):
        job = self.log.prepare_sync(closed_only=True)
        if job is not None:
            job.run()
            self.recovery_point = self.log.finish_sync(job)

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction):
        target = self.log_start + int((self.log_end - self.log_start) * fraction)
        for segment in self.log.truncate_to(target, self.now_ms):
            segment.unlink()
        self.model = [batch for batch in self.model if read_header(batch).last_offset < target]
        assert self.log.log_end <= target
        self.recovery_point = min(self.recovery_point, self.log.log_end)
        if not self.model:
            self.log_start = self.log.log_end

    @rule(ahead=st.integers(0, 1000))
    def start_over(self, ahead):
        for segment in self.log.truncate_fully_and_start_at(self.log_end + ahead, self.now_ms):
            segment.unlink()
        self.log_start = self.recovery_point = self.log_end + ahead
        self.model = []

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction):
        target = self.log_start + int((self.log_end - self.log_start) * fraction)
        end = self.log_end
        self.log.raise_log_start(target)
        self.log_start = target
        self.keep_from_log_start()
        assert self.log.log_end == end

    @rule(unlink=st.booleans())
    def retain(self, unlink):
        for segment in self.log.retain(self.now_ms, self.log.log_end):
            if unlink:
                segment.unlink()
        self.log_start = self.log.log_start
        self.keep_from_log_start()

    @rule()
    def release_memory(self):
        self.log.release_memory(self.log.log_end)

    @rule()
    def close_and_open(self):
        producers = self.log.producers.encode()
        end, log_start = self.log.log_end, self.log.log_start
        self.log.close()
        self.disk.crash()  # a clean close has left nothing that a crash could lose
        self.log = self.open(clean=True)
        assert self.log.damage is None, "a false alarm"
        assert self.log.recovery.clean
        assert self.log.log_end == end
        assert self.log.log_start == log_start
        assert self.log.producers.encode() == producers
        self.recovery_point = self.log.recovery_point

    @rule()
    def kill(self):
        """The process dies, the machine does not: nothing is lost."""
        epochs = self.log.epochs.entries
        producers = dict(self.log.producers._producers)
        end = self.log.log_end
        self.log = self.open(clean=False)
        assert self.log.damage is None, "a false alarm"
        assert self.log.log_end == end
        assert self.log.recovery.cut_bytes == 0
        assert [e for e in epochs if e[1] < end] == [e for e in self.log.epochs.entries if e[1] < end]
        assert {id_: p.next_sequence for id_, p in producers.items()}.items() >= {
            id_: p.next_sequence for id_, p in self.log.producers._producers.items()
        }.items()

    @rule()
    def crash(self):
        synced = self.recovery_point
        self.disk.crash()
        self.log = self.open(clean=False)
        cut_unsynced_damage(self.log, synced)
        kept = [batch for batch in self.model if read_header(batch).next_offset <= self.log.log_end]
        assert self.log.log_end >= min(synced, self.log_end)
        self.model = kept
        if not kept:
            self.log_start = max(self.log_start, self.log.log_start)
        self.recovery_point = min(synced, self.log.log_end)

    @precondition(lambda self: self.model)
    @rule(fraction=st.floats(0, 1), bytes_max=st.integers(0, 2000), limit=st.floats(0, 1), whole_first=st.booleans())
    def read_anywhere(self, fraction, bytes_max, limit, whole_first):
        first, end = self.log.log_start, self.log_end
        offset = first + int((end - first) * fraction)
        bound = offset + int((end - offset) * limit)
        piece = self.log.read(offset, bytes_max, limit=bound, whole_first_batch=whole_first)
        whole = [b for b in self.model if read_header(b).last_offset >= offset and read_header(b).next_offset <= bound]
        if piece is None:
            assert not whole
            return
        data = piece.load_nowait()
        if data is None:
            data = piece.load()
        assert len(data) in itertools.accumulate(map(len, whole), initial=0), "a batch is torn"
        assert bytes(data) == b"".join(whole)[: len(data)]
        assert len(data) <= max(bytes_max, len(whole[0]) if whole and whole_first else 0)
        assert data or not whole or not (whole_first or len(whole[0]) <= bytes_max)

    @invariant()
    def equals_the_model(self):
        if not hasattr(self, "log"):
            return
        assert self.log.log_end == self.log_end
        seen = stored(self.log, bytes_max=700)
        # Segments deleted by retention may be back after a crash: the log may start earlier, never later.
        assert seen[len(seen) - len(self.model) :] == self.model
        assert self.log.log_start <= self.log_start
        assert self.log.latest_epoch == max((read_header(b).leader_epoch for b in seen), default=self.log.latest_epoch)


LogMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLogAgainstModel = LogMachine.TestCase


def test_an_index_that_a_killed_process_emptied_is_durable_after_a_clean_close():
    machine = LogMachine()
    machine.begin(seed=0, segment_bytes=300, interval=0, cold=0.0)
    machine.append_replicated(copies=4)
    machine.close_and_open()
    machine.truncate(fraction=0.25)
    machine.roll()
    machine.kill()
    machine.close_and_open()
