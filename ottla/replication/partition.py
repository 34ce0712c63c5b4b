"""One replica of one partition: pure decisions over a log.

The leader takes the writes, gives them their offsets and says how far they are committed. A record is committed when
every replica in the in-sync set has it; the high watermark is the first offset that is not, and consumers read below
it only. With this broker alone in the in-sync set a record is committed as soon as it stands in its log.

A leader epoch names one reign of one leader. Requests that carry another epoch are refused: from an older one the
client has to learn who leads now, from a newer one we have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ottla.cluster.model import Partition as PartitionState
from ottla.errors import ErrorCode, Refused
from ottla.log.partition_log import PartitionLog
from ottla.log.slice import Slice
from ottla.wire import batch, records

NO_LEADER = -1
NO_EPOCH = -1
READ_COMMITTED = 1
ACKS_ALL = -1

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""What coordinators remember. Clients may read them."""


@dataclass(frozen=True, slots=True)
class AppendPolicy:
    """What the topic's configuration asks of a batch."""

    bytes_max: int = 1_048_588
    in_sync_min: int = 1
    log_append_time: bool = False
    timestamp_before_ms_max: int = 2**63 - 1
    timestamp_after_ms_max: int = 3_600_000
    keys_required: bool = False
    validate_records: bool = False
    codec: str | None = None
    """The codec records are kept in; None: as the producer chose."""
    opens_batches: bool = field(init=False)
    """Whether records have to be looked at one by one. Asked for every batch, so worked out once."""

    def __post_init__(self) -> None:
        opens = self.keys_required or self.validate_records or self.codec is not None
        object.__setattr__(self, "opens_batches", opens)


class Appended(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    next_offset: int


class Watcher(Protocol):
    """Somebody who waits for the partition to move."""

    def touched(self, size: int) -> None:
        """`size` more bytes became readable, or (0) something else changed that the watcher should look at."""


class Partition:
    __slots__ = (
        "broker_id", "high_watermark", "in_sync", "index", "leader_epoch", "leader_id", "leads", "log",
        "policy", "replicas", "topic", "topic_id", "watchers",
    )  # fmt: skip

    def __init__(
        self, topic: str, topic_id: bytes, index: int, broker_id: int, log: PartitionLog, policy: AppendPolicy
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.log = log
        self.policy = policy
        self.leads = False
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.in_sync: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.high_watermark = log.log_start
        self.watchers: dict[Watcher, None] = {}

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # Leadership.

    def become(self, state: PartitionState) -> None:
        """Take up what the controller decided."""
        self.replicas = tuple(state.replicas)
        self.in_sync = tuple(state.in_sync)
        self.leader_id = state.leader
        leads = state.leader == self.broker_id
        if leads and state.leader_epoch > self.leader_epoch:
            self.log.assign_epoch(state.leader_epoch)
        self.leader_epoch = state.leader_epoch
        self.leads = leads
        self.advance()
        self.wake()

    def check_leads(self, leader_epoch: int = NO_EPOCH) -> None:
        """Refuse what only the leader may answer, and requests from another reign."""
        if leader_epoch != NO_EPOCH and leader_epoch != self.leader_epoch:
            if leader_epoch < self.leader_epoch:
                raise Refused(ErrorCode.fenced_leader_epoch)
            raise Refused(ErrorCode.unknown_leader_epoch)
        if not self.leads:
            raise Refused(ErrorCode.not_leader_or_follower)

    # Writing.

    def append(self, view: memoryview, acks: int, now_ms: int) -> Appended:
        """Write one produced batch. The view is stamped in place: nothing is copied."""
        if not self.leads:
            raise Refused(ErrorCode.not_leader_or_follower)
        policy = self.policy
        if acks == ACKS_ALL and len(self.in_sync) < policy.in_sync_min:
            raise Refused(ErrorCode.not_enough_replicas)
        header = batch.check_produced(view)
        if header.attributes & batch.TRANSACTIONAL:
            raise Refused(ErrorCode.invalid_txn_state, "there is no transaction this batch could belong to")
        if len(view) > policy.bytes_max:
            raise Refused(
                ErrorCode.message_too_large,
                f"the batch has {len(view)} bytes, the topic takes {policy.bytes_max} (max.message.bytes)",
            )
        log_append_time_ms = batch.NO_TIMESTAMP
        if policy.opens_batches:
            view = self._open_batch(view, header)
        if policy.log_append_time:
            header = batch.stamp_log_append_time(view, now_ms)
            log_append_time_ms = now_ms
        else:
            self._check_timestamps(header, now_ms)
            if policy.codec is not None:
                header = batch.read_header(view)
        log = self.log
        if header.producer_id >= 0:
            known = log.producers.check(header)
            if known is not None:
                # A retry of what is already there is answered as the first time was.
                kept_ms = known.max_timestamp if policy.log_append_time else batch.NO_TIMESTAMP
                return Appended(known.base_offset, kept_ms, known.last_offset + 1)
        base_offset = log.append(view, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        self.advance(len(view))
        return Appended(base_offset, log_append_time_ms, base_offset + header.last_offset_delta + 1)

    def _open_batch(self, view: memoryview, header: batch.BatchHeader) -> memoryview:
        """Look at the records one by one: only where the topic's configuration needs it."""
        policy = self.policy
        if self.topic in INTERNAL_TOPICS:  # always compacted, so a batch for one always comes this way
            raise Refused(ErrorCode.invalid_topic_exception, f"{self.topic} is written by coordinators only")
        if header.record_count > RECORDS_MAX:
            raise Refused(
                ErrorCode.message_too_large,
                f"the batch has {header.record_count} records; where each is looked at, {RECORDS_MAX} are the most",
            )
        if policy.validate_records:
            records.validate(view, keys_required=policy.keys_required, bytes_max=RECORDS_BYTES_MAX)
        elif policy.keys_required:
            records.check_keys(view, bytes_max=RECORDS_BYTES_MAX)
        if policy.codec is not None and policy.codec != batch.CODECS[header.codec]:
            return memoryview(bytearray(records.recompress(view, policy.codec, bytes_max=RECORDS_BYTES_MAX)))
        return view

    def _check_timestamps(self, header: batch.BatchHeader, now_ms: int) -> None:
        if header.attributes & batch.LOG_APPEND_TIME:
            raise Refused(ErrorCode.invalid_timestamp, "a producer may not claim the time of append")
        policy = self.policy
        if header.max_timestamp - now_ms > policy.timestamp_after_ms_max:
            raise Refused(
                ErrorCode.invalid_timestamp,
                f"timestamp {header.max_timestamp} is too far in the future (message.timestamp.after.max.ms)",
            )
        if header.base_timestamp >= 0 and now_ms - header.base_timestamp > policy.timestamp_before_ms_max:
            raise Refused(
                ErrorCode.invalid_timestamp,
                f"timestamp {header.base_timestamp} is too old (message.timestamp.before.max.ms)",
            )

    def advance(self, size: int = 0) -> None:
        """Raise the high watermark as far as the in-sync set has come. It never goes back."""
        if self.leads and self.in_sync == (self.broker_id,) and self.log.log_end > self.high_watermark:
            self.high_watermark = self.log.log_end
            if self.watchers:
                for watcher in self.watchers:
                    watcher.touched(size)

    def wake(self) -> None:
        """Something other than new records happened: whoever waits here looks again."""
        for watcher in list(self.watchers):
            watcher.touched(0)

    # Reading.

    @property
    def last_stable(self) -> int:
        """The first offset that a reader of committed transactions may not see yet."""
        return self.high_watermark

    def readable_limit(self, isolation_level: int) -> int:
        return self.last_stable if isolation_level == READ_COMMITTED else self.high_watermark

    def read(
        self, offset: int, bytes_max: int, *, isolation_level: int, leader_epoch: int, whole_first_batch: bool
    ) -> Slice | None:
        """A piece of the log for a consumer; None when it has read everything it may see."""
        self.check_leads(leader_epoch)
        return self.log.read(
            offset, bytes_max, limit=self.readable_limit(isolation_level), whole_first_batch=whole_first_batch
        )

    def delete_before(self, offset: int) -> int:
        """DeleteRecords: what is below `offset` (-1: the high watermark) is not readable any more."""
        self.check_leads()
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise Refused(ErrorCode.offset_out_of_range)
        self.log.raise_log_start(offset)
        self.wake()
        return self.log.log_start


RECORDS_MAX = 200_000
"""How many records of one batch are looked at: everybody else waits meanwhile."""
RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""How large one batch may become when it is decompressed to be looked at."""
