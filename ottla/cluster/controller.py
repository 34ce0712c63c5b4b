"""The controller, pure: an image and a request give the changes to commit and the answers to send.

It never waits and remembers nothing: whatever it has begun and not finished is visible in the image (`elections`), so
the next controller goes on where this one stopped. `controller_loop` runs it and commits what it decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ottla.cluster import changes as c
from ottla.cluster.elections import Census, elections, erasure
from ottla.cluster.image import Draft, Image
from ottla.cluster.model import Broker, Topic
from ottla.cluster.placement import place, start_after
from ottla.cluster.requests import UNSET, Decision, PartitionsSpec, Rules, TopicResult, TopicSpec
from ottla.errors import ErrorCode, Refused

TOPIC_NAME_MAX: Final = 249
"""Leaves room for a partition number in a directory name of 255 characters."""
TOPIC_PARTITIONS_MAX: Final = 10_000
"""A topic's assignment is one node, and a node has to fit into a store's transaction."""
REQUEST_PARTITIONS_MAX: Final = 10_000
"""All that one request makes: deciding it is one turn of the loop. Kafka's limit."""
CONFIG_BYTES_MAX: Final = 65_536
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""What coordinators remember. Clients may read them."""
CLEANUP_POLICY: Final = "cleanup.policy"
_LEGAL: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def check_topic_name(name: str) -> None:
    """Refuse a name that could not be a directory, or be told from another in a metric."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = "'.' or '..' is not allowed"
    elif len(name) > TOPIC_NAME_MAX:
        problem = f"the length of '{name[:TOPIC_NAME_MAX]}...' is longer than {TOPIC_NAME_MAX}"
    elif not _LEGAL.issuperset(name):
        problem = f"{name!r} contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise Refused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {problem}")


def unknown_topic_error(name: str) -> ErrorCode:
    """What to say of a topic that is not there."""
    try:
        check_topic_name(name)
    except Refused as refused:
        return refused.code
    return ErrorCode.unknown_topic_or_partition


def create_topics(
    image: Image, specs: Sequence[TopicSpec], topic_ids: Sequence[bytes], rules: Rules
) -> Decision[TopicResult]:
    """Create topics, each for itself: one that is refused does not keep the others from being created."""
    if _too_many_at_once(
        len(spec.assignments) or (rules.partitions if spec.partitions == UNSET else spec.partitions) for spec in specs
    ):
        return Decision([], [_excessive(spec.name) for spec in specs])
    return _Creation(image, rules).decide(specs, topic_ids)


class _Creation:
    """Topics created by one request, each seeing those before it."""

    def __init__(self, image: Image, rules: Rules) -> None:
        self._brokers = image.brokers
        self._census = Census(image.brokers)
        self._rules = rules
        self._draft = Draft(image)
        self._placed = image.partition_count()
        self._names_alike: dict[str, str] | None = None

    def decide(self, specs: Sequence[TopicSpec], topic_ids: Sequence[bytes]) -> Decision[TopicResult]:
        decision: Decision[TopicResult] = Decision([], [])
        times = Counter(spec.name for spec in specs)
        for spec, topic_id in zip(specs, topic_ids, strict=True):
            try:
                if times[spec.name] > 1:
                    raise Refused(ErrorCode.invalid_request, "Duplicate topic name.")
                topic = self._create(spec, topic_id, decision.changes)
            except Refused as refused:
                decision.results.append(TopicResult(spec.name, code=refused.code, message=refused.message))
                continue
            factor = len(topic.partitions[0].replicas)
            decision.results.append(
                TopicResult(
                    topic.name,
                    topic.id,
                    partitions=len(topic.partitions),
                    replication_factor=factor,
                    configs=topic.configs,
                )
            )
        return decision

    def _create(self, spec: TopicSpec, topic_id: bytes, changes: list[c.Change]) -> Topic:
        check_topic_name(spec.name)
        self._check_free(spec.name)
        assignments = self._assigned(spec) if spec.assignments else self._placement(spec)
        configs = self._checked_configs(spec)
        created = c.TopicCreated(topic_id, spec.name, assignments, configs)
        self._draft.apply(created)
        self._placed += len(assignments)
        if self._names_alike is not None:
            self._names_alike[_alike(spec.name)] = spec.name
        topic = self._draft.topic(topic_id)
        assert topic is not None
        changes.append(created)
        changes.extend(elections(topic, self._census, self._rules))
        return topic

    def _check_free(self, name: str) -> None:
        if name in self._draft.topics.map:
            raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if any(topic.name == name for topic in self._draft.deleting.map.values()):
            raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' is marked for deletion.")
        if "." not in name and "_" not in name:
            return
        if self._names_alike is None:
            self._names_alike = {_alike(each): each for each in self._draft.topics.map}
        other = self._names_alike.get(_alike(name))
        if other is not None:
            raise Refused(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")

    def _placement(self, spec: TopicSpec) -> tuple[tuple[int, ...], ...]:
        partitions = self._rules.partitions if spec.partitions == UNSET else spec.partitions
        factor = self._rules.replication_factor if spec.replication_factor == UNSET else spec.replication_factor
        if partitions <= 0:
            raise Refused(
                ErrorCode.invalid_partitions,
                "Number of partitions was set to an invalid non-positive value.",
            )
        if factor <= 0:
            raise Refused(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        _check_partitions_max(partitions)
        _check_enough_brokers(factor, self._brokers.values())
        return tuple(place(_hosts(self._brokers, factor), partitions, factor, start=self._placed))

    def _assigned(self, spec: TopicSpec) -> tuple[tuple[int, ...], ...]:
        for field, value in (
            ("replication factor", spec.replication_factor),
            ("partitions", spec.partitions),
        ):
            if value != UNSET:
                raise Refused(
                    ErrorCode.invalid_request,
                    f"A manual partition assignment was specified, but {field} was not set to -1.",
                )
        _check_partitions_max(len(spec.assignments))
        by_number = {number: tuple(replicas) for number, replicas in spec.assignments}
        if sorted(by_number) != list(range(len(spec.assignments))):
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                "Partitions should be a consecutive 0-based integer sequence.",
            )
        assignments = tuple(by_number[number] for number in range(len(by_number)))
        _check_assignments(assignments, len(assignments[0]), self._brokers)
        return assignments

    def _checked_configs(self, spec: TopicSpec) -> dict[str, str]:
        self._rules.check_topic(spec.configs)
        configs = {name: value for name, value in spec.configs.items() if value is not None}
        if len(configs) != len(spec.configs):
            raise Refused(ErrorCode.invalid_config, "Null value not supported for topic configs.")
        check_configs_size(configs)
        if spec.name in INTERNAL_TOPICS:
            configs.setdefault(CLEANUP_POLICY, "compact")  # the usual policy would drop what coordinators remember
        return configs


def check_configs_size(configs: dict[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in configs.items()) > CONFIG_BYTES_MAX:
        raise Refused(ErrorCode.invalid_config, f"Configs take more than {CONFIG_BYTES_MAX} bytes.")


def delete_topics(image: Image, topics: Sequence[str | bytes]) -> Decision[TopicResult]:
    """Delete topics by name or by id. Their ids stay as tombstones until the replicas' files are gone."""
    decision: Decision[TopicResult] = Decision([], [])
    deleted: set[bytes] = set()
    for ref in topics:
        topic = image.topic(ref) if isinstance(ref, str) else image.topic_by_id(ref)
        if topic is None or topic.id in deleted:
            decision.results.append(_unknown(ref))
            continue
        deleted.add(topic.id)
        holders = {r for p in topic.partitions for r in (*p.replicas, *p.adding, *p.removing)}
        decision.changes.append(c.TopicDeleted(topic.id, topic.name, tuple(sorted(holders))))
        decision.changes.extend(erasure(topic))
        decision.results.append(TopicResult(topic.name, topic.id))
    return decision


def _unknown(ref: str | bytes) -> TopicResult:
    if isinstance(ref, str):
        return TopicResult(
            ref,
            code=ErrorCode.unknown_topic_or_partition,
            message="This server does not host this topic-partition.",
        )
    return TopicResult("", ref, code=ErrorCode.unknown_topic_id, message="This server does not host this topic ID.")


def create_partitions(image: Image, specs: Sequence[PartitionsSpec], rules: Rules) -> Decision[TopicResult]:
    """Grow topics, each for itself."""
    topics = [(image.topic(spec.name), spec.partitions) for spec in specs]
    if _too_many_at_once([wanted - len(topic.partitions) for topic, wanted in topics if topic is not None]):
        return Decision([], [_excessive(spec.name) for spec in specs])
    decision: Decision[TopicResult] = Decision([], [])
    times = Counter(spec.name for spec in specs)
    for spec in specs:
        try:
            if times[spec.name] > 1:
                raise Refused(ErrorCode.invalid_request, "Duplicate topic name.")
            decision.changes.extend(_growth(image, spec, rules))
        except Refused as refused:
            decision.results.append(TopicResult(spec.name, code=refused.code, message=refused.message))
        else:
            topic = image.topics[spec.name]
            decision.results.append(TopicResult(spec.name, topic.id, partitions=spec.partitions))
    return decision


def _growth(image: Image, spec: PartitionsSpec, rules: Rules) -> Iterable[c.Change]:
    topic = image.topic(spec.name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"The topic '{spec.name}' does not exist.")
    have = len(topic.partitions)
    if spec.partitions <= have:
        problem = (
            f"The topic {spec.name} currently has {have} partition(s); {spec.partitions} would not be an increase."
        )
        raise Refused(ErrorCode.invalid_partitions, problem)
    _check_partitions_max(spec.partitions)
    more = spec.partitions - have
    first = topic.partitions[0]
    model = tuple(replica for replica in first.replicas if replica not in first.adding)
    if spec.assignments is not None:
        added = tuple(tuple(replicas) for replicas in spec.assignments)
        if len(added) != more:
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                f"{more} partition(s) to add, but {len(added)} assignment(s) given.",
            )
        _check_assignments(added, len(model), image.brokers)
    else:
        _check_enough_brokers(len(model), image.brokers.values())
        hosts = _hosts(image.brokers, len(model))
        added = tuple(place(hosts, more, len(model), start=start_after(hosts, model), first_partition=have))
    change = c.PartitionsAdded(topic.id, have, added)
    grown = image.apply(change).topics[spec.name]
    return [change, *elections(grown, Census(image.brokers), rules, first=have)]


def replicas_erased(image: Image, broker: int, topic_ids: Iterable[bytes]) -> list[c.Change]:
    """A broker has removed its files of these deleted topics."""
    return [
        c.ReplicaErased(topic_id, broker)
        for topic_id in dict.fromkeys(topic_ids)
        if topic_id in image.tombstones and broker in image.tombstones[topic_id].replicas
    ]


def brokers_gone(image: Image, live: Sequence[tuple[int, int]]) -> list[c.Change]:
    """The store shows these registrations (id, epoch): say who is gone."""
    alive = set(live)
    return [
        c.BrokerGone(broker.id, broker.epoch)
        for broker in image.brokers.values()
        if (broker.id, broker.epoch) not in alive
    ]


def _too_many_at_once(counts: Iterable[int]) -> bool:
    """What no topic can have is refused for that topic alone."""
    return sum(count for count in counts if 0 < count <= TOPIC_PARTITIONS_MAX) > REQUEST_PARTITIONS_MAX


def _excessive(name: str) -> TopicResult:
    message = "Excessively large number of partitions per request."
    return TopicResult(name, code=ErrorCode.policy_violation, message=message)


def _check_partitions_max(partitions: int) -> None:
    if partitions > TOPIC_PARTITIONS_MAX:
        raise Refused(
            ErrorCode.invalid_partitions,
            f"A topic can have at most {TOPIC_PARTITIONS_MAX} partitions, not {partitions}.",
        )


def _hosts(brokers: Mapping[int, Broker], factor: int) -> list[Broker]:
    """Who may get new replicas: those about to stop only if there are too few others."""
    staying = [broker for broker in brokers.values() if not broker.draining]
    return staying if len(staying) >= factor else list(brokers.values())


def _check_enough_brokers(factor: int, brokers: Iterable[Broker]) -> None:
    alive = len(list(brokers))
    if factor > alive:
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {alive} broker(s) are registered.",
        )


def _check_assignments(assignments: Sequence[tuple[int, ...]], factor: int, brokers: Iterable[int]) -> None:
    known = set(brokers)
    for replicas in assignments:
        if not replicas:
            problem = "The manual partition assignment includes an empty replica list."
        elif len(set(replicas)) != len(replicas):
            problem = f"The manual partition assignment includes the broker {_twice(replicas)} more than once."
        elif not known.issuperset(replicas):
            stranger = next(replica for replica in replicas if replica not in known)
            problem = f"The manual partition assignment includes broker {stranger}, but no such broker is registered."
        elif len(replicas) != factor:
            problem = (
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
                f"but this is not consistent with the other partitions, which have {factor} replica(s)."
            )
        else:
            continue
        raise Refused(ErrorCode.invalid_replica_assignment, problem)


def _twice(replicas: Sequence[int]) -> int:
    return next(replica for replica in replicas if replicas.count(replica) > 1)


def _alike(name: str) -> str:
    """Metrics cannot tell a dot from an underscore."""
    return name.replace(".", "_")
