"""--reset-offsets of kafka-consumer-groups.sh: the new offsets of each group, and their CSV form."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

import click

from ottla.cli.failure import Misused
from ottla.cli.kafka_scripts.options import ScriptOptions, ToolComplaint, ToolFailure, UsageFailure
from ottla.cli.offset_reset import Aim, aim_of, parse_selection, planned
from ottla.client.admin import Admin
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode

Plan = dict[str, dict[TopicPartition, int]]
INACTIVE: Final = ("Empty", "Dead")
SCENARIOS: Final = (
    "to-offset", "to-datetime", "by-duration", "to-earliest", "to-latest", "to-current", "shift-by", "from-file"
)  # fmt: skip


def failed(why: str, kind: type[ToolFailure] = ToolComplaint) -> ToolFailure:
    return kind(f"\nError: Executing consumer group command failed due to {why}", stdout=True)


def selected(topics: Sequence[str]) -> dict[str, list[int]]:
    """`orders` or `orders:0,1`; without numbers all partitions."""
    for text in topics:
        _, colon, numbers = text.partition(":")
        for number in numbers.split(",") if colon else ():
            if not number.isdecimal():
                raise UsageFailure(f"Invalid partition '{number}' specified in topic arg '{text}''")
    return parse_selection(topics)


async def reset(admin: Admin, groups: Sequence[str], given: ScriptOptions) -> Plan:
    """The new offsets of each group, committed if --execute says so."""
    listed = _from_file(given.from_file, groups) if given.from_file is not None else None
    if listed is None and not given.topic and not given.all_topics:
        raise UsageFailure("One of the reset scopes should be defined: --all-topics, --topic.")
    aim = None if listed is not None else _aim(given)
    plan: Plan = {}
    for group in groups:
        state = await _state(admin, group)
        if state not in INACTIVE:
            click.echo(
                f"\nError: Assignments can only be reset if the group '{group}' is inactive, "
                f"but the current state is {state}."
            )
            plan[group] = {}
            continue
        if listed is not None:
            plan[group] = listed.get(group, {})
        else:
            assert aim is not None
            plan[group] = await _planned(admin, group, {} if given.all_topics else selected(given.topic), aim)
        if given.execute and plan[group]:
            await admin.alter_group_offsets(group, plan[group])
    return plan


async def _planned(admin: Admin, group: str, selection: dict[str, list[int]], aim: Aim) -> dict[TopicPartition, int]:
    there = await admin.describe_topics([name for name, numbers in selection.items() if numbers])
    missing = [
        f"{name}-{number}"
        for name, topic in there.items()
        for number in selection[name]
        if number not in {part.partition for part in topic.partitions}
    ]
    if missing:
        raise failed(f'The partitions "{", ".join(missing)}" do not exist')
    plan = {change.tp: change.new for change in await planned(admin, group, selection, aim)}
    found = await admin.list_offsets(dict.fromkeys(plan, aim.number)) if aim.kind == "time" else {}
    for each in plan:
        if each in found and found[each].offset < 0:
            click.echo(
                f"\nWarn: Partition {each.partition} from topic {each.topic} is empty. "
                "Falling back to latest known offset."
            )
    return plan


def _aim(given: ScriptOptions) -> Aim:
    if given.to_current:
        return Aim("current")
    if given.to_datetime and "T" not in given.to_datetime:
        raise failed(
            "java.text.ParseException: Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    try:
        return aim_of(
            given.to_earliest, given.to_latest, given.to_offset, given.shift_by, given.to_datetime, given.by_duration
        )
    except Misused as misused:
        if given.by_duration:
            raise failed("Text cannot be parsed to a Duration") from None
        if given.to_datetime:
            raise failed(f'java.text.ParseException: Unparseable date: "{given.to_datetime}"') from misused
        names = ", ".join(f"[{name}]" for name in SCENARIOS)
        raise UsageFailure(f"Option '[reset-offsets]' requires one of the following scenarios: [{names}]") from None


async def _state(admin: Admin, group: str) -> str:
    """A group that does not exist counts as empty: offsets can be committed for it."""
    try:
        return (await admin.describe_groups([group]))[group].state
    except ClientError as error:
        if error.code != ErrorCode.group_id_not_found:
            raise
        return INACTIVE[0]


def exported(plan: Plan, *, single: bool) -> str:
    """`topic,partition,offset` for one group, with the group before it for several."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for group, offsets in plan.items():
        for each, offset in offsets.items():
            lines.writerow([*([] if single else [group]), *each, offset])
    return text.getvalue()


def _from_file(path: str, groups: Sequence[str]) -> Plan:
    plan: Plan = {}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for line in csv.reader(file):
                group, topic, partition, offset = line if len(line) == 4 else (groups[0], *line)
                plan.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
    except OSError:
        raise failed(f"java.io.IOException: Unable to read file {path}") from None
    except ValueError:
        raise ToolFailure(f"{path} has lines that are neither topic,partition,offset nor group,...") from None
    return plan
