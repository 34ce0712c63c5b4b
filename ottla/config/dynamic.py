"""Which broker settings may be changed while the cluster runs, and to what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.config.broker import BrokerConfig
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.inert_settings import INERT_DYNAMIC, UNSUPPORTED, is_inert, is_security, refusal
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
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC.get(name)
        if setting is None:
            problems.append(_why_not(name, text))
        elif setting.dynamic is Dynamic.READ_ONLY:
            problems.append(f"Cannot update {name} dynamically: set it where the broker is started, and restart it")
        elif setting.dynamic is Dynamic.PER_BROKER and whole_cluster:
            problems.append(f"Cannot update {name} for all brokers at once: name a broker")
        elif text is None:
            problems.append(f"Null value not supported for broker configs: {name}")
        elif (invalid := setting.refusal(text)) is not None:
            problems.append(invalid)
    if not problems:
        given = {name: text for name, text in overrides.items() if text is not None}
        if whole_cluster:  # some brokers have nothing beside it
            problems = _conflicts(config, [(given, other) for other in ({}, *beside)])
        else:
            problems = _conflicts(config, [(other, given) for other in beside or ({},)])
    if problems:
        raise Refused(ErrorCode.invalid_config, "; ".join(problems))


def _why_not(name: str, text: str | None) -> str:
    """Of a name that cannot be set while the cluster runs: it may be one of Kafka's all the same."""
    why = refusal(name, text or "")
    if why is not None:
        return f"{name} cannot be used: {why}"
    if is_inert(name) or is_security(name) or name in UNSUPPORTED:
        return f"Cannot update {name} dynamically: set it where the broker is started, and restart it"
    return f"Unknown broker config name: {name}"


def _conflicts(config: BrokerConfig, layers: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> list[str]:
    """What cannot be together, once for all brokers and for one."""
    problems: dict[str, None] = {}
    for cluster, broker in layers:
        try:
            config.with_dynamic(cluster=cluster, broker=broker)
        except BadConfig as bad:
            problems.update(dict.fromkeys(bad.problems))
    return list(problems)
