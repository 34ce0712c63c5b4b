"""Group settings (KIP-848): those of a single group come before those that brokers have for all groups.

Classic groups have none: their members send their timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.config.broker_config import BrokerConfig
from ottla.config.inert_settings import INERT_DYNAMIC
from ottla.config.setting import Setting, SettingType
from ottla.errors import ErrorCode, Refused

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
BROKER_PREFIX: Final = "group."
"""With this prefix, the name of a group setting is that of the broker setting which is its default."""

GROUP_SETTINGS: Final = {
    name: Setting(name, SettingType.INT, None, doc, low=1, synonyms=((BROKER_PREFIX + name, 1),))
    for name, doc in (
        (SESSION_TIMEOUT, "How long a member of the consumer protocol may send no heartbeat before it is removed."),
        (HEARTBEAT_INTERVAL, "How often members of the consumer protocol send a heartbeat."),
    )
}
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
INERT_GROUP_SETTINGS: Final = {
    ASSIGNMENT_INTERVAL: Setting(
        ASSIGNMENT_INTERVAL, SettingType.INT, None, INERT_DYNAMIC[BROKER_PREFIX + ASSIGNMENT_INTERVAL].doc, low=0
    )
}
"""Accepted, stored and shown where they were set, without effect."""
_NOT_BUILT: Final = {"share.": "share groups", "streams.": "streams groups"}
"""Kafka's settings of groups that do not exist here: accepting them would be misleading."""


class GroupConfig(NamedTuple):
    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int


def resolve(overrides: Mapping[str, str], broker: BrokerConfig) -> GroupConfig:
    """The configuration of a group with these settings. They were checked against the limits of the time when they were
    set: limits that have changed since then apply."""
    if not overrides:
        return GroupConfig(broker.group_consumer_session_timeout_ms, broker.group_consumer_heartbeat_interval_ms)
    return GroupConfig(*(_held(name, overrides, broker) for name in GROUP_SETTINGS))


def _held(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> int:
    text = overrides.get(name)
    low, high = _limits(name, broker)
    if text is None:
        value = broker.get(BROKER_PREFIX + name)
        assert isinstance(value, int)
        return value
    return min(max(int(text), low), high)


def _limits(name: str, broker: BrokerConfig) -> tuple[int, int]:
    """group.consumer.min.session.timeout.ms and group.consumer.max.session.timeout.ms, or those of the heartbeat."""
    kind, rest = name.split(".", 1)
    low, high = (broker.get(f"{BROKER_PREFIX}{kind}.{bound}.{rest}") for bound in ("min", "max"))
    assert isinstance(low, int)
    assert isinstance(high, int)
    return low, high


def validate_group_overrides(overrides: Mapping[str, str | None], broker: BrokerConfig) -> None:
    problems: list[str] = []
    values: dict[str, int] = {}
    for name, text in overrides.items():
        setting = GROUP_SETTINGS.get(name) or INERT_GROUP_SETTINGS.get(name)
        if setting is None:
            missing = [kind for prefix, kind in _NOT_BUILT.items() if name.startswith(prefix)]
            why = f": there are no {missing[0]} yet" if missing else ""
            problems.append(f"Unknown group config name: {name}{why}")
            continue
        if (invalid := setting.refusal(text or "")) is not None:
            problems.append(invalid)
            continue
        if name in INERT_GROUP_SETTINGS:
            continue
        value = setting.parse(text or "")
        assert isinstance(value, int)
        values[name] = value
        low, high = _limits(name, broker)
        if not low <= value <= high:
            kind, rest = name.split(".", 1)
            problems.append(
                f"{name}: {value} must be from {low} to {high}, which {BROKER_PREFIX}{kind}.min.{rest} and "
                f"{BROKER_PREFIX}{kind}.max.{rest} say"
            )
    session = values.get(SESSION_TIMEOUT, broker.group_consumer_session_timeout_ms)
    heartbeat = values.get(HEARTBEAT_INTERVAL, broker.group_consumer_heartbeat_interval_ms)
    if values and not problems and session <= heartbeat:
        problems.append(f"{SESSION_TIMEOUT}: {session} must be greater than {HEARTBEAT_INTERVAL}, which is {heartbeat}")
    if problems:
        raise Refused(ErrorCode.invalid_config, "; ".join(problems))
