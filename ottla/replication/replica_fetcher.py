"""Replica fetchers: one fetch loop for each broker that leads a partition of which this broker has a follower.

Protocol: this broker sends Fetch as a replica, over its own connection to the leader. A fetch offset tells the
leader that this replica has everything before it. What is durable: appended records, as far as the disk has been
flushed (safety comes from replication, not from the disk). If the leader returns a diverging epoch, the log is
truncated, durably, before the next Fetch: otherwise a crash would bring back records that no other replica has. What
can be lost: the connection, at any time; the next one opens a new fetch session.

While a Fetch is delayed at the leader, one more may be sent. The leader then completes the delayed one at once. So a
partition that begins to follow this leader does not wait for `replica.fetch.wait.max.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from ottla.config.broker_config import BrokerConfig, LiveConfig
from ottla.errors import BadFrame, ErrorCode, Fault, Refused
from ottla.log.damage import Gap
from ottla.log.segment import Segment
from ottla.log.truncation import quarantine_tail
from ottla.net.outbound import OutboundConnection
from ottla.replication import gaps
from ottla.replication.fetch_plan import FetchPlan, FetchRequestData
from ottla.replication.leader import truncation_offset
from ottla.replication.partition import Partition
from ottla.replication.throttle import Throttle
from ottla.runtime import Handle, Runtime
from ottla.wire.apis import FETCH
from ottla.wire.fetch import PartitionFetched
from ottla.wire.replica_fetch import VERSION, FetchParams, decode_response, encode_request

log = logging.getLogger("ottla.replication")

ANSWER_SECONDS: Final = 30.0
"""How long a response may take beyond its maximum wait."""
RECONNECT_SECONDS_MIN: Final = 0.02
RECONNECT_SECONDS_MAX: Final = 1.0
PARTITIONS_PER_ITERATION: Final = 200
"""How many partitions are appended before other tasks run."""
THROTTLED_SECONDS_MAX: Final = 1.0
"""How long a throttled partition waits before it checks the throttle again."""

_NOT_YET: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors while one of the two brokers does not know the new leader yet: not worth a warning."""


class FetcherContext(Protocol):
    """The services that a replica fetcher needs."""

    @property
    def broker_epoch(self) -> int: ...

    @property
    def follower_throttle(self) -> Throttle: ...

    async def open_link(self, broker_id: int) -> OutboundConnection: ...

    async def sync(self, partition: Partition) -> None:
        """Flush the appended records."""

    def make_whole(self, partition: Partition) -> None:
        """The leader has the records that are missing here: copy them again, after this replica has left the ISR."""

    async def was_cut(self, partition: Partition, dropped: list[Segment]) -> None:
        """A log was truncated: write its checkpoints, and delete the files later."""


class Asked(NamedTuple):
    """A Fetch in flight."""

    number: int
    answer: asyncio.Future[memoryview]


class ReplicaFetcher:
    """The loop that fetches from one leader."""

    def __init__(self, leader_id: int, runtime: Runtime, context: FetcherContext, config: BrokerConfig) -> None:
        self.leader_id = leader_id
        self._runtime = runtime
        self._context = context
        self._config = config
        self._plan = FetchPlan(
            partition_bytes_max=config.replica_fetch_max_bytes, backoff_s_max=config.replica_fetch_backoff_ms / 1000
        )
        self._news = asyncio.Event()
        self._link: OutboundConnection | None = None
        self._heard_at: float | None = None
        self._task = runtime.spawn(self._run(), name=f"follow broker {leader_id}")

    def __len__(self) -> int:
        return len(self._plan)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._plan

    def add(self, partition: Partition) -> None:
        self._plan.add(partition)
        self._news.set()

    def remove(self, partition: Partition) -> None:
        self._plan.remove(partition)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._link is not None:
            self._link.close()

    async def _run(self) -> None:
        pause = RECONNECT_SECONDS_MIN
        failures, since = 0, 0.0
        while True:
            failed = True
            try:
                self._link = await self._context.open_link(self.leader_id)
                if failures:
                    log.info("following broker %d again, after %.1f s", self.leader_id, self._runtime.now() - since)
                pause, failures, self._heard_at = RECONNECT_SECONDS_MIN, 0, self._runtime.now()
                self._plan.begin()
                await self._fetch(self._link)
                failed = False  # registered again: a normal restart of the loop
            except (Fault, Refused, BadFrame) as failure:
                log.info("following broker %d: %s; trying again", self.leader_id, failure)
            except Exception as failure:  # without this loop no partition would be fetched from that broker
                log.error("following broker %d failed; trying again", self.leader_id, exc_info=failure)
            if not failures:  # a broker that was paused notices it only after it resumes
                since = self._runtime.now() if self._heard_at is None else self._heard_at
            failures += failed
            if self._link is not None:
                self._link.close()
                self._link = None
            await asyncio.sleep(pause * (0.5 + self._runtime.random.random() / 2))
            pause = min(pause * 2, RECONNECT_SECONDS_MAX)

    async def _fetch(self, link: OutboundConnection) -> None:
        """Fetch and append until an error. At most one request is sent after the one that is delayed."""
        asked: Asked | None = None
        following: Asked | None = None
        epoch = self._context.broker_epoch
        try:
            while True:
                if self._context.broker_epoch != epoch:
                    return  # registered again: in a session the leader would learn it only for partitions with changes
                if asked is None:
                    asked = self._ask(link, await self._prepare())
                if asked is None:
                    await self._rest()
                    self._heard_at = self._runtime.now()  # nothing was asked
                    continue
                if following is None and not asked.answer.done():
                    await self._news.wait()
                    now = await self._prepare()
                    if not asked.answer.done() and self._plan.has_news:
                        following = self._ask(link, now)
                number, view = asked.number, await asked.answer
                self._heard_at = self._runtime.now()
                asked, following = following, None
                await self._take(view, number)
        finally:
            for each in (asked, following):
                if each is not None and not each.answer.cancel() and not each.answer.cancelled():
                    each.answer.exception()  # the error of the other attempt is known

    def _ask(self, link: OutboundConnection, now: float) -> Asked | None:
        self._news.clear()
        request = self._plan.request(now)
        if request is None:
            return None
        wait_s = self._config.replica_fetch_wait_max_ms / 1000
        answer = link.call_raw(FETCH, VERSION, [self._encoded(request)], wait_s + ANSWER_SECONDS)
        answer.add_done_callback(lambda _: self._news.set())
        return Asked(request.number, answer)

    def _encoded(self, request: FetchRequestData) -> bytes:
        config = self._config
        wait_ms = config.replica_fetch_wait_max_ms
        deadline = self._plan.deadline()
        if deadline is not None:  # a partition's backoff ends before that
            wait_ms = min(wait_ms, max(int((deadline - self._runtime.now()) * 1000), 1))
        wanted = FetchParams(
            config.broker_id, self._context.broker_epoch, wait_ms, config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
        )  # fmt: skip
        return encode_request(wanted, request.session_id, request.session_epoch, request.topics, request.forgotten)

    async def _rest(self) -> None:
        """Wait until a partition is added, or a backoff ends."""
        deadline = self._plan.deadline()
        timer: Handle | None = None
        if deadline is not None:
            timer = self._runtime.call_at(deadline, self._news.set)
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _take(self, view: memoryview, number: int) -> None:
        answer = decode_response(view)
        if answer.error:
            log.info("broker %d refused Fetch: %s", self.leader_id, ErrorCode(answer.error).name)
            self._plan.begin()
            await asyncio.sleep(RECONNECT_SECONDS_MIN)
            return
        for count, (partition, fetched) in enumerate(self._plan.answered(answer, number)):
            if count % PARTITIONS_PER_ITERATION == PARTITIONS_PER_ITERATION - 1:
                await asyncio.sleep(0)
            try:
                records = fetched.records
                damaged = len(records) and gaps.unsettled(partition) is not None
                if fetched.error or fetched.diverging is not None or damaged:
                    await self._realign(partition, fetched)
                else:
                    assert isinstance(records, memoryview)
                    now_ms = self._runtime.wall_ms()
                    dropped = partition.replicate(records, fetched.high_watermark, fetched.log_start, now_ms)
                    gaps.compare_start(partition, fetched.log_start)
                    if dropped:
                        await self._context.was_cut(partition, dropped)
                self._plan.took(partition)
            except (Refused, Fault) as failure:
                if not isinstance(failure, Refused) or failure.code not in _NOT_YET:
                    log.warning("%s does not follow broker %d: %s", partition, self.leader_id, failure)
                self._plan.failed(partition, self._runtime.now())
            except Exception as failure:  # a mistake with one partition must not keep back all others
                log.error("%s cannot follow broker %d", partition, self.leader_id, exc_info=failure)
                self._plan.failed(partition, self._runtime.now())
            self._throttle(partition, len(fetched.records))

    def _throttle(self, partition: Partition, size: int) -> None:
        """Apply the replication throttle (KIP-73)."""
        if size and _throttled(partition):
            now = self._runtime.now()
            self._context.follower_throttle.spend(size, now)
            self._hold_back(partition, now)

    def _hold_back(self, partition: Partition, now: float) -> None:
        """Back off while the throttle is exceeded: not for long, since it may be lifted meanwhile."""
        throttle = self._context.follower_throttle
        if _throttled(partition) and not throttle.ready(now):
            self._plan.rest(partition, min(throttle.free_at, now + THROTTLED_SECONDS_MAX))

    async def _prepare(self) -> float:
        """Prepare the next request; returns the time for which it is prepared. A fetch offset tells the leader what
        this replica has: with `flush.messages=1` it is flushed before. That includes records that this broker wrote
        while it led, or followed another leader."""
        while True:
            now = self._runtime.now()
            for partition in self._plan.rested(now):
                self._hold_back(partition, now)
            partitions = self._plan.unsynced(now)
            if not partitions:
                return now
            outcomes = await asyncio.gather(*map(self._context.sync, partitions), return_exceptions=True)
            for partition, outcome in zip(partitions, outcomes, strict=True):
                if isinstance(outcome, Fault | Refused):
                    log.error("%s cannot be synced: %s", partition, outcome)
                    self._plan.failed(partition, self._runtime.now())
                elif outcome is not None:
                    raise outcome

    async def _realign(self, partition: Partition, fetched: PartitionFetched) -> None:
        """The leader has sent no records: the logs have diverged, the fetch offset is out of range, or records are
        missing here."""
        now_ms = self._runtime.wall_ms()
        if fetched.missing is not None:
            gap = gaps.pass_over(partition, Gap(*fetched.missing), now_ms)
            if gap is not None:
                self._log_gap(partition, gap)
        elif fetched.error == ErrorCode.offset_out_of_range:
            await self._restart_log(partition, fetched.log_start, now_ms)
        elif fetched.error:
            raise Refused(ErrorCode(fetched.error))
        elif fetched.diverging is not None:
            before, committed = partition.log.log_end, partition.high_watermark
            kept = await self._quarantine_tail(partition, truncation_offset(partition.log, *fetched.diverging))
            dropped = partition.follower.truncate(*fetched.diverging, now_ms)
            self._log_truncation(partition, before, committed, kept)
            await self._context.was_cut(partition, dropped)
        else:
            self._context.make_whole(partition)

    async def _quarantine_tail(self, partition: Partition, offset: int) -> str:
        """Copy records that may have been acknowledged before they are truncated. Returns the names of the copies."""
        log_ = partition.log
        followed = (partition.leader_id, partition.leader_epoch, log_.truncations)
        if offset >= log_.log_end or (offset >= partition.high_watermark and _knows_committed(partition)):
            return ""
        kept = await self._runtime.offload(quarantine_tail, log_, offset)
        if (partition.leader_id, partition.leader_epoch, log_.truncations) != followed:
            raise Refused(ErrorCode.fenced_leader_epoch)  # another broker leads now
        return ", ".join(kept)

    def _log_truncation(self, partition: Partition, before: int, committed: int, kept: str) -> None:
        after = partition.log.log_end
        quarantined = f"Offsets {after} to {before - 1} are kept in {kept}"
        if after >= committed and not _knows_committed(partition):
            log.warning(
                "%s: truncated from %d to %d to match broker %d: it is not known whether records acknowledged with "
                "acks=all are affected. They are if broker %d, or a leader before it, was elected without them: then "
                "the log of the controller says `unclean election`. %s",
                partition, before, after, self.leader_id, self.leader_id, quarantined,
            )  # fmt: skip
        elif after >= committed:
            log.info(
                "%s: truncated from %d to %d to match broker %d: the removed records were not committed, so no record "
                "acknowledged with acks=all is affected", partition, before, after, self.leader_id,
            )  # fmt: skip
        else:
            log.error(
                "%s: truncated from %d to %d to match broker %d: records acknowledged with acks=all are affected, "
                "offsets %d to %d were committed. Broker %d was elected without them (unclean), or has lost them. %s",
                partition, before, after, self.leader_id, after, committed - 1, self.leader_id, quarantined,
            )  # fmt: skip

    def _log_gap(self, partition: Partition, gap: Gap) -> None:
        what = "has given them up" if gap.given_up else "has lost them as well"
        where = partition, gap.start, gap.end - 1, self.leader_id
        log.warning("%s: offsets %d..%d: broker %d %s, continuing after them", *where, what)

    async def _restart_log(self, partition: Partition, log_start: int, now_ms: int) -> None:
        if log_start < 0:
            raise Refused(ErrorCode.offset_out_of_range)
        if gaps.unsettled(partition) is not None and log_start <= partition.log.log_end:
            partition.log.raise_log_start(log_start)  # the leader has deleted the missing offsets
            return
        log.warning(
            "%s: broker %d does not have offset %d any more; starting again at %d",
            partition, self.leader_id, partition.log.log_end, log_start,
        )  # fmt: skip
        await self._context.was_cut(partition, partition.follower.restart_at(log_start, now_ms))


def _knows_committed(partition: Partition) -> bool:
    """Whether this replica knows the high watermark. It does if it led last. If it is in sync, so was the present
    leader, which then has all committed records. Otherwise, after a `kill -9` or with records of another leader, it
    knows only a part."""
    return partition.follower.watermark_known or partition.broker_id in partition.in_sync


def _throttled(partition: Partition) -> bool:
    return partition.policy.follower_throttled and partition.broker_id not in partition.in_sync


class ReplicaFetcherManager:
    """All replica fetchers of one broker: each partition is fetched from its leader only."""

    def __init__(self, runtime: Runtime, context: FetcherContext, config: LiveConfig) -> None:
        self._runtime = runtime
        self._context = context
        self._config = config
        self._by_leader: dict[int, ReplicaFetcher] = {}
        self._leader_of: dict[Partition, int] = {}
        self._started = False

    def start(self) -> None:
        self._started = True

    def follow(self, partition: Partition, leader_id: int | None) -> None:
        """Fetch from this broker from now on; None: stop fetching."""
        if not self._started:
            return
        before = self._leader_of.pop(partition, None)
        if before is not None and before != leader_id:
            self._leave(before, partition)
        if leader_id is None:
            return
        self._leader_of[partition] = leader_id
        fetcher = self._by_leader.get(leader_id)
        if fetcher is None:
            fetcher = ReplicaFetcher(leader_id, self._runtime, self._context, self._config.current)
            self._by_leader[leader_id] = fetcher
        fetcher.add(partition)

    def _leave(self, leader_id: int, partition: Partition) -> None:
        fetcher = self._by_leader[leader_id]
        fetcher.remove(partition)
        if not len(fetcher):
            del self._by_leader[leader_id]
            self._runtime.spawn(fetcher.stop(), name=f"stop following broker {leader_id}")

    async def stop(self) -> None:
        self._started = False
        fetchers, self._by_leader = list(self._by_leader.values()), {}
        self._leader_of.clear()
        for fetcher in fetchers:
            await fetcher.stop()
