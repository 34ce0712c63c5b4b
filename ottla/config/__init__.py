"""Typed settings with Kafka's names and defaults: of the broker, of topics, and where they come from.

Names are imported when they are first used: clients only need `options`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.config.describe import Row, Synonym, describe_broker, describe_dynamic, describe_topic
    from ottla.config.dynamic import validate_broker_overrides
    from ottla.config.listeners import Listener
    from ottla.config.load import load_broker_config, print_config, shown_config
    from ottla.config.setting import BadConfig, Kind, Setting, Source
    from ottla.config.topic import TopicConfig, resolve, validate_topic_overrides

__all__ = [
    "BadConfig",
    "BrokerConfig",
    "Kind",
    "Listener",
    "Row",
    "Setting",
    "Source",
    "Synonym",
    "TopicConfig",
    "describe_broker",
    "describe_dynamic",
    "describe_topic",
    "load_broker_config",
    "print_config",
    "resolve",
    "shown_config",
    "validate_broker_overrides",
    "validate_topic_overrides",
]

_HOMES: Final = {
    "broker": ("BrokerConfig",),
    "describe": ("Row", "Synonym", "describe_broker", "describe_dynamic", "describe_topic"),
    "dynamic": ("validate_broker_overrides",),
    "listeners": ("Listener",),
    "load": ("load_broker_config", "print_config", "shown_config"),
    "setting": ("BadConfig", "Kind", "Setting", "Source"),
    "topic": ("TopicConfig", "resolve", "validate_topic_overrides"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
