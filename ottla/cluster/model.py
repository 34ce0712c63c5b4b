"""The nouns of a cluster: brokers, topics, partitions. All immutable; an image is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

NO_BROKER: Final = -1
NO_EPOCH: Final = -1


class Endpoint(NamedTuple):
    """Where a broker listens: a name, an address to tell clients, and the security protocol spoken there."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


class Broker(NamedTuple):
    """A live broker. `epoch` is new with every registration, so a restarted broker is not mistaken for its old self.

    `clean_since` is the oldest registration since which every stop of this broker was clean, so that nothing of its
    logs can have been lost since; after any other stop it equals `epoch`. A `draining` broker is about to stop.

    `incarnation` is drawn by the process and stays with it: by this it knows its own registration from that of another
    process with the same id. Earlier releases have none.

    `damaged` names the partitions (topic id as text, number) whose logs were found damaged when it started: of these it
    holds nothing that it held before, however clean its last stop was.
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


class Partition(NamedTuple):
    """Who holds a partition and who leads it. Without a state (`partition_epoch` -1) it has not been led yet.

    `broker_epoch` is the leader's registration under which it was elected: a leader that has registered again since may
    have lost the end of its log, and has to be elected anew. `partition_epoch` counts the changes of the state, and is
    the version of the state's node.

    A replica in `in_sync` holds everything that was ever acknowledged to all, and so does one in `eligible`: those that
    left when fewer than min.insync.replicas stayed, since when nothing more is acknowledged to all (KIP-966). Beside
    each stands the registration under which that was known last (KIP-903): if the broker has lost its unsynced tail
    since, it no longer holds. `last_leader` led last, and is what is left to hope for when both sets are empty.
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
    def has_state(self) -> bool:
        return self.partition_epoch != NO_EPOCH


def with_epochs(state: Partition) -> Partition:
    """A state as it was written before it said under which registrations its replicas were in sync: all under the
    leader's, which was the newest that was known then."""
    if len(state.in_sync_epochs) == len(state.in_sync):
        return state
    last = state.leader if state.leader != NO_BROKER or len(state.in_sync) != 1 else state.in_sync[0]
    return state._replace(in_sync_epochs=(state.broker_epoch,) * len(state.in_sync), last_leader=last)


class Topic(NamedTuple):
    """`configs` holds what was set for this topic only, as text, under Kafka's names."""

    name: str
    id: bytes
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str]


class Tombstone(NamedTuple):
    """A deleted topic, kept until every broker that held a replica has said that its files are gone."""

    name: str
    replicas: tuple[int, ...]
