"""Cluster metadata of a client (Kafka: Metadata), pure: brokers, topics, leaders, and when to refresh them.

Who speaks: the client with any broker (Metadata), first with one of the bootstrap list, later with those in the
metadata. Nothing here is durable and everything may be out of date; a leader refuses what it does not lead. So a client
acts on what it knows, and looks again when it is refused. A partition's leader epoch rises with every election:
an answer with a lower one than known comes from a broker that is behind, and is ignored (KIP-320). An error may
name the new leader (KIP-951), which saves a Metadata request.

All machines of a client share one `Metadata`; `requests` has the contract with their shell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.client.core.requests import NO_NODE, Node, RequestSettings, Send, backoff_s, code_of
from ottla.client.errors import NO_LEADER_HINT, ClientError, error_of, explained
from ottla.client.values import NO_EPOCH
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema import fetch, produce
from ottla.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.tree import ZERO_UUID, Message

FOR_EVER: Final = float("inf")
GONE: Final = ErrorCode.unknown_topic_or_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings(RequestSettings):
    """Kafka's names and defaults."""

    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    allow_auto_create_topics: bool = False


class Leader(NamedTuple):
    node_id: int
    epoch: int = NO_EPOCH


NO_LEADER: Final = Leader(NO_NODE)


class TopicMetadata(NamedTuple):
    name: str
    id: bytes
    leaders: Mapping[int, Leader]
    available: Sequence[int]
    """Partitions that have a leader, one that can be found. As long as it is not all of them, metadata is refreshed."""


_Endpoint = fetch.NodeEndpoint | produce.NodeEndpoint | Node


@dataclass(slots=True)
class _Backoff:
    """A broker that could not be reached is not tried again before then."""

    attempts: int = 0
    until: float = 0.0


class Metadata:
    """What one client knows of the cluster."""

    def __init__(
        self, bootstrap: Iterable[tuple[str, int]], settings: MetadataSettings | None = None, *, first: int = 0
    ) -> None:
        """`first`: where in its lists this client begins, so that many clients do not all begin with the first."""
        self.settings = settings or MetadataSettings()
        self.bootstrap = [Node(-1 - at, host, port) for at, (host, port) in enumerate(bootstrap)]
        assert self.bootstrap, "a client needs bootstrap servers"
        self.brokers: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_NODE
        self.revision = 0
        """Increases with every change of the metadata; callers compare it to keep derived state."""
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[bytes, str] = {}
        self.errors: dict[str, ErrorCode] = {}
        self.in_use: Callable[[], Iterable[str]] = tuple
        """Topics that the other machines have something to do with."""
        self._wanted: dict[str, float] = {}
        """When each was last used; FOR_EVER, if it need not be."""
        self._awaited: Counter[str] = Counter()
        self._want_all = False
        self._backoffs: dict[int, _Backoff] = {}
        self._next = first
        self._in_flight: Send | None = None
        self._reported: frozenset[str | None] = frozenset()
        """The topics of the last response."""
        self._stale = True
        self._again = False
        """Something became stale while the question was out: its answer may be older than that."""
        self._asked_at: float | None = None
        self._refreshed_at: float | None = None
        self._attempts = 0

    # State.

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def topics(self) -> list[str]:
        return list(self._topics)

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def leader(self, topic: str, partition: int) -> Leader:
        known = self._topics.get(topic)
        return known.leaders.get(partition, NO_LEADER) if known else NO_LEADER

    def leading_broker(self, topic: str, partition: int, now: float) -> Node | None:
        """The leader, if it can be reached."""
        broker = self.brokers.get(self.leader(topic, partition).node_id)
        return broker if broker is not None and self.reachable(broker.node_id, now) else None

    def obstacle(self, topic: str, partition: int, said: ErrorCode = ErrorCode.none, message: str | None = None) -> str:
        """The last error of the partition's leader, or the reason why it could not be reached, as text for people."""
        if said not in (ErrorCode.none, ErrorCode.network_exception):
            return explained(said, topic, message)
        leader = self.leader(topic, partition).node_id
        if leader == NO_NODE:
            return NO_LEADER_HINT.format(topic=topic)
        return f"its leader, broker {leader}, does not answer"

    def error(self, topic: str) -> ErrorCode:
        """Why nothing is known of the topic."""
        return self.errors.get(topic, ErrorCode.none)

    def heard_of(self, topic: str) -> bool:
        """Whether the topic is known, or was not found in a recent lookup."""
        return topic in self._topics or topic in self._reported

    def refusal(self, topic: str) -> ClientError | None:
        """Why nothing will be known of the topic, however often one asks."""
        code = self.error(topic)
        return None if code in RETRIABLE else error_of(code, f"topic {topic}")

    def reachable(self, node_id: int, now: float) -> bool:
        backoff = self._backoffs.get(node_id)
        return backoff is None or now >= backoff.until

    def reachable_at(self, node_id: int) -> float:
        backoff = self._backoffs.get(node_id)
        return backoff.until if backoff else 0.0

    def any_broker(self, now: float) -> Node | None:
        """Brokers in rotation; a broker whose connection was lost only if there is no other. The bootstrap servers are
        used if no broker can be reached, or if the connections to all brokers were lost since they were reached: a
        timeout can take so long that the first broker is due again before the last one has failed."""
        known = list(self.brokers.values())
        if known and all(broker.node_id in self._backoffs for broker in known):
            ready = [broker for broker in (*self.bootstrap, *known) if self.reachable(broker.node_id, now)]
            return min(ready, key=self._failures, default=None)
        for brokers in (known, self.bootstrap):
            ready = [broker for broker in brokers if broker.node_id not in self._backoffs]
            ready = ready or [broker for broker in brokers if self.reachable(broker.node_id, now)]
            if ready:
                chosen = ready[self._next % len(ready)]
                self._next += 1
                return chosen
        return None

    def _failures(self, broker: Node) -> int:
        backoff = self._backoffs.get(broker.node_id)
        return backoff.attempts if backoff else 0

    # Topics in use, and errors of requests.

    def want(self, topic: str, used_at: float = FOR_EVER) -> None:
        """Until `forget`, or, for callers that report each use, until it was not used for metadata_max_idle_ms. If a
        Metadata request may create a topic, a deleted topic is requested only while it is in use or awaited."""
        is_new = topic not in self._wanted
        self._wanted[topic] = used_at if is_new else max(used_at, self._wanted[topic])
        if is_new and topic not in self._topics:
            self._ask_soon()

    @contextmanager
    def awaited(self, topic: str) -> Iterator[None]:
        """A caller waits for metadata of this topic."""
        self._awaited[topic] += 1
        if self.error(topic) is GONE:
            self.refresh()
        try:
            yield
        finally:
            self._awaited -= Counter([topic])

    def want_all(self) -> None:
        """Every topic there is: for subscriptions by pattern."""
        if not self._want_all:
            self._want_all = True
            self._ask_soon()

    def _ask_soon(self) -> None:
        """A topic that was never requested is no retry, and has no backoff."""
        if not self._attempts:
            self._asked_at = None
        self.refresh()

    def forget(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self.errors.pop(topic, None)
        if not self._want_all:
            known = self._topics.pop(topic, None)
            if known is not None:
                self._names.pop(known.id, None)

    def refresh(self) -> None:
        """The metadata proved wrong or incomplete."""
        if self._in_flight is not None:
            self._again = True
        self._stale = True

    def lost(self, node_id: int, now: float) -> None:
        """A connection to this broker broke, or could not be made."""
        backoff = self._backoffs.setdefault(node_id, _Backoff())
        first_ms, max_ms = self.settings.reconnect_backoff_ms, self.settings.reconnect_backoff_max_ms
        backoff.until = now + backoff_s(backoff.attempts, first_ms, max_ms)
        backoff.attempts += 1
        self.refresh()

    def reached(self, node_id: int) -> None:
        self._backoffs.pop(node_id, None)

    def hinted(self, topic: str, partition: int, leader: Leader, endpoints: Iterable[_Endpoint]) -> bool:
        """A refusal named the leader. True if that is news: then there is no need to ask or to wait."""
        for endpoint in endpoints:
            self.brokers[endpoint.node_id] = Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
        known = self._topics.get(topic)
        if known is None or leader.node_id not in self.brokers or leader.epoch <= self.leader(topic, partition).epoch:
            return False
        self._remember(known.name, known.id, {**known.leaders, partition: leader})
        self.revision += 1
        return True

    # The machine.

    def decide(self, now: float) -> list[Send]:
        if self._in_flight is not None or now < self._due():
            return []
        broker = self.any_broker(now)
        if broker is None:
            return []
        names = self._topics_to_request(now)
        topics = None if self._want_all else [MetadataRequestTopic(name=name) for name in names]
        missing = any(name not in self._topics or self.error(name) is GONE for name in names)
        creates = self.settings.allow_auto_create_topics and missing
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=creates)
        self._in_flight = Send(request, broker, self.settings.request_timeout_s)
        self._asked_at = now
        self._stale = self._again = False
        return [self._in_flight]

    def _topics_to_request(self, now: float) -> list[str]:
        """Idle topics are forgotten."""
        used = {*self._awaited, *self.in_use()}
        idle_s = self.settings.metadata_max_idle_ms / 1000
        for name, used_at in list(self._wanted.items()):
            if name in used:
                self.want(name, now)
            elif used_at + idle_s <= now:
                self.forget(name)
        if not self.settings.allow_auto_create_topics:
            return list(self._wanted)
        return [
            name
            for name, used_at in self._wanted.items()
            if used_at == FOR_EVER or name in used or self.error(name) is not GONE
        ]

    @property
    def deadline(self) -> float | None:
        return None if self._in_flight is not None else self._due()

    def _due(self) -> float:
        settings = self.settings
        due = 0.0
        if not self._stale and self._refreshed_at is not None:
            due = self._refreshed_at + settings.metadata_max_age_ms / 1000
        if self._asked_at is not None:
            due = max(due, self._asked_at + settings.retry_backoff_s(self._attempts))
        all_nodes = [*self.brokers, *(broker.node_id for broker in self.bootstrap)]
        return max(due, min(map(self.reachable_at, all_nodes)))

    def answered(self, send: Send, response: Message, now: float) -> None:
        assert send is self._in_flight, "the answer to a question that was not asked"
        assert isinstance(response, MetadataResponse)
        self._in_flight = None
        self.reached(send.to.node_id)
        if code_of(response.error_code) is ErrorCode.rebootstrap_required or not response.brokers:
            # The broker has lost its cluster (KIP-1102): start again from the bootstrap servers.
            self.brokers.clear()
            self._attempts += 1
            self._stale = True
            return
        self._refreshed_at = now
        assert isinstance(send.request, MetadataRequest)
        self._reported = frozenset(topic.name for topic in send.request.topics or ())
        self._learn(response)
        complete = all(map(self._complete, self._topics_to_request(now)))
        self._attempts = 0 if complete else self._attempts + 1
        self._stale = self._again or not complete

    def failed(self, send: Send, now: float, code: ErrorCode = ErrorCode.network_exception) -> None:
        assert send is self._in_flight, "the failure of a question that was not asked"
        self._in_flight = None
        if code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
            self.lost(send.to.node_id, now)
            self._asked_at = None  # another reachable broker may be asked at once
        else:
            self._attempts += 1
        self._stale = True

    def _complete(self, name: str) -> bool:
        if self.refusal(name) is not None:
            return True  # asking sooner does not help
        topic = self._topics.get(name)
        return topic is not None and not self.error(name) and len(topic.available) == len(topic.leaders)

    def _learn(self, response: MetadataResponse) -> None:
        self.revision += 1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        }
        known = self.brokers.keys() | {broker.node_id for broker in self.bootstrap}
        self._backoffs = {node_id: backoff for node_id, backoff in self._backoffs.items() if node_id in known}
        for topic in response.topics:
            self._learn_topic(topic)
        if self._want_all:
            present = {topic.name for topic in response.topics}
            for name in [name for name in self._topics if name not in present]:
                self._names.pop(self._topics.pop(name).id, None)

    def _learn_topic(self, topic: MetadataResponseTopic) -> None:
        name = topic.name if topic.name is not None else self._names.get(topic.topic_id)
        if name is None or (name not in self._wanted and not self._want_all):
            return
        code = code_of(topic.error_code)
        if code is not ErrorCode.none:
            # The known metadata stays: a broker that has just started may not know the topic yet.
            self.errors[name] = code
            return
        self.errors.pop(name, None)
        before = self._topics.get(name)
        # An old version of Metadata has no ids; that is no reason to forget one, or to take the topic for another.
        reported = topic.topic_id if before is None or topic.topic_id != ZERO_UUID else before.id
        old = before.leaders if before is not None and before.id in (reported, ZERO_UUID) else {}
        leaders = {part.partition_index: _newer(old.get(part.partition_index), part) for part in topic.partitions}
        # Topics only grow: a broker that knows of fewer partitions is behind.
        leaders.update((index, leader) for index, leader in old.items() if index not in leaders)
        self._remember(name, reported, leaders)

    def _remember(self, name: str, topic_id: bytes, leaders: dict[int, Leader]) -> None:
        before = self._topics.get(name)
        if before is not None and before.id != topic_id:
            self._names.pop(before.id, None)
        available = tuple(index for index in sorted(leaders) if leaders[index].node_id in self.brokers)
        self._topics[name] = TopicMetadata(name, topic_id, leaders, available)
        if topic_id != ZERO_UUID:
            self._names[topic_id] = name


def _newer(known: Leader | None, reported: MetadataResponsePartition) -> Leader:
    if known is not None and NO_EPOCH < reported.leader_epoch < known.epoch:
        return known
    return Leader(reported.leader_id, reported.leader_epoch)
