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
    """A live broker. `epoch` is new with every registration, so a restarted broker is not mistaken for its old self."""

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((each for each in self.endpoints if each.listener == listener), None)


class Partition(NamedTuple):
    """Who holds a partition and who leads it. Without a state (`partition_epoch` -1) it has not been led yet.

    `broker_epoch` is the leader's registration under which it was elected: a leader that has registered again since may
    have lost the end of its log, and has to be elected anew. `partition_epoch` counts the changes of the state, and is
    the version of the state's node.
    """

    replicas: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = NO_EPOCH
    in_sync: tuple[int, ...] = ()
    partition_epoch: int = NO_EPOCH
    broker_epoch: int = NO_EPOCH
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def has_state(self) -> bool:
        return self.partition_epoch != NO_EPOCH


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
