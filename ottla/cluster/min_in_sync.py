"""The cluster's own min.insync.replicas (KIP-966): one value for all brokers, kept with the metadata.

Which replicas stay eligible to lead depends on it, and that must not depend on which broker is controller and on how
that one was started. So the first controller writes down what it was started with, as a setting for all brokers. From
then on it can be changed there and not be removed, and no single broker has another: as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ottla.cluster.changes import BrokerConfigChanged
from ottla.cluster.image import Image
from ottla.errors import ErrorCode, Refused

NAME: Final = "min.insync.replicas"


def missing_records(image: Image, started_with: int | None) -> Iterator[BrokerConfigChanged]:
    """What the settings of all brokers and of single ones lack or have too much. None: nobody says what to write."""
    if started_with is None:
        return
    everywhere = image.broker_configs.get(None, {})
    if NAME not in everywhere:
        yield BrokerConfigChanged(None, {**everywhere, NAME: str(started_with)})
    for broker, configs in image.broker_configs.items():
        if broker is not None and NAME in configs:
            yield BrokerConfigChanged(broker, {name: text for name, text in configs.items() if name != NAME})


def check_stays(broker: int | None, old: Mapping[str, str], configs: Mapping[str, str]) -> None:
    """Refuse what would make it differ between brokers again."""
    if broker is not None and NAME in configs:
        raise Refused(
            ErrorCode.invalid_config, f"Broker-level {NAME} cannot be altered: set it for all brokers, or for a topic."
        )
    if broker is None and NAME in old and NAME not in configs:
        raise Refused(ErrorCode.invalid_config, f"Cluster-level {NAME} cannot be removed: set it to another value.")
