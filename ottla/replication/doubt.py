"""A last leader in doubt: its log is damaged, or lost with all that tells of it, and nobody is in sync or eligible.

Pure.

The controller knows no log ends, so it names the last leader again. That one does not lead yet: it turns clients and
followers away, and learns from what the followers ask for what they have. Nobody is cut meanwhile, and nothing is
appended that could contradict them. It ends when it has heard of all others that it waits for, or in
`replica.lag.time.max.ms`:
    another one reaches what is proven here, in leader epoch and log end, and has what is missing  -> the one that has
                                                                              most leads, with all that are like it
    nobody does                                                            -> it leads: the rule for one replica holds

It waits for those that are alive. Where it was not stopped cleanly the others may have more than is proven here: then
it waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class Position(NamedTuple):
    """What a replica has: the epoch of its last record, and where its log ends."""

    epoch: int
    end: int


class Heard(NamedTuple):
    position: Position
    log_start: int
    broker_epoch: int


class Doubt:
    __slots__ = ("_all", "_first", "_heard", "_proven", "_since")

    def __init__(self, proven: Position, first: int, *, wait_for_all: bool) -> None:
        """`first`: the first offset that is missing."""
        self._proven = proven
        self._first = first
        self._all = wait_for_all
        self._heard: dict[int, Heard] = {}
        self._since: float | None = None

    def hear(self, replica: int, broker_epoch: int, offset: int, last_epoch: int, log_start: int) -> None:
        known = self._heard.get(replica)
        if known is None or broker_epoch >= known.broker_epoch:
            self._heard[replica] = Heard(Position(last_epoch, offset), log_start, broker_epoch)

    def registration(self, replica: int) -> int:
        """Under which it was heard."""
        return self._heard[replica].broker_epoch

    def verdict(
        self, others: Iterable[int], now: float, wait_s_max: float, able: Callable[[int, int], bool],
        alive: Callable[[int], bool],
    ) -> tuple[int, ...] | None:  # fmt: skip
        """Who leads instead, if anybody; None: it is too early to say."""
        if self._since is None:
            self._since = now
        awaited = [replica for replica in others if self._all or alive(replica)]
        present = {replica: heard for replica, heard in self._heard.items() if able(replica, heard.broker_epoch)}
        if now - self._since < wait_s_max and not present.keys() >= set(awaited):
            return None
        complete = {
            replica: heard.position
            for replica, heard in present.items()
            if heard.position.epoch >= self._proven.epoch
            and heard.position.end >= self._proven.end
            and 0 <= heard.log_start <= self._first
        }
        best = max(complete.values(), default=None)
        return tuple(replica for replica in others if complete.get(replica) == best and best is not None)


def doubt_of(partition: Partition, in_sync: tuple[int, ...], leader_epoch: int) -> Doubt | None:
    """Whether this replica, which is to lead, is one whose word would not do: nobody else is said to have what was
    acknowledged, and its own log is known to lack something, or everything."""
    log, damage = partition.log, partition.log.damage
    if in_sync != (partition.broker_id,) or partition.eligible or len(partition.replicas) == 1:
        return None
    if damage is None and not (partition.forgot and leader_epoch > 0 and log.log_end == log.log_start == 0):
        return None
    proven = Position(log.epochs.epoch_of(log.log_end - 1), log.log_end)
    first = log.log_start if damage is None else damage.missing[0][0]
    return Doubt(proven, first, wait_for_all=not partition.end_known)


def resolve(
    partition: Partition, now: float, wait_s_max: float, able: Callable[[int, int], bool], alive: Callable[[int], bool]
) -> bool:
    """Look whether it is known by now who leads. True: this one, as soon as its state is taken up again. If others do
    they are proposed."""
    assert partition.doubt is not None
    if partition.proposed is not None:
        return False
    others = [replica for replica in partition.replicas if replica != partition.broker_id]
    chosen = partition.doubt.verdict(others, now, wait_s_max, able, alive)
    if chosen:
        partition.proposed = chosen
    elif chosen is not None:
        partition.doubt = None
        return True
    return False
