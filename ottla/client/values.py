"""Values that users of the clients write and read: partitions, offsets, record metadata, group metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.wire.topic_partition import TopicPartition as TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""Times that ListOffsets understands; any other is in ms since 1970."""

UNCOMMITTED: Final = 0
COMMITTED: Final = 1
"""Isolation levels (KIP-98)."""

NO_EPOCH: Final = -1

TRANSACTION_V2: Final = 2
"""`transaction.version` 2 (KIP-890): leaders add partitions to a transaction, every end raises the epoch."""
_END_TXN_VERSION_MAX: Final = 4
"""The last version of EndTxn before that."""


class OffsetAndMetadata(NamedTuple):
    """The next record to be read, and a note."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


class OffsetAndTimestamp(NamedTuple):
    offset: int
    """-1: there is no such record."""
    timestamp: int
    leader_epoch: int = NO_EPOCH


class GroupMetadata(NamedTuple):
    """The member that commits offsets, and its generation; only a group for a consumer that assigns to itself."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RecordMetadata(NamedTuple):
    """Where a record is. The offset is -1 if the broker was not asked (acks=0) or does not remember any more."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class OpenTransaction(NamedTuple):
    """A transaction that its producer has left open (KIP-939): the holder of this value may commit or abort it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    """`transaction.version` under which it was begun."""

    @property
    def end_txn_version_max(self) -> int | None:
        """The last version of EndTxn that means the protocol under which it was begun."""
        return None if self.version >= TRANSACTION_V2 else _END_TXN_VERSION_MAX


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Given = Mapping[TopicPartition, OffsetAndMetadata | tuple[int, str] | int]
"""Offsets as users write them: a number, or a number and a note."""


def offsets_given(offsets: Given) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(*tp): OffsetAndMetadata(given) if isinstance(given, int) else OffsetAndMetadata(*given)
        for tp, given in offsets.items()
    }
