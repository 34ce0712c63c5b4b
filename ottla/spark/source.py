"""The data source `ottla` as Spark sees it: its schema, its readers, its writers.

Who runs what: the driver's planner process asks for offsets and cuts them into tasks (one process for a streaming
query, as long as it runs); Python workers, which Spark uses again, read and write. Both make their own reader out of
the options, so a reader holds nothing but these.

What is durable: the offsets in the query's checkpoint, and nothing else. When the planner is asked for the offsets
after `start`, everything up to `start` has been processed, so that is what `groupId` mirrors into a consumer group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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

from ottla.client.errors import ClientError
from ottla.spark import clients, offsets
from ottla.spark.cluster import Cluster
from ottla.spark.offsets import Offsets, Range, from_json, to_json
from ottla.spark.options import BadOption, ReadOptions, read_options, write_options
from ottla.spark.reading import DataLost, log, read

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "ottla"
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


class OttlaDataSource(DataSource):
    """`format("ottla")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Nobody says here whether a batch or a stream is meant; what differs is looked at by the reader.
        columns = _tolerant(self.options).columns
        unknown = [name for name in columns if name not in TYPES]
        if unknown or len(set(columns)) < len(columns):
            raise BadOption(f"columns are some of {', '.join(TYPES)}, once each; not {', '.join(columns)}")
        return StructType([StructField(name, TYPES[name]) for name in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        return OttlaReader(_understood(read_options(self.options, streaming=False)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OttlaStreamReader(_understood(read_options(self.options, streaming=True)))

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
    """What the client does not understand is refused in the driver, before there are tasks."""
    clients.new_consumer(options.kafka)
    return options


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class OttlaReader(DataSourceReader):
    """Reads once, from the starting to the ending offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        cluster = Cluster(self._options)
        start, end = cluster.starting(), cluster.ending()
        return [Part(task) for task in _tasks(self._options, offsets.ranges(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes up a partition of its own where there are none.
        return read(self._options, partition.part) if isinstance(partition, Part) else iter(())


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, as much at each trigger as the options admit."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._target: Offsets | None = None
        """Where the records ended when a query of what is available now began."""
        self._latest: Offsets = {}
        self._triggered_at = time.monotonic()
        self._mirrored: Offsets = {}

    # In the planner.

    def initialOffset(self) -> dict[str, dict[str, int]]:
        return to_json(self._cluster.starting())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._cluster.ends(self._cluster.partitions())

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.offsets_max is not None:
            return ReadMaxRows(self._options.offsets_max)
        if self._options.offsets_min is not None:
            return ReadMinRows(self._options.offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        begun = from_json(start)
        self._mirror(begun)
        latest = self._target or self._cluster.ends(self._cluster.partitions())
        self._latest = latest
        if isinstance(limit, ReadAllAvailable):
            return self._admitted(latest)
        # Of a partition that is new, what is not in its log any more counts for nothing.
        waiting = begun | self._cluster.beginnings(latest.keys() - begun.keys())
        if self._waits(waiting, latest):
            return to_json(begun)
        if self._options.offsets_max is not None:
            latest = offsets.limited(waiting, latest, self._options.offsets_max)
        return self._admitted(latest)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = from_json(start), from_json(end)
        gone = sorted(place for place in begun if place not in ended)
        back = sorted(place for place, offset in ended.items() if offset < begun.get(place, 0))
        for place in gone:
            self._lost(f"{place} is gone, which was read up to offset {begun[place]}")
        for place in back:
            self._lost(f"{place} ends at offset {ended[place]}, but was read up to {begun[place]}")
        return [Part(task) for task in _tasks(self._options, offsets.ranges(begun, ended))]

    def stop(self) -> None:
        """Nothing is held open but what the process keeps for all its readers."""

    # In the workers.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read(self._options, partition.part)

    def _admitted(self, latest: Offsets) -> dict[str, dict[str, int]]:
        self._triggered_at = time.monotonic()
        return to_json(latest)

    def _waits(self, begun: Offsets, latest: Offsets) -> bool:
        """Whether there is too little yet, and time to wait for more. Who reads what is available does not wait."""
        least = self._options.offsets_min
        if least is None or self._target is not None or offsets.count(begun, latest) >= least:
            return False
        return time.monotonic() - self._triggered_at < self._options.trigger_delay_s

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(what)
        log.warning("%s; going on without", what)

    def _mirror(self, done: Offsets) -> None:
        """Let the group see how far the query is. That it cannot is no reason for the query to fail."""
        group_id = self._options.group_id
        if group_id is None or done == self._mirrored:
            return
        try:
            with clients.admin(self._options.kafka) as admin:
                admin.alter_group_offsets(group_id, done)
            self._mirrored = dict(done)
        except ClientError as error:
            log.warning("the progress of the query is not visible in group %s: %s", group_id, error)


def _tasks(options: ReadOptions, parts: list[Range]) -> list[Range]:
    return offsets.tasks(parts, options.partitions_min, options.partition_records_max)
