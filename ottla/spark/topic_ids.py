"""Topic ids that a stream has read: a topic that was deleted and created again is noticed.

The ids are kept outside the offsets, whose JSON is that of Spark's connector:
- in a file beside the checkpoint (`<checkpoint>/ottla/topic-ids-….json`), if the reader's option checkpointLocation is
  a directory of this machine;
- else, if the checkpoint is elsewhere and `groupId` mirrors the query, in the metadata of an offset of the group
  `ottla-topics-<groupId>-<digest of the checkpoint's address>`: brokers forget the offsets of a topic with the topic,
  so this one belongs to another;
- else in memory: then a topic that is recreated while the query is stopped is noticed only if it is too short.
`groupId` alone is not enough, since several queries may use it, each at other offsets.

A micro-batch belongs to the topic that existed when its end offsets were looked up. So ids are stored before these end
offsets are returned to Spark, by the planner alone. Where the query may go on with a new topic, the offset at which
each partition was found to be another one is stored, too: a batch that begins there reads from the beginning, also when
it is run again. A batch that was planned before the topic was recreated has lost its records; the next one begins
again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.spark import clients
from ottla.spark.offset_ranges import Offsets
from ottla.spark.options import ReadOptions, local_path
from ottla.spark.range_reader import NO_ID

FOLDER: Final = "ottla"
PREFIX: Final = "ottla-topics-"
OFFSETS: Final = TopicPartition("__consumer_offsets", 0)
"""A partition that is there as long as groups are."""
AGAIN_S: Final = 3600.0
"""So often they are written, changed or not: brokers forget an offset some days after it was committed."""
log = logging.getLogger(__name__)


class KnownTopic(NamedTuple):
    """A topic as it was last seen."""

    topic_id: str
    recreated_at: dict[int, int]
    """Up to which offset each partition of the topic before it had been read; empty as soon as the new one has been."""


class TopicIdStore(Protocol):
    def load(self) -> dict[str, KnownTopic]: ...
    def save(self, known: Mapping[str, KnownTopic]) -> None: ...


class TopicIds:
    """Of one stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._store = _store(options)
        self._known: dict[str, KnownTopic] | None = None
        self._save_at = 0.0

    @property
    def known(self) -> dict[str, KnownTopic]:
        if self._known is None:
            self._known = {} if self._store is None else self._store.load()
        return self._known

    def recreated(self, start: Offsets, ids: Mapping[str, bytes]) -> list[str]:
        """Topics that `start` has offsets of, and that are others now than those that were read."""
        read = {tp.topic for tp in start}
        return sorted(
            name
            for name, topic_id in ids.items()
            if name in read and topic_id != NO_ID and name in self.known and self.known[name].topic_id != topic_id.hex()
        )

    def learn(self, start: Offsets, ids: Mapping[str, bytes]) -> None:
        """Continue with these ids. Durable, if they can be stored, before a record of a new topic is read."""
        recreated = set(self.recreated(start, ids))
        news = dict(self.known)
        for name, topic_id in ids.items():
            at = {tp.partition: offset for tp, offset in start.items() if tp.topic == name}
            known = news.get(name)
            if name in recreated:
                news[name] = KnownTopic(topic_id.hex(), at)
            elif topic_id != NO_ID and (known is None or not at):
                news[name] = KnownTopic(topic_id.hex(), {})  # read from its beginning on
            elif known is not None and known.recreated_at and known.recreated_at != at:
                news[name] = known._replace(recreated_at={})  # the batch that began there is done
        is_due = time.monotonic() >= self._save_at
        if (news != self.known or is_due) and self._store is not None:
            self._store.save(news)
            self._save_at = time.monotonic() + AGAIN_S
        self._known = news

    def forget(self) -> None:
        """The query has read nothing yet: stored ids are of another query."""
        self._known = {}

    def of_batch(self) -> dict[str, str]:
        """Of the batch that was planned last."""
        return {name: known.topic_id for name, known in self.known.items()}

    def of_this_topic(self, start: Offsets) -> Offsets:
        """Without partitions whose offset counts records of the old topic: they start at the beginning."""
        return {tp: offset for tp, offset in start.items() if not self._is_of_another(tp, offset)}

    def _is_of_another(self, tp: TopicPartition, start: int) -> bool:
        known = self.known.get(tp.topic)
        return known is not None and known.recreated_at.get(tp.partition) == start


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, KnownTopic]:
        try:
            return _parsed(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read; a topic that was recreated meanwhile goes unnoticed: %s", self._path, error)
            return {}

    def save(self, known: Mapping[str, KnownTopic]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("w") as file:
            file.write(_reported(known))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


class _Group:
    def __init__(self, kafka: Mapping[str, str], group_id: str) -> None:
        self._kafka = kafka
        self._group_id = PREFIX + group_id

    def load(self) -> dict[str, KnownTopic]:
        try:
            with clients.admin(self._kafka) as admin:
                offset = admin.group_offsets(self._group_id, [OFFSETS]).get(OFFSETS)
            return {} if offset is None else _parsed(offset.metadata)
        except (ClientError, ValueError) as error:
            log.warning("the topic ids in group %s cannot be read: %s", self._group_id, error)
            return {}

    def save(self, known: Mapping[str, KnownTopic]) -> None:
        """The broker limits how long it may be; then it is not kept."""
        try:
            with clients.admin(self._kafka) as admin:
                admin.alter_group_offsets(self._group_id, {OFFSETS: (0, _reported(known))})
        except ClientError as error:
            log.warning("group %s does not keep the ids of the topics: %s", self._group_id, error)


def _reported(known: Mapping[str, KnownTopic]) -> str:
    return json.dumps({name: [each.topic_id, each.recreated_at] for name, each in known.items()}, separators=(",", ":"))


def _parsed(text: str) -> dict[str, KnownTopic]:
    """ValueError, if it is something else."""
    try:
        return {
            name: KnownTopic(str(topic_id), {int(partition): int(offset) for partition, offset in at.items()})
            for name, (topic_id, at) in json.loads(text or "{}").items()
        }
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no ids of topics: {error}") from None


def _store(options: ReadOptions) -> TopicIdStore | None:
    if options.checkpoint is not None:
        path = local_path(options.checkpoint)
        if path is not None:
            return _File(path / FOLDER / f"topic-ids-{_digest(options)}.json")
        if options.group_id is not None:
            return _Group(options.kafka, f"{options.group_id}-{_digest(options, options.checkpoint)}")
    return None


def _digest(options: ReadOptions, *others: str) -> str:
    """One place for each source of a query."""
    names: Iterable[object] = (options.topics, options.pattern, options.assigned, *others)
    return hashlib.sha256(repr(tuple(names)).encode()).hexdigest()[:12]
