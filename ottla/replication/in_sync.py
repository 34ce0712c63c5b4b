"""What a leader knows of its followers: how far each has come, and who is to be in the in-sync set. Pure.

A follower says how far it has come by what it asks for: who fetches from offset 7 has everything before 7. It is in
sync while it keeps up, and keeping up means: whatever the log end was `replica.lag.time.max.ms` ago, it has that by
now. So a check every now and then sets each follower that is behind a mark, the log end of that moment, and one that
has not reached its mark in time is out. (An append need not look at any clock, nor an idle follower at every
partition.) A follower is in sync again when it has all that is committed, and reached where this reign began.

The set itself is the controller's. A leader proposes another one and waits; what it may count as committed meanwhile
has to hold for both, the set that is and the set that may be (KIP-497): the high watermark waits for their union.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

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


class Follower:
    """One replica as its leader sees it, in one reign."""

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
        self.heard = False
        return True


def in_sync_wanted(partition: Partition, now: float, lag_s_max: float, able: Callable[[int, int], bool]) -> set[int]:
    """Who should be in sync, as the leader sees it. Only those who are able, under the registration they fetched with,
    are asked for: whoever is gone, or about to go, would be waited for in vain, and what a broker had before it came
    back need not be what it has."""
    log = partition.log
    if log.damage is not None and (better := better_followers(partition, able)):
        return better
    wanted = {partition.broker_id}
    for replica, follower in partition.followers.items():
        if replica in partition.in_sync:
            if not follower.lags(log.log_end, now, lag_s_max):
                wanted.add(replica)
        elif follower.heard and partition.caught_up(follower) and able(replica, follower.epoch):
            wanted.add(replica)
    return wanted


class Proposal(NamedTuple):
    """A new in-sync set, put to the controller. Each replica with the registration it is known by."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


def parting_of(log: PartitionLog, offset: int, last_epoch: int) -> tuple[int, int] | None:
    """Where the log of a follower that has a record of `last_epoch` before `offset` may part from the leader's: the
    last epoch both may have, and its end. None: nowhere."""
    if last_epoch == NO_EPOCH or (last_epoch == log.latest_epoch and offset <= log.log_end):
        return None
    epoch, end = log.end_offset_for_epoch(last_epoch)
    if epoch == NO_EPOCH:  # no reign was ever that late: no checksum covers an epoch, and it is not from here
        return log.latest_epoch, log.log_end
    if epoch < last_epoch and gap_at(log, end - 1) is not None:
        epoch = last_epoch  # which reigns there were is lost with their records: the follower may have them
    return (epoch, end) if epoch < last_epoch or end < offset else None


def cut_of(log: PartitionLog, epoch: int, end: int) -> int:
    """Where a follower cuts its log whose leader says that both agree up to the end of this epoch at most."""
    own_epoch, own_end = log.end_offset_for_epoch(epoch)
    offset = min(end, log.log_end)
    if own_epoch != NO_EPOCH:
        offset = min(own_end, log.log_end) if own_epoch != epoch else min(own_end, end, log.log_end)
    return max(offset, log.log_start)


def too_few(in_sync: tuple[int, ...], in_sync_min: int) -> Refused:
    here = ", ".join(map(str, sorted(in_sync)))
    return Refused(
        ErrorCode.not_enough_replicas,
        f"{len(in_sync)} in sync (broker {here}), and min.insync.replicas is {in_sync_min}",
    )
