"""Configurations as DescribeConfigs shows them: each setting, its value, its origin and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla import __version__
from ottla.config.broker import BrokerConfig
from ottla.config.broker_settings import ALIASES, BROKER_SETTINGS
from ottla.config.group import GROUP_SETTINGS, INERT_GROUP_SETTINGS
from ottla.config.inert_settings import INERT_DYNAMIC
from ottla.config.setting import Dynamic, Kind, Setting, Source, text_of
from ottla.config.topic import TopicConfig, resolve
from ottla.config.topic_settings import INTERNAL_TOPIC_SETTINGS, TOPIC_SETTINGS


class Synonym(NamedTuple):
    """One of the values a setting could have had, strongest first."""

    name: str
    value: str | None
    source: int


class Row(NamedTuple):
    """One setting as DescribeConfigs shows it; `source` and `kind` are the protocol's numbers."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    kind: int
    doc: str


VERSION = Row(
    "ottla.version", __version__, Source.DEFAULT.code, True, False, (), Kind.STRING, "The release; not a setting."
)
"""The protocol has no other place for it, and whoever looks after a cluster wants to see which brokers are upgraded."""
SCRUB_STATUS = "ottla.scrub.status"


def scrub_row(status: str) -> Row:
    """How far the scrub of a broker is: shown beside its settings for the same reason."""
    return VERSION._replace(name=SCRUB_STATUS, value=status, doc="Progress and findings of the scrub; not a setting.")


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Row]:
    """All settings of a topic with these overrides, by name."""
    config = resolve(overrides, broker)
    shown = (setting for setting in TOPIC_SETTINGS.values() if setting.name not in INTERNAL_TOPIC_SETTINGS)
    return sorted(_topic_row(setting, config, broker) for setting in shown)


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Row]:
    """All settings of a group with these overrides, by name."""
    rows = []
    for setting in GROUP_SETTINGS.values():
        own = overrides.get(setting.name)
        synonyms = _history(broker, setting.synonyms[0][0])
        if own is not None:
            synonyms = (Synonym(setting.name, own, Source.GROUP.code), *synonyms)
        value, source = synonyms[0].value, synonyms[0].source
        rows.append(Row(setting.name, value, source, False, False, synonyms, setting.kind, setting.doc))
    for setting in INERT_GROUP_SETTINGS.values():
        if (own := overrides.get(setting.name)) is not None:
            source = Source.GROUP.code
            synonyms = (Synonym(setting.name, own, source),)
            rows.append(Row(setting.name, own, source, False, False, synonyms, setting.kind, setting.doc))
    return sorted(rows)


def describe_broker(config: BrokerConfig) -> list[Row]:
    """All settings of a broker, by name; what was changed dynamically is in `config.with_dynamic(...)`."""
    rows = [_broker_row(setting, config) for setting in BROKER_SETTINGS.values()]
    by_name = {row.name: row for row in rows}
    rows.extend(by_name[name]._replace(name=alias) for alias, name in ALIASES.items())
    rows.extend(_broker_row(setting, config) for name, setting in INERT_DYNAMIC.items() if _history(config, name))
    rows.append(VERSION)
    return sorted(rows)


def describe_dynamic(overrides: Mapping[str, str], source: Source) -> list[Row]:
    """Only what was changed, as for the resource that stands for all brokers of the cluster."""
    rows = []
    for name, text in overrides.items():
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC.get(name)
        if setting is not None:
            shown = None if setting.sensitive else text
            synonyms = (Synonym(name, shown, source.code),)
            rows.append(Row(name, shown, source.code, False, setting.sensitive, synonyms, setting.kind, setting.doc))
    return sorted(rows)


def _topic_row(setting: Setting, config: TopicConfig, broker: BrokerConfig) -> Row:
    own = config.overrides.get(setting.name)
    synonyms: list[Synonym] = []
    if own is not None:
        synonyms.append(Synonym(setting.name, own, Source.TOPIC.code))
    for broker_name, _ in setting.synonyms:
        synonyms.extend(_history(broker, broker_name))
    source = synonyms[0].source if synonyms else Source.DEFAULT.code
    value = own if own is not None else text_of(config.get(setting.name))
    return Row(setting.name, value, source, False, False, tuple(synonyms), setting.kind, setting.doc)


def _broker_row(setting: Setting, config: BrokerConfig) -> Row:
    """As in Kafka, a setting is shown unset where another stands in: log.retention.ms."""
    synonyms = _history(config, setting.name)
    own = next((each for each in synonyms if each.name == setting.name), None)
    return Row(
        setting.name,
        own.value if own else None,
        own.source if own else Source.DEFAULT.code,
        setting.dynamic is Dynamic.READ_ONLY,
        setting.sensitive,
        synonyms,
        setting.kind,
        setting.doc,
    )


def _history(config: BrokerConfig, name: str) -> tuple[Synonym, ...]:
    return tuple(
        Synonym(each, None if _is_sensitive(each) else text_of(given.value), given.source.code)
        for each, given in config.history(name)
    )


def _is_sensitive(name: str) -> bool:
    return name in BROKER_SETTINGS and BROKER_SETTINGS[name].sensitive
