"""ConsumerCoordinator: the partitions that a consumer reads, assigned by its group or by the user, and its commits.

    GROUP    topics or a pattern with a group_id: the group says which partitions, and may take them back
    ALONE    topics without a group_id: all their partitions
    MANUAL   partitions that the user named

A partition begins at the committed offset of the group, else where auto_offset_reset says. Until that is known, and
until the rebalance listener has returned, nothing of it is shown. Durable are the committed offsets, at the group's
coordinator; positions after the last commit are lost with the process, and their records are read again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from ottla.client.consuming.fetcher import Fetcher
from ottla.client.core.driver import Driver
from ottla.client.core.settings import GroupSettings, Settings
from ottla.client.errors import BadSetting, ClientError, CommitFailed
from ottla.client.group.committed_offsets import GroupOffsets
from ottla.client.group.member import MemberSettings
from ottla.client.group.membership import POLL_STEP_S, GroupMembership, member_of
from ottla.client.values import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.fetch import FetchRequest

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger("ottla.client")

LEAVE_TIMEOUT_S = 10.0
"""So long a coordinator may take to be committed to and left, before the consumer goes without a word."""


class RebalanceListener:
    """Callbacks of a rebalance. Methods may be coroutines; the group waits for them."""

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> object:
        """These partitions were assigned to this consumer. The listener may seek here."""

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> object:
        """These partitions will be revoked after this callback. The listener may commit here."""

    def on_partitions_lost(self, lost: set[TopicPartition]) -> object:
        """These partitions may already belong to another member: it is too late to commit."""
        return self.on_partitions_revoked(lost)


class User(Protocol):
    """The consumer around it."""

    def consumed(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        """How far the user has come."""

    def unconfirmed(self) -> Mapping[TopicPartition, int]:
        """The first record of each partition that was given out and may not have been dealt with yet."""

    def losing(self, partitions: Collection[TopicPartition]) -> None:
        """They are being given up: nothing more of them is shown. How far the user has come still counts."""

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """They are given up. If they come back, they begin where the group committed."""


class _Mode(Enum):
    NONE = "none"
    GROUP = "group"
    ALONE = "alone"
    MANUAL = "manual"


class ConsumerCoordinator:
    def __init__(self, settings: Settings, group_settings: GroupSettings, timeout_s: float, user: User) -> None:
        self.commit_at: float | None = None
        self._group_settings = group_settings
        self._member_settings: MemberSettings | None = None
        if group_settings.group_id is not None:
            self._member_settings = settings.part(MemberSettings)
        self._timeout_s = timeout_s
        self._user = user
        self._mode = _Mode.NONE
        self._topics: list[str] = []
        self._pattern: str | None = None
        self._manual: list[TopicPartition] = []
        self._listener = RebalanceListener()
        self._driver: Driver | None = None
        self._fetcher: Fetcher
        self._offsets: GroupOffsets | None = None
        self._group: GroupMembership | None = None
        self._tenures: dict[TopicPartition, object] = {}
        """Of each partition that the group has given: another object each time."""
        self._committed: dict[TopicPartition, int] = {}
        self._one_by_one = asyncio.Lock()
        self._committing: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order, as a set is not
        self._error: BaseException | None = None
        """To be raised once."""
        self._revision = -1

    # Calls of the application.

    def start(self, driver: Driver, fetcher: Fetcher) -> None:
        self._driver, self._fetcher = driver, fetcher
        settings = self._member_settings
        if settings is not None:
            self._offsets = GroupOffsets(
                driver, settings.group_id, timeout_s=self._timeout_s, request_timeout_s=settings.request_timeout_s
            )
            if self._group_settings.enable_auto_commit:
                self.commit_at = driver.runtime.now() + self._group_settings.auto_commit_interval_ms / 1000
        driver.observe(self._look_at_metadata)
        self._begin()

    def subscribe(self, topics: list[str], pattern: str | None, listener: RebalanceListener | None) -> None:
        mode = _Mode.ALONE if self._group_settings.group_id is None else _Mode.GROUP
        self._enter(mode)
        self._topics, self._pattern = topics, pattern
        self._listener = listener or RebalanceListener()
        self._begin()

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._enter(_Mode.MANUAL)
        self._manual = partitions
        self._begin()

    def unsubscribe(self) -> None:
        self._topics, self._pattern, self._manual = [], None, []
        if self._mode is _Mode.GROUP:
            if self._group is not None:
                self._group.unsubscribe()
        elif self._driver is not None:
            self._fetcher.assign([])
            for broker in self._fetcher.abandon():
                self._driver.network.drop(broker, FetchRequest)  # else it may hold up the next one
        self._mode = _Mode.NONE

    def _enter(self, mode: _Mode) -> None:
        if self._mode not in (_Mode.NONE, mode) or (mode is not _Mode.GROUP and self._group is not None):
            raise BadSetting("a consumer either subscribes or assigns: unsubscribe first, or make another")
        self._mode = mode

    def _begin(self) -> None:
        if self._driver is None:
            return
        if self._mode is _Mode.GROUP:
            self._join()
        elif self._mode is _Mode.MANUAL:
            self._fetcher.assign([tp for tp in self._fetcher.assigned() if tp in self._manual])
            self._spawn(self._settle(self._add(self._manual)))
        elif self._mode is _Mode.ALONE:
            for topic in self._topics:
                self._driver.metadata.want(topic)
            self._revision = -1
        self._driver.wake()

    def _join(self) -> None:
        assert self._driver is not None
        assert self._member_settings is not None
        if self._group is None:
            chosen = self._group_settings
            member = member_of(
                self._member_settings,
                protocol=chosen.group_protocol,
                strategy=chosen.partition_assignment_strategy,
                remote_assignor=chosen.group_remote_assignor,
                member_id=str(uuid.UUID(int=self._driver.runtime.random.getrandbits(128), version=4)),
            )
            self._group = GroupMembership(self._driver, member, self)
        if self._pattern is not None:
            self._group.subscribe_pattern(self._pattern)
        elif self._topics:
            self._group.subscribe(self._topics)

    def _look_at_metadata(self) -> None:
        """Without a group every partition of the topics is read, also those that come later."""
        assert self._driver is not None
        metadata = self._driver.metadata
        if self._mode is not _Mode.ALONE or metadata.revision == self._revision:
            return
        self._revision = metadata.revision
        known = [topic for name in self._topics if (topic := metadata.topic(name)) is not None]
        wanted = [TopicPartition(topic.name, number) for topic in known for number in sorted(topic.leaders)]
        if wanted != sorted(self._fetcher.assigned()):
            self._fetcher.assign(wanted)
            self._driver.wake()

    # State.

    def assigned(self) -> list[TopicPartition]:
        return self._manual if self._driver is None else self._fetcher.assigned()

    def topics(self) -> Collection[str]:
        if self._group is not None and self._mode is _Mode.GROUP:
            return self._group.member.topics or self._topics
        return self._topics

    def group_metadata(self) -> GroupMetadata:
        if self._group is not None and self._mode is _Mode.GROUP:
            return self._group.metadata()
        if self._group_settings.group_id is None:
            raise BadSetting("a consumer without a group_id is in no group")
        return GroupMetadata(self._group_settings.group_id)

    def check(self) -> None:
        """Raise what went wrong behind the user's back."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._group is not None and self._group.failure is not None:
            raise self._group.failure

    # The user is alive.

    def polled(self) -> None:
        """Records are asked for: the user is alive, and it may be time to commit."""
        if self._driver is None:
            raise ClientError("Consumer.start() comes first")
        if self._group is None and self.commit_at is None:
            return
        now = self._driver.runtime.now()
        if self._group is not None:
            self._group.polled(now)
        if self.commit_at is not None and now >= self.commit_at:
            self.commit_at = now + self._group_settings.auto_commit_interval_ms / 1000
            if self._committing is None or self._committing.done():
                self._committing = self._driver.runtime.spawn(
                    self._commit_quietly(self._fetcher.assigned()), name="automatic commit"
                )

    @property
    def poll_step_s(self) -> float:
        """So often `polled` should come while the user is alive."""
        return POLL_STEP_S if self._group is None else self._group.poll_step_s

    def next_poll_at(self) -> float | None:
        """While a call waits for records, it counts as a poll (max.poll.interval.ms)."""
        assert self._driver is not None
        if self._group is None:
            return self.commit_at
        step_at = self._driver.runtime.now() + self._group.poll_step_s
        return step_at if self.commit_at is None else min(step_at, self.commit_at)

    async def stop(self) -> None:
        if self._driver is None:
            return
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        if self._group is not None:
            await self._group.leave(timeout_s=LEAVE_TIMEOUT_S)
        elif self.commit_at is not None:
            await self._commit_quietly(self._fetcher.assigned())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Commits.

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits are sent one after the other, and only while the partitions belong to this consumer: a retried commit
        must not overwrite a later one, neither of this consumer nor of the new owner."""
        if self._offsets is None:
            raise BadSetting("a commit needs a group_id")
        tenures = {tp: self._tenures.get(tp) for tp in offsets}

        def member() -> GroupMetadata:
            for tp, tenure in tenures.items():
                if self._tenures.get(tp) is not tenure:
                    raise CommitFailed(f"{tp} was given up meanwhile", code=ErrorCode.illegal_generation)
            return self._member()

        async with self._one_by_one:
            if self._mode is not _Mode.GROUP or self._group is None:
                await self._offsets.commit(offsets, self.group_metadata)
            elif offsets:
                await self._offsets.commit(offsets, member, self._group.commit_refused)
            self._committed.update((tp, offset.offset) for tp, offset in offsets.items())

    def _member(self) -> GroupMetadata:
        """A consumer that has lost its membership must not commit as if it had no group."""
        metadata = self.group_metadata()
        if metadata.generation_id <= 0:
            raise CommitFailed(
                f"this consumer is not in group {metadata.group_id} now", code=ErrorCode.unknown_member_id
            )
        return metadata

    async def commit_consumed(self) -> None:
        await self.commit(self._consumed(self.assigned()))

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._offsets is None:
            raise BadSetting("without a group_id nothing is committed")
        return await self._offsets.fetch(partitions, self._fetching_member())

    def _fetching_member(self) -> Callable[[], GroupMetadata] | None:
        """Only the coordinator of a consumer group (KIP-848) checks the member of an OffsetFetch."""
        return self.group_metadata if self._group_settings.group_protocol == "consumer" else None

    def _consumed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        offsets = ((tp, self._user.consumed(tp)) for tp in partitions)
        return {tp: offset for tp, offset in offsets if offset is not None}

    async def _commit_quietly(self, partitions: Iterable[TopicPartition]) -> None:
        """What has certainly been dealt with, and is news. That it fails costs records read twice, not lost."""
        offsets = self._consumed(partitions)
        for tp, first in self._user.unconfirmed().items():
            if tp in offsets:
                offsets[tp] = OffsetAndMetadata(first)
        news = {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset.offset}
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.commit(news)
        except (ClientError, TimeoutError) as error:
            log.warning("offsets could not be committed; records may be read again: %s", error)

    # Events of the group.

    async def take(self, partitions: Sequence[TopicPartition]) -> None:
        self._tenures.update((tp, object()) for tp in partitions)
        await self._settle(self._add(partitions), self._listener)

    def _add(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Newly assigned partitions, each with its revision: a seek from now on counts more than the committed
        offset."""
        assigned = self._fetcher.assigned()
        coming = [tp for tp in partitions if tp not in assigned]
        self._fetcher.assign([*assigned, *coming])
        self._fetcher.hold(coming)
        return {tp: self._fetcher.revision(tp) for tp in coming}

    async def _settle(self, coming: Mapping[TopicPartition, int], listener: RebalanceListener | None = None) -> None:
        assert self._driver is not None
        if not await self._begin_at_committed(coming):
            return
        if listener is not None:
            await self._call_listener(listener.on_partitions_assigned, coming)
        self._fetcher.release(coming)
        self._driver.wake()

    async def give_up(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        self._user.losing(partitions)
        going = [tp for tp in partitions if tp in self._fetcher.assigned()]
        self._fetcher.hold(going)
        if not lost and self.commit_at is not None:
            await self._commit_quietly(going)
        callback = self._listener.on_partitions_lost if lost else self._listener.on_partitions_revoked
        await self._call_listener(callback, partitions)
        self._fetcher.assign([tp for tp in self._fetcher.assigned() if tp not in going])
        self._user.lost(partitions)
        for tp in partitions:
            self._tenures.pop(tp, None)
            self._committed.pop(tp, None)

    async def _begin_at_committed(self, revisions: Mapping[TopicPartition, int]) -> bool:
        """False: they are not assigned to this consumer any more."""
        if self._offsets is None:
            return True
        try:
            committed = await self._offsets.fetch(list(revisions), self._fetching_member(), timeout_s=float("inf"))
        except CommitFailed:
            return False  # the group takes them back, and says so
        except ClientError as error:
            self._error = error
            return False
        for tp, offset in committed.items():
            if self._fetcher.revision(tp) == revisions[tp]:
                self._fetcher.seek(tp, offset.offset, offset.leader_epoch)
                self._committed[tp] = offset.offset
        return True

    async def _call_listener(
        self, callback: Callable[[set[TopicPartition]], object], partitions: Iterable[TopicPartition]
    ) -> None:
        try:
            result = callback(set(partitions))
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 (the user's own; the next call for records raises it)
            self._error = error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not an error of the group: the application awaits it elsewhere. The membership continues.
            self._error = ClientError("a rebalance listener awaited what had been cancelled")

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        assert self._driver is not None
        task = self._driver.runtime.spawn(work, name="committed offsets")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
