"""Brokers for tests, in this process or as child processes; they start fast and leave nothing behind.

    with Broker() as broker:
        broker.produce(broker.create_topic("orders"), [b"two oranges"])

`pytest` finds the fixtures by itself once `ottla[testing]` is installed: `ottla_broker`, `ottla_topic`, `ottla_server`,
`ottla_cluster`; see `ottla.testing.plugin`. The classes are for unittest, notebooks and scripts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.access import Access, Topic
    from ottla.testing.broker import Broker
    from ottla.testing.cluster import Cluster
    from ottla.testing.faults import InjectedFault

__all__ = ["Access", "Broker", "Cluster", "InjectedFault", "Topic"]

_HOMES = {"Access": "access", "Broker": "broker", "Cluster": "cluster", "InjectedFault": "faults", "Topic": "access"}


def __getattr__(name: str) -> Any:
    """Lazy imports: pytest loads this package in every run, also where no broker is needed."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ottla.testing.{home}"), name)
    globals()[name] = value
    return value
