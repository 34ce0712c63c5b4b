"""One replica of one partition: pure decisions over a log.

    leader     takes the writes, gives them their offsets, says how far they are committed
    follower   copies the leader's log; where the two part, its own end goes

A record is committed when every replica in the in-sync set has it; the high watermark is the first offset that is not,
and consumers read below it only. It never goes back, and it stands still while fewer replicas are in sync than
`min.insync.replicas` asks for (KIP-966): what is called committed is always in so many logs.

A leader epoch names one reign of one leader. Requests that carry another epoch are refused: from an older one the
client has to learn who leads now, from a newer one we have. Every batch carries the epoch of the leader that took it,
and so two replicas find where their logs part (KIP-101): never by the high watermark, which a follower learns late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ottla.cluster.controller import INTERNAL_TOPICS
from ottla.cluster.model import Partition as PartitionState
from ottla.errors import RETRIABLE, ErrorCode, Refused
from ottla.log import producers
from ottla.log.partition_log import PartitionLog
from ottla.log.quarantine import quarantine
from ottla.log.segment import Segment
from ottla.log.slice import Slice
from ottla.log.transactions import Guard
from ottla.replication.admission import AppendPolicy
from ottla.replication.delayed import Appended, TailWatcher, Waiter, Watcher
from ottla.replication.doubt import Doubt, doubt_of
from ottla.replication.gaps import next_offset
from ottla.replication.in_sync import NO_EPOCH, UNKNOWN, Follower, Proposal, cut_of, in_sync_wanted, parting_of, too_few
from ottla.replication.turned_away import Behind, TurnedAway
from ottla.wire import batch

NO_LEADER = -1
READ_COMMITTED = 1
ACKS_ALL = -1


class Partition:
    __slots__ = (
        "_enough", "_looks_closer", "_policy", "_turned_away", "_uncommitted_bytes", "_union", "_waiters", "agreed",
        "broker_id", "doubt", "eligible", "end_known", "epoch_start", "followers", "forgot", "high_watermark",
        "in_sync", "index", "last_leader", "leader_epoch", "leader_id", "leads", "log", "outdated", "partition_epoch",
        "proposed", "provisional", "replicas", "tail_watchers", "topic", "topic_id", "watchers", "watermark_known",
    )  # fmt: skip

    def __init__(
        self, topic: str, topic_id: bytes, index: int, broker_id: int, log: PartitionLog, policy: AppendPolicy
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.log = log
        self.leads = False
        self.doubt: Doubt | None = None
        """While it is to lead, and must not before it has heard of the others."""
        self.provisional: Doubt | None = None
        """While it leads only because no other was there that has more (`doubt.shows_more`)."""
        self.last_leader = NO_LEADER
        """Who led last, as of the state before this one."""
        self.end_known = False
        """The log ends where it ended when its broker stopped, for certain; or it has led since."""
        self.watermark_known = False
        """The high watermark is the leader's own, or that of a clean stop, and nothing was taken from others since."""
        self.forgot = False
        """Nothing in the data directory tells what any log held."""
        self.outdated = False
        """The log is an older copy, which somebody put back: it may lack anything that was written since."""
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.in_sync: tuple[int, ...] = ()
        self.eligible: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.high_watermark = log.log_start
        self.epoch_start = 0
        """Where this reign began: what is before it was written under others."""
        self.agreed = 0
        """Up to where it is known that the leader lacks what is missing here."""
        self.followers: dict[int, Follower] = {}
        self.proposed: tuple[int, ...] | None = None
        """The in-sync set that the controller was asked for and has not decided on, as far as we know."""
        self.watchers: dict[Watcher, None] = {}
        self.tail_watchers: dict[TailWatcher, None] = {}
        self._union: tuple[Follower, ...] = ()  # all that the high watermark waits for
        self._turned_away: TurnedAway | None = None
        self._uncommitted_bytes = 0
        self._waiters: deque[tuple[int, Waiter]] = deque()  # by offset
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
        """No partition can have more in sync than it has replicas. And where the controller keeps replicas eligible
        that are not in sync, too few are, though this broker may be configured to ask for less."""
        in_sync_min = min(self._policy.in_sync_min, len(self.replicas) or self._policy.in_sync_min)
        self._enough = len(self.in_sync) >= in_sync_min and not self.eligible

    @property
    def enough_in_sync(self) -> bool:
        return self._enough

    # Leadership.

    def become(self, state: PartitionState, *, leads: bool | None = None) -> None:
        """Take up what the controller decided. `leads` is false for a leader whose reign ended with its process."""
        if state.partition_epoch < self.partition_epoch:
            return  # we know better already
        if state.partition_epoch > self.partition_epoch:
            self.proposed = None
        if begins := state.leader_epoch > self.leader_epoch:
            self.agreed, self.provisional = 0, None
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
        if self.leads and (begins or not led):
            self.log.assign_epoch(state.leader_epoch)
            self.epoch_start = self.log.log_end
            self.end_known, self.watermark_known, self.forgot, self.outdated = True, True, False, False
            self.followers = {}
        if self.leads:
            others = [replica for replica in self.replicas if replica != self.broker_id]
            self.followers = {replica: self.followers.get(replica) or Follower(replica) for replica in others}
            known = dict(zip(state.in_sync, state.in_sync_epochs, strict=False))
            for replica, follower in self.followers.items():
                follower.known_epoch = known.get(replica, UNKNOWN)
        else:
            self.followers = {}
        self._unite()
        if not self.leads:
            self.step_down()
            self.doubt = doubt if leads else None
        self.advance()
        self.wake()

    def step_down(self) -> None:
        """Whoever waits for a record to be committed has to ask the next leader."""
        self.leads = False
        self.doubt = None
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            waiter.lost(self)

    def check_leads(self, leader_epoch: int = NO_EPOCH) -> None:
        """Refuse what only the leader may answer, and requests from another reign."""
        self._check_epoch(leader_epoch)
        if not self.leads:
            raise Refused(ErrorCode.not_leader_or_follower)

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch != NO_EPOCH and leader_epoch != self.leader_epoch:
            if leader_epoch < self.leader_epoch:
                raise Refused(ErrorCode.fenced_leader_epoch)
            raise Refused(ErrorCode.unknown_leader_epoch)

    # Writing.

    def append(self, view: memoryview, acks: int, now_ms: int, guard: Guard | None = None) -> Appended:
        """Write one produced batch. The view is stamped in place: nothing is copied. The first batch of a transaction
        needs a guard (`log.transactions`)."""
        try:
            return self._append(view, acks, now_ms, guard)
        except Behind:
            raise
        except Refused as refused:
            self.turn_away(view, refused.code)
            raise

    def turn_away(self, view: memoryview, code: ErrorCode) -> None:
        """A batch is refused. If it is for the moment only, those behind it must not take its place."""
        try:
            header = batch.check_produced(view)
        except Refused:
            return  # of no producer that we would know again
        if header.producer_id >= 0 and code in RETRIABLE:
            if self._turned_away is None:
                self._turned_away = TurnedAway()
            expected = self.log.producers.expected(header.producer_id, header.producer_epoch)
            self._turned_away.note(header, expected, code)

    def _append(self, view: memoryview, acks: int, now_ms: int, guard: Guard | None) -> Appended:
        if not self.leads:
            raise Refused(ErrorCode.not_leader_or_follower)
        policy = self._policy
        if acks == ACKS_ALL and not self._enough:
            raise too_few(self.in_sync, policy.in_sync_min)
        header = batch.check_produced(view)
        if len(view) > policy.bytes_max:
            raise Refused(
                ErrorCode.message_too_large,
                f"the batch has {len(view)} bytes, the topic takes {policy.bytes_max} (max.message.bytes)",
            )
        log_append_time_ms = batch.NO_TIMESTAMP
        if self._looks_closer:
            if self.topic in INTERNAL_TOPICS:
                raise Refused(ErrorCode.invalid_topic_exception, f"{self.topic} is written by coordinators only")
            view = policy.opened(view, header)
        if policy.log_append_time:
            header = batch.stamp_log_append_time(view, now_ms)
            log_append_time_ms = now_ms
        else:
            policy.check_timestamps(header, now_ms)
            if policy.codec is not None:
                header = batch.read_header(view)
        log = self.log
        if header.producer_id >= 0:
            known = self._known(header)
            if known is not None:
                # A retry of what is already there is answered as the first time was.
                kept_ms = known.max_timestamp if policy.log_append_time else batch.NO_TIMESTAMP
                return Appended(known.base_offset, kept_ms, known.last_offset + 1)
            log.transactions.check_append(header, guard)
        base_offset = log.append(view, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        self.advance(len(view))
        return Appended(base_offset, log_append_time_ms, base_offset + header.last_offset_delta + 1)

    def _known(self, header: batch.BatchHeader) -> producers.Appended | None:
        """What it is a retry of, if it is one; Refused when it is neither that nor the next one."""
        known_producers = self.log.producers
        if self._turned_away is not None:
            self._turned_away.check(header, known_producers.expected(header.producer_id, header.producer_epoch))
        if header.base_sequence > 0 and known_producers.get(header.producer_id) is None:
            self._perhaps_behind(header)
        try:
            known = known_producers.check(header)
        except Refused as refused:
            if refused.code is ErrorCode.out_of_order_sequence_number:
                self._perhaps_behind(header)
            raise
        if self._turned_away is not None:
            self._turned_away.forget(header.producer_id)
        return known

    def _perhaps_behind(self, header: batch.BatchHeader) -> None:
        """Something is missing before it, or nobody knows whether it is. In its producer's first batch of a reign that
        may be what another leader has not taken any more."""
        producer = self.log.producers.get(header.producer_id)
        if producer is not None:
            heard = producer.batches and producer.batches[-1].last_offset >= self.epoch_start
            if heard or len(self.replicas) == 1:
                return
        if self._turned_away is None:
            self._turned_away = TurnedAway()
        expected = self.log.producers.expected(header.producer_id, header.producer_epoch)
        self._turned_away.miss(header, expected)

    def advance(self, size: int = 0) -> None:
        """The log may have grown, by so many bytes: tell the followers, and see what is committed now."""
        self._uncommitted_bytes += size
        if size and self.tail_watchers:
            for watcher in self.tail_watchers:
                watcher.grown(size)
        if self.leads and self._enough:
            committed = self.own_end
            for follower in self._union:
                if not follower.counts:
                    return
                if follower.log_end < committed:
                    committed = follower.log_end
            if committed > self.high_watermark:
                self._commit(committed)

    @property
    def own_end(self) -> int:
        """How far this replica counts as having the log: where records are synced before they are acknowledged, as far
        as the device has it."""
        return self.log.recovery_point if self._policy.synced else self.log.log_end

    def _commit(self, offset: int) -> None:
        self.high_watermark = offset
        # Not all of these bytes need be committed; a reader that is woken too early waits again.
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        if self.watchers:
            for watcher in self.watchers:
                watcher.touched(size)
        waiters = self._waiters
        while waiters and waiters[0][0] <= offset:
            waiters.popleft()[1].committed(self)

    def await_committed(self, offset: int, waiter: Waiter) -> None:
        """Tell the waiter when the high watermark has reached the offset. They come in order of offset."""
        self._waiters.append((offset, waiter))

    def give_up(self, waiter: Waiter) -> None:
        self._waiters = deque(entry for entry in self._waiters if entry[1] is not waiter)

    def wake(self) -> None:
        """Something other than new records happened: whoever waits here looks again."""
        for watcher in list(self.watchers):
            watcher.touched(0)
        for tail_watcher in list(self.tail_watchers):
            tail_watcher.grown(0)

    # The followers, as the leader sees them.

    def fetched_by(
        self, replica: int, broker_epoch: int, offset: int, last_epoch: int, log_start: int = UNKNOWN
    ) -> tuple[int, int] | None:
        """A follower asks for `offset` behind a record of `last_epoch`: it has everything before. Unless its log is
        another one: then the answer is the last epoch up to which both may agree, and where that ended here."""
        follower = self.followers.get(replica)
        if follower is None:
            raise Refused(ErrorCode.not_leader_or_follower, f"broker {replica} has no replica of {self}")
        if broker_epoch < follower.epoch:  # asked before it registered anew; it need not have all that any more
            raise Refused(ErrorCode.stale_broker_epoch)
        parting = parting_of(self.log, offset, last_epoch)
        if parting is not None or offset > self.log.log_end:  # an empty log may begin there: nothing in it is ours
            return parting
        follower.fetched(offset, broker_epoch, log_start)
        if follower in self._union:
            self.advance()
        return None

    def caught_up(self, follower: Follower) -> bool:
        """Whether it has all that is committed, and what this reign began with."""
        return follower.log_end >= self.high_watermark and follower.log_end >= self.epoch_start

    def propose(self, now: float, lag_s_max: float, able: Callable[[int, int], bool]) -> bool:
        """Whether the in-sync set should be another one; `proposed` says which. One change at a time."""
        if not self.leads or self.proposed is not None:
            return False
        wanted = in_sync_wanted(self, now, lag_s_max, able)
        if wanted == set(self.in_sync):
            return False
        self.proposed = tuple(replica for replica in self.replicas if replica in wanted)
        self._unite()  # nothing is committed from now on that one of them lacks
        return True

    @property
    def counts_as_whole(self) -> bool:
        """Whether this replica may be elected, for all that the controller knows."""
        return self.broker_id in (*self.in_sync, *self.eligible)

    def forgive(self) -> None:
        """Time that passed unseen counts against nobody."""
        for follower in self.followers.values():
            follower.mark = None

    def proposal(self, epoch_of: Callable[[int], int]) -> Proposal:
        """What to ask the controller for. Who has not fetched in this reign is known by its present registration."""
        assert self.proposed is not None
        in_sync = []
        for replica in self.proposed:
            follower = self.followers.get(replica)
            known = UNKNOWN if follower is None else follower.epoch
            if self.doubt is not None:
                known = self.doubt.registration(replica)
            in_sync.append((replica, known if known >= 0 else epoch_of(replica)))
        return Proposal(self.topic_id, self.index, self.leader_epoch, self.partition_epoch, tuple(in_sync))

    def withdraw(self) -> None:
        """The controller has refused the proposal, and will not take it up."""
        self.proposed = None
        self._unite()
        self.advance()

    def _unite(self) -> None:
        members = {*self.in_sync, *(self.proposed or ())}
        self._union = tuple(follower for replica, follower in self.followers.items() if replica in members)

    # Following.

    def position(self) -> tuple[int, int, int]:
        """What a follower asks its leader for: the reign, the offset, and the epoch of the record before it."""
        log, at = self.log, next_offset(self)
        return self.leader_epoch, at, log.epochs.epoch_of(at - 1) if at > log.log_start else NO_EPOCH

    def replicate(self, records: memoryview, high_watermark: int, log_start: int, now_ms: int) -> list[Segment]:
        """Take over what the leader sent. Each batch is checked before it is appended: damage goes no further. The
        segments that may be unlinked."""
        log = self.log
        dropped: list[Segment] = []
        if len(records):
            if log.log_end == log.log_start:
                first = batch.check(records)
                if first.base_offset < log.log_start <= first.last_offset:
                    # The leader's log starts in the middle of this batch (DeleteRecords): begin with all of it.
                    dropped = self.restart_at(first.base_offset, now_ms)
            log.append_replicated(records, now_ms)
            self._uncommitted_bytes += len(records)
        if log_start > log.log_start:
            log.raise_log_start(min(log_start, log.log_end))
        self.outdated = self.outdated and log.log_end < high_watermark
        reached = min(high_watermark, log.log_end)
        if reached > self.high_watermark:
            self._commit(reached)
            log.transactions.last_stable(reached)  # which forgets what is settled
        return dropped

    def truncate(self, epoch: int, end: int, now_ms: int) -> list[Segment]:
        """Our log is not the leader's behind (at most) the end of this epoch: drop what follows. The segments that may
        be unlinked. The next fetch shows whether the rest agrees."""
        return self._cut(self.log.truncate_to, cut_of(self.log, epoch, end), now_ms)

    def copy_anew(self, now_ms: int) -> None:
        """Our log is damaged, and another replica leads: what is behind the damage is set aside, to be copied anew."""
        try:
            quarantine(self.log, now_ms)
        finally:
            self.log.drop_empty_epochs()
            self.high_watermark = max(min(self.high_watermark, self.log.log_end), self.log.log_start)
            self.wake()

    def restart_at(self, offset: int, now_ms: int) -> list[Segment]:
        """The leader has nothing before `offset` any more, and we have nothing from there on: begin anew there."""
        return self._cut(self.log.truncate_fully_and_start_at, offset, now_ms)

    def _cut(self, cut: Callable[[int, int], list[Segment]], offset: int, now_ms: int) -> list[Segment]:
        try:
            return cut(offset, now_ms)
        finally:  # the disk may have refused half of it
            self.log.drop_empty_epochs()
            self.high_watermark = max(min(self.high_watermark, self.log.log_end), self.log.log_start)
            self.wake()

    # Reading.

    @property
    def last_stable(self) -> int:
        """The first offset that a reader of committed transactions may not see yet."""
        return max(self.log.transactions.last_stable(self.high_watermark), self.log.log_start)

    def readable_limit(self, isolation_level: int) -> int:
        return self.last_stable if isolation_level == READ_COMMITTED else self.high_watermark

    @property
    def established(self) -> bool:
        """Whether a new leader knows what is committed. Before, it might answer with a latest offset lower than one its
        predecessor gave (KIP-207)."""
        return self.high_watermark >= self.epoch_start

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
        """A piece of the log for a consumer; None when it has read everything it may see. A follower serves those who
        know that it is one (KIP-392)."""
        self._check_epoch(leader_epoch)
        # One that led until its process ended is no follower either: it may have lost what it told consumers of.
        if not self.leads and not (from_follower and self.leader_id not in (NO_LEADER, self.broker_id)):
            raise Refused(ErrorCode.not_leader_or_follower)
        limit = self.readable_limit(isolation_level)
        if isolation_level == READ_COMMITTED and self.log.transactions.undecided:
            limit = self.log.transactions.decided_limit(offset, limit)
        return self.log.read(offset, bytes_max, limit=limit, whole_first_batch=whole_first_batch)

    def read_tail(self, offset: int, bytes_max: int, *, leader_epoch: int, whole_first_batch: bool) -> Slice | None:
        """A piece of the log for a follower, up to its very end."""
        self.check_leads(leader_epoch)
        return self.log.read(offset, bytes_max, limit=self.log.log_end, whole_first_batch=whole_first_batch)

    def delete_before(self, offset: int) -> int:
        """DeleteRecords: what is below `offset` (-1: the high watermark) is not readable any more. What it is below."""
        self.check_leads()
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise Refused(ErrorCode.offset_out_of_range)
        self.log.raise_log_start(offset)
        self.wake()
        return offset

    @property
    def low_watermark(self) -> int:
        """No replica that could lead next has anything before it."""
        return min([self.log.log_start, *(follower.log_start for follower in self._union)])
