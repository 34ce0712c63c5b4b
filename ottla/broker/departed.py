"""Brokers that have left a moment ago: Metadata goes on naming their addresses for a little while.

librdkafka takes a broker that Metadata does not name for decommissioned, and lets the partitions it led rest until its
next look at all topics, up to a second later. Told of their new leaders while the old one is still named, it moves them
at once. Nobody is sent to a broker that has left: it leads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.cluster.image import Broker

LINGER_SECONDS: Final = 2.0


class Departed:
    def __init__(self) -> None:
        self._until: dict[int, tuple[float, Broker]] = {}

    def note(self, before: Mapping[int, Broker], after: Mapping[int, Broker], now: float) -> None:
        """Compare who was there with who is."""
        for broker_id, broker in before.items():
            if broker_id not in after:
                self._until[broker_id] = (now + LINGER_SECONDS, broker)
        for broker_id in after:
            self._until.pop(broker_id, None)

    def named(self, now: float) -> tuple[Broker, ...]:
        """Those whose time is not up."""
        if self._until:
            self._until = {key: value for key, value in self._until.items() if value[0] > now}
        return tuple(broker for _, broker in self._until.values())
