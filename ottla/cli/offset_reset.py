"""Offset reset of a consumer group: the scenario that was chosen, and the new offset of each partition."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from ottla.cli.failure import Misused
from ottla.cli.quantities import duration_ms, moment_ms
from ottla.client.admin import Admin
from ottla.client.values import TopicPartition


class Aim(NamedTuple):
    """`earliest`, `latest`, `current`, `offset`, `shift` or `time`, with a number where it takes one."""

    kind: str
    number: int = 0


class OffsetChange(NamedTuple):
    tp: TopicPartition
    old: int | None
    new: int


def aim_of(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
) -> Aim:
    """The only scenario that was given."""
    try:
        aims = [
            *([Aim("earliest")] if to_earliest else []),
            *([Aim("latest")] if to_latest else []),
            *([Aim("offset", to_offset)] if to_offset is not None else []),
            *([Aim("shift", shift_by)] if shift_by is not None else []),
            *([Aim("time", moment_ms(to_datetime))] if to_datetime else []),
            *([Aim("time", time.time_ns() // 1_000_000 - duration_ms(by_duration))] if by_duration else []),
        ]
    except ValueError as bad:
        raise Misused(str(bad)) from None
    if len(aims) != 1:
        raise Misused(
            "name the new offset, once",
            hint="One of --to-earliest, --to-latest, --to-offset, --shift-by, --to-datetime, --by-duration.",
        )
    return aims[0]


def parse_selection(topics: Sequence[str]) -> dict[str, list[int]]:
    """`orders` or `orders:0,1`, as on Kafka's command line; without numbers all partitions."""
    selection: dict[str, list[int]] = {}
    for text in topics:
        name, colon, numbers = text.partition(":")
        if colon and not all(number.isdecimal() for number in numbers.split(",")):
            raise Misused(f"--topic {text!r} does not name partitions", hint="For example orders:0,1.")
        selection.setdefault(name, []).extend(int(number) for number in numbers.split(",") if number)
    return selection


async def planned(admin: Admin, group: str, selection: dict[str, list[int]], aim: Aim) -> list[OffsetChange]:
    """The new offset of each partition, between its log start and its end."""
    committed = {tp: at.offset for tp, at in (await admin.group_offsets(group)).items()}
    partitions = await _partitions(admin, selection) if selection else sorted(committed)
    if not partitions:
        return []
    begins = {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(partitions, "earliest"))).items()}
    ends = {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(partitions, "latest"))).items()}
    times = await admin.list_offsets(dict.fromkeys(partitions, aim.number)) if aim.kind == "time" else {}
    changes = []
    for tp in partitions:
        wanted = {
            "earliest": begins[tp],
            "latest": ends[tp],
            "current": committed.get(tp, ends[tp]),
            "offset": aim.number,
            "shift": committed.get(tp, begins[tp]) + aim.number,
            "time": times[tp].offset if tp in times and times[tp].offset >= 0 else ends[tp],
        }[aim.kind]
        changes.append(OffsetChange(tp, committed.get(tp), min(max(wanted, begins[tp]), ends[tp])))
    return changes


async def _partitions(admin: Admin, selection: dict[str, list[int]]) -> list[TopicPartition]:
    topics = await admin.describe_topics(list(selection))
    partitions = []
    for name, numbers in selection.items():
        there = [partition.partition for partition in topics[name].partitions]
        if missing := set(numbers) - set(there):
            raise Misused(f"topic {name} has no partition {min(missing)}; it has {len(there)}")
        partitions += [TopicPartition(name, number) for number in sorted(set(numbers or there))]
    return partitions
