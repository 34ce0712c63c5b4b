"""Blocking admin client."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Unpack

from ottla.blocking.thread import Blocking
from ottla.client import admin
from ottla.client.admin import (
    ActiveProducer,
    ClusterDescription,
    ConfigEntry,
    EligibleLeaders,
    GroupDescription,
    GroupListing,
    LogDir,
    NewTopic,
    PartitionLag,
    Reassignment,
    ResourceKind,
    Topic,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.core.settings import ClientOptions
from ottla.client.values import Given, OffsetAndMetadata, OffsetAndTimestamp, OpenTransaction, TopicPartition


class Admin(Blocking[admin.Admin]):
    """See `ottla.Admin`, where each of these is explained."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        super().__init__(admin.Admin(bootstrap_servers, config=config, **settings))

    def list_topics(self, *, internal: bool = False) -> list[Topic]:
        return self._run(self._client.list_topics(internal=internal))

    def describe_topics(self, names: Collection[str]) -> dict[str, Topic]:
        return self._run(self._client.describe_topics(names))

    def create_topics(self, topics: Iterable[NewTopic | str], *, validate_only: bool = False) -> None:
        self._run(self._client.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Collection[str]) -> None:
        self._run(self._client.delete_topics(names))

    def create_partitions(self, topic: str, total: int, assignments: Sequence[Sequence[int]] | None = None) -> None:
        self._run(self._client.create_partitions(topic, total, assignments))

    def describe_configs(self, kind: ResourceKind, name: str) -> list[ConfigEntry]:
        return self._run(self._client.describe_configs(kind, name))

    def list_config_resources(self, kind: ResourceKind) -> list[str]:
        return self._run(self._client.list_config_resources(kind))

    def eligible_leaders(self, names: Collection[str]) -> dict[TopicPartition, EligibleLeaders] | None:
        return self._run(self._client.eligible_leaders(names))

    def alter_configs(
        self, kind: ResourceKind, name: str, *, put: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        self._run(self._client.alter_configs(kind, name, put=put, remove=remove))

    def list_offsets(
        self, times: Mapping[TopicPartition, int | str], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._run(self._client.list_offsets(times, read_committed=read_committed))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._run(self._client.delete_records(before))

    def list_groups(self) -> list[GroupListing]:
        return self._run(self._client.list_groups())

    def describe_groups(self, names: Collection[str]) -> dict[str, GroupDescription]:
        return self._run(self._client.describe_groups(names))

    def delete_groups(self, names: Collection[str]) -> None:
        self._run(self._client.delete_groups(names))

    def group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._run(self._client.group_offsets(group_id, partitions, stable=stable))

    def alter_group_offsets(self, group_id: str, offsets: Given) -> None:
        self._run(self._client.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        self._run(self._client.delete_group_offsets(group_id, partitions))

    def group_lag(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        return self._run(self._client.group_lag(group_id))

    def describe_cluster(self) -> ClusterDescription:
        return self._run(self._client.describe_cluster())

    def reassign(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        self._run(self._client.reassign(replicas))

    def list_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        return self._run(self._client.list_reassignments(partitions))

    def elect_leaders(
        self, partitions: Collection[TopicPartition] | None = None, *, unclean: bool = False
    ) -> set[TopicPartition]:
        return self._run(self._client.elect_leaders(partitions, unclean=unclean))

    def log_dirs(self, brokers: Collection[int] | None = None) -> dict[int, list[LogDir]]:
        return self._run(self._client.log_dirs(brokers))

    def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        return self._run(self._client.list_transactions(states))

    def describe_transactions(self, ids: Collection[str]) -> dict[str, TransactionDescription]:
        return self._run(self._client.describe_transactions(ids))

    def describe_producers(self, partition: TopicPartition) -> list[ActiveProducer]:
        return self._run(self._client.describe_producers(partition))

    def end_transaction(self, transaction: OpenTransaction, *, committed: bool) -> None:
        self._run(self._client.end_transaction(transaction, committed=committed))

    def fence_producer(self, transactional_id: str) -> None:
        self._run(self._client.fence_producer(transactional_id))
