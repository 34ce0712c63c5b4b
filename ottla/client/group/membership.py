"""Group membership of a consumer: carries out what the member decides, and hands partitions to the consumer.

The member is pure (`member` has the contract). Here are its requests, its timer, its questions about topics, and the
order of callbacks: one at a time, and the next only when that one has returned.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from ottla.client.core.driver import Driver
from ottla.client.core.requests import Send
from ottla.client.errors import BadSetting, ClientError, NotUnderstood, error_of
from ottla.client.group.assignors import assignors_named
from ottla.client.group.classic_member import ClassicMember
from ottla.client.group.consumer_member import ConsumerMember
from ottla.client.group.member import Action, Assign, CountPartitions, Fail, Lose, MemberSettings, NameTopics, Revoke
from ottla.client.values import GroupMetadata, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.tree import Message

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that no pattern means."""
POLL_STEP_S: Final = 1.0
"""At most so often a poll is passed to the member, however often the user asks for records."""
LOOK_UP_S: Final = 30.0

Change = Revoke | Assign | Lose


class Reader(Protocol):
    """The consumer that reads the assigned partitions."""

    async def take(self, partitions: Sequence[TopicPartition]) -> None: ...

    async def give_up(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None: ...


def member_of(
    settings: MemberSettings, *, protocol: str, strategy: Sequence[str], remote_assignor: str | None, member_id: str
) -> ClassicMember | ConsumerMember:
    if protocol == "consumer":
        return ConsumerMember(settings, member_id, server_assignor=remote_assignor)
    try:
        return ClassicMember(settings, assignors_named(strategy))
    except ValueError as problem:
        raise BadSetting(f"partition_assignment_strategy: {problem}") from None


class GroupMembership:
    """One membership. A machine to the driver, which only needs to know when it wants to be woken."""

    def __init__(self, driver: Driver, member: ClassicMember | ConsumerMember, reader: Reader) -> None:
        self.member = member
        self.failure: ClientError | None = None
        self._driver = driver
        self._reader = reader
        self._pattern: re.Pattern[str] | None = None
        self._revision = -1
        self._polled_at = float("-inf")
        self.poll_step_s = min(POLL_STEP_S, member.settings.max_poll_interval_ms / 4000)
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self._looking: dict[asyncio.Task[None], None] = {}  # in order, as a set is not
        driver.attach(self)
        driver.observe(self._look_at_metadata)
        self._worker = driver.runtime.spawn(self._carry_changes(), name=f"group {member.settings.group_id}")

    # Calls of the consumer.

    def subscribe(self, topics: Collection[str]) -> None:
        self._pattern = None
        for topic in topics:
            self._driver.metadata.want(topic)
        self._notify(self.member.subscribe, topics)

    def subscribe_pattern(self, pattern: str) -> None:
        """Whole names. The coordinator matches for its own protocol, and we for the classic one."""
        if isinstance(self.member, ConsumerMember):
            self._notify(self.member.subscribe_pattern, pattern)
            return
        self._pattern = re.compile(pattern)
        self._revision = -1
        self._driver.metadata.want_all()
        self._driver.wake()

    def unsubscribe(self) -> None:
        self._pattern = None
        self._notify(self.member.unsubscribe)

    def polled(self, now: float) -> None:
        if now - self._polled_at >= self.poll_step_s or self.member.away:
            self._polled_at = now
            self._notify(self.member.polled)

    def metadata(self) -> GroupMetadata:
        member = self.member
        generation = member.epoch if isinstance(member, ConsumerMember) else member.generation
        return GroupMetadata(member.settings.group_id, generation, member.member_id, member.settings.group_instance_id)

    def commit_refused(self, code: ErrorCode, member: GroupMetadata) -> None:
        self._notify(self.member.commit_refused, code, member.generation_id)

    async def leave(self, *, timeout_s: float) -> None:
        """Give everything up and leave; a coordinator that does not answer is not waited for for long."""
        deadline = self._driver.runtime.now() + timeout_s
        self._notify(self.member.close)
        while not self.member.closed and self._driver.runtime.now() < deadline:
            await self._driver.changed(deadline)
        for task in (self._worker, *self._looking):
            task.cancel()
        await asyncio.gather(self._worker, *self._looking, return_exceptions=True)

    # The driver's view.

    def decide(self, now: float) -> Sequence[Send]:
        deadline = self.member.deadline
        if deadline is not None and now >= deadline:
            self._notify(self.member.wake)
        return ()

    @property
    def deadline(self) -> float | None:
        return self.member.deadline

    def answered(self, send: Send, response: Message, now: float) -> None:
        raise AssertionError("a member's requests are asked beside the driver's machines")

    def failed(self, send: Send, now: float, code: ErrorCode) -> None:
        raise AssertionError("a member's requests are asked beside the driver's machines")

    # Actions of the member.

    def _notify(self, event: Callable[..., list[Action]], *arguments: object) -> None:
        for action in event(*arguments, self._driver.runtime.now()):
            self._carry_out(action)
        self._driver.wake()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Send):
            self._send(action)
        elif isinstance(action, Revoke | Assign | Lose):
            self._changes.put_nowait(action)
        elif isinstance(action, Fail):
            self.failure = error_of(action.code, f"group {self.member.settings.group_id}", action.message)
        else:
            task = self._driver.runtime.spawn(self._look_up(action), name="partitions for the group")
            self._looking[task] = None
            task.add_done_callback(self._looking.pop)

    def _send(self, send: Send) -> None:
        def reply(received: Message | ClientError) -> None:
            if isinstance(received, NotUnderstood):
                self.failure = received  # asking again would not help
            if isinstance(received, ClientError):
                self._notify(self.member.failed, send.request)
            else:
                self._notify(self.member.answered, send.request, received)

        self._driver.ask(send, reply)

    async def _carry_changes(self) -> None:
        while True:
            change = await self._changes.get()
            partitions = sorted(change.partitions)
            if isinstance(change, Assign):
                await self._reader.take(partitions)
            else:
                await self._reader.give_up(partitions, lost=isinstance(change, Lose))
                self._notify(self.member.called_back)
            self._driver.announce()

    # Topics, for the member.

    async def _look_up(self, asked: CountPartitions | NameTopics) -> None:
        member = self.member
        if isinstance(asked, CountPartitions):
            topics = [MetadataRequestTopic(name=name) for name in sorted(asked.topics)]
        else:
            topics = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in sorted(asked.ids)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)

        async def look() -> MetadataResponse:
            return await self._driver.call(request, MetadataResponse, timeout_s=LOOK_UP_S)

        try:
            answer = await self._driver.insist(look, timeout_s=float("inf"))
        except ClientError as error:
            self.failure = error
            self._driver.announce()
            return
        found = [topic for topic in answer.topics if not topic.error_code and topic.name is not None]
        for name in sorted(asked.topics) if isinstance(asked, CountPartitions) else ():
            self._driver.metadata.want(name)
        if isinstance(asked, NameTopics):
            assert isinstance(member, ConsumerMember)
            self._notify(member.named, asked, {topic.topic_id: topic.name for topic in found})
        else:
            assert isinstance(member, ClassicMember)
            counted = {topic.name: len(topic.partitions) for topic in found}
            self._notify(member.counted, asked, counted)
            known = ((name, self._driver.metadata.topic(name)) for name in asked.topics)
            if any(topic is not None and len(topic.leaders) > counted.get(name, 0) for name, topic in known):
                self._revision = -1  # the broker may have older metadata than this client: compare once more

    def _look_at_metadata(self) -> None:
        """Topics may have appeared, or grown."""
        metadata, member = self._driver.metadata, self.member
        if metadata.revision == self._revision or not isinstance(member, ClassicMember):
            return
        self._revision = metadata.revision
        if self._pattern is not None:
            matched = [name for name in metadata.topics() if self._pattern.fullmatch(name) and name not in INTERNAL]
            if matched and frozenset(matched) != member.topics:
                self._notify(member.subscribe, matched)
        if member.leader:
            watched = sorted(member.watched_topics)
            if all(metadata.topic(name) is not None or metadata.error(name) for name in watched):
                known = ((name, metadata.topic(name)) for name in watched)
                counts = {name: len(topic.leaders) for name, topic in known if topic is not None}
                self._notify(member.metadata_changed, counts)
