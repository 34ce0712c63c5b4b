"""kafka-topics.sh: create, list, describe, alter and delete topics."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import click

from ottla.cli.failure import Failure
from ottla.cli.kafka_scripts.hash_order import TABLE_SIZE_MIN, hash_order, table_size
from ottla.cli.kafka_scripts.options import (
    InvalidRegex,
    Number,
    Script,
    ToolFailure,
    UsageFailure,
    administer,
    arguments,
    joined,
    kafkas_words,
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
    Topic,
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
ONLY_WITH = {
    "configs": ("create",),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "under_replicated_partitions": ("describe",),
    "under_min_isr_partitions": ("describe",),
    "at_min_isr_partitions": ("describe",),
    "unavailable_partitions": ("describe",),
    "topics_with_overrides": ("describe",),
    "if_exists": ("alter", "delete", "describe"),
    "if_not_exists": ("create",),
    "exclude_internal": ("list", "describe"),
}
"""The actions that take an option; the others refuse it."""


class Reports(NamedTuple):
    """Which partitions --describe is about; none of these means all."""

    under_replicated: bool
    unavailable: bool
    under_min_isr: bool
    at_min_isr: bool
    overridden: bool


def _failed(message: str) -> ToolFailure:
    return ToolFailure(f"Error while executing topic command : {message}", stdout=True)


def _unparsed(_: str, message: str) -> Failure:
    hint = "\nTopics are made by brokers: say --bootstrap-server localhost:9092." * message.startswith("zookeeper ")
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
@click.option("--list", "list_", is_flag=True)
@click.option("--describe", is_flag=True)
@click.option("--alter", is_flag=True)
@click.option("--delete", is_flag=True)
@click.option("--topic", help="A name; but for --create also a regular expression, or several with commas.")
@click.option("--topic-id")
@click.option("--partitions", type=Number())
@click.option("--replication-factor", type=Number())
@click.option("--replica-assignment", metavar="0:1:2,0:1:2,...")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE")
@click.option("--delete-config", "unheeded", multiple=True, help="No longer supported; kafka-configs.sh has it.")
@click.option("--if-not-exists", is_flag=True)
@click.option("--if-exists", is_flag=True)
@click.option("--exclude-internal", is_flag=True)
@click.option("--under-replicated-partitions", is_flag=True)
@click.option("--unavailable-partitions", is_flag=True)
@click.option("--under-min-isr-partitions", is_flag=True)
@click.option("--at-min-isr-partitions", is_flag=True)
@click.option("--topics-with-overrides", is_flag=True)
@click.option("--partition-size-limit-per-response", type=Number(), help="Accepted; pages are followed.")
@click.option("--command-config", "file", metavar="FILE")
def kafka_topics(
    bootstrap_server: str | None,
    create: bool,
    list_: bool,
    describe: bool,
    alter: bool,
    delete: bool,
    topic: str | None,
    topic_id: str | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    unheeded: tuple[str, ...],
    if_not_exists: bool,
    if_exists: bool,
    exclude_internal: bool,
    under_replicated_partitions: bool,
    unavailable_partitions: bool,
    under_min_isr_partitions: bool,
    at_min_isr_partitions: bool,
    topics_with_overrides: bool,
    partition_size_limit_per_response: int | None,
    file: str | None,
) -> None:
    """Create, list, describe, alter and delete topics."""
    if unheeded:
        click.echo(NO_LONGER, err=True)
    actions = {"list": list_, "describe": describe, "create": create, "alter": alter, "delete": delete}
    action = _check(click.get_current_context().params, actions)
    target = target_of(bootstrap_server, file=file)
    _check_values(partitions, replication_factor, topic_id)
    assignment = _assignment(replica_assignment)
    settings = _settings(configs)
    wanted = _matched(None if action == "create" else topic)
    reports = Reports(
        under_replicated_partitions,
        unavailable_partitions,
        under_min_isr_partitions,
        at_min_isr_partitions,
        topics_with_overrides,
    )

    async def work(admin: Admin) -> None:
        if action == "create":
            new = NewTopic(topic or "", partitions or -1, replication_factor or -1, settings, assignment)
            await _create(admin, new, if_not_exists)
            return
        found = [each for each in await admin.list_topics(internal=True) if wanted(each.name)]
        if topic_id is not None:
            found = [each for each in found if _uuid(each.topic_id) == topic_id.rstrip("=")]
        found = [each for each in found if not (exclude_internal and each.name in INTERNAL)]
        if not found and topic and not if_exists and action != "list":
            raise _failed(f"Topic '{topic}' does not exist as expected")
        if action == "list":
            click.echo("\n".join(each.name for each in found))
        elif action == "delete" and found:
            await admin.delete_topics([each.name for each in found])
        elif action == "alter":
            for each in found:
                await admin.create_partitions(each.name, partitions or 0, _added(each, assignment))
        elif action == "describe":
            await _describe(admin, found, reports)

    administer(target, work, _refused)


def _refused(error: ClientError) -> Failure:
    return _failed(kafkas_words(error))


def _check(given: Mapping[str, object], actions: Mapping[str, bool]) -> str:
    """The action, if the options go together; looked at in the order of Kafka's tool."""
    if not arguments():
        raise UsageFailure("Create, delete, describe, or change a topic.")
    action = one_action(actions, " or ")
    if given["bootstrap_server"] is None:
        raise ToolFailure("--bootstrap-server must be specified")
    if given["topic"] is None and action in ("create", "alter", "delete"):
        raise missing_argument("topic")
    if action == "alter" and given["partitions"] is None:
        raise missing_argument("partitions")
    if given["configs"] and actions["alter"]:
        raise UsageFailure(
            'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]" '
            "(To alter topic configurations, the kafka-configs tool can be used.)"
        )
    for option, takes in ONLY_WITH.items():
        name = "config" if option == "configs" else option.replace("_", "-")
        refuse_together(
            {name: given[option] not in (None, False, ())},
            {each: is_on for each, is_on in actions.items() if each not in takes},
        )
    sizes = {
        "partitions": given["partitions"] is not None,
        "replication-factor": given["replication_factor"] is not None,
    }
    refuse_together({"replica-assignment": given["replica_assignment"] is not None and actions["create"]}, sizes)
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


def _added(topic: Topic, assignment: Mapping[int, Sequence[int]]) -> list[list[int]] | None:
    """The replicas of the partitions that are new: an assignment names those that are there, too."""
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


async def _describe(admin: Admin, topics: Sequence[Topic], reports: Reports) -> None:
    names = [topic.name for topic in topics]
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    eligible = await admin.eligible_leaders(names) if names else None
    moves = await admin.list_reassignments() if names else {}
    describes_topics = not (
        reports.under_replicated or reports.unavailable or reports.under_min_isr or reports.at_min_isr
    )
    for name in hash_order(names, table_size(len(names))):
        topic = next(each for each in topics if each.name == name)
        settings = await admin.describe_configs(ResourceKind.TOPIC, name)
        entries = {each.name: each for each in settings}
        ordered = [entries[each] for each in hash_order(list(entries), TABLE_SIZE_MIN)]
        own = [each for each in ordered if each.source != DEFAULT_SOURCE]
        if describes_topics and (own or not reports.overridden):
            click.echo(_topic_line(topic, own, moves))
        if reports.overridden:
            continue
        min_isr = next(int(each.value or 1) for each in settings if each.name == "min.insync.replicas")
        for part in topic.partitions:
            at = TopicPartition(topic.name, part.partition)
            if _reported(part, moves.get(at), min_isr, alive, reports):
                click.echo(_partition_line(at, part, moves.get(at), None if eligible is None else eligible.get(at)))


def _topic_line(topic: Topic, own: Sequence[ConfigEntry], moves: Mapping[TopicPartition, Reassignment]) -> str:
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
    """Replicas that are being added do not count before they are there."""
    if move is not None and {*part.replicas} & {*move.adding, *move.removing}:
        return len(move.replicas) - len(move.adding)
    return len(part.replicas)


def _reported(part: Partition, move: Reassignment | None, min_isr: int, alive: set[int], reports: Reports) -> bool:
    leads = part.leader >= 0
    return (
        not any(reports)
        or (reports.under_replicated and _replication_factor(part, move) > len(part.in_sync))
        or (reports.unavailable and (not leads or part.leader not in alive))
        or (reports.under_min_isr and (not leads or len(part.in_sync) < min_isr))
        or (reports.at_min_isr and len(part.in_sync) == min_isr)
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
