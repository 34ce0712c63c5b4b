"""The consumer without its network: assigned partitions in, Fetch requests and then records out, pure.

Who speaks: the client with the leader of each partition: ListOffsets for where to begin, Fetch for records,
OffsetForLeaderEpoch after an election (`positions`); or with a nearer replica that the leader names (KIP-392). One
fetch at a time is out to one broker, and asks for all its partitions of which too little is buffered.

What can be lost: nothing. The position is all there is to remember, and whoever assigns partitions keeps it safe. An
answer that was overtaken (by a seek, a new assignment, an election) is dropped; `turn` tells. Records are shown in
order, each once, from the position on.
The contract with the shell stands in `routing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from ottla.client.embedded import TopicPartition
from ottla.client.errors import ClientError, error_of
from ottla.client.fetch_requests import FetchRequests
from ottla.client.fetch_sessions import SESSION_ERRORS, Wanted
from ottla.client.fetched import Fetched
from ottla.client.positions import (
    COMMITTED,
    LATEST,
    NO_LIMIT,
    ConsumerSettings,
    LogTruncated,
    OffsetOutOfRange,
    Position,
    PositionError,
    Reading,
    RecordsDamaged,
    State,
    end_of_epoch,
    list_offsets,
)
from ottla.client.routing import NO_EPOCH, NO_NODE, STALE_ROUTE, Broker, Leader, Routing, Send, backoff_s, code_of
from ottla.errors import RETRIABLE, ErrorCode, Refused
from ottla.wire.records import Record
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


class Fetcher:
    """A consumer of partitions that somebody else assigns."""

    def __init__(self, routing: Routing, settings: ConsumerSettings | None = None) -> None:
        self.settings = settings or ConsumerSettings()
        self._routing = routing
        self._readings: dict[TopicPartition, Reading] = {}
        """In the order in which they are served: whoever gave records goes to the end."""
        self._requests = FetchRequests(self.settings)
        self._asked: dict[Send, _Asked] = {}
        self._decided_at = 0.0
        self._validates = True
        """Cleared when a broker knows nothing of leader epochs."""

    # What the user wants.

    def assign(self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, Position] | None = None
               ) -> None:  # fmt: skip
        """Read these and no others. Those that stay go on where they are, unless a position is given; new ones
        without a position begin where the policy says."""
        before = self._readings
        self._readings = {}
        for place in partitions:
            reading = before.get(place)
            position = (positions or {}).get(place)
            if reading is None:
                reading = Reading(place)
                self._routing.want(place.topic)
                if position is None:
                    self._reset(reading, f"{place}: there is no position to begin at")
            if position is not None:
                reading.seek(position)
            self._readings[place] = reading

    def assigned(self) -> list[TopicPartition]:
        return list(self._readings)

    def seek(self, place: TopicPartition, offset: int, epoch: int = NO_EPOCH, *, until: int = NO_LIMIT) -> None:
        """`until`: fetch nothing from there on."""
        reading = self._reading(place)
        reading.seek(Position(offset, epoch))
        reading.until = until

    def seek_to(self, place: TopicPartition, time: int) -> None:
        """To EARLIEST, LATEST, or the first record not older than a time in ms."""
        self._reading(place).reset(time)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """What is buffered stays, and is not shown."""
        for place in partitions:
            self._reading(place).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for place in partitions:
            self._reading(place).paused = False

    def limit(self, until: Mapping[TopicPartition, int]) -> None:
        """Fetch nothing from these offsets on; of the other partitions whatever there is."""
        for place, reading in self._readings.items():
            reading.until = until.get(place, NO_LIMIT)

    def abandon(self) -> list[Broker]:
        """Wait no longer for fetches that were overtaken: the connections to these brokers are to be dropped."""
        moot = {send for send, asked in self._asked.items() if all(map(self._overtaken, asked, asked.values()))}
        abandoned = self._requests.abandon(moot)
        for send in abandoned:
            del self._asked[send]
        return [send.to for send in abandoned]

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Neither ask nor show anything of them until `release`; positions stay, and may be set."""
        for place in partitions:
            self._reading(place).held = True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        for place in partitions:
            if place in self._readings:
                self._readings[place].held = False

    def turn(self, place: TopicPartition) -> int:
        """Rises when the position is set: whoever found out a position in the meantime is too late then."""
        return self._readings[place].turn if place in self._readings else -1

    def paused(self) -> list[TopicPartition]:
        return [place for place, reading in self._readings.items() if reading.paused]

    def position(self, place: TopicPartition) -> Position | None:
        """Of the next record to be shown; None until it is known."""
        return self._reading(place).position

    def topic_id(self, place: TopicPartition) -> bytes:
        return self._reading(place).topic_id

    def high_watermark(self, place: TopicPartition) -> int | None:
        return at if (at := self._reading(place).high_watermark) >= 0 else None

    def lag(self, place: TopicPartition) -> int | None:
        """How many offsets there are from the position to the end of what may be read, as of the last answer."""
        reading = self._reading(place)
        limit = reading.last_stable if self.settings.isolation_level == COMMITTED else reading.high_watermark
        return None if reading.position is None or limit < 0 else max(0, limit - reading.position.offset)

    def _reading(self, place: TopicPartition) -> Reading:
        reading = self._readings.get(place)
        if reading is None:
            raise ClientError(f"{place} is not assigned to this consumer")
        return reading

    # Out: records.

    def take(self, records_max: int, among: Collection[TopicPartition] = ()) -> dict[TopicPartition, list[Record]]:
        """Records that have come, and the position moves behind them. A ClientError comes only when there are none."""
        return self.take_by(Fetched.take, len, records_max, among)

    def take_by(
        self,
        take: Callable[[Fetched, int], list[T]],
        amount: Callable[[list[T]], int],
        limit: int,
        among: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, list[T]]:
        """The same with another way to take, and to count what was taken."""
        taken: dict[TopicPartition, list[T]] = {}
        error: ClientError | None = None
        for place, reading in list(self._readings.items()):
            if limit <= 0:
                break
            if reading.paused or reading.held or (among and place not in among):
                continue
            try:
                part = self._taken(reading, take, amount, limit)
            except ClientError as failure:
                error = error or failure
                continue
            if part:
                taken[place] = part
                limit -= amount(part)
                self._readings[place] = self._readings.pop(place)
        if error is not None and not taken:
            raise error
        return taken

    def _taken(
        self, reading: Reading, take: Callable[[Fetched, int], list[T]], amount: Callable[[list[T]], int], limit: int
    ) -> list[T]:
        taken: list[T] = []
        while reading.buffer and (left := limit - amount(taken)) > 0:
            fetched = reading.buffer[0]
            try:
                taken += take(fetched, left)
            except Refused as refused:
                if taken:
                    break
                reading.fetch_again()
                message = f"{reading.place} at offset {fetched.position}: {refused.message}"
                raise RecordsDamaged(message, reading.place, fetched.position, refused.code) from None
            assert reading.position is not None
            epoch = fetched.epoch if fetched.epoch != NO_EPOCH else reading.position.epoch
            reading.position = Position(fetched.position, epoch)
            if fetched.exhausted:
                reading.buffer.popleft()
        if not taken and reading.error is not None:
            error = reading.error
            if reading.state is not State.STUCK:
                reading.error = None  # told once, then tried again
            raise error
        return taken

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
            if reading.asking or reading.held or now < reading.retry_at:
                continue
            if reading.state is State.READING and not (room and self._hungry(reading)):
                if reading.buffer and not reading.paused:
                    full.add(reading.served_by(self._routing.leader(*reading.place).node_id))
                continue
            broker = self._broker(reading, now)
            if broker is None:
                continue
            if reading.state is State.RESETTING:
                resets.setdefault(broker, []).append(reading)
            elif reading.state is State.VALIDATING:
                validations.setdefault(broker, []).append(reading)
            elif reading.state is State.READING and not self._requests.is_out(broker.node_id):
                fetches.setdefault(broker, []).append(reading)
        sends = [self._inquire(*each, lambda some: list_offsets(some, self.settings)) for each in resets.items()]
        sends += [self._inquire(*each, end_of_epoch) for each in validations.items()]
        sends += [self._fetch(*each, waits=each[0].node_id not in full) for each in fetches.items()]
        return sends

    @property
    def deadline(self) -> float | None:
        """What could be done before has been done, or waits for an answer, for routing or for the user."""
        times = (time for reading in self._readings.values() for time in self._times(reading))
        return min((time for time in times if time > self._decided_at), default=None)

    def _times(self, reading: Reading) -> Iterator[float]:
        if not reading.asking and not reading.held and reading.state is not State.STUCK:
            leader = self._routing.leader(*reading.place)
            yield max(reading.retry_at, self._routing.reachable_at(leader.node_id))

    def answered(self, send: Send, response: Message, now: float) -> None:
        if send not in self._asked:
            return  # it was abandoned
        asked = self._returned(send)
        self._routing.reached(send.to.node_id)
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
            self._routing.lost(send.to.node_id, now)
        if isinstance(send.request, FetchRequest):
            self._requests.session(send.to.node_id).failed()
        if isinstance(send.request, OffsetForLeaderEpochRequest) and code is ErrorCode.unsupported_version:
            self._validates = False
        for place in list(asked):
            reading = self._current(asked, place)
            if reading is not None:
                self._refused(reading, code, now)

    def _returned(self, send: Send) -> _Asked:
        asked = self._asked.pop(send)
        if isinstance(send.request, FetchRequest):
            self._requests.returned(send)
        else:
            for reading, turn in asked.values():
                if reading.turn == turn:
                    reading.asking = False
        return asked

    def _current(self, asked: _Asked, place: TopicPartition) -> Reading | None:
        """The partition that an answer is for, unless the answer was overtaken. Each is answered once."""
        reading, turn = asked.pop(place, (None, 0))
        return None if reading is None or self._overtaken(place, (reading, turn)) else reading

    def _overtaken(self, place: TopicPartition, asked: tuple[Reading, int]) -> bool:
        return self._readings.get(place) is not asked[0] or asked[0].turn != asked[1]

    # Where to ask.

    def _hungry(self, reading: Reading) -> bool:
        return (
            not reading.paused
            and reading.error is None
            and reading.next.offset < reading.until
            and reading.buffered_bytes < self.settings.max_partition_fetch_bytes
        )

    def _broker(self, reading: Reading, now: float) -> Broker | None:
        if reading.state is State.READING and reading.preferred != NO_NODE:
            near = self._routing.brokers.get(reading.preferred)
            if near is not None and now < reading.preferred_until and self._routing.reachable(near.node_id, now):
                return near
            reading.preferred = NO_NODE
        broker = self._routing.leading_broker(*reading.place, now)
        if broker is None:
            topic = self._routing.topic(reading.place.topic)
            if topic is None:
                reading.error = reading.error or self._routing.refusal(reading.place.topic)
            elif reading.place.partition not in topic.leaders:
                self._routing.refresh()
        return broker

    def _follow_leader(self, reading: Reading) -> None:
        """A leader that nobody has asked yet may know less than the last one; another topic of the same name has
        nothing of what was read."""
        topic = self._routing.topic(reading.place.topic)
        if topic is not None and not reading.is_of(topic.id):
            if reading.state is State.RESETTING:
                reading.reset(reading.reset_to)
            elif reading.state is not State.STUCK:
                self._reset(reading, f"{reading.place}: the topic was deleted, and made again")
        if reading.state is not State.READING:
            return
        epoch = self._routing.leader(*reading.place).epoch
        if epoch > reading.leader_epoch:
            if self._validates and reading.next.epoch != NO_EPOCH:
                reading.validate()
            else:
                reading.leader_epoch = epoch

    # Questions about offsets.

    def _inquire(self, broker: Broker, readings: list[Reading], question: Callable[[list[Reading]], Message]) -> Send:
        for reading in readings:
            reading.ask(self._routing.leader(*reading.place).epoch)
        return self._asks(Send(question(readings), broker, self.settings.request_timeout_ms / 1000), readings)

    def _asks(self, send: Send, readings: Iterable[Reading]) -> Send:
        self._asked[send] = {reading.place: (reading, reading.turn) for reading in readings}
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
            self._reset(reading, f"{reading.place}: the log has nothing of the epoch that was read", LogTruncated)
        elif self.settings.auto_offset_reset is None:
            message = f"{reading.place}: offset {position.offset} was read, but the log ends at {end.end_offset}"
            reading.stick(LogTruncated(message, reading.place, end.end_offset, ErrorCode.offset_out_of_range))
        else:
            reading.seek(Position(end.end_offset, end.leader_epoch))

    def _reset(self, reading: Reading, why: str, error: type[PositionError] = OffsetOutOfRange) -> None:
        offset = reading.position.offset if reading.position else -1
        if self.settings.auto_offset_reset is None:
            reading.stick(error(why, reading.place, offset, ErrorCode.offset_out_of_range))
        else:
            reading.reset(self.settings.auto_offset_reset)

    # Fetches.

    def _fetch(self, broker: Broker, readings: list[Reading], *, waits: bool) -> Send:
        wanted: dict[TopicPartition, Wanted] = {}
        for reading in readings:
            known = self._routing.topic(reading.place.topic)
            topic_id = known.id if known is not None else ZERO_UUID
            size = self._requests.sizes.bytes_for(reading, self.settings.max_partition_fetch_bytes)
            wanted[reading.place] = Wanted(topic_id, reading.next.offset, reading.leader_epoch, size)
        return self._asks(self._requests.build(broker, wanted, waits=waits), readings)

    def _fetched(self, node_id: int, asked: _Asked, response: FetchResponse, now: float) -> None:
        session = self._requests.session(node_id)
        code = code_of(response.error_code)
        names = session.names()
        session.answered(code, response.session_id)
        if code not in SESSION_ERRORS:
            for place in list(asked):
                reading = self._current(asked, place)
                if reading is not None:
                    self._refused(reading, code, now)
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for part in topic.partitions:
                place = TopicPartition(name, part.partition_index)
                reading = self._current(asked, place)
                if reading is None or not self._accepted(reading, part, response, now):
                    session.tell_again(place)

    def _accepted(self, reading: Reading, part: PartitionData, response: FetchResponse, now: float) -> bool:
        """False: nothing of it was used."""
        code = code_of(part.error_code)
        if code is not ErrorCode.none:
            hint = Leader(part.current_leader.leader_id, part.current_leader.leader_epoch)
            hinted = self._routing.hinted(*reading.place, hint, response.node_endpoints)
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
            fetched = Fetched(
                part.records,
                reading.next.offset,
                aborted=aborted if committed else (),
                check_crcs=self.settings.check_crcs,
                expanded_bytes_max=self.settings.expanded_bytes_max,
            )
        except Refused as refused:
            self._damaged(reading, refused, now)
            return False
        self._requests.sizes.observe(reading.place.topic, fetched.next_offset - reading.next.offset, fetched.size)
        reading.buffer.append(fetched)
        reading.next = Position(fetched.next_offset, fetched.next_epoch)
        return True

    def _damaged(self, reading: Reading, refused: Refused, now: float) -> None:
        self._refused(reading, ErrorCode.corrupt_message, now)
        message = f"{reading.place} at offset {reading.next.offset}: {refused.message}"
        reading.error = RecordsDamaged(message, reading.place, reading.next.offset, refused.code)

    def _refused(self, reading: Reading, code: ErrorCode, now: float, *, hinted: bool = False) -> None:
        near, reading.preferred = reading.preferred, NO_NODE
        if code is ErrorCode.offset_out_of_range:
            if near == NO_NODE:  # a follower may be behind; the leader knows
                self._reset(reading, f"{reading.place}: the log has no offset {reading.next.offset}")
            return
        if code in STALE_ROUTE and not hinted:
            self._routing.refresh()
        retriable = code in RETRIABLE or code is ErrorCode.unknown_server_error
        if not retriable and not (code is ErrorCode.unsupported_version and reading.state is State.VALIDATING):
            reading.error = error_of(code, str(reading.place))
        if reading.state is State.VALIDATING and not self._validates:
            reading.confirmed()
        if not hinted:
            delay = backoff_s(reading.attempts, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
            reading.retry_at = now + delay
            reading.attempts += 1
