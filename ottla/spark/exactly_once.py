"""Exactly-once writes: every row of a batch is in its topic once, also after failures and repeated runs.

Who speaks: the tasks of a batch, and the driver when all of them are done. `txnAppId` identifies the
writer (a stream: its query), `txnVersion` the write (the batch), and a number the task.

1. A task writes its rows in one transaction of the transactional id `ottla-sink-<app>-<task>`, so that an attempt which
   Spark has given up on is fenced by the one after it. In the same transaction, also when it has no rows, it leaves a
   marker: offset version + 1 of a group of the same name. It does not commit; it hands the open transaction over to the
   driver. A task that finds its marker was committed before: it skips its rows, and reports their number.
2. After all tasks have reported, the driver records a decision, as offset version + 1 of the group
   `ottla-decisions-<app>`: the number of tasks, and a digest of the rows of each. It has a transactional id
   for that, so of two drivers one is fenced. If the record has this version already, the batch was being committed when
   something broke; then tasks and digest have to be the same as before, or nothing is committed.
3. Only then it commits the transactions, one after the other.

What is durable: markers and decision, in the cluster. Before step 2 nothing counts, so a batch that is run again may
share its rows out among tasks in any way. After it, every run has to be like the one decided on, and is compared as a
whole before anything is committed: rows cannot be written by one task in one run and by another in the next.

What can be lost: brokers delete the offsets of a group without members after offsets.retention.minutes (seven days by
default). Then it is unknown which batch was written, and the write is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from ottla.client.errors import ClientError
from ottla.client.values import OffsetAndMetadata, OpenTransaction, TopicPartition
from ottla.spark import clients, fencing
from ottla.spark.fencing import DECISIONS_PREFIX, PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.spark.sink import WritePlan

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""There is one in every cluster that has groups: for markers of writes that name no topic of their own."""
TIMEOUT_MS: Final = "900000"
"""By default a batch may take as long as brokers allow for a transaction."""
FRESH_S: Final = 3600
"""No broker forgets offsets sooner: of a decision that is younger, all markers are there."""
ENDING_MAX: Final = 8
"""So many transactions are ended at a time."""
log = logging.getLogger(__name__)


class WriteIdentity(NamedTuple):
    """Which write this is."""

    app_id: str
    version: int

    def group(self, task: int) -> str:
        return f"{PREFIX}{self.app_id}-{task}"

    @property
    def decisions(self) -> str:
        return f"{DECISIONS_PREFIX}{self.app_id}"

    @property
    def earlier_decisions(self) -> str:
        """As they were called before: a task of another app may have this name."""
        return f"{PREFIX}{self.app_id}"


class TaskContent(NamedTuple):
    """A digest of the rows of a task, independent of their order: it shows that the rows are not the same."""

    rows: int = 0
    size: int = 0
    total: int = 0
    """Of keys and values: their bytes, counted and added up."""

    def plus(self, batch: pa.RecordBatch) -> TaskContent:
        import pyarrow.compute as pc

        size, total = self.size, self.total
        for name in ("key", "value"):
            if name in batch.schema.names:
                data = _bytes_of(batch.column(name))
                size, total = size + len(data), total + (pc.sum(data).as_py() or 0)
        return TaskContent(self.rows + batch.num_rows, size, total)


def _bytes_of(column: pa.Array) -> pa.Array:
    """All bytes of a column of bytes or text, as they lie there."""
    import pyarrow as pa

    plain = column.cast(pa.large_binary())
    _, offsets, data = plain.buffers()
    if data is None or not len(plain):
        return pa.array([], pa.uint8())
    bounds = np.frombuffer(offsets, np.int64)
    first, last = int(bounds[plain.offset]), int(bounds[plain.offset + len(plain)])
    return pa.Array.from_buffers(pa.uint8(), last - first, [None, data], offset=first)


class TaskCommit(NamedTuple):
    """The result of a task."""

    task: int
    content: TaskContent
    transaction: OpenTransaction | None
    """None: it was committed before."""


class NotRepeatable(Exception):
    """A write that was done before, completely or partly, has other rows this time, or its record is lost."""


class NotCommitted(Exception):
    """The driver could not end the transactions of the tasks. The batch has to be run again."""


# In the tasks.


def write(plan: WritePlan, identity: WriteIdentity, task: int, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
    """Write a task's rows, unless they are there already, and leave it to the driver that they count."""
    from ottla.spark.sink import send_all

    group = identity.group(task)
    tp = marker_partition(plan)
    with clients.transactional({"transaction.timeout.ms": TIMEOUT_MS, **plan.options.kafka}, group) as own:
        producer = own.take_over()
        decided = CommitDecision.known(plan, identity, tp)
        if decided is None or decided.version >= identity.version:  # else nothing of this version was committed
            marker = _marker(plan, group, tp)
            if marker is not None and marker.offset > identity.version:
                return TaskCommit(task, _passed(identity, task, marker, batches), None)
            _check(plan, identity, task, tp, marker, decided)
        producer.begin_transaction()
        try:
            content = TaskContent()

            def sent(batch: pa.RecordBatch) -> None:
                nonlocal content
                content = content.plus(batch)

            send_all(producer, plan, batches, sent)
            note = json.dumps({"version": identity.version, "content": content})
            producer.send_offsets_to_transaction({tp: (identity.version + 1, note)}, group)
            return TaskCommit(task, content, producer.hand_over_transaction())
        except BaseException:
            producer.abort_transaction()
            raise


def marker_partition(plan: WritePlan) -> TopicPartition:
    return TopicPartition(plan.topic or OFFSETS_TOPIC, 0)


def _offset(plan: WritePlan, group: str, tp: TopicPartition, *, stable: bool = True) -> OffsetAndMetadata | None:
    """As it is when no transaction holds it any more, or (not stable) as it was before."""
    with clients.admin(plan.options.kafka) as admin:
        return admin.group_offsets(group, [tp], stable=stable).get(tp)


def _marker(plan: WritePlan, group: str, tp: TopicPartition) -> OffsetAndMetadata | None:
    """Unless it is a decision of an app that was called like this task."""
    offset = _offset(plan, group, tp)
    return None if offset is None or _is_decision(offset) else offset


def _is_decision(offset: OffsetAndMetadata) -> bool:
    return "tasks" in json.loads(offset.metadata or "{}")


def _passed(
    identity: WriteIdentity, task: int, marker: OffsetAndMetadata, batches: Iterator[pa.RecordBatch]
) -> TaskContent:
    """Let the rows pass. Of a later version nothing is known; of the same one, what there was."""
    content = TaskContent()
    for batch in batches:
        content = content.plus(batch)
    noted = json.loads(marker.metadata) if marker.metadata else {}
    if noted.get("version") == identity.version and tuple(noted.get("content", content)) != content:
        raise NotRepeatable(
            f"batch {identity.version} of {identity.app_id} was written before, and task {task} had "
            f"{noted['content'][0]} rows then, but {content.rows} now, or others: {_OTHERWISE}"
        )
    return content


_OTHERWISE: Final = (
    "the query shares its rows out otherwise, or does not give the same twice. Run it as it was until the batch is "
    "done, or begin with a new checkpoint"
)


def _check(
    plan: WritePlan,
    identity: WriteIdentity,
    task: int,
    tp: TopicPartition,
    marker: OffsetAndMetadata | None,
    decided: CommitDecision | None,
) -> None:
    """Whether this task has certainly not written this version: only decided versions are committed."""
    if decided is not None and decided.version > identity.version:
        raise NotRepeatable(
            f"batch {identity.version} of {identity.app_id} was written before, without task {task}: {_OTHERWISE}"
        )
    if plan.options.writes_unmarked:
        return
    if decided is None:
        certain = identity.version == 0
    else:
        certain = marker is not None or decided.fresh
    if not certain:
        raise NotRepeatable(_unknown(identity, identity.decisions if decided is None else identity.group(task), tp))


def _unknown(identity: WriteIdentity, group: str, tp: TopicPartition) -> str:
    return (
        f"whether batch {identity.version} of {identity.app_id} was written is not known: group {group} has no offset "
        f"for {tp.topic}. Either that topic was deleted and recreated, and they went with it; or the query stood "
        "still for longer than they are kept, seven days (offsets.retention.minutes); or it wrote elsewhere before. To "
        "write the batch all the same, maybe a second time, set txnMissingMarker to "
        "write for one run"
    )


# In the driver.


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """The record that a version is committed, and its content."""

    version: int
    tasks: int
    digest: str
    at_s: float

    @classmethod
    def of(cls, identity: WriteIdentity, parts: Sequence[TaskCommit]) -> Self:
        parsed = json.dumps([part.content for part in sorted(parts)])
        return cls(identity.version, len(parts), hashlib.sha256(parsed.encode()).hexdigest()[:32], time.time())

    @classmethod
    def known(cls, plan: WritePlan, identity: WriteIdentity, tp: TopicPartition) -> Self | None:
        offset = _offset(plan, identity.decisions, tp) or _earlier_decision(plan, identity, tp)
        if offset is None:
            return None
        parsed = {"tasks": 0, "digest": "", "at_s": 0.0} | json.loads(offset.metadata or "{}")
        return cls(offset.offset - 1, parsed["tasks"], parsed["digest"], parsed["at_s"])

    @property
    def fresh(self) -> bool:
        return time.time() - self.at_s < FRESH_S

    def note(self) -> str:
        return json.dumps({"tasks": self.tasks, "digest": self.digest, "at_s": self.at_s})


def _earlier_decision(plan: WritePlan, identity: WriteIdentity, tp: TopicPartition) -> OffsetAndMetadata | None:
    """What stands under the name that decisions had before. Only if it is one, it is worth waiting for: a task of
    another app, which may have this name, holds it for the whole of its batch."""
    offset = None
    for stable in (False, True):
        offset = _offset(plan, identity.earlier_decisions, tp, stable=stable)
        if offset is None or not _is_decision(offset):
            return None
    return offset


def commit(plan: WritePlan, identity: WriteIdentity, parts: Sequence[TaskCommit]) -> None:
    """All tasks are done. Raises if this differs from the earlier decision; then nothing new is committed."""
    try:
        decide(plan, identity, parts)
        if fencing.app_id_before_tasks(plan.options) is None:
            fencing.fence_left_over(plan.options.kafka, identity.app_id, len(parts))
    except BaseException:
        abort(plan, parts)
        raise
    end(plan, _open(parts), committed=True)


def abort(plan: WritePlan, parts: Iterable[TaskCommit]) -> None:
    """Abort, so that readers can continue. A transaction that cannot be aborted now ends with its timeout, or when the
    task is run again."""
    try:
        end(plan, _open(parts), committed=False)
    except (NotCommitted, ClientError):
        return


def _open(parts: Iterable[TaskCommit]) -> list[OpenTransaction]:
    return [part.transaction for part in parts if part.transaction is not None]


def decide(plan: WritePlan, identity: WriteIdentity, parts: Sequence[TaskCommit]) -> None:
    """A driver that made the previous decision, and was not fenced since, need not read the decisions."""
    new = CommitDecision.of(identity, parts)
    left = len(_open(parts))
    with clients.transactional(plan.options.kafka, identity.decisions) as own:
        if own.decided == identity.version - 1 and left == len(parts):
            try:
                _record(plan, identity, new, own)
                return
            except ClientError as error:
                log.info("%s: another driver decides, or none could be heard: %s", identity.decisions, error)
                own.renew()
        _decide_after_takeover(plan, identity, new, left, own)


def _decide_after_takeover(
    plan: WritePlan, identity: WriteIdentity, new: CommitDecision, left: int, own: clients.Transactional
) -> None:
    tp = marker_partition(plan)
    own.take_over()  # another driver of this query cannot decide any more
    known = CommitDecision.known(plan, identity, tp)
    if known is not None and known.version >= identity.version:
        _compare(identity, known, new, left)
        return
    if left < new.tasks and not plan.options.writes_unmarked:
        # Some were committed, but the decision is gone.
        raise NotRepeatable(_unknown(identity, identity.decisions, tp))
    _record(plan, identity, new, own)


def _record(plan: WritePlan, identity: WriteIdentity, new: CommitDecision, own: clients.Transactional) -> None:
    own.decided = None
    with own.producer.transaction() as producer:
        offsets = {marker_partition(plan): (new.version + 1, new.note())}
        producer.send_offsets_to_transaction(offsets, identity.decisions)
    own.decided = new.version


def _compare(identity: WriteIdentity, known: CommitDecision, new: CommitDecision, left: int) -> None:
    """Compare with the decision. Of later versions only their number is known: nothing is left to do."""
    same = known.tasks == new.tasks and known.digest == new.digest if known.version == new.version else left == 0
    if same:
        return
    raise NotRepeatable(
        f"batch {identity.version} of {identity.app_id} was written before, in part at least, by {known.tasks} tasks; "
        f"now there are {new.tasks}, or they have other rows: {_OTHERWISE}"
    )


def end(plan: WritePlan, transactions: Sequence[OpenTransaction], *, committed: bool) -> None:
    if not transactions:
        return
    with clients.admin(plan.options.kafka) as admin, ThreadPoolExecutor(min(ENDING_MAX, len(transactions))) as pool:
        ends = [pool.submit(admin.end_transaction, each, committed=committed) for each in transactions]
    failed = [end.exception() for end in ends if end.exception() is not None]
    if failed:
        limit = plan.options.kafka.get("transaction.timeout.ms", TIMEOUT_MS)
        raise NotCommitted(
            f"{len(failed)} of {len(ends)} tasks could not be committed, the batch has to be run again: {failed[0]}. "
            f"If it took longer than the {limit} ms that kafka.transaction.timeout.ms allows, make batches smaller "
            "(maxOffsetsPerTrigger), or allow more, also on the brokers (transaction.max.timeout.ms)"
        ) from failed[0]
