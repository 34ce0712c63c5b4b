"""The records of a metadata image: broker registrations, topics, partition states, tombstones. All immutable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

NO_BROKER: Final = -1
NO_EPOCH: Final = -1


class Endpoint(NamedTuple):
    """A listener of a broker: its name, its advertised address and its security protocol."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """A live broker. Every registration has a new broker epoch (`epoch`), so a restarted broker differs from its
    earlier process.

    `clean_since`: the oldest registration since which every stop of this broker was a clean shutdown, so that its logs
    can have lost nothing since. After any other stop it equals `epoch`. `draining`: controlled shutdown has begun.

    `incarnation` is a random id of the process, the same in all its registrations. It distinguishes the registration
    of this process from that of another process with the same broker id. Earlier releases have none.

    `damaged`: partitions (topic id as text, number) whose logs were found damaged at start. Their records
    on this broker do not count, also after a clean stop.
    """

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    draining: bool = False
    clean_since: int = NO_EPOCH
    incarnation: str = ""
    damaged: tuple[tuple[str, int], ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((each for each in self.endpoints if each.listener == listener), None)


class PartitionState(NamedTuple):
    """The assignment of a partition and its leader, leader epoch and ISR. With `partition_epoch` -1 no leader was ever
    elected (`initialized` is false).

    `broker_epoch`: the registration under which the leader was elected. A leader that has registered again since may
    have lost the end of its log, and has to be elected again. `partition_epoch` counts the changes of the state; it is
    the version of the state's node.

    A replica in `in_sync` (ISR) has every record that was acknowledged with acks=all. So has one in `eligible` (ELR,
    KIP-966): it left the ISR when fewer than min.insync.replicas stayed, and nothing was acknowledged with acks=all
    since. The epochs beside both sets are the registrations under which that was known last (KIP-903): a broker that
    has lost its unsynced tail since does not count. `last_leader` is the last choice when both sets are empty.
    """

    replicas: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = NO_EPOCH
    in_sync: tuple[int, ...] = ()
    partition_epoch: int = NO_EPOCH
    broker_epoch: int = NO_EPOCH
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    in_sync_epochs: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    eligible_epochs: tuple[int, ...] = ()
    last_leader: int = NO_BROKER

    @property
    def initialized(self) -> bool:
        return self.partition_epoch != NO_EPOCH


def with_epochs(state: PartitionState) -> PartitionState:
    """A state that an earlier release wrote, without broker epochs of the ISR: all get the leader's, which was the
    newest that was known then."""
    if len(state.in_sync_epochs) == len(state.in_sync):
        return state
    last = state.leader if state.leader != NO_BROKER or len(state.in_sync) != 1 else state.in_sync[0]
    return state._replace(in_sync_epochs=(state.broker_epoch,) * len(state.in_sync), last_leader=last)


class TopicImage(NamedTuple):
    """`configs`: the settings of this topic alone, as text, under Kafka's names."""

    name: str
    id: bytes
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]


class Tombstone(NamedTuple):
    """A deleted topic. It stays until every broker with a replica has confirmed that the files are deleted."""

    name: str
    replicas: tuple[int, ...]
