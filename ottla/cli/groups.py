"""`ottla groups`: list and describe consumer groups, set their offsets, delete them."""

from __future__ import annotations

import click

from ottla.cli.completion import group_names, topic_names
from ottla.cli.failure import Misused, Suggesting
from ottla.cli.offset_reset import Aim, OffsetChange, aim_of, parse_selection, planned
from ottla.cli.output import alarming, answer, json_option, print_blocks, print_rows, print_table, printable
from ottla.cli.target import Target, administer, cluster_options, errors_of, failure_of, report_each
from ottla.client.admin import Admin, GroupDescription, PartitionLag
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition

EMPTY_STATES = ("Empty", "Dead")
Lags = dict[TopicPartition, PartitionLag]


@click.group("groups", cls=Suggesting)
def command() -> None:
    """List and describe consumer groups, set their offsets, delete them.

    \b
    Example:
      ottla groups describe kitchen
    """


@command.command("list")
@cluster_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List consumer groups.

    \b
    Example:
      ottla groups list
    """
    groups = administer(target, lambda admin: admin.list_groups())
    rows = [(each.group_id, each.state, each.kind) for each in groups]
    value = [{"group": each.group_id, "state": each.state, "protocol": each.kind} for each in groups]
    answer(as_json, value, lambda: print_rows(("GROUP", "STATE", "PROTOCOL"), rows))


@command.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@cluster_options
@json_option
def describe(names: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Show the members of a group, their partitions, committed offsets and lag.

    \b
    Example:
      ottla groups describe kitchen
    """
    described, errors = administer(target, lambda admin: _described(admin, list(dict.fromkeys(names))))
    answer(as_json, [_as_json(*each) for each in described], lambda: print_blocks(described, _print_group))
    if errors:
        raise failure_of(errors)


async def _described(admin: Admin, names: list[str]) -> tuple[list[tuple[GroupDescription, Lags]], list[ClientError]]:
    described, errors = [], []
    for name in names:
        try:
            group = (await admin.describe_groups([name]))[name]
            described.append((group, await admin.group_lag(name)))
        except ClientError as error:
            errors.append(error)
    return described, errors


def _print_group(group: GroupDescription, lags: Lags) -> None:
    total = sum(each.lag for each in lags.values())
    click.echo(f"group {printable(group.group_id)}")
    click.echo(f"  state        {group.state}")
    click.echo(f"  protocol     {group.kind}" + (f", assignor {group.assignor}" if group.assignor else ""))
    click.echo(f"  coordinator  broker {group.coordinator}")
    click.echo(f"  members      {len(group.members)}")
    click.echo(f"  lag          {total:,}")
    owners = {tp: member for member in group.members for tp in member.partitions}
    rows = []
    for tp, lag in lags.items():
        member = owners.get(tp)
        rows.append(
            (
                tp.topic,
                tp.partition,
                lag.committed if lag.committed >= 0 else "-",
                lag.end,
                alarming(lag.lag, lag.lag > 0 and member is None),
                member.member_id if member else "-",
                member.host if member else "-",
            )
        )
    if rows:
        print_table(("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST"), rows)
    for member in group.members:
        if not member.partitions:
            click.echo(f"member {member.member_id} ({member.host}) has no partition")


def _as_json(group: GroupDescription, lags: Lags) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol": group.kind,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": sum(each.lag for each in lags.values()),
        "partitions": [tp._asdict() | lag._asdict() for tp, lag in lags.items()],
        "members": [
            member._asdict() | {"partitions": [tp._asdict() for tp in member.partitions]} for member in group.members
        ],
    }


@command.command("reset-offsets")
@click.argument("group", shell_complete=group_names)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:0,1]",
    multiple=True,
    shell_complete=topic_names,
    help="A topic, or some of its partitions; repeatable.  [default: all that the group has committed]",
)
@click.option("--to-earliest", is_flag=True, help="To the log start.")
@click.option("--to-latest", is_flag=True, help="To the log end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N")
@click.option("--shift-by", type=int, metavar="N", help="Forward by N records, back if N is negative.")
@click.option("--to-datetime", metavar="TIME", help="To the first record of this time or later; 2026-01-31T12:00.")
@click.option("--by-duration", metavar="DURATION", help="To the first record not older than this; PT1H, 30m, 7d.")
@click.option("--execute", is_flag=True, help="Commit the offsets. Without it the command only shows them.")
@cluster_options
@json_option
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    execute: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Change the committed offsets of a group without members. Shows the new offsets; --execute commits them.

    \b
    Example:
      ottla groups reset-offsets kitchen --topic orders --to-earliest
      ottla groups reset-offsets kitchen --shift-by -100 --execute
    """
    aim = aim_of(to_earliest, to_latest, to_offset, shift_by, to_datetime, by_duration)
    selection = parse_selection(topics)
    changes = administer(target, lambda admin: _reset(admin, group, selection, aim, execute))
    partitions = [change.tp._asdict() | {"from": change.old, "to": change.new} for change in changes]
    value = {"group": group, "executed": execute, "partitions": partitions}
    answer(as_json, value, lambda: _print_changes(changes, execute))


def _print_changes(changes: list[OffsetChange], execute: bool) -> None:
    rows = [(*change.tp, "-" if change.old is None else change.old, change.new) for change in changes]
    print_table(("TOPIC", "PARTITION", "FROM", "TO"), rows)
    if not execute:
        click.echo("nothing was changed; --execute does it")


async def _reset(
    admin: Admin, group: str, selection: dict[str, list[int]], aim: Aim, execute: bool
) -> list[OffsetChange]:
    changes = await planned(admin, group, selection, aim)
    if not changes:
        raise Misused(f"group {group} has committed nothing", hint="Name its topics: --topic NAME.")
    if execute:
        groups = {each.group_id: each.state for each in await admin.list_groups()}
        if groups.get(group, EMPTY_STATES[0]) not in EMPTY_STATES:
            raise Misused(
                f"group {group} has members, which would overwrite the offsets",
                hint="Stop its consumers first; `ottla groups describe` shows them.",
            )
        await admin.alter_group_offsets(group, {change.tp: change.new for change in changes})
    return changes


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@cluster_options
@json_option
def delete(names: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Delete groups that have no members, and all their offsets.

    \b
    Example:
      ottla groups delete kitchen
    """
    errors = administer(target, lambda admin: errors_of(admin.delete_groups(list(dict.fromkeys(names)))))
    report_each("deleted", "group", names, errors, as_json=as_json)
