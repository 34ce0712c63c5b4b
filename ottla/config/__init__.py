"""Typed settings with Kafka's names and defaults: of the broker, of topics, and where they come from.

Names are imported when they are first used: clients only need `options`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig as BrokerConfig
    from ottla.config.describe import Row as Row
    from ottla.config.describe import Synonym as Synonym
    from ottla.config.describe import describe_broker as describe_broker
    from ottla.config.describe import describe_dynamic as describe_dynamic
    from ottla.config.describe import describe_topic as describe_topic
    from ottla.config.dynamic import validate_broker_overrides as validate_broker_overrides
    from ottla.config.listeners import Listener as Listener
    from ottla.config.load import load_broker_config as load_broker_config
    from ottla.config.load import print_config as print_config
    from ottla.config.load import shown_config as shown_config
    from ottla.config.setting import BadConfig as BadConfig
    from ottla.config.setting import Kind as Kind
    from ottla.config.setting import Setting as Setting
    from ottla.config.setting import Source as Source
    from ottla.config.topic import TopicConfig as TopicConfig
    from ottla.config.topic import resolve as resolve
    from ottla.config.topic import validate_topic_overrides as validate_topic_overrides

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
