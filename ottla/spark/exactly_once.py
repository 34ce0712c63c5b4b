"""Every row of a task in its topic exactly once, whatever is killed and run again.

A task has an identity: who writes (`txnAppId`, by default the query), which of its writes this is (`txnVersion`, the
batch), and the number of the task. Its rows are one transaction of the transactional id `ottla-sink-<app>-<task>`, so
an attempt that Spark has given up on is fenced by the one after it. The same transaction commits a marker: offset
version + 1 of a group of the same name. Rows and marker are there together or not at all, and a task that finds the
marker of its version has nothing left to do.

What is durable: the markers, in the cluster. Groups that nobody reads with are forgotten after a while (seven days, if
the brokers are not told otherwise); then nobody knows what was written, and the write is refused. How many tasks there
were is remembered after each write, so that a task that is new can be told from one whose marker is gone.

What is not covered: if a batch that was written in part is run again with its rows shared out otherwise among the
tasks, the tasks that are done notice it by the number of their rows and stop the query, but others may have written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.blocking import Producer
from ottla.client.embedded import TopicPartition
from ottla.client.group_offsets import OffsetAndMetadata
from ottla.spark import clients
from ottla.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = "ottla-sink-"
OFFSETS_TOPIC: Final = "__consumer_offsets"
"""There is one in every cluster that has groups: for markers of writes that name no topic of their own."""
TIMEOUT_MS: Final = "900000"
"""A task may take as long as brokers allow a transaction, where the options do not say otherwise."""


class Identity(NamedTuple):
    """Which write this is."""

    app_id: str
    version: int

    def group(self, task: int) -> str:
        return f"{PREFIX}{self.app_id}-{task}"


class Sent(Protocol):
    """What is written, and where to."""

    @property
    def options(self) -> WriteOptions: ...
    @property
    def topic(self) -> str | None: ...


class NotRepeatable(Exception):
    """A write that was done before, in whole or in part, is not the same this time, or nobody knows any more."""


def write(plan: Any, identity: Identity, task: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, bool]:
    """Write a task's rows, unless they are there already; how many there are, and whether they were there."""
    from ottla.spark.sink import send_all

    group = identity.group(task)
    place = marker_place(plan)
    kafka = {"transaction.timeout.ms": TIMEOUT_MS, **plan.options.kafka, "transactional.id": group}
    producer = Producer(config=kafka)
    producer.start()  # from now on nobody else writes for this task, and what was begun is decided
    with closing(_Stopping(producer)):
        marker = _marker(plan, group, place)
        if marker is not None and marker.offset > identity.version:
            return _skipped(identity, task, marker, batches), True
        _check(plan, identity, task, place, marker)
        producer.begin_transaction()
        try:
            rows = send_all(producer, plan, batches)
            note = json.dumps({"version": identity.version, "rows": rows})
            producer.send_offsets_to_transaction({place: (identity.version + 1, note)}, group)
            producer.commit_transaction()
        except BaseException:
            producer.abort_transaction()
            raise
        return rows, False


class _Stopping:
    """A producer that is stopped rather than closed."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def close(self) -> None:
        self._producer.stop()


def marker_place(plan: Sent) -> TopicPartition:
    return TopicPartition(plan.topic or OFFSETS_TOPIC, 0)


def _marker(plan: Sent, group: str, place: TopicPartition) -> OffsetAndMetadata | None:
    """As it is when no transaction holds it any more."""
    with clients.admin(plan.options.kafka) as admin:
        return admin.group_offsets(group, [place]).get(place)


def _skipped(identity: Identity, task: int, marker: OffsetAndMetadata, batches: Iterator[pa.RecordBatch]) -> int:
    """Let the rows pass. Of a later version nothing is known; of the same one, how many there were."""
    rows = sum(len(batch) for batch in batches)
    noted = json.loads(marker.metadata) if marker.metadata else {}
    if noted.get("version") == identity.version and noted.get("rows", rows) != rows:
        raise NotRepeatable(
            f"batch {identity.version} of {identity.app_id} was written before, and task {task} had {noted['rows']} "
            f"rows then, but {rows} now: the query shares its rows out otherwise, or does not give the same twice. "
            "Run it as it was until the batch is done, or begin with a new checkpoint"
        )
    return rows


def _check(plan: Sent, identity: Identity, task: int, place: TopicPartition, marker: OffsetAndMetadata | None) -> None:
    """Whether it is certain that this task has not written this version. One without any marker may be new; but if
    there were as many tasks before, its marker is gone."""
    remembered = _marker(plan, PREFIX + identity.app_id, place)
    if remembered is not None and remembered.offset > identity.version:
        raise NotRepeatable(
            f"batch {identity.version} of {identity.app_id} was written before, without task {task}: the query shares "
            "its rows out otherwise. Run it as it was until the batch is done, or begin with a new checkpoint"
        )
    if marker is not None or identity.version == 0 or plan.options.writes_unmarked:
        return
    before = json.loads(remembered.metadata)["tasks"] if remembered is not None and remembered.metadata else None
    if before is not None and task >= before:
        return
    raise NotRepeatable(
        f"whether task {task} of {identity.app_id} has written batch {identity.version} is not known: group "
        f"{identity.group(task)} has no offset for {place.topic}. Offsets are kept for seven days after the last write "
        "(offsets.retention.minutes), or the query wrote elsewhere before. To write the batch all the same, maybe a "
        "second time, set txnMissingMarker to write for one run"
    )


def remember(plan: Sent, identity: Identity, tasks: int) -> None:
    """All tasks have written this version, so many: the largest number counts."""
    place = marker_place(plan)
    group = PREFIX + identity.app_id
    with clients.admin(plan.options.kafka) as admin:
        known = admin.group_offsets(group, [place]).get(place)
        noted = json.loads(known.metadata) if known is not None and known.metadata else {}
        most = max(tasks, noted.get("tasks", 0))
        admin.alter_group_offsets(group, {place: (identity.version + 1, json.dumps({"tasks": most}))})
