"""Where a group's offsets are to go: what was asked for, and what that means for each partition."""

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


class Change(NamedTuple):
    place: TopicPartition
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
    """The one that was said."""
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
            "say where to, once",
            hint="One of --to-earliest, --to-latest, --to-offset, --shift-by, --to-datetime, --by-duration.",
        )
    return aims[0]


def parse_selection(topics: Sequence[str]) -> dict[str, list[int]]:
    """`orders` or `orders:0,1`, as on Kafka's command line; no numbers stand for all."""
    selection: dict[str, list[int]] = {}
    for text in topics:
        name, colon, numbers = text.partition(":")
        if colon and not all(number.isdecimal() for number in numbers.split(",")):
            raise Misused(f"--topic {text!r} names no partitions", hint="For example orders:0,1.")
        selection.setdefault(name, []).extend(int(number) for number in numbers.split(",") if number)
    return selection


async def planned(admin: Admin, group: str, selection: dict[str, list[int]], aim: Aim) -> list[Change]:
    """The offset of each partition, kept within what the partition holds."""
    committed = {place: at.offset for place, at in (await admin.group_offsets(group)).items()}
    places = await _places(admin, selection) if selection else sorted(committed)
    if not places:
        return []
    begins = {place: at.offset for place, at in (await admin.list_offsets(dict.fromkeys(places, "earliest"))).items()}
    ends = {place: at.offset for place, at in (await admin.list_offsets(dict.fromkeys(places, "latest"))).items()}
    times = await admin.list_offsets(dict.fromkeys(places, aim.number)) if aim.kind == "time" else {}
    changes = []
    for place in places:
        wanted = {
            "earliest": begins[place],
            "latest": ends[place],
            "current": committed.get(place, ends[place]),
            "offset": aim.number,
            "shift": committed.get(place, begins[place]) + aim.number,
            "time": times[place].offset if place in times and times[place].offset >= 0 else ends[place],
        }[aim.kind]
        changes.append(Change(place, committed.get(place), min(max(wanted, begins[place]), ends[place])))
    return changes


async def _places(admin: Admin, selection: dict[str, list[int]]) -> list[TopicPartition]:
    topics = await admin.describe_topics(list(selection))
    places = []
    for name, numbers in selection.items():
        there = [partition.partition for partition in topics[name].partitions]
        if missing := set(numbers) - set(there):
            raise Misused(f"topic {name} has no partition {min(missing)}; it has {len(there)}")
        places += [TopicPartition(name, number) for number in sorted(set(numbers or there))]
    return places
