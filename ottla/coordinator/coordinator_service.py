"""Coordinator service: the shards of one internal topic that this broker leads.

It creates the topic on first use, loads shards beside the traffic, runs their timers, and holds the requests that wait
for a reply. The two services are `group_coordinator` and `transaction_coordinator`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from ottla.cluster import changes as c
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image, TopicImage
from ottla.cluster.requests import TopicResult, TopicSpec
from ottla.config.broker_config import LiveConfig
from ottla.coordinator.decision import Decision, Reply, ReplyTo, answer
from ottla.coordinator.loader import Loader
from ottla.coordinator.shard import Codec, Machine, Phase, Shard
from ottla.errors import ErrorCode, Fault, Refused, StorageFault
from ottla.replication.gaps import next_held
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Handle, Runtime
from ottla.wire.batch import CODECS

log = logging.getLogger("ottla.coordinator")

LOAD_BYTES = 1 << 20
LOAD_RETRY_SECONDS = 1.0  # after the disk could not be read

KEY_CHARS_MAX = 32_767
"""Of a group id or a transactional id: the longest string that a record can hold."""
KEY_CHARS_CACHED = 256
"""The hashes of keys up to this length are cached."""
_UNITS = struct.Struct(">H")

M = TypeVar("M", bound=Machine)
R = TypeVar("R")
Act = Callable[[M, ReplyTo, float, int], Decision]
CreateTopics = Callable[[Sequence[TopicSpec]], Awaitable[list[TopicResult]]]
"""Create topics through the controller; errors are in the results."""


class Promise:
    """The reply to one request: available at once, or passed to a callback later. A later reply is a delayed operation:
    the decision that brings it about may be one for another request."""

    __slots__ = ("_delayed", "callback", "reply")

    def __init__(self, delayed: DelayedOperations) -> None:
        self._delayed = delayed
        self.reply: Reply | None = None
        self.callback: Callable[[Reply], None] | None = None
        """Called with the reply when it comes."""

    def answer(self, reply: Reply) -> None:
        assert self.reply is None, "a request is answered once"
        self.reply = reply
        if self.callback is not None:
            self._delayed.mark(self)

    def complete(self) -> None:
        assert self.callback is not None
        self.callback(self.reply)

    def on_reply(self, callback: Callable[[Reply], None]) -> None:
        """Call this with the reply, now or when it comes."""
        if self.reply is None:
            self.callback = callback
        else:
            callback(self.reply)

    async def answered(self) -> Reply:
        if self.reply is None:
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self.callback = lambda reply: None if future.done() else future.set_result(reply)
            return await future
        return self.reply


class _Slot(Generic[M]):
    """A shard with its timer."""

    __slots__ = ("shard", "timer", "wakes_at")

    def __init__(self, shard: Shard[M]) -> None:
        self.shard = shard
        self.timer: Handle | None = None
        self.wakes_at = 0.0


class CoordinatorService(ABC, Generic[M]):
    topic: str
    replication_setting: str
    codec: Codec

    def __init__(
        self,
        runtime: Runtime,
        config: LiveConfig,
        cluster: Cluster,
        replica_manager: ReplicaManager,
        create_topics: CreateTopics,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._replica_manager = replica_manager
        self._create_topics = create_topics
        self._delayed = replica_manager.delayed
        self._slots: dict[int, _Slot[M]] = {}
        self._to_load: deque[Shard[M]] = deque()
        self._loading: asyncio.Task[None] | None = None
        self._creating: asyncio.Task[None] | None = None
        self._started = False
        self._awaiting_brokers = False
        self.creation_error: str | None = None
        """Why the topic does not exist yet."""
        replica_manager.leadership_listeners.append(self.leadership_changed)

    @abstractmethod
    def _machine(self) -> M:
        """A new machine, for one shard."""

    @abstractmethod
    def _spec(self) -> TopicSpec:
        """The topic as it is created on first use."""

    # The topic.

    def _compression(self) -> str:
        """Of batches, unless the topic's `compression.type` names another."""
        return CODECS[0]

    def partition_of(self, key: str) -> int | None:
        """The partition of a key; None while the topic does not exist."""
        topic = self._cluster.image.topic(self.topic)
        return None if topic is None else java_hash(key) % len(topic.partitions)

    async def create_topic(self) -> None:
        """Create the topic unless it exists, with its full replication factor or not at all."""
        if self._cluster.image.topic(self.topic) is not None:
            return
        if self._creating is None or self._creating.done():
            self._creating = self._runtime.spawn(self._create_topic(), name=f"create {self.topic}")
        await asyncio.shield(self._creating)

    async def _create_topic(self) -> None:
        spec = self._spec()
        (result,) = await self._create_topics([spec])
        self.creation_error = result.message or result.code.name
        if result.code in (ErrorCode.not_controller, ErrorCode.request_timed_out):  # the client tries again
            log.warning("%s cannot be created yet: %s", self.topic, result.message)
        elif result.code == ErrorCode.invalid_replication_factor:
            self.creation_error = (
                f"{self.topic} cannot be created yet: it needs {spec.replication_factor} brokers (the cluster has "
                f"{len(self._cluster.image.brokers)}). Start more, or all with --set {self.replication_setting}=1."
            )
            if self._awaiting_brokers:
                return  # logged before, and requested all the time
            self._awaiting_brokers = True
            log.warning("%s", self.creation_error)
        elif result.code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            log.error("%s cannot be created: %s", self.topic, result.message or result.code.name)

    # Leading.

    def start(self) -> None:
        self._started = True
        topic = self._cluster.image.topic(self.topic)
        if topic is not None:
            for index in range(len(topic.partitions)):
                self.leadership_changed(topic, index)

    def leadership_changed(self, topic: TopicImage, index: int) -> None:
        """Load a shard that this broker leads now, unload one that it no longer leads."""
        if not self._started or topic.name != self.topic:
            return
        partition = self._replica_manager.replicas.get(topic.name, index)
        slot = self._slots.get(index)
        if slot is not None and not (slot.shard.partition is partition and slot.shard.leads):
            # Also when this broker leads again: others may have written in the leader epochs between.
            self._unload(index)
            slot = None
        if slot is None and partition is not None and partition.leads:
            self._take(index, partition)

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        if isinstance(change, c.TopicDeleted) and (topic := old.topic_by_id(change.topic_id)) is not None:
            self._topic_deleted(topic)

    def _topic_deleted(self, topic: TopicImage) -> None:
        if topic.name == self.topic:
            for index in list(self._slots):
                self._unload(index)

    def close(self) -> None:
        """No requests are served from now on, and all waiting ones get NOT_COORDINATOR."""
        self._started = False
        if self._loading is not None:
            self._loading.cancel()
        for index in list(self._slots):
            self._unload(index)

    def _take(self, index: int, partition: Partition) -> None:
        shard = Shard(
            partition,
            self._machine(),
            self.codec,
            self._send_reply,
            self._delayed,
            commit_timeout_s=self._config.current.offsets_commit_timeout_ms / 1000,
            compression=self._compression(),
        )
        self._slots[index] = _Slot(shard)
        if partition.log_start == partition.log_end:
            self._activate(shard)
            return
        self._to_load.append(shard)
        if self._loading is None or self._loading.done():
            self._loading = self._runtime.spawn(self._load_all(), name=f"load {self.topic}")

    def _unload(self, index: int) -> None:
        slot = self._slots.pop(index)
        if slot.timer is not None:
            slot.timer.cancel()
        slot.shard.unload()

    def _activate(self, shard: Shard[M]) -> None:
        shard.activate(self._runtime.now(), self._runtime.wall_ms())
        self._arm(self._slots[shard.partition.index])

    # Loading.

    async def _load_all(self) -> None:
        """One after another, so that other requests never wait for more than one slice."""
        while self._to_load:
            shard = self._to_load.popleft()
            try:
                await self._load(shard)
            except StorageFault as fault:
                log.error("%s cannot be read, trying again in %g s: %s", shard.partition, LOAD_RETRY_SECONDS, fault)
                self._runtime.call_at(self._runtime.now() + LOAD_RETRY_SECONDS, self._load_again, shard)
            except (Refused, Fault) as failure:
                self._fail(shard, failure)
            except Exception as failure:  # a bug with one shard must not keep the others from being loaded
                log.error("loading %s failed", shard.partition, exc_info=failure)
                self._fail(shard, failure)

    def _load_again(self, shard: Shard[M]) -> None:
        """With a new machine: how much was replayed into the old one is not known."""
        slot = self._slots.get(shard.partition.index)
        if slot is not None and slot.shard is shard:
            self._unload(shard.partition.index)
            self._take(shard.partition.index, shard.partition)

    def _fail(self, shard: Shard[M], failure: Exception) -> None:
        if shard.phase is Phase.LOADING and shard.partition.leads:
            shard.phase = Phase.FAILED
            log.error(
                "%s cannot be loaded: %s. Its groups or transactions are not served until it is repaired from another "
                "replica, or the topic is deleted with all that it holds.", shard.partition, failure,
            )  # fmt: skip

    async def _load(self, shard: Shard[M]) -> None:
        """Read the whole log, committed or not: what was appended before will be committed, or this leader epoch
        ends."""
        began = self._runtime.now()
        partition = shard.partition
        loader = Loader(shard.machine, self.codec, partition.log_start)
        while shard.phase is Phase.LOADING and (at := next_held(partition, loader.next_offset)) < partition.log_end:
            loader.next_offset = max(at, partition.log_start)
            piece = partition.read_own(loader.next_offset, LOAD_BYTES)
            if piece is None:
                raise Fault(f"there is nothing at offset {loader.next_offset}, and the log ends at {partition.log_end}")
            for _ in loader.feed(await self._runtime.offload(piece.load)):
                await asyncio.sleep(0)
        for _ in loader.replay():
            gc.freeze()  # garbage collection over all that was loaded would stall the loop
            await asyncio.sleep(0)
        if shard.phase is Phase.LOADING:
            self._activate(shard)
            took_ms = (self._runtime.now() - began) * 1000
            log.info("%s: loaded %d records in %d ms", shard.partition, loader.records, took_ms)

    # Requests.

    def _send_reply(self, reply_to: ReplyTo, reply: Reply) -> None:
        assert isinstance(reply_to, Promise)
        reply_to.answer(reply)

    def ask(self, key: str, act: Act[M], *, current: bool = True) -> Promise:
        """Let the machine of the key decide, and apply the decision. `current`: the reply must not come from a
        coordinator that was replaced. Decisions with records need no such check: a replaced leader cannot append."""
        promise = Promise(self._delayed)
        try:
            index = self.partition_of(key)
            slot = None if index is None else self._slots.get(index)
            if slot is None:
                raise Refused(ErrorCode.not_coordinator)
            if not current or self._cluster.has_session_lease:
                self._decide(slot, act, promise)
            else:
                self._runtime.spawn(self._decide_later(slot, act, promise), name=f"confirm {slot.shard.partition}")
        except Refused as refused:
            promise.answer(refused)
        return promise

    def _decide(self, slot: _Slot[M], act: Act[M], promise: Promise) -> None:
        shard = slot.shard
        if shard.phase is not Phase.ACTIVE:
            shard.check_active()
        if not shard.leads:  # the session has expired, and the image does not show the new leader yet
            raise Refused(ErrorCode.not_coordinator)
        now, now_ms = self._runtime.now(), self._runtime.wall_ms()
        shard.apply(act(shard.machine, promise, now, now_ms), now, now_ms)
        deadline = shard.machine.deadline
        if deadline is not None and (slot.timer is None or deadline < slot.wakes_at):
            self._arm(slot)

    async def _decide_later(self, slot: _Slot[M], act: Act[M], promise: Promise) -> None:
        """Confirm the leadership first: another broker may coordinate by now."""
        confirmed = await self._replica_manager.still_followed(slot.shard.partition)
        try:
            if slot not in self._slots.values():
                raise Refused(ErrorCode.not_coordinator)
            if not confirmed:
                raise Refused(ErrorCode.coordinator_not_available)
            self._decide(slot, act, promise)
        except Refused as refused:
            promise.answer(refused)

    async def look(self, key: str, view: Callable[[M], R]) -> R:
        """`view` of the machine of the key, once all that it depends on is committed."""
        viewed: R = await self._viewed(self.ask(key, lambda machine, to, now, now_ms: answer(to, view(machine))))
        return viewed

    async def look_at_all(self, view: Callable[[M], R]) -> list[R]:
        """`view` of all machines. Refused while one is loading: the answer would be incomplete."""
        for slot in self._slots.values():
            slot.shard.check_active()
        asked = []
        for slot in self._slots.values():
            asked.append(Promise(self._delayed))
            slot.shard.apply(answer(asked[-1], view(slot.shard.machine)), self._runtime.now(), self._runtime.wall_ms())
        return [await self._viewed(promise) for promise in asked]

    async def _viewed(self, promise: Promise) -> Any:
        reply = await promise.answered()
        if isinstance(reply, Refused):
            raise reply
        return reply

    def shard(self, index: int) -> Shard[M] | None:
        """The shard of a partition that this broker leads."""
        slot = self._slots.get(index)
        return None if slot is None else slot.shard

    def active(self) -> list[Shard[M]]:
        return [slot.shard for slot in self._slots.values() if slot.shard.phase is Phase.ACTIVE]

    async def sweep(self, decide: Callable[[M], Iterable[Decision]], shards: Iterable[Shard[M]] | None = None) -> None:
        """Apply decisions without a request, of all machines or some; other work goes on in between."""
        for shard in self.active() if shards is None else shards:
            for decision in decide(shard.machine):
                shard.apply(decision, self._runtime.now(), self._runtime.wall_ms())
                await asyncio.sleep(0)

    # Time.

    def _arm(self, slot: _Slot[M]) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        deadline = slot.shard.machine.deadline
        if deadline is not None and slot.shard.phase is Phase.ACTIVE:
            slot.wakes_at = deadline
            slot.timer = self._runtime.call_at(deadline, self._wake, slot)

    def _wake(self, slot: _Slot[M]) -> None:
        slot.timer = None
        try:
            slot.shard.expire(self._runtime.now(), self._runtime.wall_ms())
        finally:  # a bug with one group must not stop the timers of all others
            self._arm(slot)


class Interleaved:
    """Each key once. Hashing long keys takes time (`java_hash`), so the event loop runs other tasks in between."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = iter(dict.fromkeys(keys))
        self._hashed = 0

    def __aiter__(self) -> Interleaved:
        return self

    async def __anext__(self) -> str:
        for key in self._keys:
            self._hashed += len(key)
            if self._hashed > KEY_CHARS_MAX:
                self._hashed = 0
                await asyncio.sleep(0)
            return key
        raise StopAsyncIteration


def java_hash(text: str) -> int:
    """The absolute value of Java's String.hashCode, as Kafka's tools compute the partition of a group. Only as much of
    the text is hashed as a record can hold."""
    return _cached_hash(text) if len(text) <= KEY_CHARS_CACHED else _java_hash(text[:KEY_CHARS_MAX])


def _java_hash(text: str) -> int:
    value = 0
    for (unit,) in _UNITS.iter_unpack(text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return 0 if value == 0x80000000 else value


_cached_hash = lru_cache(maxsize=16384)(_java_hash)
