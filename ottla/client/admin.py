"""Administration: topics and settings.

Any broker answers questions; changes go to the controller, which Metadata names. A call about several things
answers for each of them, since some may succeed and others not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Self

from ottla.client.addresses import parse_bootstrap
from ottla.client.connection import Connection
from ottla.client.errors import ClientError, Unreachable, error_of
from ottla.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.wire.schema.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

_SET: Final = 0
_DELETE: Final = 1

__all__ = ["Admin", "ConfigEntry", "NewTopic", "Outcomes", "Partition", "ResourceKind", "Topic", "parse_bootstrap"]

Outcomes = Mapping[str, ClientError | None]
"""What became of each thing a call was about: None is success."""


class ResourceKind(IntEnum):
    """What can have settings."""

    TOPIC = 2
    BROKER = 4


class NewTopic(NamedTuple):
    """A topic to be made; -1 leaves a number to the broker."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


class Partition(NamedTuple):
    partition: int
    leader: int
    """-1: there is none now."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Topic(NamedTuple):
    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[Partition, ...]


class ConfigEntry(NamedTuple):
    """A setting as the broker has it; `source` is DescribeConfigs' number, 1 being the topic's own."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool


class Admin:
    """An administrative client. Connects at first use; `async with` closes it."""

    def __init__(self, bootstrap_servers: str, *, client_id: str = "ottla-admin", timeout_s: float = 30.0) -> None:
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._any: Connection | None = None
        self._others: dict[tuple[str, int], Connection] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for connection in (self._any, *self._others.values()):
            if connection is not None:
                await connection.close()
        self._any = None
        self._others.clear()

    async def list_topics(self, *, internal: bool = False) -> list[Topic]:
        """All topics by name; those the cluster keeps for itself only when asked for."""
        answer = await self._metadata(None)
        topics = [_topic(topic) for topic in answer.topics if not topic.error_code]
        return sorted(topic for topic in topics if internal or not topic.internal)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, Topic | ClientError]:
        """Each topic, or why there is none."""
        answer = await self._metadata(list(names))
        described: dict[str, Topic | ClientError] = {}
        for topic in answer.topics:
            name = topic.name or ""
            described[name] = error_of(topic.error_code, f"topic {name}") or _topic(topic)
        return described

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> Outcomes:
        controller = await self._controller()
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    configs=[CreatableTopicConfig(name=k, value=v) for k, v in topic.configs.items()],
                )
                for topic in topics
            ],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        answer = await controller.call(request, CreateTopicsResponse, timeout_s=self._timeout_s)
        return {
            topic.name: error_of(topic.error_code, f"topic {topic.name}", topic.error_message)
            for topic in answer.topics
        }

    async def delete_topics(self, names: Sequence[str]) -> Outcomes:
        controller = await self._controller()
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=list(names),  # what versions below 6 carry instead
            timeout_ms=self._timeout_ms,
        )
        answer = await controller.call(request, DeleteTopicsResponse, timeout_s=self._timeout_s)
        return {
            topic.name or "": error_of(topic.error_code, f"topic {topic.name}", topic.error_message)
            for topic in answer.responses
        }

    async def create_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        controller = await self._controller()
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=total, assignments=None)],
            timeout_ms=self._timeout_ms,
        )
        answer = await controller.call(request, CreatePartitionsResponse, timeout_s=self._timeout_s)
        for result in answer.results:
            _check(error_of(result.error_code, f"topic {topic}", result.error_message))

    async def describe_configs(self, kind: ResourceKind, name: str) -> list[ConfigEntry]:
        """All settings of a topic or a broker, by name."""
        connection = await self._broker_for(kind, name)
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        answer = await connection.call(
            DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, timeout_s=self._timeout_s
        )
        entries: list[ConfigEntry] = []
        for result in answer.results:
            _check(error_of(result.error_code, f"{kind.name.lower()} {name}", result.error_message))
            entries += [
                ConfigEntry(each.name, each.value, each.config_source, each.read_only, each.is_sensitive)
                for each in result.configs
            ]
        return sorted(entries)

    async def alter_configs(
        self,
        kind: ResourceKind,
        name: str,
        *,
        put: Mapping[str, str] | None = None,
        remove: Iterable[str] = (),
    ) -> None:
        """Change some settings and return others to their default, all or none."""
        configs = [AlterableConfig(name=k, config_operation=_SET, value=v) for k, v in (put or {}).items()]
        configs += [AlterableConfig(name=each, config_operation=_DELETE, value=None) for each in remove]
        connection = await self._broker_for(kind, name)
        answer = await connection.call(
            IncrementalAlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)]
            ),
            IncrementalAlterConfigsResponse,
            timeout_s=self._timeout_s,
        )
        for result in answer.responses:
            _check(error_of(result.error_code, f"{kind.name.lower()} {name}", result.error_message))

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout_s * 1000)

    async def _metadata(self, names: list[str] | None) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = await (await self._connection()).call(request, MetadataResponse, timeout_s=self._timeout_s)
        _check(error_of(answer.error_code, "metadata"))
        return answer

    async def _connection(self) -> Connection:
        """A connection to the first broker of the bootstrap list that answers."""
        if self._any is not None:
            return self._any
        failures: list[ClientError] = []
        for host, port in self._bootstrap:
            try:
                self._any = await Connection.open(host, port, client_id=self._client_id)
            except ClientError as error:
                failures.append(error)
            else:
                return self._any
        if len(failures) == 1 or not all(isinstance(failure, Unreachable) for failure in failures):
            raise next((each for each in failures if not isinstance(each, Unreachable)), failures[0])
        raise Unreachable("; ".join(str(failure) for failure in failures))

    async def _controller(self) -> Connection:
        answer = await self._metadata([])
        return await self._connection_to(answer, answer.controller_id)

    async def _broker_for(self, kind: ResourceKind, name: str) -> Connection:
        """Only a broker itself knows its settings; topics are known to all."""
        if kind is ResourceKind.BROKER and name:
            return await self._connection_to(await self._metadata([]), int(name))
        return await self._connection()

    async def _connection_to(self, metadata: MetadataResponse, broker_id: int) -> Connection:
        broker = next((each for each in metadata.brokers if each.node_id == broker_id), None)
        if broker is None or self._bootstrap == [(broker.host, broker.port)]:
            return await self._connection()
        address = broker.host, broker.port
        if address not in self._others:
            try:
                self._others[address] = await Connection.open(*address, client_id=self._client_id)
            except Unreachable as error:
                raise Unreachable(f"broker {broker_id} tells clients to use an address that fails: {error}") from None
        return self._others[address]


def _check(error: ClientError | None) -> None:
    if error is not None:
        raise error


def _topic(topic: MetadataResponseTopic) -> Topic:
    partitions = (
        Partition(
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
        )
        for each in topic.partitions
    )
    return Topic(topic.name or "", topic.topic_id, topic.is_internal, tuple(sorted(partitions)))
