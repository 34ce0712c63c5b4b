"""Typed settings with Kafka's names and defaults: of the broker, of topics, and where they come from."""

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
