"""What a registration is worth: whether a broker that comes back still holds what it held.

A clean stop leaves a mark in the data directory, and the next start takes it away. A broker that finds none was killed,
or its machine went down: the end of its logs may be lost. One that finds a mark older than the last registration the
cluster knows of it does not have the files that it had then, but older ones that somebody put back.
"""

from __future__ import annotations

from ottla.cluster.image import Image
from ottla.cluster.model import NO_EPOCH
from ottla.cluster.requests import BrokerRegistration


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
