"""Metadata cache: encoded responses for all topics, and brokers that were removed a moment ago.

librdkafka treats a broker that is missing in Metadata as decommissioned, and then looks for the new leaders of its
partitions up to a second later. If the old broker is still listed with the new leaders, it switches at once. No client
is sent to a removed broker: it leads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.cluster.image import BrokerRegistration
from ottla.wire.error_codes import ErrorCounts

LINGER_SECONDS: Final = 2.0

Key = tuple[int, str, tuple[bool, bool]]
"""Version, listener, and which authorized operations are included."""
Answer = tuple[bytes, ErrorCounts]


class RecentlyRemovedBrokers:
    def __init__(self) -> None:
        self._until: dict[int, tuple[float, BrokerRegistration]] = {}

    def note(
        self, before: Mapping[int, BrokerRegistration], after: Mapping[int, BrokerRegistration], now: float
    ) -> None:
        """Compare the brokers before and after a change."""
        for broker_id, broker in before.items():
            if broker_id not in after:
                self._until[broker_id] = (now + LINGER_SECONDS, broker)
        for broker_id in after:
            self._until.pop(broker_id, None)

    def named(self, now: float) -> tuple[BrokerRegistration, ...]:
        """Those that are still listed."""
        if self._until:
            self._until = {key: value for key, value in self._until.items() if value[0] > now}
        return tuple(broker for _, broker in self._until.values())


class MetadataCache:
    """Responses for all topics are costly with thousands of partitions, and frequent: they are kept encoded until the
    image changes."""

    def __init__(self) -> None:
        self.removed: Final = RecentlyRemovedBrokers()
        self._answers: dict[Key, Answer] = {}
        self._of: tuple[int, tuple[BrokerRegistration, ...]] = (-1, ())

    def get(self, key: Key, image_version: int, now: float) -> Answer | None:
        of = (image_version, self.removed.named(now))
        if self._of != of:
            self._answers.clear()
            self._of = of
        return self._answers.get(key)

    def put(self, key: Key, answer: Answer) -> None:
        self._answers[key] = answer
