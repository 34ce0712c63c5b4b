"""The controller's decisions on topics: an image and a request give the changes to commit and the results. Pure.

It has no state: work that was begun and not finished is visible in the image (`elections`), so the next controller
continues it. `controller_loop` runs the decisions and commits their changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ottla.cluster import changes as c
from ottla.cluster.elections import LiveBrokers, elections, removal
from ottla.cluster.image import Draft, Image
from ottla.cluster.model import BrokerRegistration, TopicImage
from ottla.cluster.placement import assign_replicas, start_after
from ottla.cluster.requests import UNSET, ControllerDecision, PartitionsSpec, Rules, TopicResult, TopicSpec
from ottla.errors import ErrorCode, Refused

TOPIC_NAME_MAX: Final = 249
"""Leaves space for a partition number in a directory name of 255 characters."""
TOPIC_PARTITIONS_MAX: Final = 10_000
"""The assignment of a topic is one node, which has to fit into one transaction of the store."""
REQUEST_PARTITIONS_MAX: Final = 10_000
"""Of all topics of one request, which is decided in one iteration of the loop. Kafka's limit."""
CONFIG_BYTES_MAX: Final = 65_536
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""The logs of the coordinators. Clients may read them."""
CLEANUP_POLICY: Final = "cleanup.policy"
_LEGAL: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def check_topic_name(name: str) -> None:
    """Refuse a name that Kafka does not allow."""
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
    """The error for a topic that does not exist."""
    try:
        check_topic_name(name)
    except Refused as refused:
        return refused.code
    return ErrorCode.unknown_topic_or_partition


def create_topics(
    image: Image, specs: Sequence[TopicSpec], topic_ids: Sequence[bytes], rules: Rules
) -> ControllerDecision[TopicResult]:
    """Create topics independently: one that is refused does not stop the others."""
    if _too_many_at_once(
        len(spec.assignments) or (rules.partitions if spec.partitions == UNSET else spec.partitions) for spec in specs
    ):
        return ControllerDecision([], [_excessive(spec.name) for spec in specs])
    return _Creation(image, rules).decide(specs, topic_ids)


class _Creation:
    """The topics of one request, each checked against those before it."""

    def __init__(self, image: Image, rules: Rules) -> None:
        self._brokers = image.brokers
        self._live = LiveBrokers(image.brokers)
        self._rules = rules
        self._draft = Draft(image)
        self._placed = image.partition_count()
        self._names_alike: dict[str, str] | None = None

    def decide(self, specs: Sequence[TopicSpec], topic_ids: Sequence[bytes]) -> ControllerDecision[TopicResult]:
        decision: ControllerDecision[TopicResult] = ControllerDecision([], [])
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

    def _create(self, spec: TopicSpec, topic_id: bytes, changes: list[c.Change]) -> TopicImage:
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
        changes.extend(elections(topic, self._live, self._rules))
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
                ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
            )
        if factor <= 0:
            raise Refused(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        _check_partitions_max(partitions)
        _check_enough_brokers(factor, self._brokers.values())
        return tuple(assign_replicas(_hosts(self._brokers, factor), partitions, factor, start=self._placed))

    def _assigned(self, spec: TopicSpec) -> tuple[tuple[int, ...], ...]:
        for field, value in (("replication factor", spec.replication_factor), ("partitions", spec.partitions)):
            if value != UNSET:
                raise Refused(
                    ErrorCode.invalid_request,
                    f"A manual partition assignment was specified, but {field} was not set to -1.",
                )
        _check_partitions_max(len(spec.assignments))
        by_number = {number: tuple(replicas) for number, replicas in spec.assignments}
        if sorted(by_number) != list(range(len(spec.assignments))):
            raise Refused(
                ErrorCode.invalid_replica_assignment, "Partitions should be a consecutive 0-based integer sequence."
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
            configs.setdefault(CLEANUP_POLICY, "compact")  # delete would remove what coordinators need
        return configs


def check_configs_size(configs: dict[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in configs.items()) > CONFIG_BYTES_MAX:
        raise Refused(ErrorCode.invalid_config, f"Configs take more than {CONFIG_BYTES_MAX} bytes.")


def delete_topics(image: Image, topics: Sequence[str | bytes]) -> ControllerDecision[TopicResult]:
    """Delete topics by name or by id. Their ids stay as tombstones until the files of all replicas are deleted."""
    decision: ControllerDecision[TopicResult] = ControllerDecision([], [])
    deleted: set[bytes] = set()
    for ref in topics:
        topic = image.topic(ref) if isinstance(ref, str) else image.topic_by_id(ref)
        if topic is None or topic.id in deleted:
            decision.results.append(_unknown(ref))
            continue
        deleted.add(topic.id)
        holders = {r for p in topic.partitions for r in (*p.replicas, *p.adding, *p.removing)}
        decision.changes.append(c.TopicDeleted(topic.id, topic.name, tuple(sorted(holders))))
        decision.changes.extend(removal(topic))
        decision.results.append(TopicResult(topic.name, topic.id))
    return decision


def _unknown(ref: str | bytes) -> TopicResult:
    if isinstance(ref, str):
        return TopicResult(
            ref, code=ErrorCode.unknown_topic_or_partition, message="This server does not host this topic-partition."
        )
    return TopicResult("", ref, code=ErrorCode.unknown_topic_id, message="This server does not host this topic ID.")


def create_partitions(image: Image, specs: Sequence[PartitionsSpec], rules: Rules) -> ControllerDecision[TopicResult]:
    """Add partitions to topics, each independently."""
    topics = [(image.topic(spec.name), spec.partitions) for spec in specs]
    if _too_many_at_once([wanted - len(topic.partitions) for topic, wanted in topics if topic is not None]):
        return ControllerDecision([], [_excessive(spec.name) for spec in specs])
    decision: ControllerDecision[TopicResult] = ControllerDecision([], [])
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
        added = tuple(assign_replicas(hosts, more, len(model), start=start_after(hosts, model), first_partition=have))
    change = c.PartitionsAdded(topic.id, have, added)
    extended = image.apply(change).topics[spec.name]
    return [change, *elections(extended, LiveBrokers(image.brokers), rules, first=have)]


def brokers_gone(image: Image, live: Sequence[tuple[int, int]]) -> list[c.Change]:
    """Brokers of the image that are not among these registrations (id, epoch) of the store."""
    alive = set(live)
    return [
        c.BrokerGone(broker.id, broker.epoch)
        for broker in image.brokers.values()
        if (broker.id, broker.epoch) not in alive
    ]


def _too_many_at_once(counts: Iterable[int]) -> bool:
    """A count above the limit of a topic does not count here: it is refused for that topic alone."""
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


def _hosts(brokers: Mapping[int, BrokerRegistration], factor: int) -> list[BrokerRegistration]:
    """Brokers that may get new replicas: draining ones only if there are too few others."""
    staying = [broker for broker in brokers.values() if not broker.draining]
    return staying if len(staying) >= factor else list(brokers.values())


def _check_enough_brokers(factor: int, brokers: Iterable[BrokerRegistration]) -> None:
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
            unknown = next(replica for replica in replicas if replica not in known)
            problem = f"The manual partition assignment includes broker {unknown}, but no such broker is registered."
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
    """A dot and an underscore are the same in the name of a metric."""
    return name.replace(".", "_")
