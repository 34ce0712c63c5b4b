"""The group coordinator: the shards of `__consumer_offsets`."""

from __future__ import annotations

import uuid
from typing import Final

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image, TopicImage
from ottla.cluster.requests import TopicSpec
from ottla.config.broker_config import BrokerConfig, LiveConfig
from ottla.coordinator import group_records
from ottla.coordinator.coordinator_service import CoordinatorService
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.shard import Phase, Shard
from ottla.runtime import Runtime
from ottla.wire.batch import CODECS

OFFSETS_TOPIC: Final = "__consumer_offsets"


class GroupCoordinator(CoordinatorService[GroupMachine]):
    topic = OFFSETS_TOPIC
    replication_setting = "offsets.topic.replication.factor"
    codec = group_records
    _deleted: tuple[TopicImage, ...] = ()
    """Topics deleted while a shard was loading: their offsets are removed after that."""

    def _machine(self) -> GroupMachine:
        return GroupMachine(_BrokerContext(self._runtime, self._config, self._cluster))

    def _spec(self) -> TopicSpec:
        config = self._config.current
        return TopicSpec(
            OFFSETS_TOPIC,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )

    def _compression(self) -> str:
        return CODECS[self._config.current.offsets_topic_compression_codec]

    def _topic_deleted(self, topic: TopicImage) -> None:
        """Remove the offsets of a deleted topic."""
        super()._topic_deleted(topic)
        if topic.name != self.topic:
            self._forget(topic, self.active())
            if self._is_loading:
                self._deleted = (*self._deleted, topic)

    def _activate(self, shard: Shard[GroupMachine]) -> None:
        super()._activate(shard)
        for topic in self._deleted:
            self._forget(topic, [shard])
        if not self._is_loading:
            self._deleted = ()

    @property
    def _is_loading(self) -> bool:
        return any(slot.shard.phase is Phase.LOADING for slot in self._slots.values())

    def _forget(self, topic: TopicImage, shards: list[Shard[GroupMachine]]) -> None:
        forget = self.sweep(lambda groups: groups.forget_topic(topic.name, topic.id), shards)
        self._runtime.spawn(forget, name=f"forget the offsets of {topic.name}")

    async def expire_offsets(self) -> None:
        await self.sweep(lambda groups: groups.expire_offsets(self._runtime.wall_ms()))


class _BrokerContext:
    """Implements GroupContext."""

    def __init__(self, runtime: Runtime, config: LiveConfig, cluster: Cluster) -> None:
        self._runtime = runtime
        self._config = config
        self._cluster = cluster

    @property
    def config(self) -> BrokerConfig:
        return self._config.current

    @property
    def image(self) -> Image:
        return self._cluster.image

    def new_id(self) -> str:
        return str(uuid.UUID(bytes=self._runtime.random.randbytes(16), version=4))
