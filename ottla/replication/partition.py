"""One replica of one partition: every append, read and replication goes through this module. Pure.

    leader     (`leader`)    appends, assigns offsets, advances the high watermark
    follower   (`follower`)  copies the leader's log, and truncates its own where the two diverge

A record is committed when every replica of the ISR has it. The high watermark is the first offset that is not
committed; consumers read below it only. It never decreases. It does not advance while the ISR is smaller than
`min.insync.replicas` (KIP-966): a committed record is always in that many logs.

A leader epoch is the time in which one broker leads. A request with another leader epoch is refused: with an older one
the client must refresh its metadata, with a newer one this broker must. Every batch has the epoch of the leader that
appended it. With these epochs two replicas find where their logs diverge (KIP-101). They do not use the high watermark,
which a follower learns late.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, Protocol

from ottla.cluster.controller import INTERNAL_TOPICS
from ottla.cluster.model import PartitionState
from ottla.errors import ErrorCode, Refused
from ottla.log.damage import behind_gap
from ottla.log.log_config import LogConfig
from ottla.log.lookup import TimestampedOffset, offset_for_timestamp, offset_of_max_timestamp
from ottla.log.partition_log import PartitionLog
from ottla.log.producers import Producers
from ottla.log.recovery import Recovery
from ottla.log.segment import Segment
from ottla.log.slice import Slice
from ottla.log.transactions import Guard, Transactions
from ottla.replication.admission import AppendPolicy
from ottla.replication.doubt import Doubt, doubt_of
from ottla.replication.follower import FollowerState
from ottla.replication.leader import NO_EPOCH, UNKNOWN, LeaderState
from ottla.replication.sequence_gate import BehindRefused, SequenceGate
from ottla.replication.waits import AppendListener, DelayedByCommit, HighWatermarkListener, LogAppendInfo
from ottla.wire import batch

NO_LEADER = -1
READ_COMMITTED = 1
ACKS_ALL = -1


class AppendOrigin(enum.Enum):
    CLIENT = "client"
    """A produced batch: everything about it is checked."""
    COORDINATOR = "coordinator"
    """A batch of a coordinator of this broker, or a transaction marker."""


CLIENT: Final = AppendOrigin.CLIENT
COORDINATOR: Final = AppendOrigin.COORDINATOR


class LogSource(Protocol):
    """Source of reads: the segments of the local log. Remote segments (tiered storage) would be another source."""

    def read(self, offset: int, bytes_max: int, *, limit: int, whole_first_batch: bool = True) -> Slice | None: ...


class Partition:
    __slots__ = (
        "_gate", "_looks_closer", "_policy", "_uncommitted_bytes", "_waiters", "append_listeners",
        "broker_id", "doubt", "eligible", "end_known", "enough_in_sync", "follower", "forgot", "high_watermark",
        "high_watermark_listeners", "in_sync", "index", "last_leader", "leader", "leader_epoch", "leader_id", "leads",
        "log", "outdated", "partition_epoch", "provisional", "replicas", "source", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self, topic: str, topic_id: bytes, index: int, broker_id: int, log: PartitionLog, policy: AppendPolicy
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.log = log
        """For this room only: others use the methods below."""
        self.source: LogSource = log
        self.leads = False
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.in_sync: tuple[int, ...] = ()
        self.eligible: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.last_leader = NO_LEADER
        """The last leader before the present partition state."""
        self.high_watermark = log.log_start
        self.doubt: Doubt | None = None
        """Set while this replica is elected but does not lead yet (`doubt`)."""
        self.provisional: Doubt | None = None
        """Set while this replica leads provisionally (`doubt.shows_more`)."""
        self.end_known = False
        """Whether it is certain that the end of the log was not lost: after a clean stop, or because this replica has
        led since."""
        self.forgot = False
        """The data directory has no evidence of what any log contained."""
        self.outdated = False
        """The log is an older copy that was restored: later records may be missing."""
        self.leader = LeaderState(self)
        self.follower = FollowerState(self)
        self.high_watermark_listeners: dict[HighWatermarkListener, None] = {}
        self.append_listeners: dict[AppendListener, None] = {}
        self._gate = SequenceGate(log.producers)
        self._uncommitted_bytes = 0
        self._waiters: deque[tuple[int, DelayedByCommit]] = deque()  # by offset
        self.policy = policy

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def policy(self) -> AppendPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: AppendPolicy) -> None:
        self._policy = policy
        self._looks_closer = policy.opens_batches or self.topic in INTERNAL_TOPICS
        self._count_in_sync()
        self.advance()  # what waited only for the policy is committed now

    def _count_in_sync(self) -> None:
        """The effective min.insync.replicas: at most the number of replicas. While the controller keeps eligible
        replicas that are not in sync, the ISR is too small, even if this broker is configured with a lower value."""
        in_sync_min = self._policy.in_sync_min
        if self.replicas:
            in_sync_min = min(in_sync_min, len(self.replicas))
        self.enough_in_sync = len(self.in_sync) >= in_sync_min and not self.eligible

    @property
    def counts_as_whole(self) -> bool:
        """Whether this replica may be elected, as far as the controller knows."""
        return self.broker_id in (*self.in_sync, *self.eligible)

    # Leadership.

    def become(self, state: PartitionState, *, leads: bool | None = None) -> None:
        """Apply a partition state of the controller. `leads` is false for a leader that was elected as an earlier
        process of this broker."""
        if state.partition_epoch < self.partition_epoch:
            return  # an older state
        if state.partition_epoch > self.partition_epoch:
            self.leader.proposed = None
        if begins := state.leader_epoch > self.leader_epoch:
            self.follower.agreed, self.provisional = 0, None
        led = self.leads
        self.partition_epoch = state.partition_epoch
        self.replicas = tuple(state.replicas)
        self.in_sync = tuple(state.in_sync)
        self.eligible = tuple(state.eligible)
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        leads = state.leader == self.broker_id if leads is None else leads
        doubt = doubt_of(self, self.in_sync, state.leader_epoch) if begins else self.doubt
        self.last_leader = state.last_leader
        self.leads = leads and doubt is None
        self._count_in_sync()
        begins_to_lead = self.leads and (begins or not led)
        if begins_to_lead:
            self.log.assign_epoch(state.leader_epoch)
            self.end_known, self.follower.watermark_known, self.forgot, self.outdated = True, True, False, False
        self.leader.take_up(state, begins_to_lead=begins_to_lead)
        if not self.leads:
            self.step_down()
            self.doubt = doubt if leads else None
        self.advance()
        self.wake()

    def step_down(self) -> None:
        """This broker leads no more: requests that wait for a commit fail, and clients go to the next leader."""
        self.leads = False
        self.doubt = None
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            waiter.on_leadership_lost(self)

    def check_leads(self, leader_epoch: int = NO_EPOCH) -> None:
        """Refuse a request that needs the leader, or that has another leader epoch."""
        self._check_epoch(leader_epoch)
        if not self.leads:
            raise Refused(ErrorCode.not_leader_or_follower)

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch not in (NO_EPOCH, self.leader_epoch):
            if leader_epoch < self.leader_epoch:
                raise Refused(ErrorCode.fenced_leader_epoch)
            raise Refused(ErrorCode.unknown_leader_epoch)

    # Writing.

    def append(
        self,
        view: memoryview,
        acks: int,
        now_ms: int,
        guard: Guard | None = None,
        *,
        origin: AppendOrigin = CLIENT,
        header: batch.BatchHeader | None = None,
        leader_epoch: int = NO_EPOCH,
    ) -> LogAppendInfo:
        """Leader: append one batch. The view is stamped in place: nothing is copied. The first batch of a client's
        transaction needs a guard (`log.transactions`). A coordinator gives the header, and the leader epoch in which it
        decided."""
        log, policy = self.log, self._policy
        log_append_time_ms = batch.NO_TIMESTAMP
        taken = view
        try:
            self._check_appendable(acks)
            if origin is COORDINATOR:
                if leader_epoch != self.leader_epoch:
                    raise Refused(ErrorCode.not_leader_or_follower)
                assert header is not None
            else:
                header = batch.check_produced(view)
                if len(view) > policy.bytes_max:
                    raise Refused(
                        ErrorCode.message_too_large,
                        f"the batch has {len(view)} bytes, the topic takes {policy.bytes_max} (max.message.bytes)",
                    )
                if self._looks_closer:
                    if self.topic in INTERNAL_TOPICS:
                        raise Refused(
                            ErrorCode.invalid_topic_exception, f"{self.topic} is written by coordinators only"
                        )
                    taken = policy.opened(view, header)
                if policy.log_append_time:
                    header = batch.stamp_log_append_time(taken, now_ms)
                    log_append_time_ms = now_ms
                else:
                    policy.check_timestamps(header, now_ms)
                    if policy.codec is not None:
                        header = batch.read_header(taken)
                if header.producer_id >= 0:
                    known = self._gate.pass_or_refuse(
                        header, epoch_start=self.leader.epoch_start, alone=len(self.replicas) == 1
                    )
                    if known is not None:
                        # A retry of what is already there is answered as the first time was.
                        kept_ms = known.max_timestamp if policy.log_append_time else batch.NO_TIMESTAMP
                        return LogAppendInfo(known.base_offset, kept_ms, known.last_offset + 1, log.log_start)
                    log.transactions.check_append(header, guard)
            base_offset = log.append(taken, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        except BehindRefused:
            raise
        except Refused as refused:
            if origin is CLIENT:
                self._gate.refused(view, refused, header)
            raise
        self.advance(len(taken))
        return LogAppendInfo(base_offset, log_append_time_ms, base_offset + header.last_offset_delta + 1, log.log_start)

    def refuse(self, view: memoryview, refused: Refused) -> None:
        """Note a batch that was refused before the append."""
        self._gate.refused(view, refused)

    def _check_appendable(self, acks: int) -> None:
        """The checks of every append, whatever its origin: leadership and ISR."""
        if not self.leads:
            raise Refused(ErrorCode.not_leader_or_follower)
        if acks == ACKS_ALL and not self.enough_in_sync:
            here = ", ".join(map(str, sorted(self.in_sync)))
            raise Refused(
                ErrorCode.not_enough_replicas,
                f"{len(self.in_sync)} in sync (broker {here}), and min.insync.replicas is {self._policy.in_sync_min}",
            )

    def replicate(self, records: memoryview, high_watermark: int, log_start: int, now_ms: int) -> list[Segment]:
        """Follower: append batches of the leader. Each is checked first, so that damage is not replicated. Returns the
        segments whose files may be deleted."""
        log = self.log
        dropped: list[Segment] = []
        if len(records):
            self.follower.watermark_known = False  # the leader learns first that they are committed
            if log.log_end == log.log_start:
                first = batch.check(records)
                if first.base_offset < log.log_start <= first.last_offset:
                    # The leader's log starts in the middle of this batch (DeleteRecords): begin with all of it.
                    dropped = self.follower.restart_at(first.base_offset, now_ms)
            log.append_replicated(records, now_ms)
        if log_start > log.log_start:
            log.raise_log_start(min(log_start, log.log_end))
        self.outdated = self.outdated and log.log_end < high_watermark
        before = self.high_watermark
        self.advance(len(records), min(high_watermark, log.log_end))
        if self.high_watermark > before:
            log.transactions.last_stable(self.high_watermark)  # which forgets what is settled
        return dropped

    def advance(self, size: int = 0, committed: int = UNKNOWN) -> None:
        """The log has grown by `size` bytes, perhaps 0: notify followers, and advance the high watermark. A follower
        takes it from its leader."""
        self._uncommitted_bytes += size
        if self.leads:
            if size and self.append_listeners:
                for listener in self.append_listeners:
                    listener.on_append(size)
            committed = self.leader.committed(self.own_end) if self.enough_in_sync else UNKNOWN
        if committed <= self.high_watermark:
            return
        self.high_watermark = committed
        # Not all of these bytes need be committed; a reader that is woken too early waits again.
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        if self.high_watermark_listeners:
            for reader in self.high_watermark_listeners:
                reader.on_high_watermark(size)
        waiters = self._waiters
        while waiters and waiters[0][0] <= committed:
            waiters.popleft()[1].on_committed(self)

    @property
    def own_end(self) -> int:
        """The log end of this replica, as it counts for the high watermark: with `flush.messages=1` only what is
        flushed."""
        return self.log.recovery_point if self._policy.synced else self.log.log_end

    def await_committed(self, offset: int, waiter: DelayedByCommit) -> None:
        """Notify the operation when the high watermark has reached the offset. Calls come in the order of offsets."""
        self._waiters.append((offset, waiter))

    def give_up(self, waiter: DelayedByCommit) -> None:
        self._waiters = deque(entry for entry in self._waiters if entry[1] is not waiter)

    def wake(self) -> None:
        """Something else than an append happened: delayed operations check again."""
        for listener in list(self.high_watermark_listeners):
            listener.on_high_watermark(0)
        for append_listener in list(self.append_listeners):
            append_listener.on_append(0)

    def end_moved_back(self) -> None:
        self.log.drop_empty_epochs()
        self.high_watermark = max(min(self.high_watermark, self.log.log_end), self.log.log_start)
        self.wake()

    # Offsets.

    @property
    def log_start(self) -> int:
        return self.log.log_start

    @property
    def log_end(self) -> int:
        return self.log.log_end

    @property
    def last_stable(self) -> int:
        """Last stable offset: `read_committed` readers read up to there."""
        return max(self.log.transactions.last_stable(self.high_watermark), self.log.log_start)

    def readable_limit(self, isolation_level: int) -> int:
        return self.last_stable if isolation_level == READ_COMMITTED else self.high_watermark

    @property
    def established(self) -> bool:
        """Whether a new leader knows the high watermark. Before that, its latest offset could be lower than one that
        the previous leader has returned (KIP-207)."""
        return self.high_watermark >= self.leader.epoch_start

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(leader_epoch)

    def earliest(self) -> tuple[int, int]:
        """The first offset, and its leader epoch."""
        return self.log.log_start, self.log.epochs.epoch_of(self.log.log_start)

    def offset_for_timestamp(self, timestamp: int, limit: int) -> TimestampedOffset | None:
        """The first record at or after a time, before `limit`. Blocks."""
        return offset_for_timestamp(self.log, timestamp, limit)

    def offset_of_max_timestamp(self, limit: int) -> TimestampedOffset | None:
        """Blocks."""
        return offset_of_max_timestamp(self.log, limit)

    # Reading.

    def read(
        self,
        offset: int,
        bytes_max: int,
        *,
        isolation_level: int,
        leader_epoch: int,
        whole_first_batch: bool,
        from_follower: bool = False,
    ) -> Slice | None:
        """A slice of the log for a consumer; None: it has read everything that it may read. A follower serves only
        clients that know that it is a follower (KIP-392)."""
        self._check_epoch(leader_epoch)
        # One that led until its process ended is no follower either: it may have lost what it told consumers of.
        if not self.leads and not (from_follower and self.leader_id not in (NO_LEADER, self.broker_id)):
            raise Refused(ErrorCode.not_leader_or_follower)
        limit = self.readable_limit(isolation_level)
        if isolation_level == READ_COMMITTED and self.log.transactions.undecided:
            limit = self.log.transactions.decided_limit(offset, limit)
        return self.source.read(offset, bytes_max, limit=limit, whole_first_batch=whole_first_batch)

    def read_tail(self, offset: int, bytes_max: int, *, leader_epoch: int, whole_first_batch: bool) -> Slice | None:
        """A slice of the log for a follower, up to the log end."""
        self.check_leads(leader_epoch)
        return self.source.read(offset, bytes_max, limit=self.log.log_end, whole_first_batch=whole_first_batch)

    def read_own(self, offset: int, bytes_max: int) -> Slice | None:
        """A slice for this broker itself, committed or not."""
        return self.source.read(offset, bytes_max, limit=self.log.log_end)

    def aborted(self, piece: Slice) -> list[tuple[int, int]]:
        """Producer id and first offset of each aborted transaction in a slice."""
        log = self.log
        return log.transactions.aborted(behind_gap(log, piece.offset), piece.end_offset())

    def delete_before(self, offset: int) -> int:
        """DeleteRecords: raise the log start to `offset` (-1: the high watermark). Returns the new log start."""
        self.check_leads()
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise Refused(ErrorCode.offset_out_of_range)
        self.log.raise_log_start(offset)
        self.wake()
        return offset

    def prove_log_start(self, offset: int) -> None:
        """Write the log start to the manifest. Blocks."""
        self.log.prove_start(offset)

    # Transactions.

    @property
    def transactions(self) -> Transactions:
        return self.log.transactions

    @property
    def producers(self) -> Producers:
        return self.log.producers

    # Maintenance.

    @property
    def config(self) -> LogConfig:
        return self.log.config

    @property
    def recovery(self) -> Recovery:
        """What recovery did when the log was opened."""
        return self.log.recovery

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def is_damaged(self) -> bool:
        return self.log.damage is not None
