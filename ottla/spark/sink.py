"""Writing a DataFrame to topics: the meaning of its columns, and how a task sends its rows.

A row has a value, and may have a key, headers, a partition and a topic, by these names; other columns are ignored, as
in Spark's connector. `exactly_once` describes the guarantee; without identity a task that is run again writes its rows
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from ottla.blocking import Producer
from ottla.spark import clients, exactly_once, fencing
from ottla.spark.exactly_once import TaskCommit, WriteIdentity
from ottla.spark.options import BadOption, WriteOptions, check_promise, log_notes
from ottla.spark.tracebacks import short_tracebacks
from ottla.spark.workers import keep_memory, settle, settling
from ottla.spark.writers import BATCH_ID, QUERY_ID, MessageCommitter, Messages, current_task

if TYPE_CHECKING:
    import pyarrow as pa

UNDER_WAY_MAX: Final = 64
"""So many Arrow batches may wait for the cluster before the next is sent; the producer bounds their bytes."""
AHEAD_MAX: Final = 1
"""So many Arrow batches wait to be sent while Spark makes the next."""

WRITTEN: Final = ("key", "value", "headers", "partition", "topic")
"""Columns that have a meaning."""
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_TEXT: Final = (BinaryType(), StringType())


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What became of one task's rows."""

    rows: int
    identity: WriteIdentity | None = None
    part: TaskCommit | None = None
    """The transactions that the driver has to commit, if the writer has an identity."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Which columns there are, and where they go."""

    options: WriteOptions
    columns: tuple[str, ...]

    @property
    def topic(self) -> str | None:
        """The one topic that everything goes to; None: each row names its own."""
        return self.options.topic

    def send(self, producer: Producer, batch: pa.RecordBatch) -> Iterator[Future[int]]:
        names: dict[str, Any] = {name: name for name in ("key", "headers", "partition") if name in self.columns}
        if self.topic is not None:
            yield producer.send_arrow(self.topic, batch, **names)
            return
        import pyarrow.compute as pc

        topics = batch.column("topic")
        if topics.null_count:
            raise BadOption("a row names no topic, and there is no option topic for all of them")
        for topic in pc.unique(topics).to_pylist():
            yield producer.send_arrow(topic, batch.filter(pc.equal(topics, topic)), **names)


def plan_of(options: WriteOptions, schema: StructType) -> WritePlan:
    """The meaning of the columns; BadOption for those that cannot be written."""
    clients.new_producer(options.kafka)
    log_notes(options.notes)
    types = {field.name: field.dataType for field in schema.fields}
    if twice := [name for name in WRITTEN if schema.names.count(name) > 1]:
        raise BadOption(f"the column {twice[0]!r} is there twice; there are {', '.join(schema.names)}")
    if "value" not in types:
        raise BadOption(f"a column 'value' is what is written; there are {', '.join(types)}")
    if options.topic is None and "topic" not in types:
        raise BadOption("the option topic, or a column of that name, says where to write")
    for name in ("key", "value"):
        _check_type(types, name, _TEXT, "binary or string")
    _check_type(types, "topic", (StringType(),), "string")
    _check_type(types, "partition", (IntegerType(),), "int")
    kind = types["headers"].simpleString() if "headers" in types else HEADERS_TYPE
    if kind != HEADERS_TYPE:
        raise BadOption(f"column 'headers' is {kind}; it can be array<struct<key: string, value: binary>>")
    return WritePlan(options, tuple(types))


def _check_type(types: dict[str, DataType], name: str, allowed: Sequence[DataType], said: str) -> None:
    if name in types and types[name] not in allowed:
        raise BadOption(f"column {name!r} is {types[name].simpleString()}; it can be {said}")


def send_all(
    producer: Producer, plan: WritePlan, batches: Iterator[pa.RecordBatch], sent: Callable[[pa.RecordBatch], None]
) -> None:
    """Until all rows are in the log, as safe as acks says. Spark makes the next batch while one is sent."""
    under_way: deque[Future[int]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="sending") as sending:
        ahead: deque[Future[list[Future[int]]]] = deque()
        for batch in batches:
            ahead.append(sending.submit(lambda some: list(plan.send(producer, some)), batch))
            sent(batch)
            while len(ahead) > AHEAD_MAX:
                under_way.extend(ahead.popleft().result())
            while len(under_way) > UNDER_WAY_MAX:
                under_way.popleft().result()
        for each in ahead:
            under_way.extend(each.result())
    for future in under_way:
        future.result()


class _SinkWriter(MessageCommitter):
    """What batch and stream have in common."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._sent = False

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles a writer in the driver, to send it to the tasks of a batch, before any of them begins."""
        if not self._sent and self._plan.options.promise != "at_least_once":
            self._sent = True
            fencing.fence_before_tasks(self._plan.options)
        return self.__dict__.copy()

    def _write(self, batches: Iterator[pa.RecordBatch], task: TaskContext, identity: WriteIdentity | None) -> Written:
        keep_memory()
        if identity is not None:
            part = exactly_once.write(self._plan, identity, task.partitionId(), batches)
            return Written(part.content.rows, identity, part)
        rows: list[int] = []
        with clients.producer(self._plan.options.kafka) as producer:
            send_all(producer, self._plan, batches, lambda batch: rows.append(batch.num_rows))
        return Written(sum(rows))

    def _commit(self, messages: Messages) -> None:
        identity = next((message.identity for message in messages if isinstance(message, Written)), None)
        if identity is not None:
            exactly_once.commit(self._plan, identity, _parts(messages))

    def _abort(self, messages: Messages) -> None:
        """Of tasks that failed there is no message; they have aborted by themselves, or are fenced by the next."""
        exactly_once.abort(self._plan, _parts(messages))


def _parts(messages: Messages) -> list[TaskCommit]:
    return [message.part for message in messages if isinstance(message, Written) and message.part is not None]


@short_tracebacks
class OttlaWriter(_SinkWriter, DataSourceArrowWriter):
    """Writes once."""

    @settling
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = current_task()
        options = self._plan.options
        if options.version is None and options.promise != "at_least_once" and task.getLocalProperty(QUERY_ID):
            raise BadOption(
                "a write inside foreachBatch needs txnAppId, a name of its own within the query, and txnVersion, the "
                "batch id: a batch that is run again is skipped by these; guarantee=at_least_once does without"
            )
        identity = None if options.version is None else WriteIdentity(str(options.app_id), options.version)
        return self._write(iterator, task, identity)

    def give_up(self) -> None:
        """Tasks may have written, and there is no commit message of any of them."""
        options = self._plan.options
        if options.version is not None:
            fencing.fence_left_over(options.kafka, str(options.app_id))

    def follow(self) -> None:
        """The batch before this one was committed in this run: nothing is left open."""
        self._sent = True


@short_tracebacks
class OttlaStreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """Writes one batch after another, by default each exactly once."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        settle()  # only a worker plans a stream
        return state

    @settling
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = current_task()
        options = self._plan.options
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if options.promise == "at_least_once":
            return self._write(iterator, task, None)
        assert query is not None, "Spark gives every task of a streaming query its id"
        assert batch is not None, "and the id of the batch"
        return self._write(iterator, task, WriteIdentity(options.app_id or query, int(batch)))


def batch_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> OttlaWriter:
    if overwrite:
        raise BadOption("a topic is appended to, not overwritten: mode('append')")
    if options.app_id is not None and options.version is None:
        raise BadOption("txnVersion is missing: it counts the writes of txnAppId, as a batch id does")
    if options.promise == "exactly_once" and options.version is None:
        raise BadOption("guarantee=exactly_once needs txnAppId and txnVersion in a batch write")
    check_promise(options, streaming=False)
    return OttlaWriter(plan_of(options, schema))


def stream_writer(options: WriteOptions, schema: StructType) -> OttlaStreamWriter:
    if options.version is not None:
        raise BadOption("txnVersion cannot be set here: a streaming query counts its batches by itself")
    check_promise(options, streaming=True)
    return OttlaStreamWriter(plan_of(options, schema))
