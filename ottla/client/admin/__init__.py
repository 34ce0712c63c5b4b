"""Admin client: topics and configs, groups, the cluster, transactions.

    async with Admin("localhost:9092") as admin:
        await admin.create_topics([NewTopic("orders", partitions=3)])

A call about several things succeeds as a whole, or raises one error whose `errors` says what failed, and why.
"""

from __future__ import annotations

from ottla.client.admin.cluster_admin import ClusterAdmin, ClusterDescription, LogDir, Reassignment, ReplicaOnDisk
from ottla.client.admin.group_admin import GroupAdmin, GroupDescription, GroupListing, Member, PartitionLag
from ottla.client.admin.topic_admin import (
    ConfigEntry,
    ConfigSynonym,
    EligibleLeaders,
    NewTopic,
    Partition,
    ResourceKind,
    TopicAdmin,
    TopicDescription,
)
from ottla.client.admin.transaction_admin import (
    ActiveProducer,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.core.settings import parse_bootstrap

__all__ = [
    "ActiveProducer",
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSynonym",
    "EligibleLeaders",
    "GroupDescription",
    "GroupListing",
    "LogDir",
    "Member",
    "NewTopic",
    "Partition",
    "PartitionLag",
    "Reassignment",
    "ReplicaOnDisk",
    "ResourceKind",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
    "parse_bootstrap",
]


class Admin(TopicAdmin, GroupAdmin, ClusterAdmin, TransactionAdmin):
    """An administrative client. Settings have Kafka's names with `_`; `config` takes them with `.`."""
