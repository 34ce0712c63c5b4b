"""Fetch requests of a consumer, pure: one per broker at a time, its fetch session, and how many bytes it asks for.

A range that is read up to an offset (`until`) asks for about as much as lies before it: records of a topic are as large
as those before them. What an answer carries beyond the range was sent for nothing, and the log may have much more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from ottla.client.consuming.subscription_state import NO_LIMIT, ConsumerSettings, TopicPartitionState
from ottla.client.core.list_offsets import offsets_request
from ottla.client.core.requests import CONSUMER, Node, Send
from ottla.client.values import TopicPartition
from ottla.wire.fetch_session import OUTSIDE, FetchSessionHandler
from ottla.wire.schema.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.wire.schema.list_offsets import ListOffsetsRequest
from ottla.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.wire.tree import ZERO_UUID

TOPIC_NAMES_UNTIL: Final = 12
"""The last version of Fetch that names topics; later ones need their ids."""
SHORT_WAIT_MS: Final = 20
"""For partitions that have nothing new, while others of their broker have enough for now and will soon want more."""
RECORD_BYTES: Final = 1024
"""Of a topic of which nothing was fetched yet."""
RANGE_BYTES_MIN: Final = 16 * 1024
SPARE: Final = 1.25
"""So much more than its records before is asked for, lest the last one of a range take a request of its own."""
TOPICS_MAX: Final = 1000
"""So many topics are remembered by the size of their records."""


class RecordSizes:
    """The bytes that a record of each topic needs in the log, by the last response."""

    def __init__(self) -> None:
        self._bytes: dict[str, float] = {}

    def observe(self, topic: str, offsets: int, size: int) -> None:
        if offsets <= 0:
            return
        if len(self._bytes) >= TOPICS_MAX:
            self._bytes.clear()
        self._bytes[topic] = size / offsets

    def bytes_for(self, state: TopicPartitionState, bytes_max: int) -> int:
        """The number of bytes to request: the limit, or about the rest of a range."""
        if state.until == NO_LIMIT:
            return bytes_max
        record_bytes = self._bytes.get(state.tp.topic, RECORD_BYTES / SPARE)
        wanted = (state.until - state.next.offset) * record_bytes * SPARE
        return min(bytes_max, max(RANGE_BYTES_MIN, int(wanted)))


class PartitionFetch(NamedTuple):
    """What to fetch of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    bytes_max: int


class ConsumerSession(FetchSessionHandler[TopicPartition, PartitionFetch]):
    """With one broker. Topics go by their ids, or, as long as one of them is not known, by their names."""

    by_id = True

    def fill(self, request: FetchRequest, wanted: Mapping[TopicPartition, PartitionFetch]) -> None:
        """Say in the request what has changed since the last one, or everything."""
        by_id = all(entry.topic_id != ZERO_UUID for entry in wanted.values())
        remade = any(tp in wanted and wanted[tp].topic_id != known.topic_id for tp, known in self.known.items())
        if by_id != self.by_id or remade or self.epoch == OUTSIDE:
            # Ids became known, or a topic was deleted and recreated: rare enough to begin from the start.
            self.restart()
        self.by_id = by_id
        for tp in [tp for tp in self.known if tp not in wanted]:
            self.forget(tp)
        topics: dict[str, FetchTopic] = {}
        for tp, entry in wanted.items():
            if not self.update(tp, entry):
                continue
            topic = topics.get(tp.topic)
            if topic is None:
                topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=entry.topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=entry.leader_epoch,
                    fetch_offset=entry.offset,
                    partition_max_bytes=entry.bytes_max,
                )
            )
        request.session_id, request.session_epoch, forgotten = self.next()
        gone: dict[str, ForgottenTopic] = {}
        for tp, entry in forgotten.items():
            topic_of = gone.setdefault(tp.topic, ForgottenTopic(topic=tp.topic, topic_id=entry.topic_id))
            topic_of.partitions.append(tp.partition)
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(gone.values())

    def names(self) -> dict[bytes, str]:
        """Names of the topics in the last request."""
        return {entry.topic_id: tp.topic for tp, entry in self.known.items()}


class FetchRequests:
    """At most one is out to each broker."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.sizes = RecordSizes()
        self._settings = settings
        self._sessions: dict[int, ConsumerSession] = {}
        self._out: dict[int, Send] = {}

    def is_out(self, node_id: int) -> bool:
        return node_id in self._out

    def session(self, node_id: int) -> ConsumerSession:
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = ConsumerSession(enabled=self._settings.fetch_sessions)
        return session

    def build(self, broker: Node, wanted: Mapping[TopicPartition, PartitionFetch], *, waits: bool) -> Send:
        settings = self._settings
        request = FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms if waits else min(settings.fetch_max_wait_ms, SHORT_WAIT_MS),
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=settings.isolation_level,
            rack_id=settings.client_rack,
        )
        session = self.session(broker.node_id)
        session.fill(request, wanted)
        version_max = None if session.by_id else TOPIC_NAMES_UNTIL
        send = Send(request, broker, settings.request_timeout_s, version_max=version_max)
        self._out[broker.node_id] = send
        return send

    def returned(self, send: Send) -> None:
        """It was answered, or failed."""
        if self._out.get(send.to.node_id) is send:
            del self._out[send.to.node_id]

    def abandon(self, moot: Collection[Send]) -> list[Send]:
        """Forget these, as far as they are out. Their broker may hold them for a while, and answers nothing else on
        their connection until then."""
        abandoned = [send for send in self._out.values() if send in moot]
        for send in abandoned:
            self.returned(send)
            self.session(send.to.node_id).restart()
        return abandoned


def list_offsets(states: Iterable[TopicPartitionState], settings: ConsumerSettings) -> ListOffsetsRequest:
    """Where is the offset that each is to be reset to?"""
    wanted = ((state.tp, state.asked_epoch, state.reset_to) for state in states)
    return offsets_request(wanted, settings.isolation_level, settings.request_timeout_ms)


def end_of_epoch(states: Iterable[TopicPartitionState]) -> OffsetForLeaderEpochRequest:
    """Where did the epoch end that each has read last?"""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for state in states:
        name, partition = state.tp
        wanted = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=state.asked_epoch, leader_epoch=state.next.epoch
        )
        topics.setdefault(name, OffsetForLeaderTopic(topic=name)).partitions.append(wanted)
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=list(topics.values()))
