"""The coordinator of transactions: the shards of the transaction topic, and the markers they have written.

The machine (`ottla.coordinator.transactions`) decides; here is what takes time. A transaction that is prepared is a
promise: its markers are written to all its partitions, to other leaders and again after every failure, and when the
last one is committed the machine is told. Nothing of that is remembered but the prepared record itself: whoever leads
the shard next finds it, and begins again from there.

Markers for one broker are sent together, those that come while a request is under way with the next one.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker import markers
from ottla.broker.coordinators import Coordinator
from ottla.broker.markers import End
from ottla.cluster.image import NO_BROKER
from ottla.cluster.requests import TopicSpec
from ottla.config.broker import BrokerConfig
from ottla.coordinator import transaction_records
from ottla.coordinator.decision import Reply, ReplyTo
from ottla.coordinator.transaction_records import TopicPartition
from ottla.coordinator.transactions import Limits, Markers, Prepared, Transactions
from ottla.errors import ErrorCode, Refused
from ottla.net.outbound import PeerLost
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.coordinator")

TRANSACTIONS_TOPIC = "__transaction_state"
RETRY_SECONDS = 0.1

_SETTLED = {
    ErrorCode.none: None,
    ErrorCode.invalid_producer_epoch: "its producer has gone on already",
    ErrorCode.unsupported_for_message_format: "it is in a format without transactions",
}
"""After these answers nothing is left to write, and what is noted of it."""


class TransactionCoordinator(Coordinator[Transactions]):
    def __init__(self, broker: Broker) -> None:
        super().__init__(
            broker, TRANSACTIONS_TOPIC, transaction_records, lambda: Transactions(self._limits), _transactions_topic,
            "transaction.state.log.replication.factor",
        )  # fmt: skip
        self._outbox = _Outbox(broker, self)

    def _limits(self) -> Limits:
        config = self._broker.config
        return Limits(config.transaction_max_timeout_ms, config.transactional_id_expiration_ms)

    def _tell(self, reply_to: ReplyTo, reply: Reply) -> None:
        if not isinstance(reply_to, Prepared):
            super()._tell(reply_to, reply)
            return
        reign = self.reign_over(reply_to.transactional_id)
        if reign is None:
            return  # whoever coordinates it now finds it prepared
        if isinstance(reply, Markers):
            self._outbox.add(reply_to, reply, reign)
        else:
            # Not committed in time, but it may be yet: then its markers are due. The code alone does not tell: a disk
            # that is full for a moment is told as not_coordinator, too.
            self._resume_later(reply_to, reign)

    def _resume_later(self, ticket: Prepared, reign: int) -> None:
        self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._resume, ticket, reign)

    def _resume(self, ticket: Prepared, reign: int) -> None:
        def answered(reply: Reply) -> None:
            if isinstance(reply, Refused):
                self._resume_later(ticket, reign)  # out of touch with the others for the moment

        if self.reign_over(ticket.transactional_id) == reign:
            asking = self.ask(ticket.transactional_id, lambda machine, to, now, now_ms: machine.resume(ticket))
            asking.tell(answered)

    def reign_over(self, transactional_id: str) -> int | None:
        """The leader epoch under which this broker coordinates the transactional id, if it does.

        Whatever is done for a prepared transaction is done within one reign. The next one, be it this broker's too,
        finds it prepared and begins again; what was left over from the one before would come late, and could end the
        transaction after."""
        index = self.partition_of(transactional_id)
        shard = None if index is None else self.shard(index)
        return None if shard is None else shard.leader_epoch

    async def expire_ids(self) -> None:
        await self.sweep(lambda transactions: transactions.expire_ids(self._runtime.wall_ms()))


def _transactions_topic(config: BrokerConfig) -> TopicSpec:
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


class _Ending:
    """A prepared transaction, until all its markers are written."""

    __slots__ = ("committed", "left", "reign", "ticket", "version")

    def __init__(self, ticket: Prepared, what: Markers, reign: int) -> None:
        self.ticket = ticket
        self.committed = what.committed
        self.left = dict.fromkeys(what.partitions)
        self.version = what.version
        self.reign = reign

    def end(self) -> End:
        return End(self.ticket.producer_id, self.ticket.producer_epoch, self.committed, self.reign, self.version)


_Letter = tuple[_Ending, TopicPartition]


class _Outbox:
    """The markers that have to be written, by the broker that has to write them."""

    def __init__(self, broker: Broker, coordinator: TransactionCoordinator) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._coordinator = coordinator
        self._letters: dict[int, list[_Letter]] = {}
        self._sending: set[int] = set()
        self._again: list[_Letter] = []

    def add(self, ticket: Prepared, what: Markers, reign: int) -> None:
        ending = _Ending(ticket, what, reign)
        if ending.left:
            self._post([(ending, place) for place in ending.left])
        else:
            self._runtime.call_soon(self._complete, ending)

    def _post(self, letters: list[_Letter]) -> None:
        image = self._broker.image
        for ending, (topic, index) in letters:
            letter = (ending, (topic, index))
            partition = image.partition(topic, index)
            if partition is None:
                self._written(letter, ErrorCode.none)  # the topic is deleted, and all that was in it
            elif partition.leader == NO_BROKER or partition.leader not in image.brokers:
                self._later(letter)
            else:
                self._send_soon(partition.leader, letter)

    def _send_soon(self, broker_id: int, letter: _Letter) -> None:
        """After this turn of the loop: more may be coming."""
        letters = self._letters.setdefault(broker_id, [])
        letters.append(letter)
        if len(letters) == 1 and broker_id not in self._sending:
            self._runtime.call_soon(self._send, broker_id)

    def _send(self, broker_id: int) -> None:
        letters = [letter for letter in self._letters.pop(broker_id, []) if self._is_ours(letter[0])]
        if broker_id == self._broker.id:
            for letter in letters:
                ending, (topic, index) = letter
                markers.write(self._broker, topic, index, ending.end(), partial(self._written, letter))
        elif letters:
            self._sending.add(broker_id)
            self._runtime.spawn(self._call(broker_id, letters), name=f"markers for broker {broker_id}")

    async def _call(self, broker_id: int, letters: list[_Letter]) -> None:
        try:
            response = await self._broker.peers.call(
                broker_id, WriteTxnMarkersRequest(markers=self._requests(letters)), WriteTxnMarkersResponse
            )
            codes = {
                (result.producer_id, topic.name, each.partition_index): ErrorCode(each.error_code)
                for result in response.markers
                for topic in result.topics
                for each in topic.partitions
            }
        except PeerLost as lost:
            log.info("broker %d did not write %d markers: %s", broker_id, len(letters), lost)
            codes = {}
        finally:
            self._sending.discard(broker_id)
        for letter in letters:
            ending, (topic, index) = letter
            self._written(letter, codes.get((ending.ticket.producer_id, topic, index), ErrorCode.network_exception))
        if broker_id in self._letters:
            self._send(broker_id)

    def _written(self, letter: _Letter, code: ErrorCode) -> None:
        ending, (topic, index) = letter
        ticket = ending.ticket
        if not self._is_ours(ending):
            return
        if code == ErrorCode.transaction_coordinator_fenced:
            log.info("%s is coordinated by another broker by now", ticket.transactional_id)
        elif code not in _SETTLED:
            self._later(letter)
        else:
            if (why := _SETTLED[code]) is not None:
                log.warning("%s: no marker in %s-%d: %s", ticket.transactional_id, topic, index, why)
            ending.left.pop((topic, index), None)
            if not ending.left:
                self._complete(ending)

    def _later(self, letter: _Letter) -> None:
        if not self._again:
            self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._try_again)
        self._again.append(letter)

    def _try_again(self) -> None:
        letters, self._again = self._again, []
        self._post([letter for letter in letters if self._is_ours(letter[0])])

    def _is_ours(self, ending: _Ending) -> bool:
        """Whether the reign lasts in which it was found prepared."""
        return self._coordinator.reign_over(ending.ticket.transactional_id) == ending.reign

    def _complete(self, ending: _Ending) -> None:
        ticket = ending.ticket

        def answered(reply: Reply) -> None:
            if isinstance(reply, Refused):
                self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._complete, ending)

        if self._is_ours(ending):
            asking = self._coordinator.ask(
                ticket.transactional_id, lambda machine, to, now, now_ms: machine.complete(ticket, to, now_ms)
            )
            asking.tell(answered)

    def _requests(self, letters: list[_Letter]) -> list[WritableTxnMarker]:
        """For each transaction one, its partitions by topic."""
        places: dict[_Ending, dict[str, list[int]]] = {}
        for ending, (topic, index) in letters:
            places.setdefault(ending, {}).setdefault(topic, []).append(index)
        return [
            WritableTxnMarker(
                producer_id=ending.ticket.producer_id,
                producer_epoch=ending.ticket.producer_epoch,
                transaction_result=ending.committed,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()
                ],
                coordinator_epoch=ending.reign,
                transaction_version=ending.version,
            )
            for ending, topics in places.items()
        ]
