"""Who waits at a partition: for records to be readable, to be there, or to be committed (Kafka: delayed operations)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class Appended(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    next_offset: int


class Watcher(Protocol):
    """Somebody who waits for records to be readable."""

    def touched(self, size: int) -> None:
        """`size` more bytes became readable, or (0) something else changed that the watcher should look at."""


class TailWatcher(Protocol):
    """Somebody who waits for records to be there: a follower."""

    def grown(self, size: int) -> None: ...


class Waiter(Protocol):
    """Somebody who waits for one record to be committed."""

    def committed(self, partition: Partition) -> None: ...

    def lost(self, partition: Partition) -> None:
        """This broker does not lead any more: nobody here will ever know."""
