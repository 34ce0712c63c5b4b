"""Partition statistics beyond metadata: log start offset, high watermark and size."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ottla.cli.target import partitions_of
from ottla.client.admin import Admin, LogDir, TopicDescription
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition

ANSWER_SECONDS_MAX: Final = 3.0
"""How long a broker may take to return offsets and sizes: a command does not wait for a dead broker."""


class PartitionStats(NamedTuple):
    """None: no broker answered."""

    log_start: int | None = None
    end: int | None = None
    """The high watermark: the first offset that consumers cannot read yet."""
    size: int | None = None
    """Of the leader's log, in bytes."""

    @property
    def records(self) -> int | None:
        """Upper bound: compaction and transaction markers leave offsets without a record."""
        return None if self.log_start is None or self.end is None else self.end - self.log_start


async def partition_stats(admin: Admin, topics: Collection[TopicDescription]) -> dict[TopicPartition, PartitionStats]:
    """Of every partition of these topics; empty for one whose leader is missing or does not answer."""
    leaders = {tp: part.leader for tp, part in partitions_of(topics).items()}
    by_leader: dict[int, list[TopicPartition]] = {}
    for each, leader in leaders.items():
        if leader >= 0:
            by_leader.setdefault(leader, []).append(each)
    starts, ends = await asyncio.gather(
        _offsets(admin, by_leader.values(), "earliest"), _offsets(admin, by_leader.values(), "latest")
    )
    sizes = await _sizes(admin, leaders)
    return {each: PartitionStats(starts.get(each), ends.get(each), sizes.get(each)) for each in leaders}


async def _offsets(admin: Admin, groups: Collection[Collection[TopicPartition]], at: str) -> dict[TopicPartition, int]:
    """One request for each leader: a leader that does not answer affects only its own partitions."""

    async def ask(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found = await admin.list_offsets(dict.fromkeys(partitions, at))
        except (ClientError, TimeoutError):
            return {}
        return {each: listed.offset for each, listed in found.items()}

    answers = await asyncio.gather(*map(ask, groups))
    return {each: offset for answer in answers for each, offset in answer.items()}


async def _sizes(admin: Admin, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    dirs = await disks(admin, {leader for leader in leaders.values() if leader >= 0})
    return {
        each: log_dir.replicas[each].size
        for each, leader in leaders.items()
        for log_dir in dirs.get(leader, ())
        if each in log_dir.replicas
    }


async def disks(admin: Admin, brokers: Collection[int]) -> dict[int, list[LogDir]]:
    """Log directories of these brokers; a broker that does not answer is left out."""

    async def ask(broker_id: int) -> dict[int, list[LogDir]]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await admin.log_dirs([broker_id])
        except (ClientError, TimeoutError):
            return {}

    answers = await asyncio.gather(*map(ask, brokers))
    return {broker_id: dirs for answer in answers for broker_id, dirs in answer.items()}
