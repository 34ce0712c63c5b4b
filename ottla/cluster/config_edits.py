"""AlterConfigs and IncrementalAlterConfigs of topics, brokers and groups: edits give the new settings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.cluster import changes as c
from ottla.cluster.controller import CLEANUP_POLICY, INTERNAL_TOPICS, check_configs_size, check_topic_name
from ottla.cluster.elections import MIN_IN_SYNC
from ottla.cluster.image import Image
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, ConfigResult, ControllerDecision, Rules
from ottla.errors import ErrorCode, Refused

GROUP_NAME_CHARS_MAX: Final = 1_000
GROUPS_WITH_CONFIGS_MAX: Final = 10_000
"""Every broker holds the settings of all groups in memory."""


def alter_topic_configs(
    image: Image, alterations: Sequence[ConfigAlteration], rules: Rules
) -> ControllerDecision[ConfigResult]:
    def alter(alteration: ConfigAlteration) -> c.Change | None:
        name = alteration.resource
        assert isinstance(name, str)
        check_topic_name(name)
        topic = image.topic(name)
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
        configs = edited(topic.configs, alteration, rules.topic_list)
        rules.check_topic(configs)
        if name in INTERNAL_TOPICS:
            _check_stays_compacted(name, topic.configs, configs)
        return None if configs == topic.configs else c.TopicConfigChanged(topic.id, configs)

    return _each(alterations, alter)


def alter_broker_configs(
    image: Image, alterations: Sequence[ConfigAlteration], rules: Rules
) -> ControllerDecision[ConfigResult]:
    def alter(alteration: ConfigAlteration) -> c.Change | None:
        broker = alteration.resource
        assert not isinstance(broker, str)
        if broker is not None and not _is_known(image, broker):
            raise Refused(ErrorCode.invalid_request, f"Unexpected broker id {broker}: there is no such broker.")
        old = image.broker_configs.get(broker, {})
        configs = edited(old, alteration, rules.broker_list)
        _check_min_in_sync_stays(broker, old, configs)
        rules.check_broker(broker, configs)
        return None if configs == old else c.BrokerConfigChanged(broker, configs)

    return _each(alterations, alter)


def _check_min_in_sync_stays(broker: int | None, old: Mapping[str, str], configs: Mapping[str, str]) -> None:
    """Refuse what would make min.insync.replicas differ between brokers again (`elections.missing_min_in_sync`)."""
    if broker is not None and MIN_IN_SYNC in configs:
        raise Refused(
            ErrorCode.invalid_config,
            f"Broker-level {MIN_IN_SYNC} cannot be altered: set it for all brokers, or for a topic.",
        )
    if broker is None and MIN_IN_SYNC in old and MIN_IN_SYNC not in configs:
        raise Refused(
            ErrorCode.invalid_config, f"Cluster-level {MIN_IN_SYNC} cannot be removed: set it to another value."
        )


def _is_known(image: Image, broker: int) -> bool:
    """Registered now; or it was, and has replicas, or settings, which can be removed."""
    if broker in image.brokers or broker in image.broker_configs:
        return True
    return any(broker in partition.replicas for topic in image.topics.values() for partition in topic.partitions)


def alter_group_configs(
    image: Image, alterations: Sequence[ConfigAlteration], rules: Rules
) -> ControllerDecision[ConfigResult]:
    """A group need not exist: its settings apply when it is created."""
    known = set(image.group_configs)

    def alter(alteration: ConfigAlteration) -> c.Change | None:
        group = alteration.resource
        assert isinstance(group, str)
        if not group:
            raise Refused(ErrorCode.invalid_request, "Default group resources are not allowed.")
        if len(group) > GROUP_NAME_CHARS_MAX:
            raise Refused(ErrorCode.invalid_request, f"A group with settings has at most {GROUP_NAME_CHARS_MAX} chars.")
        old = image.group_configs.get(group, {})
        configs = edited(old, alteration, lambda name: None)
        rules.check_group(configs)
        if configs and group not in known:
            if len(known) >= GROUPS_WITH_CONFIGS_MAX:
                raise Refused(ErrorCode.policy_violation, f"{GROUPS_WITH_CONFIGS_MAX} groups have settings already.")
            known.add(group)
        return None if configs == old else c.GroupConfigChanged(group, configs)

    return _each(alterations, alter)


def _check_stays_compacted(name: str, old: Mapping[str, str], configs: Mapping[str, str]) -> None:
    """Under another cleanup policy retention would delete records that coordinators need."""
    if configs.get(CLEANUP_POLICY) not in (old.get(CLEANUP_POLICY), "compact"):
        raise Refused(ErrorCode.invalid_config, f"{CLEANUP_POLICY} of the internal topic {name} is compact.")


def _each(
    alterations: Sequence[ConfigAlteration], alter: Callable[[ConfigAlteration], c.Change | None]
) -> ControllerDecision[ConfigResult]:
    decision: ControllerDecision[ConfigResult] = ControllerDecision([], [])
    times = Counter(alteration.resource for alteration in alterations)
    for alteration in alterations:
        try:
            if times[alteration.resource] > 1:
                raise Refused(ErrorCode.invalid_request, "Each resource must appear at most once.")
            change = alter(alteration)
        except Refused as refused:
            decision.results.append(ConfigResult(alteration.resource, refused.code, refused.message))
            continue
        decision.results.append(ConfigResult(alteration.resource))
        if change is not None:
            decision.changes.append(change)
    return decision


def edited(
    old: Mapping[str, str], alteration: ConfigAlteration, list_default: Callable[[str], str | None]
) -> dict[str, str]:
    """The settings after the edits."""
    names = [edit.name for edit in alteration.edits]
    if len(set(names)) != len(names):
        raise Refused(ErrorCode.invalid_request, "Error due to duplicate config keys")
    configs = {} if alteration.replace else dict(old)
    for edit in alteration.edits:
        if edit.op == ConfigOp.delete:
            configs.pop(edit.name, None)
        else:
            configs[edit.name] = _edited_value(configs.get(edit.name), edit, list_default)
    check_configs_size(configs)
    return configs


def _edited_value(old: str | None, edit: ConfigEdit, list_default: Callable[[str], str | None]) -> str:
    if edit.value is None:
        raise Refused(ErrorCode.invalid_request, f"Null value not supported for : {edit.name}")
    if edit.op == ConfigOp.set:
        return edit.value
    if edit.op not in (ConfigOp.append, ConfigOp.subtract):
        raise Refused(ErrorCode.invalid_request, f"Unknown config operation {edit.op} for {edit.name}")
    default = list_default(edit.name)
    if default is None:
        verb = "append to" if edit.op == ConfigOp.append else "subtract from"
        raise Refused(ErrorCode.invalid_config, f"Can't {verb} key {edit.name} because its type is not LIST.")
    items = _items(default if old is None else old)
    named = _items(edit.value)
    if edit.op == ConfigOp.append:
        return ",".join(dict.fromkeys([*items, *named]))
    return ",".join(item for item in items if item not in named)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
