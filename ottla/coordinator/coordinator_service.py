"""The coordinator service: the shards of an internal topic that this broker leads, and everything around them that
takes time.

The machines are pure and the shards are plain (`runtime`); here are the topic that must be made on first need, the
loading of a shard beside the traffic, its timer, and the requests that wait for a reply. One service serves one
internal topic: `group_coordinator` and `transaction_coordinator`.
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
from ottla.cluster.image import Image, Topic
from ottla.cluster.requests import TopicResult, TopicSpec
from ottla.config.broker_config import LiveConfig
from ottla.coordinator.decision import Decision, Reply, ReplyTo, answer
from ottla.coordinator.loader import Loader
from ottla.coordinator.shard import Codec, Machine, Phase, Shard
from ottla.errors import ErrorCode, Fault, Refused, StorageFault
from ottla.replication.gaps import next_held
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime import Handle, Runtime
from ottla.wire.batch import CODECS

log = logging.getLogger("ottla.coordinator")

LOAD_BYTES = 1 << 20
LOAD_RETRY_SECONDS = 1.0  # after the disk could not be read

KEY_CHARS_MAX = 32_767
"""Of a group's id or a transactional id: as long as a string in a record can be."""
KEY_CHARS_KEPT = 256
"""The hashes of keys up to this length are kept."""
_UNITS = struct.Struct(">H")

M = TypeVar("M", bound=Machine)
R = TypeVar("R")
Act = Callable[[M, ReplyTo, float, int], Decision]
CreateTopics = Callable[[Sequence[TopicSpec]], Awaitable[list[TopicResult]]]
"""Have topics made by whoever is controller; what went wrong is in the results."""


class Promise:
    """The reply to one request: it is there at once, or a callback waits for it."""

    __slots__ = ("callback", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.callback: Callable[[Reply], None] | None = None
        """Called with the reply, if it was not there when somebody looked for it."""

    def answer(self, reply: Reply) -> None:
        assert self.reply is None, "a request is answered once"
        self.reply = reply
        if self.callback is not None:
            self.callback(reply)

    def on_reply(self, callback: Callable[[Reply], None]) -> None:
        """Call this with the reply, now or when there is one."""
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
        self._slots: dict[int, _Slot[M]] = {}
        self._to_load: deque[Shard[M]] = deque()
        self._loading: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._started = False
        self._awaiting_brokers = False
        self.unmade: str | None = None
        """Why there is no topic yet."""
        replica_manager.leadership_listeners.append(self.leadership_changed)

    @abstractmethod
    def _machine(self) -> M:
        """A new machine, for one shard."""

    @abstractmethod
    def _spec(self) -> TopicSpec:
        """The topic as it is made on first need."""

    # The topic.

    def _compression(self) -> str:
        """Of what is written, unless the topic's own configuration says otherwise."""
        return CODECS[0]

    def partition_of(self, key: str) -> int | None:
        """Which partition remembers this key; None as long as there is no topic."""
        topic = self._cluster.image.topic(self.topic)
        return None if topic is None else java_hash(key) % len(topic.partitions)

    async def make_topic(self) -> None:
        """Have the topic, with as many replicas as it shall have: not with fewer, or it would stay like that."""
        if self._cluster.image.topic(self.topic) is not None:
            return
        if self._making is None or self._making.done():
            self._making = self._runtime.spawn(self._make_topic(), name=f"make {self.topic}")
        await asyncio.shield(self._making)

    async def _make_topic(self) -> None:
        spec = self._spec()
        (result,) = await self._create_topics([spec])
        self.unmade = result.message or result.code.name
        if result.code in (ErrorCode.not_controller, ErrorCode.request_timed_out):  # whoever asked tries again
            log.warning("%s cannot be made yet: %s", self.topic, result.message)
        elif result.code == ErrorCode.invalid_replication_factor:
            self.unmade = (
                f"{self.topic} cannot be made yet: it needs {spec.replication_factor} brokers (the cluster has "
                f"{len(self._cluster.image.brokers)}). Start more, or all with --set {self.replication_setting}=1."
            )
            if self._awaiting_brokers:
                return  # said before, and asked for all the time
            self._awaiting_brokers = True
            log.warning("%s", self.unmade)
        elif result.code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            log.error("%s cannot be made: %s", self.topic, result.message or result.code.name)

    # Leading.

    def start(self) -> None:
        self._started = True
        topic = self._cluster.image.topic(self.topic)
        if topic is not None:
            for index in range(len(topic.partitions)):
                self.leadership_changed(topic, index)

    def leadership_changed(self, topic: Topic, index: int) -> None:
        """Load what this broker leads now, let go of what it does not lead any more."""
        if not self._started or topic.name != self.topic:
            return
        partition = self._replica_manager.replicas.get(topic.name, index)
        slot = self._slots.get(index)
        if slot is not None and not (slot.shard.partition is partition and slot.shard.leads):
            # Also when this broker leads again: what others wrote between two of its reigns has to be read.
            self._let_go(index)
            slot = None
        if slot is None and partition is not None and partition.leads:
            self._take(index, partition)

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        if isinstance(change, c.TopicDeleted) and (topic := old.topic_by_id(change.topic_id)) is not None:
            self._topic_deleted(topic)

    def _topic_deleted(self, topic: Topic) -> None:
        if topic.name == self.topic:
            for index in list(self._slots):
                self._let_go(index)

    def close(self) -> None:
        """Nobody is served from now on, and whoever waits is sent away."""
        self._started = False
        if self._loading is not None:
            self._loading.cancel()
        for index in list(self._slots):
            self._let_go(index)

    def _take(self, index: int, partition: Partition) -> None:
        shard = Shard(
            partition,
            self._machine(),
            self.codec,
            self._tell,
            self._replica_manager.delayed,
            held_s_max=self._config.current.offsets_commit_timeout_ms / 1000,
            compression=self._compression(),
        )
        self._slots[index] = _Slot(shard)
        if partition.log_start == partition.log_end:
            self._activate(shard)
            return
        self._to_load.append(shard)
        if self._loading is None or self._loading.done():
            self._loading = self._runtime.spawn(self._load_all(), name=f"load {self.topic}")

    def _let_go(self, index: int) -> None:
        slot = self._slots.pop(index)
        if slot.timer is not None:
            slot.timer.cancel()
        slot.shard.unload()

    def _activate(self, shard: Shard[M]) -> None:
        shard.activate(self._runtime.now(), self._runtime.wall_ms())
        self._arm(self._slots[shard.partition.index])

    # Loading.

    async def _load_all(self) -> None:
        """One after the other, so that traffic never waits for more than one slice."""
        while self._to_load:
            shard = self._to_load.popleft()
            try:
                await self._load(shard)
            except StorageFault as fault:
                log.error("%s cannot be read, trying again in %g s: %s", shard.partition, LOAD_RETRY_SECONDS, fault)
                self._runtime.call_at(self._runtime.now() + LOAD_RETRY_SECONDS, self._load_again, shard)
            except (Refused, Fault) as failure:
                self._fail(shard, failure)
            except Exception as failure:  # a mistake with one must not keep all others from being loaded
                log.error("loading %s failed", shard.partition, exc_info=failure)
                self._fail(shard, failure)

    def _load_again(self, shard: Shard[M]) -> None:
        """From the beginning: how much of it the machine has taken in is not known."""
        slot = self._slots.get(shard.partition.index)
        if slot is not None and slot.shard is shard:
            self._let_go(shard.partition.index)
            self._take(shard.partition.index, shard.partition)

    def _fail(self, shard: Shard[M], failure: Exception) -> None:
        if shard.phase is Phase.LOADING and shard.partition.leads:
            shard.phase = Phase.FAILED
            log.error(
                "%s cannot be loaded: %s. What it remembers is not served until it is repaired from another "
                "replica, or the topic is deleted and with it all it remembers.", shard.partition, failure,
            )  # fmt: skip

    async def _load(self, shard: Shard[M]) -> None:
        """Read all there is, committed or not: what a predecessor appended will be committed, or this reign ends."""
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
            gc.freeze()  # what was loaded stays: to look through it for garbage again and again would stall the loop
            await asyncio.sleep(0)
        if shard.phase is Phase.LOADING:
            self._activate(shard)
            took_ms = (self._runtime.now() - began) * 1000
            log.info("%s: loaded %d records in %d ms", shard.partition, loader.records, took_ms)

    # Promise.

    def _tell(self, reply_to: ReplyTo, reply: Reply) -> None:
        assert isinstance(reply_to, Promise)
        reply_to.answer(reply)

    def ask(self, key: str, act: Act[M], *, current: bool = True) -> Promise:
        """Let the machine that knows the key decide, and apply that. `current`: the answer must not be that of a
        coordinator that was replaced. What is written need not ask for that: the log of one takes nothing."""
        promise = Promise()
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
        if not shard.leads:  # the registration has ended, and the image does not tell yet who leads now
            raise Refused(ErrorCode.not_coordinator)
        now, now_ms = self._runtime.now(), self._runtime.wall_ms()
        shard.apply(act(shard.machine, promise, now, now_ms), now, now_ms)
        deadline = shard.deadline
        if deadline is not None and (slot.timer is None or deadline < slot.wakes_at):
            self._arm(slot)

    async def _decide_later(self, slot: _Slot[M], act: Act[M], promise: Promise) -> None:
        """Perhaps another broker coordinates by now, and what is remembered here is out of date: first make sure."""
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
        """What the machine that knows the key shows, once nothing of it can be lost any more."""
        shown: R = await self._looked(self.ask(key, lambda machine, to, now, now_ms: answer(to, view(machine))))
        return shown

    async def look_at_all(self, view: Callable[[M], R]) -> list[R]:
        """What all machines show. Refused while one is loading: an answer that leaves out something is wrong."""
        for slot in self._slots.values():
            slot.shard.check_active()
        asked = []
        for slot in self._slots.values():
            asked.append(Promise())
            slot.shard.apply(answer(asked[-1], view(slot.shard.machine)), self._runtime.now(), self._runtime.wall_ms())
        return [await self._looked(promise) for promise in asked]

    async def _looked(self, promise: Promise) -> Any:
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
        """Apply decisions nobody asked for, of all machines or of some; others go on in between."""
        for shard in self.active() if shards is None else shards:
            for decision in decide(shard.machine):
                shard.apply(decision, self._runtime.now(), self._runtime.wall_ms())
                await asyncio.sleep(0)

    # Time.

    def _arm(self, slot: _Slot[M]) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        deadline = slot.shard.deadline
        if deadline is not None and slot.shard.phase is Phase.ACTIVE:
            slot.wakes_at = deadline
            slot.timer = self._runtime.call_at(deadline, self._wake, slot)

    def _wake(self, slot: _Slot[M]) -> None:
        slot.timer = None
        try:
            slot.shard.expire(self._runtime.now(), self._runtime.wall_ms())
        finally:  # a mistake with one group must not stop the clocks of all others
            self._arm(slot)


class InTurns:
    """Each key once. Long ones take their time (`java_hash`): others have their turn in between."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = iter(dict.fromkeys(keys))
        self._looked_at = 0

    def __aiter__(self) -> InTurns:
        return self

    async def __anext__(self) -> str:
        for key in self._keys:
            self._looked_at += len(key)
            if self._looked_at > KEY_CHARS_MAX:
                self._looked_at = 0
                await asyncio.sleep(0)
            return key
        raise StopAsyncIteration


def java_hash(text: str) -> int:
    """Java's String.hashCode, without its sign: clients and tools know where a group lives. No record has room for a
    key that is longer than what is looked at."""
    return _kept_hash(text) if len(text) <= KEY_CHARS_KEPT else _java_hash(text[:KEY_CHARS_MAX])


def _java_hash(text: str) -> int:
    value = 0
    for (unit,) in _UNITS.iter_unpack(text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return 0 if value == 0x80000000 else value


_kept_hash = lru_cache(maxsize=16384)(_java_hash)
