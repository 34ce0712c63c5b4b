"""The transaction coordinator: the shards of `__transaction_state`, and the markers of their transactions.

The state machine (`transaction_machine`) decides. The markers of a prepared transaction are written to all its
partitions, with retries (`marker_queue`); when the last one is committed, the machine completes the transaction. Only
the prepared record is durable: the next leader of the shard finds it, and begins again from there.
"""

from __future__ import annotations

from typing import Final

from ottla.cluster.cluster import Cluster
from ottla.cluster.requests import TopicSpec
from ottla.config.broker_config import LiveConfig
from ottla.coordinator import transaction_records
from ottla.coordinator.coordinator_service import CoordinatorService, CreateTopics
from ottla.coordinator.decision import Reply, ReplyTo
from ottla.coordinator.marker_queue import RETRY_SECONDS, MarkerQueue
from ottla.coordinator.marker_writer import MarkerWriter
from ottla.coordinator.transaction_machine import Markers, Prepared, TransactionLimits, TransactionMachine
from ottla.errors import Refused
from ottla.replication.ports import Peers
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime import Runtime

TRANSACTIONS_TOPIC: Final = "__transaction_state"


class TransactionCoordinator(CoordinatorService[TransactionMachine]):
    topic = TRANSACTIONS_TOPIC
    replication_setting = "transaction.state.log.replication.factor"
    codec = transaction_records

    def __init__(
        self,
        runtime: Runtime,
        config: LiveConfig,
        cluster: Cluster,
        replica_manager: ReplicaManager,
        create_topics: CreateTopics,
        peers: Peers,
        marker_writer: MarkerWriter,
    ) -> None:
        super().__init__(runtime, config, cluster, replica_manager, create_topics)
        broker_id = config.current.broker_id
        self._marker_queue = MarkerQueue(runtime, broker_id, lambda: cluster.image, peers, marker_writer, self)

    def _machine(self) -> TransactionMachine:
        return TransactionMachine(self._limits)

    def _spec(self) -> TopicSpec:
        config = self._config.current
        return TopicSpec(
            TRANSACTIONS_TOPIC,
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=config.transaction_state_log_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )

    def _limits(self) -> TransactionLimits:
        config = self._config.current
        return TransactionLimits(config.transaction_max_timeout_ms, config.transactional_id_expiration_ms)

    def _send_reply(self, reply_to: ReplyTo, reply: Reply) -> None:
        if not isinstance(reply_to, Prepared):
            super()._send_reply(reply_to, reply)
            return
        epoch = self.coordinator_epoch(reply_to.transactional_id)
        if epoch is None:
            return  # the new coordinator finds it prepared
        if isinstance(reply, Markers):
            self._marker_queue.add(reply_to, reply, epoch)
        else:
            # Not committed in time, but it may still be: then its markers are due. The error code does not say which: a
            # disk that is full for a moment is reported as not_coordinator, too.
            self._resume_later(reply_to, epoch)

    def _resume_later(self, ticket: Prepared, epoch: int) -> None:
        self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._resume, ticket, epoch)

    def _resume(self, ticket: Prepared, epoch: int) -> None:
        def replied(reply: Reply) -> None:
            if isinstance(reply, Refused):
                self._resume_later(ticket, epoch)  # the session lease is in doubt for the moment

        if self.coordinator_epoch(ticket.transactional_id) == epoch:
            promise = self.ask(ticket.transactional_id, lambda machine, to, now, now_ms: machine.resume(ticket))
            promise.on_reply(replied)

    def coordinator_epoch(self, transactional_id: str) -> int | None:
        """The leader epoch under which this broker coordinates the transactional id, if it does.

        All work for a prepared transaction belongs to one leader epoch. The next leader, which may be this broker
        again, finds it prepared and begins again; a late marker of the epoch before could end the transaction after
        it."""
        index = self.partition_of(transactional_id)
        shard = None if index is None else self.shard(index)
        return None if shard is None else shard.leader_epoch

    async def expire_ids(self) -> None:
        await self.sweep(lambda transactions: transactions.expire_ids(self._runtime.wall_ms()))
