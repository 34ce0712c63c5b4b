"""The data source `ottla`: its schema, readers and writers.

Who runs what: the driver's planner process asks for offsets and cuts them into tasks (one process for a streaming
query, as long as it runs); Python workers, which Spark uses again, read and write. Both make their own reader out of
the options, so a reader holds nothing but these.

What is durable: the offsets in the query's checkpoint, and nothing else. When Spark requests the offsets after
`start`, everything up to `start` has been processed: these offsets are committed for `groupId`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.client.values import TopicPartition
from ottla.spark import clients, offset_ranges
from ottla.spark.offset_lookup import NotThere, OffsetLookup, Start
from ottla.spark.offset_ranges import OffsetRange, Offsets, from_json, to_json
from ottla.spark.options import BadOption, ReadOptions, log_notes, read_options, write_options
from ottla.spark.progress import mirror
from ottla.spark.range_reader import NO_ID, WHY_LOST, DataLost, log, read
from ottla.spark.topic_ids import TopicIds
from ottla.spark.tracebacks import short_tracebacks

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "ottla"
GONE_S: Final = 1.0
"""So long after it was missed, a topic is looked for again."""
QUICK_S: Final = 0.05
"""A topic is not deleted and recreated in less time."""
TRIES: Final = 3
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}


@short_tracebacks
class OttlaDataSource(DataSource):
    """`format("ottla")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Spark does not say here whether a batch or a stream is meant; the reader checks the difference.
        return StructType([StructField(name, TYPES[name]) for name in _tolerant(self.options).columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        return OttlaReader(_understood(read_options(self.options, streaming=False)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = OttlaStreamReader(_understood(read_options(self.options, streaming=True)))
        if reader.options.prefetch_records == 0:
            return reader
        try:
            from ottla.spark.prefetch import PrefetchingStreamReader
        except ImportError:
            return reader  # this PySpark has no planner that hands over rows
        return PrefetchingStreamReader(reader)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ottla.spark.sink import batch_writer

        return batch_writer(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from ottla.spark.sink import stream_writer

        return stream_writer(write_options(self.options), schema)


def _tolerant(options: Any) -> ReadOptions:
    try:
        return read_options(options, streaming=True)
    except BadOption:
        return read_options(options, streaming=False)


def _understood(options: ReadOptions) -> ReadOptions:
    """Settings that the client does not know are refused in the driver, before there are tasks."""
    clients.new_consumer(options.kafka)
    log_notes(options.notes)
    return options


class RangesPartition(InputPartition):
    """What one task reads, one range after the other."""

    def __init__(self, *ranges: OffsetRange) -> None:
        super().__init__(ranges)
        self.ranges = ranges


@short_tracebacks
class OttlaReader(DataSourceReader):
    """Reads once, from the starting to the ending offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        cluster = OffsetLookup(self._options)
        ids = {name: topic_id.hex() for name, topic_id in cluster.topics()[1].items() if topic_id != NO_ID}
        start, end = cluster.starting().offsets, cluster.ending()
        return [RangesPartition(task) for task in _tasks(self._options, offset_ranges.ranges(start, end, ids))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes up a partition of its own where there are none.
        return read(self._options, partition.ranges) if isinstance(partition, RangesPartition) else iter(())


@short_tracebacks
class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, as much at each trigger as the options admit."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._lookup = OffsetLookup(options)
        self._topic_ids = TopicIds(options)
        self._is_planned = False
        """A batch was planned, or run again, since this process began."""
        self._ids_again: dict[str, str] = {}
        """Topic ids when a repeated batch was planned again, if they were not stored before."""
        self._recreated_reported: set[tuple[str, bytes]] = set()
        self._initial: Start | None = None
        """Where the query begins, if Spark asked: then no batch of it was committed before."""
        self._first_planned = False
        self._target: Offsets | None = None
        """The log ends when an availableNow query began."""
        self._target_ids: dict[str, bytes] = {}
        self._latest: Offsets = {}
        self._triggered_at = time.monotonic()
        self._mirrored: Offsets = {}

    # In the planner.

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Spark asks when it plans the end of the first batch, and again for its beginning: the same each time."""
        if self._initial is None:
            self._initial = self._lookup.starting()
            if self._target is not None:
                later = self._initial.offsets
                self._target = {tp: max(end, later.get(tp, end)) for tp, end in self._target.items()}
        return to_json(self._initial.offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target_ids, self._target = self._now({}, careful=False)  # where something is gone, `latestOffset` says so

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.offsets_max is not None:
            return ReadMaxRows(self.options.offsets_max)
        if self.options.offsets_min is not None:
            return ReadMinRows(self.options.offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        begun = from_json(start)
        ids, latest = self._now(begun, careful=self.options.fail_on_data_loss)
        if self._initial is not None and not self._is_planned:
            self._topic_ids.forget()
        self._notice_recreated(begun, ids)
        self._mirror(begun)
        self._latest = latest
        latest = self._first(begun, latest)
        known = self._topic_ids.of_this_topic(begun)
        if not isinstance(limit, ReadAllAvailable):
            # For a new partition, records that are no longer in its log do not count as lost.
            waiting = known | self._lookup.beginnings(latest.keys() - known.keys())
            if self._waits(waiting, latest):
                return to_json(begun)
            if self.options.offsets_max is not None:
                latest = offset_ranges.limited(waiting, latest, self.options.offsets_max)
        self._triggered_at = time.monotonic()
        return to_json({tp: _seen(end, tp, begun, known) for tp, end in latest.items()})

    def _now(self, begun: Offsets, *, careful: bool) -> tuple[dict[str, bytes], Offsets]:
        """The topics' ids, and where the partitions end that are there. DataLost for those that are not, if careful. A
        topic may be deleted, and recreated, between the two answers, if these are far enough from each other: then both
        are asked for again."""
        problem = NotThere("topics are being deleted and recreated")
        for _ in range(TRIES):
            partitions, ids = self._there(begun, careful=careful)
            target = {tp: self._target[tp] for tp in partitions if tp in self._target} if self._target else {}
            again = [tp for tp in target if self._target_ids.get(tp.topic) != ids[tp.topic]]
            if self._target and not again:
                return ids, target
            asked_at = time.monotonic()
            try:
                ends = target | self._lookup.ends(again or partitions)
            except NotThere as gone:
                problem = gone
                continue
            is_quick = time.monotonic() - asked_at < QUICK_S
            if is_quick or ends == begun or self._lookup.topics(only_there=True)[1].items() >= ids.items():
                if self._target and again:
                    self._target_ids, self._target = ids, self._target | ends
                return ids, ends
        raise problem

    def _there(self, begun: Offsets, *, careful: bool) -> tuple[list[TopicPartition], dict[str, bytes]]:
        """The offsets of the partitions in the options. A missing topic counts after two answers."""
        partitions, ids = self._lookup.topics(only_there=True)
        if begun.keys() - set(partitions):
            time.sleep(GONE_S)
            partitions, ids = self._lookup.topics(only_there=True)
        if not careful:
            return partitions, ids
        for tp in sorted(begun.keys() - set(partitions)):
            what = str(tp) if tp.topic in ids else f"topic {tp.topic}"
            self._lost(f"{what} is gone, which was read up to offset {begun[tp]} of partition {tp.partition}")
        return self._lookup.topics() if set(self.options.topics) - ids.keys() else (partitions, ids)

    def _first(self, begun: Offsets, latest: Offsets) -> Offsets:
        """In the first batch nothing is read of partitions that begin at their ends: so it is the same when it is run
        again, though the checkpoint has where it ends, and not where it began."""
        if self._initial is None or self._first_planned or begun != self._initial.offsets:
            return latest
        self._first_planned = True
        return latest | {tp: begun[tp] for tp in self._initial.at_end & latest.keys()}

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RangesPartition(task) for task in _tasks(self.options, self._ranges(start, end))]

    def small_batch(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangesPartition] | None:
        """The single task of a small batch that may not be split; None: `partitions` splits it."""
        options = self.options
        size = offset_ranges.count(self._begun(start), from_json(end))
        if not 0 < size <= options.prefetch_records or options.partitions_min or options.partition_records_max:
            return None
        return [RangesPartition(*self._ranges(start, end))]

    def _ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        begun, ended = self._begun(start), from_json(end)
        recreated = self._recreated_since_plan()
        if recreated:
            self._report_lost_plan(recreated, begun, ended)
            begun, ended = ({tp: at for tp, at in each.items() if tp.topic not in recreated} for each in (begun, ended))
        if self._initial is not None and begun == self._initial.offsets:
            # The first batch, maybe run again: then what begins at its end has grown since it was planned.
            begun |= {tp: min(begun[tp], ended[tp]) for tp in self._initial.at_end & ended.keys()}
        gone = sorted(tp for tp in begun if tp not in ended)
        back = sorted(tp for tp, offset in ended.items() if offset < begun.get(tp, 0))
        for tp in gone:
            self._lost(f"{tp} is gone, which was read up to offset {begun[tp]}")
        for tp in back:
            self._lost(f"{tp} ends at offset {ended[tp]}, but was read up to {begun[tp]}: {WHY_LOST}")
        return offset_ranges.ranges(begun, ended, self._ids_again | self._topic_ids.of_batch())

    def _begun(self, start: dict[str, Any]) -> Offsets:
        """Where a batch begins."""
        return self._topic_ids.of_this_topic(from_json(start))

    def _recreated_since_plan(self) -> dict[str, bytes]:
        """A query that was stopped in a batch runs it again before it asks for anything else: topics that have another
        id now than in that plan. What happens between plan and read is noticed by the tasks."""
        if self._is_planned:
            return {}
        self._is_planned = True
        ids = self._lookup.topics(only_there=True)[1]
        self._ids_again = {name: each.hex() for name, each in ids.items() if each != NO_ID}
        planned = self._topic_ids.of_batch()
        return {
            name: each for name, each in ids.items() if each != NO_ID and planned.get(name, each.hex()) != each.hex()
        }

    def _report_lost_plan(self, recreated: Mapping[str, bytes], begun: Offsets, ended: Offsets) -> None:
        for name, topic_id in sorted(recreated.items()):
            of_topic = {tp: end for tp, end in ended.items() if tp.topic == name}
            count = offset_ranges.count(begun, of_topic)
            self._lost(
                f"topic {name} was deleted and recreated; {count} offsets of the old one, which the batch that is run "
                "again was to read, are gone"
            )
            self._recreated_reported.add((name, topic_id))

    def _notice_recreated(self, begun: Offsets, ids: Mapping[str, bytes]) -> None:
        """A recreated topic has none of the records that were read. DataLost, or continue with the new one."""
        for name in self._topic_ids.recreated(begun, ids):
            if (name, ids[name]) not in self._recreated_reported:
                self._lost(
                    f"topic {name} was deleted and recreated; what the query had not read of the old one is gone"
                )
        self._topic_ids.learn(begun, ids)
        self._is_planned = True

    def stop(self) -> None:
        """Only the clients that the process keeps for all its readers stay open."""

    # In the workers.

    def read(self, partition: InputPartition) -> Generator[pa.RecordBatch]:
        # Spark makes up a partition of its own where there are none.
        return read(self.options, partition.ranges if isinstance(partition, RangesPartition) else ())

    def _waits(self, begun: Offsets, latest: Offsets) -> bool:
        """Whether there are too few records yet, and time to wait for more. availableNow does not wait."""
        least = self.options.offsets_min
        if least is None or self._target is not None or offset_ranges.count(begun, latest) >= least:
            return False
        return time.monotonic() - self._triggered_at < self.options.trigger_delay_s

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLost(what)
        log.warning("%s; going on without", what)

    def _mirror(self, done: Offsets) -> None:
        group_id = self.options.group_id
        if group_id is not None and done != self._mirrored and mirror(self.options.kafka, group_id, done):
            self._mirrored = dict(done)


def _seen(end: int, tp: TopicPartition, begun: Offsets, known: Offsets) -> int:
    """Spark runs no batch that ends where it begins. In a partition that begins again this may be by chance: then it
    ends one record earlier, and the next batch has that one."""
    return end - 1 if tp not in known and end == begun.get(tp) and end > 0 else end


def _tasks(options: ReadOptions, parts: list[OffsetRange]) -> list[OffsetRange]:
    return offset_ranges.tasks(parts, options.partitions_min, options.partition_records_max)
