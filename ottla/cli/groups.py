"""`ottla groups`: list and describe consumer groups, set their offsets, delete them."""

from __future__ import annotations

import click

from ottla.cli.cluster import Target, administer, cluster_options, failure_of, json_option
from ottla.cli.completion import group_names, topic_names
from ottla.cli.failure import Misused, Suggesting
from ottla.cli.offset_reset import Aim, Change, aim_of, parse_selection, planned
from ottla.cli.output import alarming, print_json, print_table, printable
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
    if as_json:
        print_json([{"group": each.group_id, "state": each.state, "protocol": each.kind} for each in groups])
    elif groups:
        print_table(("GROUP", "STATE", "PROTOCOL"), [(each.group_id, each.state, each.kind) for each in groups])


@command.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@cluster_options
@json_option
def describe(names: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Show who is in a group, what each member reads, and how far behind it is.

    \b
    Example:
      ottla groups describe kitchen
    """
    described, errors = administer(target, lambda admin: _described(admin, list(dict.fromkeys(names))))
    if as_json:
        print_json([_as_json(group, lags) for group, lags in described])
    else:
        for position, (group, lags) in enumerate(described):
            if position:
                click.echo()
            _print_group(group, lags)
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
    owners = {place: member for member in group.members for place in member.partitions}
    rows = []
    for place, lag in lags.items():
        member = owners.get(place)
        rows.append(
            (
                place.topic,
                place.partition,
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
        "partitions": [place._asdict() | lag._asdict() for place, lag in lags.items()],
        "members": [
            member._asdict() | {"partitions": [place._asdict() for place in member.partitions]}
            for member in group.members
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
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N")
@click.option("--shift-by", type=int, metavar="N", help="Forth, or back if it is negative.")
@click.option("--to-datetime", metavar="TIME", help="To the first record not older; 2026-01-31T12:00.")
@click.option("--by-duration", metavar="DURATION", help="To what came so long ago; PT1H, 30m, 7d.")
@click.option("--execute", is_flag=True, help="Do it. Otherwise it is only shown what would be done.")
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
    """Let a group go on from elsewhere. Shows what it would do; --execute does it. The group must have no members.

    \b
    Example:
      ottla groups reset-offsets kitchen --topic orders --to-earliest
      ottla groups reset-offsets kitchen --shift-by -100 --execute
    """
    aim = aim_of(to_earliest, to_latest, to_offset, shift_by, to_datetime, by_duration)
    selection = parse_selection(topics)
    changes = administer(target, lambda admin: _reset(admin, group, selection, aim, execute))
    if as_json:
        print_json(
            {
                "group": group,
                "executed": execute,
                "partitions": [change.place._asdict() | {"from": change.old, "to": change.new} for change in changes],
            }
        )
        return
    rows = [(*change.place, "-" if change.old is None else change.old, change.new) for change in changes]
    print_table(("TOPIC", "PARTITION", "FROM", "TO"), rows)
    if not execute:
        click.echo("nothing was changed; --execute does it")


async def _reset(admin: Admin, group: str, selection: dict[str, list[int]], aim: Aim, execute: bool) -> list[Change]:
    changes = await planned(admin, group, selection, aim)
    if not changes:
        raise Misused(f"group {group} has committed nothing", hint="Say which topics are meant: --topic NAME.")
    if execute:
        groups = {each.group_id: each.state for each in await admin.list_groups()}
        if groups.get(group, EMPTY_STATES[0]) not in EMPTY_STATES:
            raise Misused(
                f"group {group} has members, which go on from where they are",
                hint="Stop its consumers first; `ottla groups describe` shows them.",
            )
        await admin.alter_group_offsets(group, {change.place: change.new for change in changes})
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
    wanted = list(dict.fromkeys(names))

    async def work(admin: Admin) -> dict[object, ClientError]:
        try:
            await admin.delete_groups(wanted)
        except ClientError as error:
            if not error.errors:
                raise
            return dict(error.errors)
        return {}

    errors = administer(target, work)
    deleted = [name for name in wanted if name not in errors]
    if as_json:
        print_json({"deleted": deleted, "failed": {str(name): str(error) for name, error in errors.items()}})
    else:
        for name in deleted:
            click.echo(f"deleted group {name}")
    if errors:
        raise failure_of(list(errors.values()))
