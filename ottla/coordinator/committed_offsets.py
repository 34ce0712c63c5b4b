"""Committed offsets of groups, by group, topic and partition; the newest counts.

Offsets that are committed in a transaction (KIP-447) are pending until it ends: they count when it is committed, and
until then OffsetFetch with `require_stable` answers UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ottla.coordinator.commit_batch import CommitBatch, TopicCommit
from ottla.coordinator.decision import LogRecord
from ottla.coordinator.group_context import GroupContext
from ottla.coordinator.group_records import NO_EPOCH, NO_TIMESTAMP, Committed, OffsetCommitKey, OffsetCommitValue
from ottla.errors import ErrorCode
from ottla.wire.offset_commit import Commit
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.schema.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.wire.tree import ZERO_UUID

NO_OFFSET = -1
NO_RETENTION = -1

Topics = dict[str, dict[int, Committed]]


class _Pending(NamedTuple):
    """An offset that counts when its transaction is committed; `number`: in order of arrival."""

    number: int
    value: OffsetCommitValue


class CommittedOffsets:
    """The offsets of all groups of one shard."""

    __slots__ = ("_committed", "_context", "_pending", "_pending_count")

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._committed: dict[str, Topics] = {}
        self._pending: dict[int, dict[OffsetCommitKey, _Pending]] = {}  # by producer id
        self._pending_count = 0

    def has(self, group_id: str) -> bool:
        return group_id in self._committed

    # Committing.

    def commit(self, request: OffsetCommitRequest, now_ms: int) -> tuple[list[LogRecord], OffsetCommitResponse]:
        """The records of a commit, and its response."""
        image, config = self._context.image, self._context.config
        metadata_max = config.offset_metadata_max_bytes
        expires_ms = NO_TIMESTAMP if request.retention_time_ms == NO_RETENTION else now_ms + request.retention_time_ms
        group_id = request.group_id
        records = []
        topics = []
        for topic in request.topics:
            by_id = topic.topic_id != ZERO_UUID
            name = image.names.get(topic.topic_id, "") if by_id else topic.name
            known = image.topics.get(name)
            results = []
            for each in topic.partitions:
                code = ErrorCode.none
                metadata = each.committed_metadata or ""
                if known is None:
                    code = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
                elif len(metadata) > metadata_max:
                    code = ErrorCode.offset_metadata_too_large
                else:
                    value = OffsetCommitValue(
                        each.committed_offset, each.committed_leader_epoch, metadata, now_ms, expires_ms, known.id
                    )
                    records.append(LogRecord(OffsetCommitKey(group_id, name, each.partition_index), value))
                results.append(OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code))
            topics.append(OffsetCommitResponseTopic(topic_id=topic.topic_id, name=topic.name, partitions=results))
        return records, OffsetCommitResponse(topics=topics)

    def commit_fast(self, commit: Commit, now_ms: int) -> tuple[CommitBatch | None, list[int]]:
        """The same on the fast path: the batch, and the error code of each topic."""
        image = self._context.image
        known = []
        codes: list[int] = []
        for offsets in commit.topics:
            name = offsets.topic if isinstance(offsets.topic, str) else image.names.get(offsets.topic, "")
            topic = image.topics.get(name)
            if topic is not None:
                known.append(TopicCommit(name, topic.id, offsets))
                codes.append(ErrorCode.none)
            elif isinstance(offsets.topic, str) or offsets.topic == ZERO_UUID:
                codes.append(ErrorCode.unknown_topic_or_partition)
            else:
                codes.append(ErrorCode.unknown_topic_id)
        return CommitBatch(commit.group_id, known, now_ms) if known else None, codes

    # Replay.

    def replay_all(self, group_id: str, name: str, commits: Mapping[int, Committed]) -> None:
        """Committed offsets of one topic. They replace pending ones: of two commits the later one counts, also if the
        transaction of the earlier one ends after it."""
        for pending in self._pending.values():
            for index in commits:
                pending.pop(OffsetCommitKey(group_id, name, index), None)
        self._put(group_id, name, commits)

    def _put(self, group_id: str, name: str, commits: Mapping[int, Committed]) -> None:
        topics = self._committed.get(group_id)
        if topics is None:
            topics = self._committed[group_id] = {}
        partitions = topics.get(name)
        if partitions is None:
            topics[name] = dict(commits)
        else:
            partitions.update(commits)

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None = None) -> None:
        if producer_id is not None and value is not None:
            self._pending_count += 1
            self._pending.setdefault(producer_id, {})[key] = _Pending(self._pending_count, value)
            return
        group_id, name, index = key
        if value is not None:
            self.replay_all(group_id, name, {index: value})
            return
        for pending in self._pending.values():
            pending.pop(key, None)
        topics = self._committed.get(group_id, {})
        partitions = topics.get(name, {})
        partitions.pop(index, None)
        if not partitions:
            topics.pop(name, None)
        if not topics:
            self._committed.pop(group_id, None)

    def replay_end(self, producer_id: int, *, committed: bool) -> list[str]:
        """The marker of a transaction was appended. The groups whose pending offsets were committed."""
        ended = self._pending.pop(producer_id, {})
        if not committed:
            return []
        for key, (number, value) in ended.items():
            for others in self._pending.values():
                if key in others and others[key].number < number:
                    del others[key]
            self._put(key.group_id, key.topic, {key.partition: value})
        return sorted({key.group_id for key in ended})

    # Reading.

    def fetch(self, request: OffsetFetchRequestGroup, *, stable: bool) -> OffsetFetchResponseGroup:
        """The committed offsets of some partitions, or of all (topics None). A partition without one has offset -1."""
        committed = self._committed.get(request.group_id, {})
        unstable = self._unstable(request.group_id) if stable and self._pending else set()
        image = self._context.image
        topics = []
        if request.topics is None:
            for name in sorted(committed.keys() | {name for name, _ in unstable}):
                known = image.topics.get(name)
                partitions = committed.get(name, {})
                indexes = sorted(partitions.keys() | {index for topic, index in unstable if topic == name})
                topic_id = ZERO_UUID if known is None else known.id
                topics.append(_fetched(name, topic_id, indexes, partitions, unstable))
        else:
            for topic in request.topics:
                by_id = topic.topic_id != ZERO_UUID
                name = image.names.get(topic.topic_id, "") if by_id else topic.name
                if by_id and not name:
                    topics.append(_unknown(topic.topic_id, topic.partition_indexes))
                    continue
                known = image.topics.get(name)
                topic_id = topic.topic_id if known is None else known.id
                partitions = committed.get(name, {})
                topics.append(_fetched(name, topic_id, topic.partition_indexes, partitions, unstable))
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def _unstable(self, group_id: str) -> set[tuple[str, int]]:
        return {
            (key.topic, key.partition) for keys in self._pending.values() for key in keys if key.group_id == group_id
        }

    # Deleting.

    def partitions_of(self, group_id: str) -> Iterator[tuple[OffsetCommitKey, OffsetCommitValue]]:
        for name, partitions in self._committed.get(group_id, {}).items():
            for index, value in partitions.items():
                yield OffsetCommitKey(group_id, name, index), OffsetCommitValue._make(value)

    def tombstones(
        self, group_id: str, topic: str | None = None, indexes: Iterable[int] | None = None
    ) -> list[LogRecord]:
        """For all offsets of a group, or those of one topic, or of some of its partitions."""
        wanted = None if indexes is None else set(indexes)
        return [
            LogRecord(key, None)
            for key, _ in self.partitions_of(group_id)
            if (topic is None or key.topic == topic) and (wanted is None or key.partition in wanted)
        ]

    def tombstones_of(self, group_id: str, topic: str, topic_id: bytes) -> list[LogRecord]:
        """For the offsets of one topic, not of another topic with the same name."""
        return [
            LogRecord(key, None)
            for key, value in self.partitions_of(group_id)
            if key.topic == topic and value.topic_id in (ZERO_UUID, topic_id)
        ]

    def groups_with(self, topic: str) -> list[str]:
        return [group_id for group_id, topics in self._committed.items() if topic in topics]

    def expired(
        self,
        group_id: str,
        now_ms: int,
        subscribes: Callable[[str], bool],
        kept_since_ms: Callable[[OffsetCommitValue], int | None],
    ) -> list[LogRecord]:
        """Tombstones for offsets that were unused for `offsets.retention.minutes` (KIP-211)."""
        retention_ms = self._context.config.offsets_retention_minutes * 60_000
        unstable = self._unstable(group_id) if self._pending else set()
        found = []
        for name, partitions in self._committed.get(group_id, {}).items():
            if subscribes(name):
                continue
            for index, committed in partitions.items():
                value = OffsetCommitValue._make(committed)
                since_ms = kept_since_ms(value)
                if since_ms is None or (name, index) in unstable:
                    continue
                explicit = value.expire_timestamp_ms
                ends_ms = explicit if explicit != NO_TIMESTAMP else since_ms + retention_ms
                if now_ms >= ends_ms:
                    found.append(LogRecord(OffsetCommitKey(group_id, name, index), None))
        return found


def _fetched(
    name: str, topic_id: bytes, indexes: Iterable[int], partitions: dict[int, Committed], unstable: set[tuple[str, int]]
) -> OffsetFetchResponseTopics:
    results = []
    for index in indexes:
        committed = partitions.get(index)
        value = None if committed is None else OffsetCommitValue._make(committed)
        if (name, index) in unstable:
            results.append(_nothing(index, ErrorCode.unstable_offset_commit))
        elif value is None or (topic_id != ZERO_UUID and value.topic_id not in (ZERO_UUID, topic_id)):
            results.append(_nothing(index))  # or it belongs to another topic that had the same name
        else:
            results.append(
                OffsetFetchResponsePartitions(
                    partition_index=index,
                    committed_offset=value.offset,
                    committed_leader_epoch=value.leader_epoch,
                    metadata=value.metadata,
                )
            )
    return OffsetFetchResponseTopics(topic_id=topic_id, name=name, partitions=results)


def _unknown(topic_id: bytes, indexes: Iterable[int]) -> OffsetFetchResponseTopics:
    results = [_nothing(index, ErrorCode.unknown_topic_id) for index in indexes]
    return OffsetFetchResponseTopics(topic_id=topic_id, partitions=results)


def _nothing(index: int, code: ErrorCode = ErrorCode.none) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=NO_OFFSET, committed_leader_epoch=NO_EPOCH, metadata="", error_code=code
    )
