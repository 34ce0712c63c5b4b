"""One file per family of APIs. Importing this package registers all handlers."""

from ottla.broker.handlers import (
    api_versions,
    cluster,
    configs,
    consumer_groups,
    fetch,
    find_coordinator,
    group_offsets,
    groups,
    log_dirs,
    offsets,
    partitions,
    produce,
    producer_ids,
    security,
    topics,
)

__all__ = [
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "fetch",
    "find_coordinator",
    "group_offsets",
    "groups",
    "log_dirs",
    "offsets",
    "partitions",
    "produce",
    "producer_ids",
    "security",
    "topics",
]
