"""Traffic counters by topic: bytes and records of Produce and Fetch of clients.

The number of topics with counters of their own is limited (`ottla.metrics.topics.max`): each has four time series.
Other topics share one counter, and stay there, so that no counter ever decreases.
"""

from __future__ import annotations

from typing import Final

from ottla.cluster import changes as c
from ottla.cluster.image import Image

OTHERS: Final = "(others)"
"""No topic can have this name."""


class Traffic:
    """Counters of one topic, or of all topics beyond the limit."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.records_in = self.records_out = 0


class TopicTraffic(dict[str, Traffic]):
    """Counters by topic; `traffic[topic]` makes them at first use. Those of all topics beyond the limit are one."""

    def __init__(self, topics_max: int) -> None:
        super().__init__()
        self._topics_max = topics_max
        self._named = 0
        self._shared = False
        self.others = Traffic()

    def __missing__(self, topic: str) -> Traffic:
        if self._named < self._topics_max:
            self._named += 1
            found = Traffic()
        else:
            found = self.others
            self._shared = True
        self[topic] = found
        return found

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        if isinstance(change, c.TopicDeleted) and (topic := old.topic_by_id(change.topic_id)) is not None:
            self.forget(topic.name)

    def forget(self, topic: str) -> None:
        """It was deleted."""
        found = self.pop(topic, None)
        if found is not None and found is not self.others:
            self._named -= 1

    def series(self) -> list[tuple[str, Traffic]]:
        """The topics that are counted by name, then the others if there are any."""
        named = [(topic, traffic) for topic, traffic in self.items() if traffic is not self.others]
        return [*named, (OTHERS, self.others)] if self._shared else named
