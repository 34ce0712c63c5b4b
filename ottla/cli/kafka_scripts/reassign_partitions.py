"""kafka-reassign-partitions.sh: propose, execute, verify, cancel and list moves of partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from ottla.cli.failure import Failure
from ottla.cli.kafka_scripts.options import (
    NO_CONTROLLERS,
    Number,
    Script,
    ScriptOptions,
    ToolFailure,
    UsageFailure,
    administer,
    exception_name,
    joined,
    kafka_exception,
    missing_argument,
    one_action,
    refuse_together,
    target_of,
    uncaught,
)
from ottla.client.admin import Admin, Reassignment, ResourceKind
from ottla.client.errors import ClientError, TimedOut, Unreachable
from ottla.client.values import TopicPartition
from ottla.cluster.model import BrokerRegistration
from ottla.cluster.placement import assign_replicas
from ottla.errors import ErrorCode

Replicas = Mapping[TopicPartition, Sequence[int]]

EXISTING: Final = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
VERIFY_LATER: Final = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)
BROKER_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
TOPIC_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
LOG_DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


NEEDED: Final = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
TAKEN: Final = {
    "generate": ("disable-rack-aware",),
    "execute": (
        "additional",
        "throttle",
        "replica-alter-log-dirs-throttle",
        "timeout",
        "disallow-replication-factor-change",
    ),
    "verify": ("preserve-throttles",),
    "cancel": ("preserve-throttles", "timeout"),
    "list": (),
}
"""Optional options of each action."""
OF_ACTIONS: Final = {name for options in (*NEEDED.values(), *TAKEN.values()) for name in options}


def _wrong(message: str) -> ToolFailure:
    return ToolFailure(f"Error: {message}", stdout=True)


@click.command(
    "kafka-reassign-partitions.sh",
    cls=Script,
    about="This tool helps to move topic partitions between replicas.",
    unparsed=uncaught,
    unreadable=_wrong,
)
@click.option("--bootstrap-server")
@click.option("--bootstrap-controller", help=NO_CONTROLLERS)
@click.option("--generate", is_flag=True)
@click.option("--execute", is_flag=True)
@click.option("--verify", is_flag=True)
@click.option("--cancel", is_flag=True)
@click.option("--list", is_flag=True)
@click.option("--topics-to-move-json-file", metavar="FILE")
@click.option("--reassignment-json-file", metavar="FILE")
@click.option("--broker-list", metavar="0,1,2")
@click.option("--disable-rack-aware", is_flag=True)
@click.option("--throttle", type=Number(), help="Bytes per second.")
@click.option("--replica-alter-log-dirs-throttle", type=Number())
@click.option("--timeout", type=Number(), help="In ms.")
@click.option("--additional", is_flag=True)
@click.option("--preserve-throttles", is_flag=True)
@click.option("--disallow-replication-factor-change", is_flag=True)
@click.option("--command-config", metavar="FILE")
def kafka_reassign_partitions(**options: Any) -> None:
    """Move partitions to other brokers."""
    given = ScriptOptions(**options)
    action = one_action(given, tuple(NEEDED))
    if given.bootstrap_server is not None and given.bootstrap_controller is not None:
        raise UsageFailure("Please don't specify both --bootstrap-server and --bootstrap-controller")
    if given.bootstrap_controller is not None:
        raise _wrong(NO_CONTROLLERS)
    if given.bootstrap_server is None:
        raise UsageFailure("Please specify either --bootstrap-server or --bootstrap-controller")
    for name in NEEDED[action]:
        if not given.has(name):
            raise missing_argument(name)
    names = [each.opts[0].lstrip("-") for each in click.get_current_context().command.params]
    refused = [name for name in names if name in OF_ACTIONS and name not in (*NEEDED[action], *TAKEN[action])]
    refuse_together(given, refused, [action], what="action")
    target = target_of(given.bootstrap_server, file=given.command_config)
    plan = {} if given.reassignment_json_file is None else _plan(given.reassignment_json_file)

    async def work(admin: Admin) -> None:
        if action == "generate":
            topics, brokers = _topics(given.topics_to_move_json_file), _brokers(given.broker_list)
            await _generate(admin, topics, brokers, not given.disable_rack_aware)
        elif action == "execute":
            if given.disallow_replication_factor_change:
                await _check_replication_factors(admin, plan)
            limits = [-1 if each is None else each for each in (given.throttle, given.replica_alter_log_dirs_throttle)]
            await _execute(admin, plan, limits[0], limits[1], given.additional)
        elif action == "verify":
            await _verify(admin, plan, given.preserve_throttles)
        elif action == "cancel":
            await _cancel(admin, plan, given.preserve_throttles)
        else:
            await _list(admin)

    administer(target, work, _refused)


def _refused(error: ClientError) -> Failure:
    return _wrong(str(error) if isinstance(error, (Unreachable, TimedOut)) else kafka_exception(error))


# The files.


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except OSError:
        raise _wrong(f"Unable to read file {path}") from None
    except ValueError:
        raise _wrong("The input string is not a valid JSON") from None
    if not isinstance(value, dict) or value.get("version", 1) != 1:
        raise _wrong("Not supported version field value " + str(value.get("version")))
    return value


def _topics(path: str) -> list[str]:
    try:
        listed = [str(each["topic"]) for each in _read(path).get("topics", ())]
    except (KeyError, TypeError):
        raise _wrong(f"{path} names no topics") from None
    if doubled := sorted({each for each in listed if listed.count(each) > 1}):
        raise _wrong(f"List of topics to reassign contains duplicate entries: {doubled}")
    return listed


def _plan(path: str) -> dict[TopicPartition, list[int]]:
    try:
        listed = [
            (TopicPartition(str(each["topic"]), int(each["partition"])), [int(id_) for id_ in each["replicas"]])
            for each in _read(path).get("partitions", ())
        ]
    except (KeyError, TypeError, ValueError):
        raise _wrong(f"{path} is no partition reassignment") from None
    if not listed:
        raise _wrong("Partition reassignment list cannot be empty")
    if any(not replicas for _, replicas in listed):
        raise _wrong("Partition replica list cannot be empty")
    names = [each for each, _ in listed]
    if doubled := sorted({str(each) for each in names if names.count(each) > 1}):
        raise _wrong(f"Partition reassignment contains duplicate topic partitions: {','.join(doubled)}")
    for each, replicas in listed:
        if len(set(replicas)) < len(replicas):
            twice = joined(sorted({id_ for id_ in replicas if replicas.count(id_) > 1}))
            raise _wrong(
                "Partition replica lists may not contain duplicate entries: "
                f"{each} contains multiple entries for {twice}"
            )
    return dict(listed)


def _brokers(text: str) -> list[int]:
    try:
        listed = [int(each) for each in text.split(",")]
    except ValueError:
        wrong = next(each for each in text.split(",") if not each.strip().isdecimal())
        raise _wrong(f'For input string: "{wrong}"') from None
    if doubled := sorted({each for each in listed if listed.count(each) > 1}):
        raise _wrong(f"Broker list contains duplicate entries: {doubled}")
    return listed


def _json(replicas: Replicas, directories: Mapping[tuple[TopicPartition, int], str]) -> str:
    return json.dumps(
        {
            "version": 1,
            "partitions": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "replicas": list(ids),
                    "log_dirs": [directories.get((each, id_), "any") for id_ in ids],
                }
                for each, ids in sorted(replicas.items())
            ],
        },
        separators=(",", ":"),
    )


# The actions.


async def _current(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, ...]]:
    if not topics:
        return {}
    try:
        described = await admin.describe_topics(list(dict.fromkeys(topics)))
    except ClientError as error:
        if error.code != ErrorCode.unknown_topic_or_partition:
            raise
        missing = next(iter(error.errors), topics[0])
        raise _wrong(f"{exception_name(error.code)}: Topic {missing} not found.") from None
    return {
        TopicPartition(name, part.partition): part.replicas
        for name, topic in described.items()
        for part in topic.partitions
    }


async def _directories(admin: Admin, replicas: Replicas) -> dict[tuple[TopicPartition, int], str]:
    """Log directory of each replica on live brokers."""
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    wanted = sorted({id_ for ids in replicas.values() for id_ in ids} & alive)
    found = await admin.log_dirs(wanted)
    return {(each, id_): log_dir.path for id_, dirs in found.items() for log_dir in dirs for each in log_dir.replicas}


async def _generate(admin: Admin, topics: Sequence[str], brokers: Sequence[int], rack_aware: bool) -> None:
    current = await _current(admin, topics)
    alive = {broker.node_id: broker for broker in (await admin.describe_cluster()).brokers}
    usable = [alive[id_] for id_ in brokers if id_ in alive]
    racks = {broker.rack for broker in usable}
    if rack_aware and None in racks and len(racks) > 1:
        raise _wrong(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    chosen = [BrokerRegistration(each.node_id, 0, (), each.rack if rack_aware else None) for each in usable]
    proposed: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in topics:
        parts = sorted(each for each in current if each.topic == topic)
        copies = len(current[parts[0]])
        if copies > len(chosen):
            raise _wrong(
                f"The target replication factor of {copies} cannot be reached because only {len(chosen)} broker(s) are "
                "registered or some brokers have all their log directories cordoned."
            )
        proposed |= dict(zip(parts, assign_replicas(chosen, len(parts), copies, start=0), strict=True))
    click.echo(f"Current partition replica assignment\n{_json(current, await _directories(admin, current))}\n")
    click.echo(f"Proposed partition reassignment configuration\n{_json(proposed, {})}")


async def _check_replication_factors(admin: Admin, plan: Replicas) -> None:
    current = await _current(admin, [each.topic for each in plan])
    if changed := sorted(each for each in plan if each in current and len(plan[each]) != len(current[each])):
        value = "\n".join(
            f"{each}: The replication factor is changed from {len(current[each])} to {len(plan[each])}"
            for each in changed
        )
        raise ToolFailure(f"Error reassigning partition(s):\n{value}", stdout=True)


async def _execute(admin: Admin, plan: Replicas, throttle: int, log_dir_throttle: int, additional: bool) -> None:
    moving = await admin.list_reassignments()
    if moving and not additional:
        raise ToolFailure(EXISTING, stdout=True)
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    if unknown := sorted({id_ for ids in plan.values() for id_ in ids} - alive):
        raise _wrong(f"Unknown broker id {unknown[0]}")
    current = {
        each: ids for each, ids in (await _current(admin, [each.topic for each in plan])).items() if each in plan
    }
    if missing := sorted(set(plan) - set(current)):
        raise _wrong(f"Unable to find partition: {', '.join(map(str, missing))}")
    shown = _json(current, await _directories(admin, current))
    click.echo(
        f"Current partition replica assignment\n\n{shown}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    if throttle >= 0 or log_dir_throttle >= 0:
        click.echo(VERIFY_LATER)
    if throttle >= 0:
        await _throttle(admin, plan, current, moving, throttle)
        click.echo(f"The inter-broker throttle limit was set to {throttle} B/s")
    if log_dir_throttle >= 0:
        for id_ in sorted({id_ for ids in plan.values() for id_ in ids}):
            await admin.alter_configs(ResourceKind.BROKER, str(id_), put={LOG_DIR_RATE: str(log_dir_throttle)})
        click.echo(f"The replica-alter-dir throttle limit was set to {log_dir_throttle} B/s")
    try:
        await admin.reassign(plan)
    except ClientError as error:
        if not error.errors:
            raise
        value = "\n".join(f"{each}: {reason}" for each, reason in error.errors.items())
        raise ToolFailure(f"Error reassigning partition(s):\n{value}", stdout=True) from None
    plural = "" if len(plan) == 1 else "s"
    click.echo(f"Successfully started partition reassignment{plural} for {joined(sorted(plan))}")


async def _throttle(
    admin: Admin, plan: Replicas, current: Replicas, moving: Mapping[TopicPartition, Reassignment], rate: int
) -> None:
    """Set replication throttles on the brokers that have a moving partition and on those that get it."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for each, ids in plan.items():
        adding = moving[each].adding if each in moving else ()
        sources = [id_ for id_ in current[each] if id_ not in adding]
        added = [id_ for id_ in ids if id_ not in sources]
        brokers |= {*sources, *added}
        leaders.setdefault(each.topic, []).extend(f"{each.partition}:{id_}" for id_ in sources)
        followers.setdefault(each.topic, []).extend(f"{each.partition}:{id_}" for id_ in added)
    for topic in leaders:
        put = dict(zip(TOPIC_REPLICAS, (joined(leaders[topic]), joined(followers[topic])), strict=True))
        await admin.alter_configs(ResourceKind.TOPIC, topic, put={name: value for name, value in put.items() if value})
    for id_ in sorted(brokers):
        await admin.alter_configs(ResourceKind.BROKER, str(id_), put=dict.fromkeys(BROKER_RATES, str(rate)))


async def _clear_throttles(admin: Admin, plan: Replicas) -> None:
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    brokers = sorted(alive | {id_ for ids in plan.values() for id_ in ids})
    click.echo(f"Clearing broker-level throttles on broker{'' if len(brokers) == 1 else 's'} {joined(brokers)}")
    for id_ in brokers:
        if id_ in alive:
            await admin.alter_configs(ResourceKind.BROKER, str(id_), remove=(*BROKER_RATES, LOG_DIR_RATE))
    topics = sorted({each.topic for each in plan})
    click.echo(f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {joined(topics)}")
    for topic in topics:
        await admin.alter_configs(ResourceKind.TOPIC, topic, remove=TOPIC_REPLICAS)


async def _verify(admin: Admin, plan: Replicas, preserve_throttles: bool) -> None:
    moving = await admin.list_reassignments()
    there = {topic.name for topic in await admin.list_topics(internal=True)}
    current = await _current(admin, [each.topic for each in plan if each.topic in there])
    click.echo("Status of partition reassignment:")
    for each, ids in sorted(plan.items()):
        replicas = current.get(each, ())
        if each in moving:
            click.echo(f"Reassignment of partition {each} is still in progress.")
        elif list(replicas) == list(ids):
            click.echo(f"Reassignment of partition {each} is completed.")
        else:
            click.echo(
                f"There is no active reassignment of partition {each}, "
                f"but replica set is {joined(replicas)} rather than {joined(ids)}."
            )
    if not moving and not preserve_throttles:
        click.echo()
        await _clear_throttles(admin, plan)


async def _cancel(admin: Admin, plan: Replicas, preserve_throttles: bool) -> None:
    moving = sorted(await admin.list_reassignments(list(plan)))
    if moving:
        await admin.reassign(dict.fromkeys(moving))
        plural = "" if len(moving) == 1 else "s"
        click.echo(f"Successfully cancelled partition reassignment{plural} for: {joined(moving)}")
    else:
        click.echo("None of the specified partition reassignments are active.")
    click.echo("None of the specified partition moves are active.", nl=False)
    if not preserve_throttles:
        await _clear_throttles(admin, plan)


async def _list(admin: Admin) -> None:
    moving = await admin.list_reassignments()
    if not moving:
        click.echo("No partition reassignments found.")
        return
    click.echo("Current partition reassignments:")
    for each, move in sorted(moving.items()):
        adding = f" adding: {joined(move.adding)}." if move.adding else ""
        removing = f" removing: {joined(move.removing)}." if move.removing else ""
        click.echo(f"{each}: replicas: {joined(move.replicas)}.{adding}{removing}")
