"""Topic creation on behalf of this broker: internal topics, and automatic creation by Metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ottla.broker.peers import BrokerPeers, Lane
from ottla.cluster.cluster import Cluster
from ottla.cluster.requests import TopicResult, TopicSpec
from ottla.config.broker_config import LiveConfig
from ottla.errors import ErrorCode, Fault, Refused
from ottla.net.outbound import Unreached
from ottla.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger("ottla.broker")


class TopicCreation:
    def __init__(self, config: LiveConfig, cluster: Cluster, peers: BrokerPeers) -> None:
        self._config = config
        self._cluster = cluster
        self._peers = peers

    async def create(self, specs: Sequence[TopicSpec]) -> list[TopicResult]:
        """Create topics through the controller; errors are in the results. Each topic is named once."""
        try:
            if self._cluster.is_controller:
                return await self._cluster.create_topics(specs)
            request = CreateTopicsRequest(
                topics=[_creatable(spec) for spec in specs], timeout_ms=self._config.current.request_timeout_ms
            )
            timeout_s = self._config.current.request_timeout_ms / 1000
            answer = await self._peers.ask_controller(
                request, CreateTopicsResponse, timeout_s=timeout_s, lane=Lane.clients
            )
        except Refused as refused:
            return [TopicResult(spec.name, code=refused.code, message=refused.message) for spec in specs]
        except Fault as fault:  # the controller is out of reach, or broke off, or the store did
            code = ErrorCode.not_controller if isinstance(fault, Unreached) else ErrorCode.request_timed_out
            return [TopicResult(spec.name, code=code, message=str(fault)) for spec in specs]
        await catch_up(self._cluster)
        return [_result(each) for each in answer.topics]


async def catch_up(cluster: Cluster) -> None:
    """Wait until this broker's image has what the controller has just done."""
    try:
        await cluster.catch_up()
    except Fault as fault:
        log.warning("the controller's change is not visible on this broker yet: %s", fault)


def _result(answer: CreatableTopicResult) -> TopicResult:
    known = answer.error_code in ErrorCode.__members__.values()
    code = ErrorCode(answer.error_code) if known else ErrorCode.unknown_server_error
    return TopicResult(
        answer.name, answer.topic_id, code, answer.error_message, answer.num_partitions, answer.replication_factor
    )


def _creatable(spec: TopicSpec) -> CreatableTopic:
    return CreatableTopic(
        name=spec.name,
        num_partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in spec.assignments
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in spec.configs.items()],
    )
