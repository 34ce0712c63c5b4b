"""Typed settings with Kafka's names and defaults: of brokers, topics and groups, and their sources.

Names are imported when they are first used: clients need only `named_options`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.config.broker_config import BrokerConfig as BrokerConfig
    from ottla.config.load import load_broker_config as load_broker_config
    from ottla.config.load import print_config as print_config
    from ottla.config.load import shown_config as shown_config
    from ottla.config.setting import BadConfig as BadConfig
    from ottla.config.setting import ConfigSource as ConfigSource


def __getattr__(name: str) -> Any:
    home = {"BrokerConfig": "broker_config", "BadConfig": "setting", "ConfigSource": "setting"}.get(name, "load")
    if name.startswith("__") or not hasattr(module := import_module(f"{__name__}.{home}"), name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
