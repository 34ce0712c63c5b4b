"""Leader state of a partition: the progress of each follower, the proposed ISR, and the high watermark. Pure.

A follower that fetches from offset 7 has everything before 7. It is in sync while it keeps up: it has reached the log
end of `replica.lag.time.max.ms` ago. To test this, a periodic check notes the log end as a target for each follower
that is behind. A follower that has not reached its target in time leaves the ISR. (So an append reads no clock, and an
idle follower costs nothing per partition.) A follower joins the ISR again when it has all committed records and has
reached the start of this leader epoch.

The controller owns the ISR. A leader proposes a change and waits. Meanwhile a record is committed only if it is
committed under both, the present and the proposed ISR (KIP-497): the high watermark waits for their union.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.model import PartitionState
from ottla.errors import ErrorCode, Refused
from ottla.log.damage import gap_at
from ottla.log.manifest import Range
from ottla.log.partition_log import PartitionLog
from ottla.replication.gaps import better_followers
from ottla.replication.waits import LowWatermarkListener

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

UNKNOWN: Final = -1
NO_EPOCH: Final = -1
RESENT_MAX: Final = 8
"""How often a follower is sent the same records before the leader checks whether they are damaged."""

Able = Callable[[int, int], bool]
"""Whether a broker is alive with this broker epoch, and not shutting down."""


class Follower:
    """The progress of one follower in one leader epoch."""

    __slots__ = (
        "epoch", "heard", "id", "known_epoch", "lacks", "log_end", "log_start", "mark", "marked_at", "resent", "sent",
    )  # fmt: skip

    def __init__(self, replica: int) -> None:
        self.id = replica
        self.epoch = UNKNOWN
        """The broker epoch of its last fetch."""
        self.known_epoch = UNKNOWN
        """The broker epoch with which the controller has it in the ISR; unknown: it is not in the ISR, or the
        controller does not say."""
        self.log_end = UNKNOWN
        self.log_start = UNKNOWN
        self.lacks: tuple[Range, ...] = ()
        """The offsets that it has fetched and that the leader lacks."""
        self.heard = False
        """It has fetched since the last check found it behind: only then does its known progress count."""
        self.mark: int | None = None
        self.marked_at = 0.0
        self.sent = UNKNOWN
        """The offset of the records that it was sent last."""
        self.resent = 0

    @property
    def counts(self) -> bool:
        """Whether its progress counts as in sync. Not after its broker has registered again, until the controller has
        decided about it: if it has lost records it leaves the ISR, and nothing may have depended on it meanwhile
        (KIP-966)."""
        return self.known_epoch in (UNKNOWN, self.epoch)

    def fetched(self, offset: int, epoch: int, log_start: int) -> None:
        self.epoch = epoch
        self.log_end = offset
        self.log_start = log_start
        self.heard = True
        if self.mark is not None and offset >= self.mark:
            self.mark = None

    def sent_again(self, offset: int) -> bool:
        """Note that it is sent the records at an offset. Returns whether this has been repeated so often that it cannot
        append them. Single repetitions are normal: a full response may have left it out."""
        self.resent = self.resent + 1 if offset == self.sent else 0
        self.sent = offset
        return self.resent % RESENT_MAX == RESENT_MAX - 1

    def lags(self, log_end: int, now: float, lag_s_max: float) -> bool:
        if self.log_end >= log_end and self.counts:  # else the high watermark waits for it all the same
            self.mark = None
        elif self.mark is None:
            self.mark = log_end
            self.marked_at = now
        if self.mark is None or now - self.marked_at < lag_s_max:
            return False
        if self.log_end < log_end:  # else it has fetched all there is, and on an idle partition does not say so again
            self.heard = False
        return True


class Proposal(NamedTuple):
    """A proposed ISR: each replica with its broker epoch."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


class LeaderState:
    """The leader state of one partition. It has no followers while this broker does not lead."""

    __slots__ = ("_partition", "_union", "epoch_start", "followers", "low_watermark_listeners", "proposed")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.epoch_start = 0
        """The start offset of this leader epoch."""
        self.followers: dict[int, Follower] = {}
        self.proposed: tuple[int, ...] | None = None
        """The proposed ISR that the controller has not decided on, as far as this broker knows."""
        self._union: tuple[Follower, ...] = ()  # all that the high watermark waits for
        self.low_watermark_listeners: dict[LowWatermarkListener, None] = {}

    def take_up(self, state: PartitionState, *, begins_to_lead: bool) -> None:
        """Apply a new partition state. `begins_to_lead`: this broker becomes leader with it."""
        partition = self._partition
        if begins_to_lead:
            self.epoch_start = partition.log.log_end
            self.followers = {}
        if partition.leads:
            others = [replica for replica in partition.replicas if replica != partition.broker_id]
            self.followers = {replica: self.followers.get(replica) or Follower(replica) for replica in others}
            known = dict(zip(state.in_sync, state.in_sync_epochs, strict=False))
            for replica, follower in self.followers.items():
                follower.known_epoch = known.get(replica, UNKNOWN)
        else:
            self.followers = {}
        self._unite()

    def _unite(self) -> None:
        members = {*self._partition.in_sync, *(self.proposed or ())}
        self._union = tuple(follower for replica, follower in self.followers.items() if replica in members)

    def committed(self, own_end: int) -> int:
        """The lowest log end of the replicas for which the high watermark waits."""
        committed = own_end
        for follower in self._union:
            if not follower.counts:
                return UNKNOWN
            if follower.log_end < committed:
                committed = follower.log_end
        return committed

    @property
    def low_watermark(self) -> int:
        """Low watermark: the lowest log start of all replicas that could lead next."""
        return min([self._partition.log.log_start, *(follower.log_start for follower in self._union)])

    def fetched_by(
        self, replica: int, broker_epoch: int, offset: int, last_epoch: int, log_start: int = UNKNOWN
    ) -> tuple[int, int] | None:
        """A follower fetches from `offset`, after a record of `last_epoch`: it has everything before. If its log has
        diverged, returns the last epoch in which both may agree, and the end offset of that epoch here."""
        partition = self._partition
        follower = self.followers.get(replica)
        if follower is None:
            raise Refused(ErrorCode.not_leader_or_follower, f"broker {replica} has no replica of {partition}")
        if broker_epoch < follower.epoch:  # asked before it registered again; it need not have all that any more
            raise Refused(ErrorCode.stale_broker_epoch)
        diverging = diverging_epoch(partition.log, offset, last_epoch)
        if diverging is not None or offset > partition.log.log_end:  # an empty log may begin there
            return diverging
        follower.fetched(offset, broker_epoch, log_start)
        if follower in self._union:
            partition.advance()
            if self.low_watermark_listeners:
                for listener in self.low_watermark_listeners:
                    listener.on_low_watermark()
        return None

    # The in-sync set.

    def caught_up(self, follower: Follower) -> bool:
        """Whether a follower has all committed records, and has reached the start of this leader epoch."""
        return follower.log_end >= self._partition.high_watermark and follower.log_end >= self.epoch_start

    def propose(self, now: float, lag_s_max: float, able: Able) -> bool:
        """Whether the ISR should change; `proposed` says how. One change at a time."""
        partition = self._partition
        if not partition.leads or self.proposed is not None:
            return False
        wanted = self._wanted(now, lag_s_max, able)
        if wanted == set(partition.in_sync):
            return False
        self.proposed = tuple(replica for replica in partition.replicas if replica in wanted)
        self._unite()  # nothing is committed from now on that one of them lacks
        return True

    def _wanted(self, now: float, lag_s_max: float, able: Able) -> set[int]:
        """The ISR that the leader wants. It includes only brokers that are alive and stay, with the broker epoch with
        which they fetched: a broker that has gone would be waited for in vain, and one that has registered again may
        have lost records."""
        partition = self._partition
        if partition.log.damage is not None and (better := better_followers(partition, able)):
            return better
        wanted = {partition.broker_id}
        for replica, follower in self.followers.items():
            if replica in partition.in_sync:
                if not follower.lags(partition.log.log_end, now, lag_s_max):
                    wanted.add(replica)
            elif follower.heard and self.caught_up(follower) and able(replica, follower.epoch):
                wanted.add(replica)
        return wanted

    def forgive(self) -> None:
        """Reset the lag timers: this broker was paused, so the time does not count against followers."""
        for follower in self.followers.values():
            follower.mark = None

    def proposal(self, epoch_of: Callable[[int], int]) -> Proposal:
        """The AlterPartition request. A replica that has not fetched in this leader epoch is named with its present
        broker epoch."""
        partition = self._partition
        assert self.proposed is not None
        in_sync = []
        for replica in self.proposed:
            follower = self.followers.get(replica)
            known = UNKNOWN if follower is None else follower.epoch
            if partition.doubt is not None:
                known = partition.doubt.registration(replica)
            in_sync.append((replica, known if known >= 0 else epoch_of(replica)))
        return Proposal(
            partition.topic_id, partition.index, partition.leader_epoch, partition.partition_epoch, tuple(in_sync)
        )

    def withdraw(self) -> None:
        """The controller has refused the proposal."""
        self.proposed = None
        self._unite()
        self._partition.advance()


def diverging_epoch(log: PartitionLog, offset: int, last_epoch: int) -> tuple[int, int] | None:
    """The diverging epoch of a follower whose last record before `offset` has epoch `last_epoch`: the last epoch that
    both logs may have, and its end offset. None: the logs do not diverge."""
    if last_epoch == NO_EPOCH or (last_epoch == log.latest_epoch and offset <= log.log_end):
        return None
    epoch, end = log.end_offset_for_epoch(last_epoch)
    if epoch == NO_EPOCH:  # there was no such leader epoch: no checksum covers an epoch, and it is not from here
        return log.latest_epoch, log.log_end
    if epoch < last_epoch and gap_at(log, end - 1) is not None:
        epoch = last_epoch  # which epochs there were is lost with their records: the follower may have them
    return (epoch, end) if epoch < last_epoch or end < offset else None


def truncation_offset(log: PartitionLog, epoch: int, end: int) -> int:
    """The offset to which a follower truncates, if the leader says that both logs agree at most up to the end of this
    epoch."""
    own_epoch, own_end = log.end_offset_for_epoch(epoch)
    offset = min(end, log.log_end)
    if own_epoch != NO_EPOCH:
        offset = min(own_end, log.log_end) if own_epoch != epoch else min(own_end, end, log.log_end)
    return max(offset, log.log_start)
