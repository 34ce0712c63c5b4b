"""Last known leader in doubt (KIP-966): no replica is in sync or eligible, and the last leader may have lost records.

Pure.

The controller does not know log ends, so it elects the last leader again. If that broker was not stopped cleanly, it
may have lost the end of its log. If its log is damaged, or was lost with its manifest and checkpoints, it has lost
records. Such a leader does not lead yet. It refuses clients and followers, and learns the log ends of the followers
from their fetch offsets. Meanwhile no follower truncates its log, and nothing is appended. The doubt ends when all
followers that it waits for have fetched, or after a timeout: a follower reaches the proven end of this log (leader
epoch and log end) and has the missing offsets; if none are known to be missing, it has more         -> the one with the
most records leads, in sync with those that are equal no follower does
-> this replica leads, as if it were the only one

It waits for the followers that are alive. A damaged replica that was not stopped cleanly waits for all followers, for
`replica.lag.time.max.ms`: they may have more than is proven here. So does a replica whose data directory is an older
copy that was restored.

A replica that became leader because no other had more leads provisionally. As long as it has appended nothing in this
leader epoch, a follower that has more puts it in doubt again and leads instead (`shows_more`). After the first append
this is not possible: then a follower quarantines the records that it truncates (`log.truncation.quarantine_tail`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


WHOLE_WAIT_SECONDS = 5.0
"""How long to wait for live replicas that have not fetched, if nothing is known to be missing: they may be
partitioned."""


class Position(NamedTuple):
    """The end of a replica's log: the leader epoch of its last record, and the log end offset."""

    epoch: int
    end: int


class Heard(NamedTuple):
    position: Position
    log_start: int
    broker_epoch: int


class Doubt:
    __slots__ = ("_all", "_first", "_heard", "_proven", "_since", "whole")

    def __init__(self, proven: Position, first: int | None, *, wait_for_all: bool, whole: bool = False) -> None:
        """`first`: the first offset that another replica must have. None: any, because this log is empty and its start
        is not known. `whole`: nothing is known to be missing here."""
        self._proven = proven
        self._first = first
        self._all = wait_for_all
        self.whole = whole
        """Nothing is known to be missing."""
        self._heard: dict[int, Heard] = {}
        self._since: float | None = None

    def hear(self, replica: int, broker_epoch: int, offset: int, last_epoch: int, log_start: int) -> None:
        known = self._heard.get(replica)
        if known is None or broker_epoch >= known.broker_epoch:
            self._heard[replica] = Heard(Position(last_epoch, offset), log_start, broker_epoch)

    def registration(self, replica: int) -> int:
        """The broker epoch with which the replica has fetched."""
        return self._heard[replica].broker_epoch

    def verdict(
        self, others: Iterable[int], now: float, wait_s_max: float, able: Callable[[int, int], bool],
        alive: Callable[[int], bool],
    ) -> tuple[int, ...] | None:  # fmt: skip
        """The replicas that are to lead instead, perhaps none; None: it is not decided yet."""
        if self._since is None:
            self._since = now
        awaited = [replica for replica in others if self._all or alive(replica)]
        present = {replica: heard for replica, heard in self._heard.items() if able(replica, heard.broker_epoch)}
        if self.whole and not self._all:
            wait_s_max = min(wait_s_max, WHOLE_WAIT_SECONDS)
        if now - self._since < wait_s_max and not present.keys() >= set(awaited):
            return None
        complete = {
            replica: heard.position
            for replica, heard in present.items()
            if heard.position.epoch >= self._proven.epoch
            and heard.position.end >= self._proven.end
            and not (self.whole and heard.position == self._proven)
            and (self._first is None or 0 <= heard.log_start <= self._first)
        }
        best = max(complete.values(), default=None)
        return tuple(replica for replica in others if complete.get(replica) == best and best is not None)

    def outdone(self, position: Position, log_start: int) -> bool:
        """Whether a replica has everything that is proven here, and more."""
        reaches = position.epoch >= self._proven.epoch and position.end >= self._proven.end
        return reaches and position != self._proven and (self._first is None or 0 <= log_start <= self._first)


def shows_more(
    partition: Partition, replica: int, broker_epoch: int, offset: int, last_epoch: int, log_start: int
) -> bool:
    """A follower of a provisional leader fetches from `offset`. True: it has more, and the leader is in doubt again."""
    doubt, log = partition.provisional, partition.log
    if doubt is None:
        return False
    if not partition.leads or log.log_end != partition.leader.epoch_start:
        partition.provisional = None  # records of this leader epoch are in its log
        return False
    if replica not in partition.leader.followers or not doubt.outdone(Position(last_epoch, offset), log_start):
        return False
    partition.step_down()
    log.drop_empty_epochs()
    partition.provisional, partition.doubt = None, doubt
    doubt.hear(replica, broker_epoch, offset, last_epoch, log_start)
    partition.wake()
    return True


def doubt_of(partition: Partition, in_sync: tuple[int, ...], leader_epoch: int) -> Doubt | None:
    """The doubt of this replica when it is elected: no other replica is known to have all acknowledged records, and its
    own log is damaged, empty, or may lack its end. None: no doubt."""
    log, damage = partition.log, partition.log.damage
    if in_sync != (partition.broker_id,) or partition.eligible or len(partition.replicas) == 1:
        return None
    lost = damage is not None or (partition.forgot and leader_epoch > 0 and log.log_end == log.log_start == 0)
    if not lost and not partition.outdated and (partition.end_known or partition.last_leader != partition.broker_id):
        return None
    proven = Position(log.epochs.epoch_of(log.log_end - 1), log.log_end)
    first = log.log_start if damage is None else damage.missing[0][0]
    wait_for_all = (lost or partition.outdated) and not partition.end_known
    return Doubt(proven, first if log.size_bytes else None, wait_for_all=wait_for_all, whole=not lost)


def resolve(
    partition: Partition, now: float, wait_s_max: float, able: Callable[[int, int], bool], alive: Callable[[int], bool]
) -> bool:
    """Check whether the doubt has ended. True: this replica leads as soon as its state is applied again. If others are
    to lead, they are proposed."""
    assert partition.doubt is not None
    if partition.leader.proposed is not None:
        return False
    others = [replica for replica in partition.replicas if replica != partition.broker_id]
    chosen = partition.doubt.verdict(others, now, wait_s_max, able, alive)
    if chosen:
        partition.leader.proposed = chosen
    elif chosen is not None:
        partition.provisional, partition.doubt = partition.doubt, None
        return True
    return False
