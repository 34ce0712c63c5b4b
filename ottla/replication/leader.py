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

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

UNKNOWN: Final = -1
NO_EPOCH: Final = -1
RESENT_MAX: Final = 8
"""So often in a row a follower is sent the same before its leader looks whether that is damaged."""

Able = Callable[[int, int], bool]
"""Whether a broker is there, under a registration, and stays."""


class Follower:
    """One replica as its leader sees it, in one leader epoch."""

    __slots__ = (
        "epoch", "heard", "id", "known_epoch", "lacks", "log_end", "log_start", "mark", "marked_at", "resent", "sent",
    )  # fmt: skip

    def __init__(self, replica: int) -> None:
        self.id = replica
        self.epoch = UNKNOWN
        """The registration under which it fetched last."""
        self.known_epoch = UNKNOWN
        """The registration under which the controller has it in sync; unknown: it has not, or does not say."""
        self.log_end = UNKNOWN
        self.log_start = UNKNOWN
        self.lacks: tuple[Range, ...] = ()
        """What it asked for that its leader has not got."""
        self.heard = False
        """It has fetched since it was last found behind: only then does what is known of it speak for it."""
        self.mark: int | None = None
        self.marked_at = 0.0
        self.sent = UNKNOWN
        """The offset at which it was sent something last."""
        self.resent = 0

    @property
    def counts(self) -> bool:
        """Whether what it has counts as in sync. Not while it has come back and the controller has not judged yet what
        that means: if it lost something it will leave the set, and nobody may have relied on it meanwhile (KIP-966)."""
        return self.known_epoch in (UNKNOWN, self.epoch)

    def fetched(self, offset: int, epoch: int, log_start: int) -> None:
        self.epoch = epoch
        self.log_end = offset
        self.log_start = log_start
        self.heard = True
        if self.mark is not None and offset >= self.mark:
            self.mark = None

    def sent_again(self, offset: int) -> bool:
        """It is sent what is there at an offset. Whether that has been so often that it cannot take it: once in a
        while, as it may have been left out of answers that were full."""
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
    """A new ISR, put to the controller. Each replica with the registration it is known by."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


class LeaderState:
    """Of one partition. While this broker does not lead it has no followers."""

    __slots__ = ("_partition", "_union", "epoch_start", "followers", "proposed")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.epoch_start = 0
        """Where this leader epoch began: what is before it was written under others."""
        self.followers: dict[int, Follower] = {}
        self.proposed: tuple[int, ...] | None = None
        """The ISR that the controller was asked for and has not decided on, as far as we know."""
        self._union: tuple[Follower, ...] = ()  # all that the high watermark waits for

    def take_up(self, state: PartitionState, *, anew: bool) -> None:
        """A new state of the partition. `anew`: this broker begins to lead with it."""
        partition = self._partition
        if anew:
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
        """The first offset that not all have, whom the high watermark waits for."""
        committed = own_end
        for follower in self._union:
            if not follower.counts:
                return UNKNOWN
            if follower.log_end < committed:
                committed = follower.log_end
        return committed

    @property
    def low_watermark(self) -> int:
        """No replica that could lead next has anything before it."""
        return min([self._partition.log.log_start, *(follower.log_start for follower in self._union)])

    def fetched_by(
        self, replica: int, broker_epoch: int, offset: int, last_epoch: int, log_start: int = UNKNOWN
    ) -> tuple[int, int] | None:
        """A follower asks for `offset` behind a record of `last_epoch`: it has everything before. Unless its log has
        diverged: then the answer is the last epoch up to which both may agree, and where that ended here."""
        partition = self._partition
        follower = self.followers.get(replica)
        if follower is None:
            raise Refused(ErrorCode.not_leader_or_follower, f"broker {replica} has no replica of {partition}")
        if broker_epoch < follower.epoch:  # asked before it registered anew; it need not have all that any more
            raise Refused(ErrorCode.stale_broker_epoch)
        diverging = diverging_epoch(partition.log, offset, last_epoch)
        if diverging is not None or offset > partition.log.log_end:  # an empty log may begin there
            return diverging
        follower.fetched(offset, broker_epoch, log_start)
        if follower in self._union:
            partition.advance()
        return None

    # The in-sync set.

    def caught_up(self, follower: Follower) -> bool:
        """Whether it has all that is committed, and what this leader epoch began with."""
        return follower.log_end >= self._partition.high_watermark and follower.log_end >= self.epoch_start

    def propose(self, now: float, lag_s_max: float, able: Able) -> bool:
        """Whether the ISR should be another one; `proposed` says which. One change at a time."""
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
        """Who should be in sync. Only those who are able, under the registration they fetched with, are asked for:
        whoever is gone, or about to go, would be waited for in vain, and what a broker had before it came back need not
        be what it has."""
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
        """Time that passed unseen counts against nobody."""
        for follower in self.followers.values():
            follower.mark = None

    def proposal(self, epoch_of: Callable[[int], int]) -> Proposal:
        """What to ask the controller for. Who has not fetched in this leader epoch is known by its present
        registration."""
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
        """The controller has refused the proposal, and will not take it up."""
        self.proposed = None
        self._unite()
        self._partition.advance()


def diverging_epoch(log: PartitionLog, offset: int, last_epoch: int) -> tuple[int, int] | None:
    """Where the log of a follower that has a record of `last_epoch` before `offset` may diverge from the leader's: the
    last epoch both may have, and its end. None: nowhere."""
    if last_epoch == NO_EPOCH or (last_epoch == log.latest_epoch and offset <= log.log_end):
        return None
    epoch, end = log.end_offset_for_epoch(last_epoch)
    if epoch == NO_EPOCH:  # there was no such leader epoch: no checksum covers an epoch, and it is not from here
        return log.latest_epoch, log.log_end
    if epoch < last_epoch and gap_at(log, end - 1) is not None:
        epoch = last_epoch  # which epochs there were is lost with their records: the follower may have them
    return (epoch, end) if epoch < last_epoch or end < offset else None


def truncation_offset(log: PartitionLog, epoch: int, end: int) -> int:
    """Where a follower truncates its log whose leader says that both agree up to the end of this epoch at most."""
    own_epoch, own_end = log.end_offset_for_epoch(epoch)
    offset = min(end, log.log_end)
    if own_epoch != NO_EPOCH:
        offset = min(own_end, log.log_end) if own_epoch != epoch else min(own_end, end, log.log_end)
    return max(offset, log.log_start)
