"""Reading a range of a partition in a task: Arrow batches until the end of the range.

There may be nothing between two offsets (compaction, the ends of transactions), so a range is done when the position
has passed its end, whatever came. Records that are not in the log any more are lost data: the query fails, or
continues with the rest, as `failOnDataLoss` says.

A range belongs to the topic id that was planned. A topic that was recreated since has the same name and other records:
none of them is read for the range, also if the topic is long enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ottla.blocking import Consumer
from ottla.client.consuming.subscription_state import OffsetOutOfRange
from ottla.client.errors import ClientError, TimedOut, UnknownTopic
from ottla.spark import clients
from ottla.spark.offset_ranges import OffsetRange
from ottla.spark.options import ReadOptions
from ottla.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_MS: Final = 1000
NO_ID: Final = bytes(16)
"""The topic id in old versions of Metadata."""
MISSED_MAX: Final = 2
"""When nothing comes, the topic is looked for; so many times in a row it is not there before it is taken for gone."""
WHY_LOST: Final = "the rest has aged out, or the topic was recreated"
log = logging.getLogger(__name__)


class DataLost(Exception):
    """Records that the query counted on are not in the log any more."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. To continue with the rest, set failOnDataLoss to false; lost records stay lost")


def read(options: ReadOptions, parts: Iterable[OffsetRange]) -> Generator[pa.RecordBatch]:
    try:
        for part in parts:
            yield from _read_range(options, part)
    finally:
        settle()


def _read_range(options: ReadOptions, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    with clients.consumer(options.kafka) as consumer:
        consumer.assign([part.tp])
        consumer.seek(part.tp, part.start, until=part.end)
        try:
            yield from _batches(consumer, options, part)
        finally:
            consumer.unsubscribe()


def _batches(consumer: Consumer, options: ReadOptions, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    tp, end = part.tp, part.end
    planned = bytes.fromhex(part.topic_id)
    until = {tp: end}
    deadline = time.monotonic() + options.poll_timeout_s
    position, missed = part.start, 0
    while position < end:
        try:
            taken = consumer.getmany_arrow(timeout_ms=WAIT_MS, columns=options.columns, until=until)
        except OffsetOutOfRange:
            if planned and _topic_id(options, part.topic) not in (planned, NO_ID, None):
                _report_recreated(options, part, position)
                return
            position, end = _left(consumer, options, part, position)
            if position < end:
                consumer.seek(tp, position, until=end)
            if time.monotonic() < deadline:
                continue
            raise
        if tp in taken and planned and consumer.topic_id(tp) not in (planned, NO_ID):
            _report_recreated(options, part, position)
            return
        yield from taken.get(tp, ())
        before, position = position, consumer.position(tp)
        if position > before:
            deadline, missed = time.monotonic() + options.poll_timeout_s, 0
            continue
        missed = missed + 1 if _topic_id(options, part.topic) is None else 0
        if missed == MISSED_MAX:
            lost = f"topic {part.topic} is gone, of which offsets {position} to {end} were to be read"
            _report_data_loss(options, lost)
            return
        if time.monotonic() >= deadline:
            limit = f"{options.poll_timeout_s:g} s"
            last = consumer.end_offsets([tp])[tp]
            if last <= position:
                _report_data_loss(
                    options, f"{tp}: offsets {position} to {end} are to be read, but it ends at {last}: {WHY_LOST}"
                )
                return
            raise TimedOut(f"{tp}: nothing came from offset {position} on within {limit}, though {end} is its end")


def _left(consumer: Consumer, options: ReadOptions, part: OffsetRange, position: int) -> tuple[int, int]:
    """The range that is still to be read of what the log has: all of it, if the consumer, which is older than the
    query, has only seen that the topic is another one than it knew."""
    tp = part.tp
    first = consumer.beginning_offsets([tp])[tp]
    last = consumer.end_offsets([tp])[tp]
    lost = f"{tp}: offsets {position} to {part.end} are to be read, but the log has {first} to {last}: {WHY_LOST}"
    begins_late = part.begins and position < first
    if not begins_late and not first <= position <= part.end <= last:
        _report_data_loss(options, lost)
    return max(position, first), min(part.end, last)


def _report_recreated(options: ReadOptions, part: OffsetRange, position: int) -> None:
    _report_data_loss(
        options,
        f"topic {part.topic} was deleted and recreated; {part.end - position} offsets of the old one's partition "
        f"{part.partition}, from {position} on, were to be read and are gone",
    )


def _report_data_loss(options: ReadOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLost(what)
    log.warning("%s; continuing with the rest", what)


def _topic_id(options: ReadOptions, topic: str) -> bytes | None:
    """The topic id; None: there is no such topic. NO_ID also if no broker answers."""
    try:
        with clients.admin(options.kafka) as admin:
            return admin.describe_topics([topic])[topic].topic_id
    except UnknownTopic:
        return None
    except ClientError:
        return NO_ID
