"""Blocking admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from ottla.blocking.thread import Blocking, blocking
from ottla.client import admin
from ottla.client.core.settings import ClientOptions


class Admin(Blocking[admin.Admin]):
    """The methods of `ottla.Admin`."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        super().__init__(admin.Admin(bootstrap_servers, config=config, **settings))

    list_topics = blocking(admin.Admin.list_topics)
    describe_topics = blocking(admin.Admin.describe_topics)
    create_topics = blocking(admin.Admin.create_topics)
    delete_topics = blocking(admin.Admin.delete_topics)
    create_partitions = blocking(admin.Admin.create_partitions)
    describe_configs = blocking(admin.Admin.describe_configs)
    list_config_resources = blocking(admin.Admin.list_config_resources)
    eligible_leaders = blocking(admin.Admin.eligible_leaders)
    alter_configs = blocking(admin.Admin.alter_configs)
    list_offsets = blocking(admin.Admin.list_offsets)
    delete_records = blocking(admin.Admin.delete_records)
    list_groups = blocking(admin.Admin.list_groups)
    describe_groups = blocking(admin.Admin.describe_groups)
    delete_groups = blocking(admin.Admin.delete_groups)
    group_offsets = blocking(admin.Admin.group_offsets)
    alter_group_offsets = blocking(admin.Admin.alter_group_offsets)
    delete_group_offsets = blocking(admin.Admin.delete_group_offsets)
    group_lag = blocking(admin.Admin.group_lag)
    describe_cluster = blocking(admin.Admin.describe_cluster)
    reassign = blocking(admin.Admin.reassign)
    list_reassignments = blocking(admin.Admin.list_reassignments)
    elect_leaders = blocking(admin.Admin.elect_leaders)
    log_dirs = blocking(admin.Admin.log_dirs)
    list_transactions = blocking(admin.Admin.list_transactions)
    describe_transactions = blocking(admin.Admin.describe_transactions)
    describe_producers = blocking(admin.Admin.describe_producers)
    end_transaction = blocking(admin.Admin.end_transaction)
    fence_producer = blocking(admin.Admin.fence_producer)
