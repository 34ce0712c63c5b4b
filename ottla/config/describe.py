"""DescribeConfigs: the rows of a configuration, with value, source, synonyms and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla import __version__
from ottla.config.broker_config import BrokerConfig
from ottla.config.broker_settings import ALIASES, BROKER_SETTINGS
from ottla.config.group_config import GROUP_SETTINGS, INERT_GROUP_SETTINGS
from ottla.config.inert_settings import INERT_DYNAMIC
from ottla.config.setting import ConfigSource, Dynamic, Setting, SettingType, text_of
from ottla.config.topic_config import INTERNAL_TOPIC_SETTINGS, TOPIC_SETTINGS, TopicConfig, resolve


class Synonym(NamedTuple):
    """A value of a setting or of one of its synonyms."""

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
    "ottla.version",
    __version__,
    ConfigSource.DEFAULT.code,
    True,
    False,
    (),
    SettingType.STRING,
    "The release; not a setting.",
)
"""Shows operators which brokers are upgraded; the protocol has no other place for it."""
SCRUB_STATUS = "ottla.scrub.status"


def scrub_row(status: str) -> Row:
    """The progress of the scrub of a broker, beside its settings for the same reason."""
    return VERSION._replace(name=SCRUB_STATUS, value=status, doc="Progress and findings of the scrub; not a setting.")


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Row]:
    """All settings of a topic with these overrides, by name."""
    config = resolve(overrides, broker)
    shown = (setting for setting in TOPIC_SETTINGS.values() if setting.name not in INTERNAL_TOPIC_SETTINGS)
    return sorted(_topic_row(setting, config, broker) for setting in shown)


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Row]:
    """All settings of a group with these overrides, by name; inert ones where they are set."""
    rows = []
    for setting in (*GROUP_SETTINGS.values(), *INERT_GROUP_SETTINGS.values()):
        synonyms = _own(setting, overrides, ConfigSource.GROUP)
        for broker_name, _ in setting.synonyms:
            synonyms += _history(broker, broker_name)
        if synonyms:
            rows.append(_row(setting, synonyms[0].value, synonyms))
    return sorted(rows)


def describe_broker(config: BrokerConfig) -> list[Row]:
    """All settings of a broker, by name; dynamic ones are in `config.with_dynamic(...)`."""
    rows = [_broker_row(setting, config) for setting in BROKER_SETTINGS.values()]
    by_name = {row.name: row for row in rows}
    rows.extend(by_name[name]._replace(name=alias) for alias, name in ALIASES.items())
    rows.extend(_broker_row(setting, config) for name, setting in INERT_DYNAMIC.items() if _history(config, name))
    rows.append(VERSION)
    return sorted(rows)


def describe_dynamic(overrides: Mapping[str, str], source: ConfigSource) -> list[Row]:
    """Only the dynamic settings, as for the resource of all brokers."""
    rows = []
    for name, text in overrides.items():
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC.get(name)
        if setting is not None:
            shown = None if setting.sensitive else text
            rows.append(_row(setting, shown, (Synonym(name, shown, source.code),)))
    return sorted(rows)


def _topic_row(setting: Setting, config: TopicConfig, broker: BrokerConfig) -> Row:
    synonyms = _own(setting, config.overrides, ConfigSource.TOPIC)
    for broker_name, _ in setting.synonyms:
        synonyms += _history(broker, broker_name)
    own = config.overrides.get(setting.name)
    return _row(setting, own if own is not None else text_of(config.get(setting.name)), synonyms)


def _own(setting: Setting, overrides: Mapping[str, str], source: ConfigSource) -> tuple[Synonym, ...]:
    text = overrides.get(setting.name)
    return () if text is None else (Synonym(setting.name, text, source.code),)


def _row(setting: Setting, value: str | None, synonyms: tuple[Synonym, ...]) -> Row:
    """A row with the source of its first synonym."""
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT.code
    return Row(setting.name, value, source, False, setting.sensitive, synonyms, setting.kind, setting.doc)


def _broker_row(setting: Setting, config: BrokerConfig) -> Row:
    """As in Kafka, a setting is shown unset where a synonym gives its value: log.retention.ms."""
    synonyms = _history(config, setting.name)
    own = next((each for each in synonyms if each.name == setting.name), None)
    return Row(
        setting.name,
        own.value if own else None,
        own.source if own else ConfigSource.DEFAULT.code,
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
