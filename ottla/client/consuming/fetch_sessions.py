"""The client's side of incremental fetch sessions (KIP-227), one for each broker that is fetched from.

The first request names every partition and opens a session; later ones name only what changed, and what is to be
forgotten. Both sides count the requests: when they disagree, or the broker has forgotten the session, the client opens
another. A broker that has no room for sessions answers with id 0, and is named every partition every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.wire.tree import ZERO_UUID

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
OUTSIDE: Final = -1
"""The epoch of a request that belongs to no session."""
EPOCH_MAX: Final = 2**31 - 1
TOPIC_NAMES_UNTIL: Final = 12
"""The last version of Fetch that names topics; later ones need their ids."""

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)
"""After these a whole fetch is simply asked for again, in a new session."""


class Wanted(NamedTuple):
    """What to fetch of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    bytes_max: int


class FetchSession:
    """What one broker has been told."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH if enabled else OUTSIDE
        self.by_id = True
        """Whether topics go by their ids; within one session they all do, or none."""
        self._told: dict[TopicPartition, Wanted] = {}
        self._again: set[TopicPartition] = set()
        """To be told once more, although it is the same."""

    def fill(self, request: FetchRequest, wanted: Mapping[TopicPartition, Wanted]) -> None:
        """Say in the request what has changed since the last one, or everything."""
        by_id = all(entry.topic_id != ZERO_UUID for entry in wanted.values())
        remade = any(place in wanted and wanted[place].topic_id != told.topic_id for place, told in self._told.items())
        if by_id != self.by_id or remade:
            # Ids became known, or a topic was deleted and made anew: rare enough to begin from the start.
            self._restart()
        self.by_id = by_id
        told = {} if self.epoch in (FIRST_EPOCH, OUTSIDE) else self._told
        topics: dict[str, FetchTopic] = {}
        for place, entry in wanted.items():
            if told.get(place) == entry and place not in self._again:
                continue
            topic = topics.get(place.topic)
            if topic is None:
                topic = topics[place.topic] = FetchTopic(topic=place.topic, topic_id=entry.topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=place.partition,
                    current_leader_epoch=entry.leader_epoch,
                    fetch_offset=entry.offset,
                    partition_max_bytes=entry.bytes_max,
                )
            )
        forgotten: dict[str, ForgottenTopic] = {}
        for place, entry in told.items():
            if place not in wanted:
                gone = forgotten.setdefault(place.topic, ForgottenTopic(topic=place.topic, topic_id=entry.topic_id))
                gone.partitions.append(place.partition)
        request.session_id = self.id
        request.session_epoch = self.epoch
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(forgotten.values())
        self._told = dict(wanted)
        self._again.clear()

    def names(self) -> dict[bytes, str]:
        """What the topics are called that the last request wanted."""
        return {entry.topic_id: place.topic for place, entry in self._told.items()}

    def tell_again(self, place: TopicPartition) -> None:
        """What the broker answered for it was not used: it must not believe that we have it."""
        self._again.add(place)

    def answered(self, code: ErrorCode, session_id: int) -> None:
        if self.epoch == OUTSIDE:
            return
        if code is not ErrorCode.none:
            if code is ErrorCode.fetch_session_id_not_found:
                self.id = NO_SESSION
            self._restart()
        elif session_id == NO_SESSION:
            self.id = NO_SESSION
            self._restart()
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def failed(self) -> None:
        """Nobody knows whether the broker has counted the request."""
        self._restart()

    def _restart(self) -> None:
        """The next request opens another session, and closes this one by naming it."""
        if self.epoch != OUTSIDE:
            self.epoch = FIRST_EPOCH
        self._told.clear()
        self._again.clear()
