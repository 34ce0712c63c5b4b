"""Fetcher: the consumer without its network, pure: assigned partitions in, Fetch requests and then records out.

Who speaks: the client with the leader of each partition: ListOffsets for where to begin, Fetch for records,
OffsetForLeaderEpoch after an election (`positions`); or with a nearer replica that the leader names (KIP-392). One
fetch at a time is out to one broker, and asks for all its partitions of which too little is buffered.

What can be lost: nothing. The position is all there is to remember, and whoever assigns partitions keeps it safe. An
answer that was overtaken (by a seek, a new assignment, an election) is dropped; `revision` tells. Records are shown in
order, each once, from the position on.
The contract with the shell stands in `core.requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ottla.client.consuming.completed_fetch import CompletedFetch
from ottla.client.consuming.fetch_requests import FetchRequests, Wanted
from ottla.client.consuming.positions import (
    ConsumerSettings,
    FetchState,
    LogTruncated,
    Position,
    Reading,
    RecordsDamaged,
    end_of_epoch,
    list_offsets,
)
from ottla.client.consuming.subscription_state import SubscriptionState
from ottla.client.core.metadata import Leader, Metadata
from ottla.client.core.requests import NO_NODE, STALE_METADATA, Broker, Send, backoff_s, code_of
from ottla.client.errors import error_of
from ottla.client.values import COMMITTED, LATEST, NO_EPOCH, TopicPartition
from ottla.errors import RETRIABLE, ErrorCode, Refused
from ottla.wire.fetch_session import SESSION_ERRORS
from ottla.wire.schema.fetch import FetchRequest, FetchResponse, PartitionData
from ottla.wire.schema.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse
from ottla.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from ottla.wire.tree import ZERO_UUID, Message

T = TypeVar("T")
_Asked = dict[TopicPartition, tuple[Reading, int]]
"""Whom an answer is for, and the turn at which it was asked for."""


class Fetcher(SubscriptionState):
    """A consumer of partitions that somebody else assigns."""

    def __init__(self, metadata: Metadata, settings: ConsumerSettings | None = None) -> None:
        super().__init__(metadata, settings or ConsumerSettings())
        self._requests = FetchRequests(self.settings)
        self._asked: dict[Send, _Asked] = {}
        self._decided_at = 0.0
        self._validates = True
        """Cleared when a broker knows nothing of leader epochs."""

    def abandon(self) -> list[Broker]:
        """Wait no longer for fetches that were overtaken: the connections to these brokers are to be dropped."""
        moot = {send for send, asked in self._asked.items() if all(map(self._overtaken, asked, asked.values()))}
        abandoned = self._requests.abandon(moot)
        for send in abandoned:
            del self._asked[send]
        return [send.to for send in abandoned]

    # The machine.

    def decide(self, now: float) -> list[Send]:
        self._decided_at = now
        resets: dict[Broker, list[Reading]] = {}
        validations: dict[Broker, list[Reading]] = {}
        fetches: dict[Broker, list[Reading]] = {}
        full: set[int] = set()
        room = sum(reading.buffered_bytes for reading in self._readings.values()) < self.settings.buffered_bytes_max
        for reading in self._readings.values():
            self._follow_leader(reading)
            if reading.offset_requested or reading.held or now < reading.retry_at:
                continue
            if reading.state is FetchState.READING and not (room and self._hungry(reading)):
                if reading.buffer and not reading.paused:
                    full.add(reading.served_by(self._metadata.leader(*reading.tp).node_id))
                continue
            broker = self._broker(reading, now)
            if broker is None:
                continue
            if reading.state is FetchState.RESETTING:
                resets.setdefault(broker, []).append(reading)
            elif reading.state is FetchState.VALIDATING:
                validations.setdefault(broker, []).append(reading)
            elif reading.state is FetchState.READING and not self._requests.is_out(broker.node_id):
                fetches.setdefault(broker, []).append(reading)
        sends = [self._inquire(*each, lambda some: list_offsets(some, self.settings)) for each in resets.items()]
        sends += [self._inquire(*each, end_of_epoch) for each in validations.items()]
        sends += [self._fetch(*each, waits=each[0].node_id not in full) for each in fetches.items()]
        return sends

    @property
    def deadline(self) -> float | None:
        """What could be done before has been done, or waits for an answer, for metadata or for the user."""
        times = (time for reading in self._readings.values() for time in self._times(reading))
        return min((time for time in times if time > self._decided_at), default=None)

    def _times(self, reading: Reading) -> Iterator[float]:
        if not reading.offset_requested and not reading.held and reading.state is not FetchState.STUCK:
            leader = self._metadata.leader(*reading.tp)
            yield max(reading.retry_at, self._metadata.reachable_at(leader.node_id))

    def answered(self, send: Send, response: Message, now: float) -> None:
        if send not in self._asked:
            return  # it was abandoned
        asked = self._returned(send)
        self._metadata.reached(send.to.node_id)
        if isinstance(response, FetchResponse):
            self._fetched(send.to.node_id, asked, response, now)
        elif isinstance(response, ListOffsetsResponse):
            for offsets in response.topics:
                for listed in offsets.partitions:
                    reading = self._current(asked, TopicPartition(offsets.name, listed.partition_index))
                    if reading is not None:
                        self._listed(reading, listed, now)
        else:
            assert isinstance(response, OffsetForLeaderEpochResponse)
            for ends in response.topics:
                for end in ends.partitions:
                    reading = self._current(asked, TopicPartition(ends.topic, end.partition))
                    if reading is not None:
                        self._epoch_ended(reading, end, now)

    def failed(self, send: Send, now: float, code: ErrorCode = ErrorCode.network_exception) -> None:
        if send not in self._asked:
            return
        asked = self._returned(send)
        if code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
            self._metadata.lost(send.to.node_id, now)
        if isinstance(send.request, FetchRequest):
            self._requests.session(send.to.node_id).restart()
        if isinstance(send.request, OffsetForLeaderEpochRequest) and code is ErrorCode.unsupported_version:
            self._validates = False
        self._refuse_all(asked, code, now)

    def _returned(self, send: Send) -> _Asked:
        asked = self._asked.pop(send)
        if isinstance(send.request, FetchRequest):
            self._requests.returned(send)
        else:
            for reading, revision in asked.values():
                if reading.revision == revision:
                    reading.offset_requested = False
        return asked

    def _current(self, asked: _Asked, tp: TopicPartition) -> Reading | None:
        """The partition that an answer is for, unless the answer was overtaken. Each is answered once."""
        reading, revision = asked.pop(tp, (None, 0))
        return None if reading is None or self._overtaken(tp, (reading, revision)) else reading

    def _overtaken(self, tp: TopicPartition, asked: tuple[Reading, int]) -> bool:
        return self._readings.get(tp) is not asked[0] or asked[0].revision != asked[1]

    # Where to ask.

    def _hungry(self, reading: Reading) -> bool:
        return (
            not reading.paused
            and reading.error is None
            and reading.next.offset < reading.until
            and reading.buffered_bytes < self.settings.max_partition_fetch_bytes
        )

    def _broker(self, reading: Reading, now: float) -> Broker | None:
        if reading.state is FetchState.READING and reading.preferred != NO_NODE:
            near = self._metadata.brokers.get(reading.preferred)
            if near is not None and now < reading.preferred_until and self._metadata.reachable(near.node_id, now):
                return near
            reading.preferred = NO_NODE
        broker = self._metadata.leading_broker(*reading.tp, now)
        if broker is None:
            topic = self._metadata.topic(reading.tp.topic)
            if topic is None:
                reading.error = reading.error or self._metadata.refusal(reading.tp.topic)
            elif reading.tp.partition not in topic.leaders:
                self._metadata.refresh()
        return broker

    def _follow_leader(self, reading: Reading) -> None:
        """A leader that nobody has asked yet may know less than the last one; another topic of the same name has
        nothing of what was read."""
        topic = self._metadata.topic(reading.tp.topic)
        if topic is not None and not reading.is_of(topic.id):
            if reading.state is FetchState.RESETTING:
                reading.reset(reading.reset_to)
            elif reading.state is not FetchState.STUCK:
                self._reset(reading, f"{reading.tp}: the topic was deleted, and made again")
        if reading.state is not FetchState.READING:
            return
        epoch = self._metadata.leader(*reading.tp).epoch
        if epoch > reading.leader_epoch:
            if self._validates and reading.next.epoch != NO_EPOCH:
                reading.validate()
            else:
                reading.leader_epoch = epoch

    # Questions about offsets.

    def _inquire(self, broker: Broker, readings: list[Reading], question: Callable[[list[Reading]], Message]) -> Send:
        for reading in readings:
            reading.request_offset(self._metadata.leader(*reading.tp).epoch)
        return self._asks(Send(question(readings), broker, self.settings.request_timeout_ms / 1000), readings)

    def _asks(self, send: Send, readings: Iterable[Reading]) -> Send:
        self._asked[send] = {reading.tp: (reading, reading.revision) for reading in readings}
        return send

    def _listed(self, reading: Reading, listed: ListOffsetsPartitionResponse, now: float) -> None:
        code = code_of(listed.error_code)
        if code is not ErrorCode.none:
            self._refused(reading, code, now)
        elif listed.offset < 0:
            reading.reset(LATEST)  # nothing is as young as the time that was asked for
        else:
            reading.seek(Position(listed.offset, listed.leader_epoch))
            reading.confirmed()

    def _epoch_ended(self, reading: Reading, end: EpochEndOffset, now: float) -> None:
        code = code_of(end.error_code)
        if code is not ErrorCode.none:
            self._refused(reading, code, now)
            return
        if end.end_offset >= reading.next.offset:
            reading.confirmed()
            return
        if reading.buffer:
            # What the user has not seen is forgotten; what he has seen, if anything, is asked about next.
            reading.fetch_again()
            if reading.next.epoch == NO_EPOCH:
                reading.confirmed()
            return
        position = reading.position
        assert position is not None
        if end.end_offset < 0:
            self._reset(reading, f"{reading.tp}: the log has nothing of the epoch that was read", LogTruncated)
        elif self.settings.auto_offset_reset is None:
            message = f"{reading.tp}: offset {position.offset} was read, but the log ends at {end.end_offset}"
            reading.stick(LogTruncated(message, reading.tp, end.end_offset, ErrorCode.offset_out_of_range))
        else:
            reading.seek(Position(end.end_offset, end.leader_epoch))

    # Fetches.

    def _fetch(self, broker: Broker, readings: list[Reading], *, waits: bool) -> Send:
        wanted: dict[TopicPartition, Wanted] = {}
        for reading in readings:
            known = self._metadata.topic(reading.tp.topic)
            topic_id = known.id if known is not None else ZERO_UUID
            size = self._requests.sizes.bytes_for(reading, self.settings.max_partition_fetch_bytes)
            wanted[reading.tp] = Wanted(topic_id, reading.next.offset, reading.leader_epoch, size)
        return self._asks(self._requests.build(broker, wanted, waits=waits), readings)

    def _fetched(self, node_id: int, asked: _Asked, response: FetchResponse, now: float) -> None:
        session = self._requests.session(node_id)
        code = code_of(response.error_code)
        names = session.names()
        session.answered(code, response.session_id)
        if code not in SESSION_ERRORS:
            self._refuse_all(asked, code, now)
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for part in topic.partitions:
                tp = TopicPartition(name, part.partition_index)
                reading = self._current(asked, tp)
                if reading is None or not self._accepted(reading, part, response, now):
                    session.resend(tp)

    def _accepted(self, reading: Reading, part: PartitionData, response: FetchResponse, now: float) -> bool:
        """False: nothing of it was used."""
        code = code_of(part.error_code)
        if code is not ErrorCode.none:
            hint = Leader(part.current_leader.leader_id, part.current_leader.leader_epoch)
            hinted = self._metadata.hinted(*reading.tp, hint, response.node_endpoints)
            self._refused(reading, code, now, hinted=hinted)
            return False
        if part.preferred_read_replica != NO_NODE:
            reading.preferred = part.preferred_read_replica
            reading.preferred_until = now + self.settings.metadata_max_age_ms / 1000
            return False
        reading.high_watermark = part.high_watermark
        reading.last_stable = part.last_stable_offset
        reading.log_start = part.log_start_offset
        reading.succeeded()
        if not part.records:
            return True
        committed = self.settings.isolation_level == COMMITTED
        aborted = [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()]
        try:
            fetched = CompletedFetch(
                part.records,
                reading.next.offset,
                aborted=aborted if committed else (),
                check_crcs=self.settings.check_crcs,
                expanded_bytes_max=self.settings.expanded_bytes_max,
            )
        except Refused as refused:
            self._damaged(reading, refused, now)
            return False
        self._requests.sizes.observe(reading.tp.topic, fetched.next_offset - reading.next.offset, fetched.size)
        reading.buffer.append(fetched)
        reading.next = Position(fetched.next_offset, fetched.next_epoch)
        return True

    def _damaged(self, reading: Reading, refused: Refused, now: float) -> None:
        self._refused(reading, ErrorCode.corrupt_message, now)
        message = f"{reading.tp} at offset {reading.next.offset}: {refused.message}"
        reading.error = RecordsDamaged(message, reading.tp, reading.next.offset, refused.code)

    def _refuse_all(self, asked: _Asked, code: ErrorCode, now: float) -> None:
        for tp in list(asked):
            reading = self._current(asked, tp)
            if reading is not None:
                self._refused(reading, code, now)

    def _refused(self, reading: Reading, code: ErrorCode, now: float, *, hinted: bool = False) -> None:
        near, reading.preferred = reading.preferred, NO_NODE
        if code is ErrorCode.offset_out_of_range:
            if near == NO_NODE:  # a follower may be behind; the leader knows
                self._reset(reading, f"{reading.tp}: the log has no offset {reading.next.offset}")
            return
        if code in STALE_METADATA and not hinted:
            self._metadata.refresh()
        retriable = code in RETRIABLE or code is ErrorCode.unknown_server_error
        if not retriable and not (code is ErrorCode.unsupported_version and reading.state is FetchState.VALIDATING):
            reading.error = error_of(code, str(reading.tp))
        if reading.state is FetchState.VALIDATING and not self._validates:
            reading.confirmed()
        if not hinted:
            delay = backoff_s(reading.attempts, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
            reading.retry_at = now + delay
            reading.attempts += 1
