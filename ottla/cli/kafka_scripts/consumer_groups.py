"""kafka-consumer-groups.sh: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from ottla.cli.failure import Failure
from ottla.cli.kafka_scripts.options import (
    MISSING,
    Script,
    ScriptOptions,
    ToolComplaint,
    ToolFailure,
    UsageFailure,
    administer,
    cannot_parse,
    exception_name,
    kafka_exception,
    kafka_message,
    missing_argument,
    one_action,
    refuse_together,
    row,
    target_of,
    uncaught,
)
from ottla.cli.kafka_scripts.reset_offsets import SCENARIOS, exported, failed, reset, selected
from ottla.client.admin import Admin, GroupDescription, GroupListing, Member
from ottla.client.errors import ClientError, TimedOut, Unreachable
from ottla.client.values import OffsetAndMetadata, TopicPartition
from ottla.errors import ErrorCode

ACTIONS: Final = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
STATES: Final = ("Empty", "Dead", "PreparingRebalance", "Stable", "Reconciling", "CompletingRebalance", "Assigning")
NAMES_OF_KINDS: Final = {"consumer": "Consumer", "classic": "Classic"}
NOT_EXECUTED: Final = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require "
    "either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are "
    "scripting this command and want to keep the current default behavior without prompting."
)
RE2: Final = {
    "unterminated character set": "missing closing ]",
    "missing ), unterminated subpattern": "missing closing )",
    "unbalanced parenthesis": "unexpected )",
}
"""Error messages of RE2/J, which brokers use, for those of Python."""
LEAST: Final = 15
"""Minimum width of columns."""


@click.command(
    "kafka-consumer-groups.sh",
    cls=Script,
    about="This tool helps to list all consumer groups, describe a consumer group, delete consumer group info, or "
    "reset consumer group offsets.",
    unparsed=uncaught,
)
@click.option("--bootstrap-server")
@click.option("--list", is_flag=True)
@click.option("--describe", is_flag=True)
@click.option("--delete", is_flag=True)
@click.option("--reset-offsets", is_flag=True)
@click.option("--delete-offsets", is_flag=True)
@click.option("--validate-regex", metavar="REGEX")
@click.option("--group", multiple=True)
@click.option("--all-groups", is_flag=True)
@click.option("--topic", multiple=True, metavar="NAME[:0,1]")
@click.option("--all-topics", is_flag=True)
@click.option("--members", is_flag=True)
@click.option("--offsets", is_flag=True)
@click.option("--verbose", is_flag=True)
@click.option("--state", is_flag=False, flag_value="", metavar="[STATE,...]")
@click.option("--type", is_flag=False, flag_value="", metavar="[TYPE,...]")
@click.option("--timeout", help="In ms.")
@click.option("--command-config", metavar="FILE")
@click.option("--to-earliest", is_flag=True)
@click.option("--to-latest", is_flag=True)
@click.option("--to-current", is_flag=True)
@click.option("--to-offset")
@click.option("--shift-by")
@click.option("--to-datetime")
@click.option("--by-duration")
@click.option("--from-file", metavar="FILE")
@click.option("--dry-run", is_flag=True)
@click.option("--execute", is_flag=True)
@click.option("--export", is_flag=True)
def kafka_consumer_groups(**options: Any) -> None:
    """List, describe, reset and delete consumer groups."""
    given = ScriptOptions(**options)
    _check(given)
    action = one_action(given, ACTIONS)
    if given.validate_regex is not None:
        _validate(given.validate_regex)
        return
    target = target_of(given.bootstrap_server, file=given.command_config)
    if given.timeout is not None:
        limit = str(_number(given.timeout, "timeout"))
        target = target._replace(settings={"default.api.timeout.ms": limit, **target.settings})
    given.to_offset, given.shift_by = _number(given.to_offset, "to-offset"), _number(given.shift_by, "shift-by")

    async def work(admin: Admin) -> None:
        if action == "list":
            _print_list(await _consumer_groups(admin), given.state, given.type)
            return
        names = [each.group_id for each in await _consumer_groups(admin)] if given.all_groups else list(given.group)
        if action == "delete":
            await _delete(admin, names)
        elif action == "delete-offsets":
            await _delete_offsets(admin, names[0], given.topic)
        elif action == "reset-offsets":
            plan = await reset(admin, names, given)
            click.echo(exported(plan, single=len(given.group) == 1) if given.export else _reset_table(plan))
        elif given.members:
            await _describe_members(admin, sorted(names), given.verbose)
        elif given.state is not None and not given.offsets:
            await _describe_states(admin, sorted(names), given.verbose)
        else:
            await _describe_offsets(admin, sorted(names), given.verbose)

    administer(target, work, _refused)


def _check(given: ScriptOptions) -> None:
    """That the options go together, in the order in which Kafka's tool looks at them."""
    if given.bootstrap_server is None:
        raise missing_argument("bootstrap-server")
    scoped = given.has("group") or given.all_groups
    unscoped = "Option [{}] takes one of these options: [group], [all-groups]"
    if given.describe:
        if not scoped:
            raise UsageFailure(unscoped.format("describe"))
        if sum(map(given.has, ("members", "offsets", "state"))) > 1:
            raise UsageFailure("Option [describe] takes at most one of these options: [members], [offsets], [state]")
        if given.state:
            raise UsageFailure("Option [describe] does not take a value for [state]")
    if given.delete:
        if not scoped:
            raise UsageFailure(unscoped.format("delete"))
        if given.topic:
            raise UsageFailure("The consumer does not support topic-specific offset deletion from a consumer group.")
    if given.delete_offsets and not (given.group and given.topic):
        raise UsageFailure("Option [delete-offsets] takes the following options: [group], [topic]")
    if given.reset_offsets:
        if given.dry_run and given.execute:
            raise UsageFailure("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
        if not given.dry_run and not given.execute:
            click.echo(NOT_EXECUTED, err=True)
        if not scoped:
            raise UsageFailure(unscoped.format("reset-offsets"))
        for name in SCENARIOS:
            refuse_together(given, [name], [other for other in SCENARIOS if other != name])
    refuse_together(given, ["group"], ("all-groups", "list"))
    refuse_together(given, ["topic"], ("list", "describe"))


def _number(text: str | None, option: str) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise failed(cannot_parse(text or "", option)) from None


def _refused(error: ClientError) -> Failure:
    if error.code == ErrorCode.unknown_topic_or_partition:
        return failed("This server does not host this topic-partition.")
    kind = ToolFailure if isinstance(error, (Unreachable, TimedOut)) else ToolComplaint
    return failed(kafka_message(error), kind)


def _validate(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as bad:
        why = RE2.get(bad.msg, bad.msg)
        click.echo(f"The regular expression `{pattern}` is invalid: {why}.")
    else:
        click.echo(f"The regular expression `{pattern}` is valid.")


async def _consumer_groups(admin: Admin) -> list[GroupListing]:
    """Groups with the consumer protocol, without those of Connect workers."""
    return [each for each in await admin.list_groups() if each.protocol_type in ("consumer", "")]


def _print_list(groups: Sequence[GroupListing], state: str | None, kind: str | None) -> None:
    states = _chosen(state, STATES, "state")
    kinds = _chosen(kind, tuple(NAMES_OF_KINDS.values()), "types")
    groups = [
        each
        for each in groups
        if (not states or each.state in states) and (not kinds or NAMES_OF_KINDS.get(each.kind) in kinds)
    ]
    if state is None and kind is None:
        for each in groups:
            click.echo(each.group_id)
        return
    widths = [max([LEAST, *(len(each.group_id) for each in groups)]) + 10]
    header = ["GROUP"]
    if kind is not None:
        widths, header = [*widths, 20], [*header, "TYPE"]
    if state is not None:
        widths, header = [*widths, 20], [*header, "STATE"]
    click.echo(row(widths, header))
    for each in groups:
        cells = [each.group_id]
        cells += [NAMES_OF_KINDS.get(each.kind, "Unknown")] if kind is not None else []
        cells += [each.state] if state is not None else []
        click.echo(row(widths, cells))


def _chosen(text: str | None, known: Sequence[str], what: str) -> set[str]:
    if not text:
        return set()
    by_lower = {each.lower(): each for each in known}
    chosen = [by_lower.get(each.strip().lower().replace("_", "")) for each in text.split(",")]
    if None in chosen:
        raise UsageFailure(
            f"Invalid {what} list '{text}'. Valid {what}{'s' * (what == 'state')} are: {', '.join(known)}"
        )
    return {each for each in chosen if each is not None}


# Describing.


def _print_state(group: str, state: str, rows: int) -> bool:
    """Print a message about the group's state; returns whether a table follows."""
    if state == "Dead":
        click.echo(f"\nError: Consumer group '{group}' does not exist.")
    elif state == "Empty":
        click.echo(f"\nConsumer group '{group}' has no active members.", err=True)
    elif state in REBALANCING:
        click.echo(f"\nWarning: Consumer group '{group}' is rebalancing.", err=True)
    return state != "Dead" and rows > 0


async def _described(admin: Admin, names: Collection[str]) -> Iterator[GroupDescription]:
    """Fails at the first group that does not exist, as Kafka's tool does."""
    try:
        found = await admin.describe_groups(names)
    except ClientError as error:
        first = next(iter(error.errors.values()), error)
        if first.code == ErrorCode.group_id_not_found:
            missing = next(iter(error.errors), "")
            raise failed(f"{exception_name(first.code)}: Group {missing} not found.") from None
        raise
    return iter(found.values())


class OffsetRow(NamedTuple):
    at: TopicPartition
    committed: OffsetAndMetadata | None
    end: int | None
    member: Member | None

    def cells(self, group: str, verbose: bool) -> list[object]:
        offset = MISSING if self.committed is None else self.committed.offset
        lag = MISSING if self.committed is None or self.end is None else self.end - self.committed.offset
        epoch: object = MISSING
        if self.committed is not None and self.committed.leader_epoch >= 0:
            epoch = self.committed.leader_epoch
        member_columns = (
            (MISSING,) * 3 if self.member is None else (self.member.member_id, self.member.host, self.member.client_id)
        )
        end = MISSING if self.end is None else self.end
        return [group, *self.at, *([epoch] if verbose else []), offset, end, lag, *member_columns]


async def _describe_offsets(admin: Admin, names: Sequence[str], verbose: bool) -> None:
    for group in await _described(admin, names):
        committed = await admin.group_offsets(group.group_id, stable=False)
        rows: list[OffsetRow] = []
        for member in sorted(group.members, key=lambda each: -len(each.partitions)):
            rows += await _rows(admin, sorted(member.partitions), committed, member)
        assigned = {row.at for row in rows}
        rows += await _rows(admin, sorted(each for each in committed if each not in assigned), committed, None)
        if not _print_state(group.group_id, group.state, len(rows)):
            continue
        cells = [each.cells(group.group_id, verbose) for each in rows]
        header = ["GROUP", "TOPIC", "PARTITION", *(["LEADER-EPOCH"] if verbose else [])]
        header += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
        widths = [0, 0, 10, *([15] if verbose else []), 15, 15, 15, 0, 0, 0]
        for column in (0, 1, len(header) - 3, len(header) - 2):
            widths[column] = max([LEAST, *(len(str(each[column])) for each in cells)])
        click.echo("\n" + row(widths, header), nl=False)
        for line in cells:
            click.echo("\n" + row(widths, line), nl=False)
        click.echo()


async def _rows(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    committed: dict[TopicPartition, OffsetAndMetadata],
    member: Member | None,
) -> list[OffsetRow]:
    if not partitions:
        return []
    topics = await admin.describe_topics({each.topic for each in partitions})
    led = {
        TopicPartition(name, part.partition)
        for name, topic in topics.items()
        for part in topic.partitions
        if part.leader >= 0
    }
    ends = await admin.list_offsets({each: "latest" for each in partitions if each in led})
    return [
        OffsetRow(each, committed.get(each), ends[each].offset if each in ends else None, member) for each in partitions
    ]


async def _describe_members(admin: Admin, names: Sequence[str], verbose: bool) -> None:
    for group in await _described(admin, names):
        members = group.members
        static = any(each.instance_id for each in members)
        mixed = {each.upgraded for each in members} >= {True, False}
        header = [
            "GROUP",
            "CONSUMER-ID",
            *(["GROUP-INSTANCE-ID"] if static else []),
            "HOST",
            "CLIENT-ID",
            "#PARTITIONS",
        ]
        least = [LEAST, LEAST, *([17] if static else []), LEAST, LEAST, LEAST]
        if verbose:
            header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
            least += [15, 20, 15, 20]
            header, least = ([*header, "UPGRADED"], [*least, 0]) if mixed else (header, least)
        lines = [_member_cells(group, each, static, verbose, mixed) for each in members]
        shown = _print_state(group.group_id, group.state, len(lines))
        wide = [
            max([width, *(len(str(line[column])) for line in lines)])
            if shown and header[column] not in FIXED
            else width
            for column, width in enumerate(least)
        ]
        end = "" if verbose else " "
        click.echo("\n" + row(wide, header) + end)
        for line in lines:
            click.echo(row(wide, line) + end)


FIXED: Final = ("#PARTITIONS", "CURRENT-EPOCH", "TARGET-EPOCH", "UPGRADED")


def _member_cells(group: GroupDescription, member: Member, static: bool, verbose: bool, mixed: bool) -> list[object]:
    cells: list[object] = [group.group_id, member.member_id]
    cells += [member.instance_id or ""] if static else []
    cells += [member.host, member.client_id, len(member.partitions)]
    if verbose:
        cells += [
            MISSING if member.epoch is None else member.epoch,
            _assignment(member.partitions),
            MISSING if group.assignment_epoch is None else group.assignment_epoch,
            _assignment(member.target or ()),
        ]
        cells += [MISSING if member.upgraded is None else str(member.upgraded).lower()] if mixed else []
    return cells


def _assignment(partitions: Sequence[TopicPartition]) -> str:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items()) or MISSING


async def _describe_states(admin: Admin, names: Sequence[str], verbose: bool) -> None:
    brokers = {broker.node_id: broker for broker in (await admin.describe_cluster()).brokers}
    for group in await _described(admin, names):
        if not _print_state(group.group_id, group.state, 1):
            continue
        at = brokers.get(group.coordinator)
        coordinator = MISSING if at is None else f"{at.host}:{at.port}  ({at.node_id})"
        header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
        cells: list[object] = [group.group_id, coordinator, group.assignor or MISSING, group.state]
        widths = [max(LEAST, len(group.group_id)), max(25, len(coordinator)), 20, 20]
        if verbose:
            header += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
            cells += [MISSING if each is None else each for each in (group.epoch, group.assignment_epoch)]
            widths += [15, 25]
        click.echo("\n" + row([*widths, 0], [*header, "#MEMBERS"]))
        click.echo(row([*widths, 0], [*cells, len(group.members)]))


# Changing.


async def _delete(admin: Admin, names: Sequence[str]) -> None:
    failed: dict[object, ClientError] = {}
    try:
        await admin.delete_groups(names)
    except ClientError as error:
        if not error.errors:
            raise
        failed = dict(error.errors)
    deleted = ", ".join(f"'{name}'" for name in names if name not in failed)
    if not failed:
        click.echo(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return
    click.echo("\nError: Deletion of some consumer groups failed:")
    for name, reason in failed.items():
        click.echo(f"* Group '{name}' could not be deleted due to: {kafka_exception(reason)}")
    if deleted:
        click.echo(f"\nThese consumer groups were deleted successfully: {deleted}")


async def _delete_offsets(admin: Admin, group: str, topics: Sequence[str]) -> None:
    selection = selected(topics)
    described = await admin.describe_topics(list(selection))
    wanted = [
        TopicPartition(name, number)
        for name, numbers in selection.items()
        for number in numbers or [part.partition for part in described[name].partitions]
    ]
    failed: dict[object, ClientError] = {}
    try:
        await admin.delete_group_offsets(group, wanted)
        click.echo(f"Request succeeded for deleting offsets from group {group}.")
    except ClientError as error:
        if not error.errors:
            click.echo(f"\nError: {kafka_message(error)}")
            failed = dict.fromkeys(wanted, error)
        else:
            click.echo("\nError: Encountered some partition-level error, see the follow-up details.")
            failed = dict(error.errors)
    widths = [max([LEAST, *(len(each.topic) for each in wanted)]), 10, 15]
    click.echo("\n" + row(widths, ("TOPIC", "PARTITION", "STATUS")), nl=False)
    for each in sorted(wanted, key=lambda each: f"{each.topic}{each.partition}"):
        status = f"Error: {kafka_exception(failed[each])}" if each in failed else "Successful"
        click.echo("\n" + row(widths, (*each, status)), nl=False)
    click.echo()


def _reset_table(plan: dict[str, dict[TopicPartition, int]]) -> str:
    groups = [LEAST, *map(len, plan)]
    topics = [LEAST, *(len(each.topic) for offsets in plan.values() for each in offsets)]
    widths = [max(groups), max(topics), 10, 0]
    lines = [row(widths, ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"))] if plan else []
    lines += [
        row(widths, (group, *each, offset)) for group, offsets in plan.items() for each, offset in offsets.items()
    ]
    return "".join("\n" + line for line in lines)
