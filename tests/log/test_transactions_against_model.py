"""A log under random transactions, truncations, crashes and compactions, beside a model that cannot be wrong."""

from __future__ import annotations

from random import Random

import pytest

from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from ottla.wire import marker as markers
from ottla.wire.marker import Marker
from tests.log.batches import NOW, PATH, make
from tests.log.manifests import contradictions

STEPS = 150
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


class Model:
    """Every batch there is, by producer and kind."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, str]] = []  # base offset, next offset, producer, what it is

    def open(self, end: int | None = None) -> dict[int, int]:
        found: dict[int, int] = {}
        for base, _, producer_id, what in self.batches:
            if end is not None and base >= end:
                break
            if what == "records" and producer_id >= 0:
                found.setdefault(producer_id, base)
            elif what != "records":
                found.pop(producer_id, None)
        return found

    def last_stable(self, high_watermark: int) -> int:
        """As a consumer sees it that reads up to the high watermark."""
        return min([high_watermark, *self.open(high_watermark).values()])

    def aborted(self, start: int, end: int) -> set[tuple[int, int]]:
        """Of the transactions that end before `end` and reach `start` or what is behind it."""
        found = set()
        firsts: dict[int, int] = {}
        for base, _, producer_id, what in self.batches:
            if what == "records" and producer_id >= 0:
                firsts.setdefault(producer_id, base)
            elif what != "records":
                first = firsts.pop(producer_id, None)
                if first is not None and what == "abort" and base >= start and first < end:
                    found.add((producer_id, first))
        return found


@pytest.mark.parametrize("seed", range(40))
def test_a_log_knows_its_transactions_whatever_happens_to_it(seed: int):
    random = Random(seed)
    disk = SimDisk(Random(seed))
    log = PartitionLog.open(disk, PATH, CONFIG, now_ms=NOW)
    model = Model()
    epochs = dict.fromkeys(range(4), 0)
    synced = 0
    for _ in range(STEPS):
        act = random.choices(
            ["records", "plain", "end", "sync", "truncate", "restart", "crash", "retain"],
            [40, 10, 30, 8, 3, 3, 3, 3],
        )[0]
        producer_id = random.randrange(4)
        base = log.log_end
        if act in ("records", "plain"):
            writer = producer_id if act == "records" else -1
            known = log.producers.get(writer) if writer >= 0 else None
            view, header = make(
                random.randint(1, 4),
                producer_id=writer,
                producer_epoch=epochs[producer_id],
                sequence=(known.next_sequence if known is not None else 0) if writer >= 0 else -1,
                transactional=writer >= 0,
            )
            log.append(view, header, leader_epoch=0, now_ms=NOW)
            model.batches.append((base, log.log_end, writer, "records"))
        elif act == "end":
            committed = random.random() < 0.5
            data, header = markers.build(producer_id, epochs[producer_id], Marker(committed, 0), NOW)
            log.append(memoryview(data), header, leader_epoch=0, now_ms=NOW)
            model.batches.append((base, log.log_end, producer_id, "commit" if committed else "abort"))
        elif act == "sync":
            synced = log.sync()
        elif act == "truncate" and log.log_end > log.log_start:
            for segment in log.truncate_to(random.randint(log.log_start, log.log_end), NOW):
                segment.unlink()
            model.batches = [batch for batch in model.batches if batch[1] <= log.log_end]
            synced = min(synced, log.recovery_point)
        elif act == "retain" and len(log.segments) > 2:
            log.raise_log_start(log.segments[1].base_offset)
            for segment in log.retain(NOW, log.log_end):
                segment.unlink()
        elif act in ("restart", "crash"):
            start = log.log_start
            if act == "restart":
                log.close()
            else:
                disk.crash()
            assert contradictions(disk) == []
            log = PartitionLog.open(
                disk, PATH, CONFIG, clean=act == "restart", recovery_point=synced, log_start=start, now_ms=NOW
            )
            if log.damage is not None:  # a sector in the middle did not survive: what is behind is copied again
                assert act == "crash"
                log.truncate_to(log.damage.missing[0][0], NOW)
            synced = log.recovery_point if act == "restart" else synced
            assert log.log_end >= min(synced, model.batches[-1][1] if model.batches else 0)
            started_over = log.log_start == log.log_end and not log.snapshots.offsets
            model.batches = [batch for batch in model.batches if batch[1] <= log.log_end and not started_over]
        _compare(log, model, random)


def _compare(log: PartitionLog, model: Model, random: Random) -> None:
    """What began before the log's start may be forgotten with a snapshot that a crash took."""
    expected = model.open()
    known = {
        producer_id: producer.transaction_start
        for producer_id, producer in log.producers.items()
        if producer.transaction_start >= 0
    }
    whole = {producer_id for producer_id, first in expected.items() if first >= log.log_start}
    assert {each: known.get(each) for each in whole} == {each: expected[each] for each in whole}
    assert known.keys() <= expected.keys()
    assert log.transactions.first_unstable == min(known.values(), default=None)
    if known == expected:
        assert log.transactions.last_stable(log.log_end) == model.last_stable(log.log_end)
    start = random.randint(log.log_start, log.log_end)
    end = random.randint(start, log.log_end)
    if end <= model.last_stable(log.log_end):  # as far as readers of committed records see
        wanted = model.aborted(start, end)
        cut = {producer_id for producer_id, first in wanted if first < log.log_start}
        reported = set(log.transactions.aborted(start, end))
        assert {entry for entry in reported if entry[0] not in cut} == {
            entry for entry in wanted if entry[0] not in cut
        }
