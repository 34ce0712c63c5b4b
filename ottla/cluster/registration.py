"""Broker registration: whether a broker that comes back still has its records, and which process owns a broker id.

Clean shutdown leaves a marker in the data directory, and the next start removes it. A broker without a marker was
killed, or its machine went down: the end of its logs may be lost. A marker that is older than the last registration
which the cluster knows of this broker means that older files were restored.

A broker id is free as soon as its session has expired, so another process may have registered with it when a process
that hung resumes. Both would lead the same partitions in the same leader epoch: the process that lost its session ends.
"""

from __future__ import annotations

from ottla.cluster.image import Image
from ottla.cluster.model import NO_EPOCH, BrokerRegistration
from ottla.cluster.requests import RegistrationRequest
from ottla.errors import Fault


class DuplicateBrokerId(Fault):
    """Another process has registered with the id of this broker: this process must end."""


def clean_since(image: Image, registration: RegistrationRequest, epoch: int) -> int:
    """The oldest registration since which this broker has lost no records; `epoch`, the new one, if it may have."""
    marker = registration.clean_epoch
    if marker == NO_EPOCH or last_known_epoch(image, registration.id) > marker:
        return epoch
    return marker if registration.clean_since == NO_EPOCH else min(registration.clean_since, marker)


def last_known_epoch(image: Image, broker: int) -> int:
    """The newest broker epoch under which a replica of this broker is in an ISR or ELR."""
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


def id_in_use(broker: BrokerRegistration) -> Fault:
    return Fault(
        f"broker {broker.id} is already running in this cluster{_where(broker)}: give this one another id, or stop "
        "that one"
    )


def duplicate_broker_id(broker: BrokerRegistration) -> DuplicateBrokerId:
    return DuplicateBrokerId(
        f"another process is broker {broker.id} of this cluster by now{_where(broker)}: it registered when the session "
        "of this one had ended. Two processes must not have one broker id, so this one ends here. Give one of them "
        "another id, or stop that one and start this one again"
    )


def _where(broker: BrokerRegistration) -> str:
    return f" at {broker.endpoints[0].host}:{broker.endpoints[0].port}" if broker.endpoints else ""
