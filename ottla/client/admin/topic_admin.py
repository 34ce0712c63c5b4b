"""Admin API of topics: create, add partitions, delete, configs, delete records, offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.client.admin.admin_base import AdminBase, raise_if, raise_some
from ottla.client.core.requests import Node
from ottla.client.errors import BadSetting, ClientError, NotUnderstood, error_of
from ottla.client.values import COMMITTED, EARLIEST, LATEST, UNCOMMITTED, OffsetAndTimestamp, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.wire.schema.describe_configs import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from ottla.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.schema.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from ottla.wire.schema.metadata import MetadataResponseTopic

_SET: Final = 0
_DELETE: Final = 1
MAX_TIMESTAMP: Final = -3
DEFAULT_SOURCE: Final = 5
"""DescribeConfigs' source of a value that is the default."""
_TIMES: Final = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class ResourceKind(IntEnum):
    """What can have settings."""

    TOPIC = 2
    BROKER = 4
    LOGGER = 8
    """The loggers of a broker, whose levels are the settings."""
    GROUP = 32


class NewTopic(NamedTuple):
    """A topic to create; -1 leaves a number to the broker. `assignment` names the replicas of each partition, the
    preferred leader first, and replaces both numbers."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}
    assignment: Mapping[int, Sequence[int]] = {}


class Partition(NamedTuple):
    partition: int
    leader: int
    """-1: there is none now."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class TopicDescription(NamedTuple):
    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[Partition, ...]


class EligibleLeaders(NamedTuple):
    """Eligible leader replicas (KIP-966): beside the ISR, they can lead the partition without losing acknowledged
    records."""

    replicas: tuple[int, ...]
    last_known: tuple[int, ...]


class ConfigSynonym(NamedTuple):
    source: int
    name: str
    value: str | None


class ConfigEntry(NamedTuple):
    """A setting as the broker has it; `source` is DescribeConfigs' number, 1 being the topic's own."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    documentation: str = ""
    """The broker's documentation of the setting; empty if it sends none."""
    default: str | None = None
    """The default value, if the broker reports it."""
    synonyms: tuple[ConfigSynonym, ...] = ()
    """All sources of the value, the effective one first."""


class TopicAdmin(AdminBase):
    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """All topics by name; those the cluster keeps for itself only when asked for."""
        answer = await self._metadata(None)
        topics = [_topic(topic) for topic in answer.topics if not topic.error_code]
        return sorted(topic for topic in topics if internal or not topic.internal)

    async def describe_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        answer = await self._metadata(list(names))
        described: dict[str, TopicDescription] = {}
        errors: dict[str, ClientError | None] = {}
        for topic in answer.topics:
            name = topic.name or ""
            errors[name] = error_of(topic.error_code, f"topic {name}")
            if errors[name] is None:
                described[name] = _topic(topic)
        raise_some("describe topics", errors, described)
        return described

    async def eligible_leaders(self, names: Collection[str]) -> dict[TopicPartition, EligibleLeaders] | None:
        """Of every partition of these topics; None where brokers do not support the request."""
        found: dict[TopicPartition, EligibleLeaders] = {}
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in sorted(names)])
        while True:
            try:
                answer = await self._call(request, DescribeTopicPartitionsResponse)
            except NotUnderstood:
                return None
            for topic in answer.topics:
                for part in topic.partitions:
                    found[TopicPartition(topic.name or "", part.partition_index)] = EligibleLeaders(
                        tuple(part.eligible_leader_replicas or ()), tuple(part.last_known_elr or ())
                    )
            if answer.next_cursor is None:
                return found
            request.cursor = DescribeTopicPartitionsRequestCursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )

    async def create_topics(self, topics: Iterable[NewTopic | str], *, validate_only: bool = False) -> None:
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=self._request_timeout_ms,
            validate_only=validate_only,
        )
        answer = await self._at_controller(request, CreateTopicsResponse, lambda a: (t.error_code for t in a.topics))
        raise_some(
            "create topics",
            {each.name: error_of(each.error_code, f"topic {each.name}", each.error_message) for each in answer.topics},
        )

    async def delete_topics(self, names: Collection[str]) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=list(names),  # what versions below 6 carry instead
            timeout_ms=self._request_timeout_ms,
        )
        answer = await self._at_controller(request, DeleteTopicsResponse, lambda a: (t.error_code for t in a.responses))
        raise_some(
            "delete topics",
            {
                each.name or "": error_of(each.error_code, f"topic {each.name}", each.error_message)
                for each in answer.responses
            },
        )

    async def create_partitions(
        self, topic: str, total: int, assignments: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Grow a topic to `total` partitions. `assignments` names the replicas of each new one."""
        replicas = None
        if assignments is not None:
            replicas = [CreatePartitionsAssignment(broker_ids=list(each)) for each in assignments]
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=total, assignments=replicas)],
            timeout_ms=self._request_timeout_ms,
        )
        answer = await self._at_controller(
            request, CreatePartitionsResponse, lambda a: (r.error_code for r in a.results)
        )
        for result in answer.results:
            raise_if(error_of(result.error_code, f"topic {topic}", result.error_message))

    # Settings.

    async def describe_configs(self, kind: ResourceKind, name: str) -> list[ConfigEntry]:
        """All settings of a topic, a broker, its loggers or a group, by name."""
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        answer = await self._call(
            DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True),
            DescribeConfigsResponse,
            await self._broker_for(kind, name),
        )
        entries: list[ConfigEntry] = []
        for result in answer.results:
            raise_if(error_of(result.error_code, _called(kind, name), result.error_message))
            entries += [
                ConfigEntry(
                    each.name,
                    each.value,
                    each.config_source,
                    each.read_only,
                    each.is_sensitive,
                    each.documentation or "",
                    next((synonym.value for synonym in each.synonyms if synonym.source == DEFAULT_SOURCE), None),
                    tuple(ConfigSynonym(same.source, same.name, same.value) for same in each.synonyms),
                )
                for each in result.configs
            ]
        return sorted(entries)

    async def list_config_resources(self, kind: ResourceKind) -> list[str]:
        """The names of all that have settings of this kind. NotUnderstood where brokers do not support it."""
        request = ListConfigResourcesRequest(resource_types=[kind])
        answer = await self._call(request, ListConfigResourcesResponse)
        raise_if(error_of(answer.error_code, "list config resources"))
        return sorted(each.resource_name for each in answer.config_resources if each.resource_type == kind)

    async def alter_configs(
        self, kind: ResourceKind, name: str, *, put: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        """Change some settings and return others to their default, all or none."""
        configs = [AlterableConfig(name=k, config_operation=_SET, value=v) for k, v in (put or {}).items()]
        configs += [AlterableConfig(name=each, config_operation=_DELETE, value=None) for each in remove]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        answer = await self._call(
            IncrementalAlterConfigsRequest(resources=[resource]),
            IncrementalAlterConfigsResponse,
            await self._broker_for(kind, name),
        )
        for result in answer.responses:
            raise_if(error_of(result.error_code, _called(kind, name), result.error_message))

    async def _broker_for(self, kind: ResourceKind, name: str) -> Node | None:
        """Only a broker itself knows its settings; topics are known to all."""
        if kind not in (ResourceKind.BROKER, ResourceKind.LOGGER) or not name:
            return None
        try:
            number = int(name)
        except ValueError:
            raise BadSetting(f"a broker has a number for a name, not {name!r}") from None
        return await self._broker(number)

    # Records.

    async def list_offsets(
        self, times: Mapping[TopicPartition, int | str], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first record not older than each time: in ms, or "earliest", "latest" (the end) or "max_timestamp"."""
        wanted = {TopicPartition(*tp): _time(at) for tp, at in times.items()}
        return await self._list_offsets(wanted, COMMITTED if read_committed else UNCOMMITTED)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete everything before these offsets (-1: everything). Where each partition begins then."""
        deadline = self._deadline()
        by_leader: dict[Node, dict[str, DeleteRecordsTopic]] = {}
        errors: dict[TopicPartition, ClientError | None] = {}
        for (topic, number), offset in before.items():
            tp = TopicPartition(topic, number)
            broker = await self._leader(tp, deadline)
            if broker is None:
                errors[tp] = error_of(ErrorCode.leader_not_available, str(tp), "it has no leader now")
                continue
            topics = by_leader.setdefault(broker, {})
            partition = DeleteRecordsPartition(partition_index=number, offset=offset)
            topics.setdefault(topic, DeleteRecordsTopic(name=topic)).partitions.append(partition)
        begins: dict[TopicPartition, int] = {}
        for broker, topics in by_leader.items():
            request = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=self._request_timeout_ms)
            answer = await self._call(request, DeleteRecordsResponse, broker)
            for reported in answer.topics:
                for part in reported.partitions:
                    tp = TopicPartition(reported.name, part.partition_index)
                    errors[tp] = error_of(part.error_code, str(tp))
                    if errors[tp] is None:
                        begins[tp] = part.low_watermark
        raise_some("delete records", errors, begins)
        return begins


def _called(kind: ResourceKind, name: str) -> str:
    """The settings of all brokers are those of a broker without a name."""
    return f"{kind.name.lower()} {name or 'all'}"


def _time(given: int | str) -> int:
    if isinstance(given, int):
        return given
    if given not in _TIMES:
        raise BadSetting(f"{given!r} is no time: it is a number of ms, or one of {', '.join(_TIMES)}")
    return _TIMES[given]


def _creatable(topic: NewTopic) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
        for number, replicas in topic.assignment.items()
    ]
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assignments else topic.partitions,
        replication_factor=-1 if assignments else topic.replication_factor,
        assignments=assignments,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in topic.configs.items()],
    )


def _topic(topic: MetadataResponseTopic) -> TopicDescription:
    partitions = (
        Partition(
            each.partition_index, each.leader_id, each.leader_epoch, tuple(each.replica_nodes), tuple(each.isr_nodes)
        )
        for each in topic.partitions
    )
    return TopicDescription(topic.name or "", topic.topic_id, topic.is_internal, tuple(sorted(partitions)))
