"""Member of a consumer group (KIP-848, ConsumerGroupHeartbeat), pure.

Who speaks: members with the coordinator only, and only in heartbeats. The coordinator makes the assignment.
A heartbeat carries the member's epoch and the fields that have changed since the last one. Its response carries the
next epoch, the time until the next heartbeat and, if it changed, the assignment. The member reconciles by itself: it
revokes partitions, takes new ones, and reports both in the next heartbeat. Only then does the coordinator assign the
revoked partitions to other members. There is no rebalance of all members: the others are not interrupted.

    UNJOINED ──► JOINING ──► STABLE ◄──► RECONCILING (the user's callback runs) ──► ACKNOWLEDGING ──► STABLE
    any of them ──► LEAVING ──► UNJOINED or closed

Epochs: 0 asks to join, -1 leaves, -2 leaves for a while (a static member that will be back). A member whose epoch is
not the one that the coordinator has for it is fenced: it loses its partitions, and rejoins. Nothing here is durable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final

from ottla.client.core.find_coordinator import COORDINATOR_MOVED
from ottla.client.core.requests import code_of
from ottla.client.group.member import Action, Lose, MemberMachine, MemberSettings, NameTopics, Revoke
from ottla.client.values import TopicPartition
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ottla.wire.topic_partition import by_topic
from ottla.wire.tree import Message

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
FENCED: Final = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id})

Target = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class ConsumerState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    LEAVING = "leaving"


class ConsumerMember(MemberMachine):
    def __init__(self, settings: MemberSettings, member_id: str, *, server_assignor: str | None = None) -> None:
        """The member generates its id, a random uuid, and keeps it for life."""
        super().__init__(settings)
        self.member_id = member_id
        self.server_assignor = server_assignor
        self.state = ConsumerState.UNJOINED
        self.epoch = JOIN_EPOCH
        self.topics: frozenset[str] = frozenset()
        self.pattern: str | None = None
        self._target: Target | None = None
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        """Of the topics owned. One that was deleted and made again has the same name and is another."""
        self._naming: NameTopics | None = None
        self._newly_joined = False
        self._reported: tuple[frozenset[str], str | None] | None = None
        """The subscription the coordinator knows; None when everything must be sent again."""
        self._reported_owned: frozenset[TopicPartition] | None = None
        self._interval_s = 0.0
        self._heartbeat_at = 0.0

    # What happened.

    def subscribe(self, topics: Collection[str], now: float) -> list[Action]:
        return self._subscribe(frozenset(topics), None, now) if topics else self.unsubscribe(now)

    def subscribe_pattern(self, pattern: str, now: float) -> list[Action]:
        """To every topic whose whole name the pattern (RE2) matches; the coordinator does the matching."""
        return self._subscribe(frozenset(), pattern, now)

    def _subscribe(self, topics: frozenset[str], pattern: str | None, now: float) -> list[Action]:
        self._polled_at = now
        self.topics, self.pattern = topics, pattern
        self._leave_requested = self._closing
        return self._decided(now)

    def named(self, asked: NameTopics, names: Mapping[bytes, str], now: float) -> list[Action]:
        """Names of the topic ids, from the metadata. Unknown ids are requested again."""
        if asked is self._naming:
            self._naming = None
            self._names.update(names)
            if not asked.ids <= names.keys():
                self._back_off(now)
        return self._decided(now)

    def commit_refused(self, code: ErrorCode, epoch: int, now: float) -> list[Action]:
        """A commit, made with this epoch, shows as well as a heartbeat that the member was fenced."""
        if epoch == self.epoch and self._joined() and code in FENCED:
            self._fenced()
        return self._decided(now)

    def _answered(self, request: Message, response: Message, now: float) -> None:
        if request is not self._request or not isinstance(response, ConsumerGroupHeartbeatResponse):
            return
        self._request = None
        code = code_of(response.error_code)
        if self.state is ConsumerState.LEAVING:
            self._left_group()
        elif code is ErrorCode.none:
            self._heartbeat_answered(response, now)
        elif code in FENCED:
            self._fenced()
        else:
            self._reported = self._reported_owned = None
            if code in COORDINATOR_MOVED:
                self._lose_coordinator(now)
            elif code in RETRIABLE:
                self._back_off(now)
            else:
                self._fail(code, response.error_message)

    def _failed(self, request: Message, now: float) -> None:
        if request is not self._request:
            return
        self._request = None
        if self.state is ConsumerState.LEAVING:
            self._left_group()
        else:
            self._reported = self._reported_owned = None
            self._lose_coordinator(now)

    def _called_back(self, now: float) -> None:
        """Nothing to note here: `_advance` continues with the owned partitions."""

    # What comes next.

    def _advance(self, now: float) -> None:
        if self._giving_up is None:
            if self.owned and not self._joined():
                self._give_up(Lose(self.owned))
            elif self._leave_requested:
                self._begin_leave()
            elif self._target is not None:
                self._reconcile(now)
        if self._may_speak() and not self._waits(now):
            if self.coordinator is None:
                self._find_coordinator()
            elif now >= self._heartbeat_at or self._news():
                self._send_heartbeat()

    def _may_speak(self) -> bool:
        """A member sends heartbeats until it leaves. Before a fenced member rejoins, the application must know the lost
        partitions."""
        if self._joined():
            return True
        wanted = bool(self.topics or self.pattern) and not self.away and not self._leave_requested
        return wanted and self.state is not ConsumerState.LEAVING and self._giving_up is None

    def _reconcile(self, now: float) -> None:
        """Towards the target: first give up, then take, then say so."""
        assert self._target is not None
        unnamed = self._target.keys() - self._names.keys()
        if unnamed and self._naming is None and now >= self._retry_at:
            self._naming = NameTopics(frozenset(unnamed))
            self._out.append(self._naming)
        ids = {self._names[topic_id]: topic_id for topic_id in self._target if topic_id in self._names}
        shall = frozenset(
            TopicPartition(name, partition) for name, topic_id in ids.items() for partition in self._target[topic_id]
        )
        kept = frozenset(tp for tp in self.owned & shall if self._ids[tp.topic] == ids[tp.topic])
        if kept != self.owned:
            self.state = ConsumerState.RECONCILING
            self._give_up(Revoke(self.owned - kept))
            return
        self._ids = ids
        coming = shall - kept
        if coming or (self._newly_joined and not unnamed):
            self._newly_joined = False
            self._take(coming)
        if not unnamed:
            self._target = None
        if self.owned != self._reported_owned:
            self.state = ConsumerState.ACKNOWLEDGING
        elif self._target is None:
            self.state = ConsumerState.STABLE

    def _news(self) -> bool:
        """Whether there is something to say that cannot wait."""
        return (
            self._subscription_changed()
            or self._reported_owned is None
            or (self.state is ConsumerState.ACKNOWLEDGING and self.owned != self._reported_owned)
        )

    def _subscription_changed(self) -> bool:
        """A member that is about to leave reports no subscription."""
        return not self._leave_requested and self._reported != (self.topics, self.pattern)

    def _send_heartbeat(self) -> None:
        joining = not self._joined()
        everything = joining or self._reported is None
        if joining:
            self.state = ConsumerState.JOINING
        settings = self.settings
        request = ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=settings.group_instance_id,
            rack_id=settings.client_rack if everything else None,
            rebalance_timeout_ms=settings.max_poll_interval_ms if everything else -1,
            server_assignor=self.server_assignor if everything else None,
            topic_partitions=None,
        )
        if everything or self._subscription_changed():
            request.subscribed_topic_names = sorted(self.topics)
            had_pattern = self._reported is not None and self._reported[1] is not None
            request.subscribed_topic_regex = self.pattern or ("" if had_pattern else None)
            self._reported = self.topics, self.pattern
        if everything or self.owned != self._reported_owned:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=self._ids[topic], partitions=partitions)
                for topic, partitions in by_topic(self.owned).items()
            ]
            self._reported_owned = self.owned
        self._request = self._send(request)

    def _heartbeat_answered(self, response: ConsumerGroupHeartbeatResponse, now: float) -> None:
        self._succeeded()
        self._interval_s = response.heartbeat_interval_ms / 1000
        self._heartbeat_at = now + self._interval_s
        if not self._joined():
            self._newly_joined = True
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self._target = {
                topic.topic_id: frozenset(topic.partitions) for topic in response.assignment.topic_partitions
            }
        acknowledged = self.state is ConsumerState.ACKNOWLEDGING and self.owned == self._reported_owned
        if acknowledged or self.state is ConsumerState.JOINING:
            self.state = ConsumerState.STABLE

    def _deadlines(self) -> Iterable[float]:
        if self._joined() and self._request is None and self.coordinator is not None:
            yield max(self._heartbeat_at, self._retry_at)

    # Ways out.

    def _fenced(self) -> None:
        self._request = None
        self._forget()
        self.state = ConsumerState.UNJOINED

    def _forget(self) -> None:
        self.epoch = JOIN_EPOCH
        self._target = None
        self._naming = None
        self._reported = self._reported_owned = None
        self._heartbeat_at = 0.0

    def _joined(self) -> bool:
        return self.epoch > JOIN_EPOCH

    def _forget_subscription(self) -> None:
        self.topics, self.pattern = frozenset(), None

    def _begin_leave(self) -> None:
        if self.state is ConsumerState.LEAVING:
            return
        if self.owned:
            self._give_up(Revoke(self.owned))
        elif not self._leave():
            self._left_group()

    def _leave(self) -> bool:
        """Whether there was a membership to end, and a coordinator to send that to."""
        if self.coordinator is None or not (self._joined() or self.state is ConsumerState.JOINING):
            return False
        returning = self.settings.group_instance_id is not None and not self._leave_static
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.settings.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_STATIC_EPOCH if returning else LEAVE_EPOCH,
            instance_id=self.settings.group_instance_id,
            topic_partitions=None,
        )
        self._forget()
        self._request = self._send(request)
        self.state = ConsumerState.LEAVING
        return True

    def _left_group(self) -> None:
        self._request = None
        self._forget()
        self.state = ConsumerState.UNJOINED
        self.closed = self._closing
        self._leave_requested = False

    def _on_poll_timeout(self, now: float) -> None:
        if not self._leave():
            self._fenced()
