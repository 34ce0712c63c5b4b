"""What a registration is worth: whether a broker that comes back still holds what it held.

A clean stop leaves a mark in the data directory, and the next start takes it away. A broker that finds none was killed,
or its machine went down: the end of its logs may be lost. One that finds a mark older than the last registration the
cluster knows of it does not have the files that it had then, but older ones that somebody put back.

And whose it is: an id is free as soon as a session has ended, so another process may have taken it when one that hung
comes back. Two that are one broker would both lead what it leads, in one epoch: the one that was replaced ends.
"""

from __future__ import annotations

from ottla.cluster.image import Image
from ottla.cluster.model import NO_EPOCH, Broker
from ottla.cluster.requests import BrokerRegistration
from ottla.errors import Fault


class Replaced(Fault):
    """Another process is this broker by now: this one must not go on."""


def clean_since(image: Image, registration: BrokerRegistration, epoch: int) -> int:
    """The oldest registration since which this broker has lost nothing; `epoch`, the new one, if it may have."""
    mark = registration.clean_epoch
    if mark == NO_EPOCH or last_known_epoch(image, registration.id) > mark:
        return epoch
    return mark if registration.clean_since == NO_EPOCH else min(registration.clean_since, mark)


def last_known_epoch(image: Image, broker: int) -> int:
    """The newest registration under which a replica on this broker was known to hold what it should."""
    return max(
        (
            epoch
            for topic in image.topics.values()
            for partition in topic.partitions
            for replica, epoch in (
                *zip(partition.in_sync, partition.in_sync_epochs, strict=True),
                *zip(partition.eligible, partition.eligible_epochs, strict=True),
            )
            if replica == broker
        ),
        default=NO_EPOCH,
    )


def already_there(broker: Broker) -> Fault:
    return Fault(
        f"broker {broker.id} is already running in this cluster{_where(broker)}: give this one another id, or stop "
        "that one"
    )


def replaced(broker: Broker) -> Replaced:
    return Replaced(
        f"another process is broker {broker.id} of this cluster by now{_where(broker)}: it registered when the session "
        "of this one had ended. Two must not be one broker, so this one ends here. Give one of them another id, or "
        "stop that one and start this one again"
    )


def _where(broker: Broker) -> str:
    return f" at {broker.endpoints[0].host}:{broker.endpoints[0].port}" if broker.endpoints else ""
