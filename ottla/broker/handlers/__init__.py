"""One file per family of APIs. Importing this package registers all handlers."""

from ottla.broker.handlers import (  # noqa: F401
    api_versions,
    cluster_metadata,
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
    quotas,
    security,
    topics,
    txn_markers,
    txn_offsets,
    txn_producers,
)
