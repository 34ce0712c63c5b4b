"""Which broker settings may be changed while the cluster runs, and to what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.config.broker import BrokerConfig
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.setting import BadConfig, Dynamic
from ottla.errors import ErrorCode, Refused


def validate_broker_overrides(
    overrides: Mapping[str, str | None],
    config: BrokerConfig,
    *,
    whole_cluster: bool,
    beside: Sequence[Mapping[str, str]] = (),
) -> None:
    """Refuse what cannot be changed on a running broker, or on all of them. `config` is the broker's own; `beside` is
    what is set already and meets it: for single brokers if this is for all, for all if this is for one."""
    problems: list[str] = []
    for name, text in overrides.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            problems.append(f"Unknown broker config name: {name}")
        elif setting.dynamic is Dynamic.READ_ONLY:
            problems.append(f"Cannot update {name} dynamically: set it where the broker is started, and restart it")
        elif setting.dynamic is Dynamic.PER_BROKER and whole_cluster:
            problems.append(f"Cannot update {name} for all brokers at once: name a broker")
        elif text is None:
            problems.append(f"Null value not supported for broker configs: {name}")
        else:
            try:
                setting.parse(text)
            except ValueError as problem:
                shown = "" if setting.sensitive else f" {text}"
                problems.append(f"Invalid value{shown} for configuration {name}: must be {problem}")
    if not problems:
        given = {name: text for name, text in overrides.items() if text is not None}
        if whole_cluster:  # some brokers have nothing beside it
            problems = _conflicts(config, [(given, other) for other in ({}, *beside)])
        else:
            problems = _conflicts(config, [(other, given) for other in beside or ({},)])
    if problems:
        raise Refused(ErrorCode.invalid_config, "; ".join(problems))


def _conflicts(config: BrokerConfig, layers: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> list[str]:
    """What cannot be together, once for all brokers and for one."""
    problems: dict[str, None] = {}
    for cluster, broker in layers:
        try:
            config.with_dynamic(cluster=cluster, broker=broker)
        except BadConfig as bad:
            problems.update(dict.fromkeys(bad.problems))
    return list(problems)
