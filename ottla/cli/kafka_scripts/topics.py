"""kafka-topics.sh: create, list, describe, alter and delete topics."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ottla.cli.failure import Failure
from ottla.cli.kafka_scripts.hash_order import TABLE_SIZE_MIN, hash_order, table_size
from ottla.cli.kafka_scripts.options import (
    InvalidRegex,
    Number,
    Script,
    ScriptOptions,
    ToolFailure,
    UsageFailure,
    administer,
    arguments,
    joined,
    kafka_message,
    matched,
    missing_argument,
    one_action,
    refuse_together,
    target_of,
)
from ottla.client.admin import (
    Admin,
    ConfigEntry,
    EligibleLeaders,
    NewTopic,
    Partition,
    Reassignment,
    ResourceKind,
    TopicDescription,
)
from ottla.client.errors import ClientError, TopicExists
from ottla.client.values import TopicPartition

DEFAULT_SOURCE = 5
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
COLLIDING = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. "
    "To avoid issues it is best to use either, but not both."
)
NO_LONGER = (
    "delete-config option is no longer supported and deprecated since version 4.0. "
    "The config will be fully removed in future releases."
)


LARGEST_FACTOR = 32767
UUID_BYTES = 16
ACTIONS = ("list", "describe", "create", "alter", "delete")
ONLY_WITH = {
    "config": ("create",),
    "partitions": ("create", "alter"),
    "replication-factor": ("create",),
    "replica-assignment": ("create", "alter"),
    "under-replicated-partitions": ("describe",),
    "under-min-isr-partitions": ("describe",),
    "at-min-isr-partitions": ("describe",),
    "unavailable-partitions": ("describe",),
    "topics-with-overrides": ("describe",),
    "if-exists": ("alter", "delete", "describe"),
    "if-not-exists": ("create",),
    "exclude-internal": ("list", "describe"),
}
"""The actions that take an option; the others refuse it."""
PARTITION_FILTERS = (
    "under-replicated-partitions",
    "unavailable-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
)


def _failed(message: str) -> ToolFailure:
    return ToolFailure(f"Error while executing topic command : {message}", stdout=True)


def _unparsed(_: str, message: str) -> Failure:
    hint = "\nBrokers create topics: use --bootstrap-server localhost:9092." * message.startswith("zookeeper ")
    return ToolFailure(message + hint)


@click.command(
    "kafka-topics.sh",
    cls=Script,
    about="This tool helps to create, delete, describe, or change a topic.",
    unparsed=_unparsed,
    unreadable=_failed,
)
@click.option("--bootstrap-server")
@click.option("--create", is_flag=True)
@click.option("--list", is_flag=True)
@click.option("--describe", is_flag=True)
@click.option("--alter", is_flag=True)
@click.option("--delete", is_flag=True)
@click.option("--topic", help="A name; but for --create also a regular expression, or several with commas.")
@click.option("--topic-id")
@click.option("--partitions", type=Number())
@click.option("--replication-factor", type=Number())
@click.option("--replica-assignment", metavar="0:1:2,0:1:2,...")
@click.option("--config", multiple=True, metavar="NAME=VALUE")
@click.option("--delete-config", multiple=True, help="No longer supported; kafka-configs.sh has it.")
@click.option("--if-not-exists", is_flag=True)
@click.option("--if-exists", is_flag=True)
@click.option("--exclude-internal", is_flag=True)
@click.option("--under-replicated-partitions", is_flag=True)
@click.option("--unavailable-partitions", is_flag=True)
@click.option("--under-min-isr-partitions", is_flag=True)
@click.option("--at-min-isr-partitions", is_flag=True)
@click.option("--topics-with-overrides", is_flag=True)
@click.option("--partition-size-limit-per-response", type=Number(), help="Accepted; pages are followed.")
@click.option("--command-config", metavar="FILE")
def kafka_topics(**options: Any) -> None:
    """Create, list, describe, alter and delete topics."""
    given = ScriptOptions(**options)
    if given.delete_config:
        click.echo(NO_LONGER, err=True)
    action = _check(given)
    target = target_of(given.bootstrap_server, file=given.command_config)
    _check_values(given.partitions, given.replication_factor, given.topic_id)
    assignment = _assignment(given.replica_assignment)
    settings = _settings(given.config)
    wanted = _matched(None if action == "create" else given.topic)

    async def work(admin: Admin) -> None:
        if action == "create":
            sizes = (given.partitions or -1, given.replication_factor or -1)
            await _create(admin, NewTopic(given.topic, *sizes, settings, assignment), given.if_not_exists)
            return
        found = [each for each in await admin.list_topics(internal=True) if wanted(each.name)]
        if given.topic_id is not None:
            found = [each for each in found if _uuid(each.topic_id) == given.topic_id.rstrip("=")]
        found = [each for each in found if not (given.exclude_internal and each.name in INTERNAL)]
        if not found and given.topic and not given.if_exists and action != "list":
            raise _failed(f"Topic '{given.topic}' does not exist as expected")
        if action == "list":
            click.echo("\n".join(each.name for each in found))
        elif action == "delete" and found:
            await admin.delete_topics([each.name for each in found])
        elif action == "alter":
            for each in found:
                await admin.create_partitions(each.name, given.partitions, _added(each, assignment))
        elif action == "describe":
            await _describe(admin, found, given)

    administer(target, work, _refused)


def _refused(error: ClientError) -> Failure:
    return _failed(kafka_message(error))


def _check(given: ScriptOptions) -> str:
    """The action, if the options go together; looked at in the order of Kafka's tool."""
    if not arguments():
        raise UsageFailure("Create, delete, describe, or change a topic.")
    action = one_action(given, ACTIONS, " or ")
    if given.bootstrap_server is None:
        raise ToolFailure("--bootstrap-server must be specified")
    if given.topic is None and action in ("create", "alter", "delete"):
        raise missing_argument("topic")
    if action == "alter" and given.partitions is None:
        raise missing_argument("partitions")
    if given.config and action == "alter":
        raise UsageFailure(
            'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]" '
            "(To alter topic configurations, the kafka-configs tool can be used.)"
        )
    for option, takes in ONLY_WITH.items():
        refuse_together(given, [option], [each for each in ACTIONS if each not in takes])
    if action == "create":
        refuse_together(given, ["replica-assignment"], ("partitions", "replication-factor"))
    return action


def _check_values(partitions: int | None, replication_factor: int | None, topic_id: str | None) -> None:
    if partitions is not None and partitions < 1:
        raise _failed("The partitions must be greater than 0")
    if replication_factor is not None and not 1 <= replication_factor <= LARGEST_FACTOR:
        raise _failed(f"The replication factor must be between 1 and {LARGEST_FACTOR} inclusive")
    if topic_id is not None:
        _check_uuid(topic_id)


def _matched(pattern: str | None) -> Callable[[str], bool]:
    try:
        return matched(pattern)
    except InvalidRegex as invalid:
        raise _failed(invalid.message) from None


def _settings(configs: Sequence[str]) -> dict[str, str]:
    pairs = [each.split("=", 1) for each in configs]
    if not all(len(pair) == 2 for pair in pairs):
        raise _failed(
            'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
        )
    return {name.strip(): value.strip() for name, value in pairs}


def _assignment(text: str | None) -> dict[int, list[int]]:
    if text is None:
        return {}
    for broker in text.replace(":", ",").split(","):
        if not broker.strip().isdecimal():
            raise _failed(f'For input string: "{broker}"')
    parsed = [[int(broker) for broker in each.split(":")] for each in text.split(",")]
    for number, replicas in enumerate(parsed):
        if doubled := {each for each in replicas if replicas.count(each) > 1}:
            raise _failed(f"Partition replica lists may not contain duplicate entries: {joined(sorted(doubled))}")
        if len(replicas) != len(parsed[0]):
            raise _failed(f"Partition {number} has different replication factor: {replicas}")
    return dict(enumerate(parsed))


def _added(topic: TopicDescription, assignment: Mapping[int, Sequence[int]]) -> list[list[int]] | None:
    """The replicas of the new partitions: an assignment names the existing ones, too."""
    added = [list(replicas) for number, replicas in assignment.items() if number >= len(topic.partitions)]
    return added or None


async def _create(admin: Admin, new: NewTopic, if_not_exists: bool) -> None:
    if "." in new.name or "_" in new.name:
        click.echo(COLLIDING)
    try:
        await admin.create_topics([new])
    except TopicExists:
        if not if_not_exists:
            raise _failed(f"Topic '{new.name}' already exists.") from None
    else:
        click.echo(f"Created topic {new.name}.")


async def _describe(admin: Admin, topics: Sequence[TopicDescription], given: ScriptOptions) -> None:
    names = [topic.name for topic in topics]
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    eligible = await admin.eligible_leaders(names) if names else None
    moves = await admin.list_reassignments() if names else {}
    describes_topics = not any(map(given.has, PARTITION_FILTERS))
    for name in hash_order(names, table_size(len(names))):
        topic = next(each for each in topics if each.name == name)
        settings = await admin.describe_configs(ResourceKind.TOPIC, name)
        entries = {each.name: each for each in settings}
        ordered = [entries[each] for each in hash_order(list(entries), TABLE_SIZE_MIN)]
        own = [each for each in ordered if each.source != DEFAULT_SOURCE]
        if describes_topics and (own or not given.topics_with_overrides):
            click.echo(_topic_line(topic, own, moves))
        if given.topics_with_overrides:
            continue
        min_isr = next(int(each.value or 1) for each in settings if each.name == "min.insync.replicas")
        for part in topic.partitions:
            at = TopicPartition(topic.name, part.partition)
            if _reported(part, moves.get(at), min_isr, alive, given):
                click.echo(_partition_line(at, part, moves.get(at), None if eligible is None else eligible.get(at)))


def _topic_line(
    topic: TopicDescription, own: Sequence[ConfigEntry], moves: Mapping[TopicPartition, Reassignment]
) -> str:
    first = topic.partitions[0]
    copies = _replication_factor(first, moves.get(TopicPartition(topic.name, first.partition)))
    settings = ",".join(f"{each.name}={each.value}" for each in own)
    return (
        f"Topic: {topic.name}\tTopicId: {_uuid(topic.topic_id)}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {copies}\tConfigs: {settings}"
    )


def _partition_line(
    at: TopicPartition, part: Partition, move: Reassignment | None, eligible: EligibleLeaders | None
) -> str:
    line = (
        f"\tTopic: {at.topic}\tPartition: {at.partition}\tLeader: {part.leader if part.leader >= 0 else 'none'}"
        f"\tReplicas: {joined(part.replicas)}\tIsr: {joined(part.in_sync)}"
    )
    if move is not None:
        line += f"\tAdding Replicas: {joined(move.adding)}\tRemoving Replicas: {joined(move.removing)}"
    if eligible is None:
        return line + "\tElr: N/A\tLastKnownElr: N/A"
    return line + f"\tElr: {joined(eligible.replicas)}\tLastKnownElr: {joined(eligible.last_known)}"


def _replication_factor(part: Partition, move: Reassignment | None) -> int:
    """Replicas that a reassignment is adding do not count."""
    if move is not None and {*part.replicas} & {*move.adding, *move.removing}:
        return len(move.replicas) - len(move.adding)
    return len(part.replicas)


def _reported(part: Partition, move: Reassignment | None, min_isr: int, alive: set[int], given: ScriptOptions) -> bool:
    """Whether the options of --describe ask for this partition; without one of them all are described."""
    leads = part.leader >= 0
    return (
        not any(map(given.has, PARTITION_FILTERS))
        or (given.under_replicated_partitions and _replication_factor(part, move) > len(part.in_sync))
        or (given.unavailable_partitions and (not leads or part.leader not in alive))
        or (given.under_min_isr_partitions and (not leads or len(part.in_sync) < min_isr))
        or (given.at_min_isr_partitions and len(part.in_sync) == min_isr)
    )


def _check_uuid(text: str) -> None:
    length = len(text.rstrip("=")) * 6 // 8
    if length != UUID_BYTES:
        raise _failed(
            f"Input string `{text}` decoded as {length} bytes, which is not equal to the expected {UUID_BYTES} bytes "
            "of a base64-encoded UUID"
        )


def _uuid(topic_id: bytes) -> str:
    """As Kafka prints it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
