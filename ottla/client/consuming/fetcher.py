"""Fetcher: the consumer without its network, pure: assigned partitions in, Fetch requests and then records out.

Who speaks: the client with the leader of each partition: ListOffsets for where to begin, Fetch for records,
OffsetForLeaderEpoch after an election (`subscription_state`); or with a nearer replica that the leader names (KIP-392).
One Fetch at a time is in flight to one broker, for all its partitions of which too little is buffered.

What can be lost: nothing. The only state is the position, and the consumer coordinator commits it. A response that was
overtaken (by a seek, a new assignment, an election) is dropped, by `revision`. Records are shown in order, each once,
from the position on.
The contract with the shell stands in `core.requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ottla.client.consuming.completed_fetch import CompletedFetch
from ottla.client.consuming.fetch_requests import FetchRequests, PartitionFetch, end_of_epoch, list_offsets
from ottla.client.consuming.subscription_state import (
    ConsumerSettings,
    FetchState,
    LogTruncated,
    Position,
    RecordsDamaged,
    SubscriptionState,
    TopicPartitionState,
)
from ottla.client.core.metadata import Leader, Metadata
from ottla.client.core.requests import NO_NODE, STALE_METADATA, Node, Send, code_of
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

_States = list[TopicPartitionState]
_Asked = dict[TopicPartition, tuple[TopicPartitionState, int]]
"""The partition of a response, and the revision at which it was requested."""


class Fetcher(SubscriptionState):
    """A consumer of partitions that its caller assigns."""

    def __init__(self, metadata: Metadata, settings: ConsumerSettings | None = None) -> None:
        super().__init__(metadata, settings or ConsumerSettings())
        self._requests = FetchRequests(self.settings)
        self._asked: dict[Send, _Asked] = {}
        self._decided_at = 0.0
        self._validates = True
        """Cleared when a broker knows nothing of leader epochs."""

    def abandon(self) -> list[Node]:
        """Wait no longer for fetches that were overtaken: the connections to these brokers are to be dropped."""
        moot = {send for send, asked in self._asked.items() if all(map(self._overtaken, asked, asked.values()))}
        abandoned = self._requests.abandon(moot)
        for send in abandoned:
            del self._asked[send]
        return [send.to for send in abandoned]

    # The machine.

    def decide(self, now: float) -> list[Send]:
        self._decided_at = now
        resets: dict[Node, _States] = {}
        validations: dict[Node, _States] = {}
        fetches: dict[Node, _States] = {}
        full: set[int] = set()
        memory_left = sum(state.buffered_bytes for state in self._states.values()) < self.settings.buffered_bytes_max
        for state in self._states.values():
            self._follow_leader(state)
            if state.offset_requested or state.held or now < state.retry_at:
                continue
            if state.fetch_state is FetchState.FETCHING and not (memory_left and self._wants_records(state)):
                if state.buffer and not state.paused:
                    full.add(state.served_by(self._metadata.leader(*state.tp).node_id))
                continue
            broker = self._broker(state, now)
            if broker is None:
                continue
            if state.fetch_state is FetchState.AWAIT_RESET:
                resets.setdefault(broker, []).append(state)
            elif state.fetch_state is FetchState.AWAIT_VALIDATION:
                validations.setdefault(broker, []).append(state)
            elif state.fetch_state is FetchState.FETCHING and not self._requests.is_out(broker.node_id):
                fetches.setdefault(broker, []).append(state)
        to_reset = partial(list_offsets, settings=self.settings)
        sends = [self._request_offsets(*each, to_reset) for each in resets.items()]
        sends += [self._request_offsets(*each, end_of_epoch) for each in validations.items()]
        sends += [self._fetch(*each, waits=each[0].node_id not in full) for each in fetches.items()]
        return sends

    @property
    def deadline(self) -> float | None:
        """What could be done before has been done, or waits for an answer, for metadata or for the user."""
        times = (time for state in self._states.values() for time in self._times(state))
        return min((time for time in times if time > self._decided_at), default=None)

    def _times(self, state: TopicPartitionState) -> Iterator[float]:
        if not state.offset_requested and not state.held and state.fetch_state is not FetchState.STUCK:
            leader = self._metadata.leader(*state.tp)
            yield max(state.retry_at, self._metadata.reachable_at(leader.node_id))

    def answered(self, send: Send, response: Message, now: float) -> None:
        if send not in self._asked:
            return  # it was abandoned
        asked = self._returned(send)
        self._metadata.reached(send.to.node_id)
        if isinstance(response, FetchResponse):
            self._fetched(send.to.node_id, asked, response, now)
        elif isinstance(response, ListOffsetsResponse):
            for tp, listed in [((t.name, p.partition_index), p) for t in response.topics for p in t.partitions]:
                if (state := self._current(asked, TopicPartition(*tp))) is not None:
                    self._listed(state, listed, now)
        else:
            assert isinstance(response, OffsetForLeaderEpochResponse)
            for tp, end in [((t.topic, p.partition), p) for t in response.topics for p in t.partitions]:
                if (state := self._current(asked, TopicPartition(*tp))) is not None:
                    self._epoch_ended(state, end, now)

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
            for state, revision in asked.values():
                if state.revision == revision:
                    state.offset_requested = False
        return asked

    def _current(self, asked: _Asked, tp: TopicPartition) -> TopicPartitionState | None:
        """The partition that an answer is for, unless the answer was overtaken. Each is answered once."""
        state, revision = asked.pop(tp, (None, 0))
        return None if state is None or self._overtaken(tp, (state, revision)) else state

    def _overtaken(self, tp: TopicPartition, asked: tuple[TopicPartitionState, int]) -> bool:
        return self._states.get(tp) is not asked[0] or asked[0].revision != asked[1]

    # Where to ask.

    def _wants_records(self, state: TopicPartitionState) -> bool:
        return (
            not state.paused
            and state.error is None
            and state.next.offset < state.until
            and state.buffered_bytes < self.settings.max_partition_fetch_bytes
        )

    def _broker(self, state: TopicPartitionState, now: float) -> Node | None:
        if state.fetch_state is FetchState.FETCHING and state.preferred != NO_NODE:
            near = self._metadata.brokers.get(state.preferred)
            if near is not None and now < state.preferred_until and self._metadata.reachable(near.node_id, now):
                return near
            state.preferred = NO_NODE
        broker = self._metadata.leading_broker(*state.tp, now)
        if broker is None:
            topic = self._metadata.topic(state.tp.topic)
            if topic is None:
                state.error = state.error or self._metadata.refusal(state.tp.topic)
            elif state.tp.partition not in topic.leaders:
                self._metadata.refresh()
        return broker

    def _follow_leader(self, state: TopicPartitionState) -> None:
        """A new leader may have fewer records than the last one; a recreated topic has none of the records that were
        read."""
        topic = self._metadata.topic(state.tp.topic)
        if topic is not None and not state.is_of(topic.id):
            if state.fetch_state is FetchState.AWAIT_RESET:
                state.reset(state.reset_to)
            elif state.fetch_state is not FetchState.STUCK:
                self._reset(state, f"{state.tp}: the topic was deleted, and made again")
        if state.fetch_state is not FetchState.FETCHING:
            return
        epoch = self._metadata.leader(*state.tp).epoch
        if epoch > state.leader_epoch:
            if self._validates and state.next.epoch != NO_EPOCH:
                state.validate()
            else:
                state.leader_epoch = epoch

    # Questions about offsets.

    def _request_offsets(self, broker: Node, states: _States, question: Callable[[_States], Message]) -> Send:
        for state in states:
            state.request_offset(self._metadata.leader(*state.tp).epoch)
        return self._asks(Send(question(states), broker, self.settings.request_timeout_s), states)

    def _asks(self, send: Send, states: Iterable[TopicPartitionState]) -> Send:
        self._asked[send] = {state.tp: (state, state.revision) for state in states}
        return send

    def _listed(self, state: TopicPartitionState, listed: ListOffsetsPartitionResponse, now: float) -> None:
        code = code_of(listed.error_code)
        if code is not ErrorCode.none:
            self._refused(state, code, now)
        elif listed.offset < 0:
            state.reset(LATEST)  # nothing is as young as the time that was asked for
        else:
            state.seek(Position(listed.offset, listed.leader_epoch))
            state.confirmed()

    def _epoch_ended(self, state: TopicPartitionState, end: EpochEndOffset, now: float) -> None:
        code = code_of(end.error_code)
        if code is not ErrorCode.none:
            self._refused(state, code, now)
            return
        if end.end_offset >= state.next.offset:
            state.confirmed()
            return
        if state.buffer:
            # Buffered records are dropped; the position, if there is one, is validated next.
            state.fetch_again()
            if state.next.epoch == NO_EPOCH:
                state.confirmed()
            return
        position = state.position
        assert position is not None
        if end.end_offset < 0:
            self._reset(state, f"{state.tp}: the log has nothing of the epoch that was read", LogTruncated)
        elif self.settings.auto_offset_reset is None:
            message = f"{state.tp}: offset {position.offset} was read, but the log ends at {end.end_offset}"
            state.stick(LogTruncated(message, state.tp, end.end_offset, ErrorCode.offset_out_of_range))
        else:
            state.seek(Position(end.end_offset, end.leader_epoch))

    # Fetches.

    def _fetch(self, broker: Node, states: _States, *, waits: bool) -> Send:
        wanted: dict[TopicPartition, PartitionFetch] = {}
        for state in states:
            known = self._metadata.topic(state.tp.topic)
            topic_id = known.id if known is not None else ZERO_UUID
            size = self._requests.sizes.bytes_for(state, self.settings.max_partition_fetch_bytes)
            wanted[state.tp] = PartitionFetch(topic_id, state.next.offset, state.leader_epoch, size)
        return self._asks(self._requests.build(broker, wanted, waits=waits), states)

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
                state = self._current(asked, tp)
                if state is None or not self._accepted(state, part, response, now):
                    session.resend(tp)

    def _accepted(self, state: TopicPartitionState, part: PartitionData, response: FetchResponse, now: float) -> bool:
        """False: nothing of it was used."""
        code = code_of(part.error_code)
        if code is not ErrorCode.none:
            hint = Leader(part.current_leader.leader_id, part.current_leader.leader_epoch)
            hinted = self._metadata.hinted(*state.tp, hint, response.node_endpoints)
            self._refused(state, code, now, hinted=hinted)
            return False
        if part.preferred_read_replica != NO_NODE:
            state.preferred = part.preferred_read_replica
            state.preferred_until = now + self.settings.metadata_max_age_ms / 1000
            return False
        state.high_watermark = part.high_watermark
        state.last_stable = part.last_stable_offset
        state.log_start = part.log_start_offset
        state.succeeded()
        if not part.records:
            return True
        committed = self.settings.isolation_level == COMMITTED
        aborted = [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()]
        try:
            fetched = CompletedFetch(
                part.records,
                state.next.offset,
                aborted=aborted if committed else (),
                check_crcs=self.settings.check_crcs,
                expanded_bytes_max=self.settings.expanded_bytes_max,
            )
        except Refused as refused:
            self._damaged(state, refused, now)
            return False
        self._requests.sizes.observe(state.tp.topic, fetched.next_offset - state.next.offset, fetched.size)
        state.buffer.append(fetched)
        state.next = Position(fetched.next_offset, fetched.next_epoch)
        return True

    def _damaged(self, state: TopicPartitionState, refused: Refused, now: float) -> None:
        self._refused(state, ErrorCode.corrupt_message, now)
        message = f"{state.tp} at offset {state.next.offset}: {refused.message}"
        state.error = RecordsDamaged(message, state.tp, state.next.offset, refused.code)

    def _refuse_all(self, asked: _Asked, code: ErrorCode, now: float) -> None:
        for tp in list(asked):
            state = self._current(asked, tp)
            if state is not None:
                self._refused(state, code, now)

    def _refused(self, state: TopicPartitionState, code: ErrorCode, now: float, *, hinted: bool = False) -> None:
        near, state.preferred = state.preferred, NO_NODE
        if code is ErrorCode.offset_out_of_range:
            if near == NO_NODE:  # a follower may be behind; the leader knows
                self._reset(state, f"{state.tp}: the log has no offset {state.next.offset}")
            return
        if code in STALE_METADATA and not hinted:
            self._metadata.refresh()
        retriable = code in RETRIABLE or code is ErrorCode.unknown_server_error
        validating = state.fetch_state is FetchState.AWAIT_VALIDATION
        if not retriable and not (code is ErrorCode.unsupported_version and validating):
            state.error = error_of(code, str(state.tp))
        if validating and not self._validates:
            state.confirmed()
        if not hinted:
            state.retry_at = now + self.settings.retry_backoff_s(state.attempts)
            state.attempts += 1
