"""Stage of a drill: the cluster, narration and a picture after each step, and checks that end the drill if one
fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar, cast

from ottla.drills import pictures
from ottla.drills.probe import Acknowledged, Probe, count_on_disk, values_on_disk
from ottla.errors import ErrorCode
from ottla.local.cluster import LocalCluster
from ottla.local.processes import BrokerProcess, State
from ottla.local.snapshot import ClusterSnapshot, PartitionReplicas, listed
from ottla.local.waiting import NotInTime, until

T = TypeVar("T")
Print = Callable[[str], None]
Picture = Callable[[], Awaitable[list[str]]]

PATIENCE_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.02
RECORDS_BELOW: Final = "(in brackets: the number of records in the broker's log)"
NEW_LEADER_SECONDS: Final = 2.0
"""How long a picture waits for the high watermark of a new leader."""

SETTINGS: Final = {
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "100",
    "zookeeper.session.timeout.ms": "3000",
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "auto.leader.rebalance.enable": "false",
}
"""Shorter timeouts than Kafka's defaults, so that a drill is short."""

DOWN: Final = {
    State.IDLE: "not started",
    State.KILLED: "killed",
    State.STOPPED: "stopped",
    State.FAILED: "failed",
    State.PAUSED: "paused",
}


class CheckFailed(Exception):
    """The cluster is not in the state that the drill expects."""


class Stage:
    """What a drill uses: the cluster, requests, narration, checks."""

    def __init__(self, cluster: LocalCluster, print: Print) -> None:
        self.cluster = cluster
        self.probe = Probe(cluster)
        self.acknowledged: dict[tuple[str, int], list[str]] = {}
        """Acknowledged records of each partition in order, without those that were lost."""
        self.lost: dict[tuple[str, int], int] = {}
        """Number of acknowledged records that were lost."""
        self.unanswered: dict[tuple[str, int], int] = {}
        """Number of records in `acknowledged` that were sent with acks=0: in the log, but without a response."""
        self._print = print
        self._written = 0
        self._picture: Picture | None = None
        self._drawn: list[str] = []

    # Narration and checks.

    def say(self, line: str) -> None:
        self._print(f"  {line}")

    def check(self, holds: bool, expected: str, seen: object = None) -> None:
        """Report the check, or end the drill if it fails."""
        if not holds:
            raise CheckFailed(f"expected: {expected}" + (f"; seen: {seen}" if seen is not None else ""))
        self._print(f"  ✓ {expected}")

    async def until(
        self, expected: str, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool], within: float = 0
    ) -> T:
        """Wait until it holds, report the duration, and draw."""
        begun, limit = time.monotonic(), within or PATIENCE_SECONDS
        try:
            value = await until(look, expected, limit, holds=holds)
        except NotInTime as late:
            raise CheckFailed(f"expected within {limit:g} s: {expected}; seen: {late.seen}") from None
        self._print(f"  ✓ {expected} (after {time.monotonic() - begun:.2f} s)")
        await self.draw()
        return value

    # Pictures.

    def show(self, picture: Picture | None) -> None:
        """Set the picture that is drawn after each step."""
        self._picture = picture
        self._drawn = []

    def show_replicas(self, topic: str, partition: int = 0) -> None:
        self.show(lambda: self._replicas_picture(topic, partition))

    def show_topics(self, *topics: str) -> None:
        self.show(lambda: self._matrix_picture(topics))

    def show_logs(self, topic: str, partitions: int) -> None:
        async def picture() -> list[str]:
            ends = [await self.probe.end(topic, partition) for partition in range(partitions)]
            return [line for n, end in enumerate(ends) for line in pictures.log(f"{topic}-{n}", int(end), {})]

        self.show(picture)

    async def draw(self) -> None:
        """Draw the picture if it has changed."""
        if self._picture is None:
            return
        lines = await self._picture()
        if lines and lines != self._drawn:
            self._drawn = lines
            for line in lines:
                self._print(f"      {line}")

    async def _replicas_picture(self, topic: str, partition: int) -> list[str]:
        """Waits for the high watermark, which a new leader knows a moment later."""
        deadline = time.monotonic() + NEW_LEADER_SECONDS
        while True:
            lines, known = await self._replicas_now(topic, partition)
            if known or time.monotonic() > deadline:
                return lines
            await asyncio.sleep(LOOK_SECONDS)

    async def _replicas_now(self, topic: str, partition: int) -> tuple[list[str], bool]:
        """The picture, and whether it is complete."""
        snapshot = await self.probe.snapshot()
        state = snapshot.partitions.get((topic, partition))
        if state is None:
            return [], True
        copies = [
            pictures.Copy(
                broker_id, count_on_disk(self.cluster, broker_id, topic, partition), self.role(state, broker_id)
            )
            for broker_id in sorted(state.replicas)
        ]
        end = await self.probe.end(topic, partition)
        high = None if isinstance(end, ErrorCode) else end
        led = any(copy.role == pictures.LEADER for copy in copies)
        if not led:
            high = None  # the leader has died or was paused meanwhile
        return pictures.replicas(f"{topic}-{partition}", copies, high), high is not None or not led

    async def _matrix_picture(self, topics: Sequence[str]) -> list[str]:
        snapshot = await self.probe.snapshot()
        shown = {key: state for key, state in snapshot.partitions.items() if key[0] in topics}
        if not shown:
            return []
        brokers = list(self.cluster.brokers)
        rows = {
            f"{topic}-{partition}": [self._cell(topic, partition, state, broker_id) for broker_id in brokers]
            for (topic, partition), state in shown.items()
        }
        return [*pictures.matrix([f"broker {broker_id}" for broker_id in brokers], rows), RECORDS_BELOW]

    def _cell(self, topic: str, partition: int, state: PartitionReplicas, broker_id: int) -> str:
        """The role of a broker for a partition, and the number of records in its log."""
        if broker_id not in state.replicas:
            return "-"
        return f"{self.role(state, broker_id)} ({count_on_disk(self.cluster, broker_id, topic, partition)})"

    def role(self, state: PartitionReplicas, broker_id: int) -> str:
        """The role of a broker for a partition; a broker that is down is never the leader."""
        if broker_id not in state.replicas:
            return "-"
        in_sync = "in sync" if broker_id in state.in_sync else "out of sync"
        if (down := DOWN.get(self.cluster[broker_id].state)) is not None:
            return f"{down}, {in_sync}"
        return pictures.LEADER if broker_id == state.leader else in_sync

    # The cluster.

    async def in_sync(self, topic: str, brokers: Iterable[int], partition: int = 0) -> PartitionReplicas:
        wanted = set(brokers)
        return await self.until(
            f"{topic}-{partition}: in sync: {listed(wanted)}",
            lambda: self.probe.replicas(topic, partition),
            lambda state: set(state.in_sync) == wanted,
        )

    async def led_by(self, topic: str, broker_id: int, partition: int = 0) -> PartitionReplicas:
        return await self.until(
            f"broker {broker_id} leads {topic}-{partition}" if broker_id >= 0 else f"{topic}-{partition} has no leader",
            lambda: self.probe.replicas(topic, partition),
            lambda state: state.leader == broker_id,
        )

    async def led_by_other(self, topic: str, than: int, partition: int = 0) -> PartitionReplicas:
        return await self.until(
            f"a broker other than {than} leads {topic}-{partition}",
            lambda: self.probe.replicas(topic, partition),
            lambda state: state.leader not in (than, -1),
        )

    async def kill(self, broker_id: int) -> None:
        broker = self.cluster[broker_id]
        pid = broker.pid
        broker.kill()
        self.say(f"Broker {broker_id} is killed with kill -9 (pid {pid}).")
        await self.draw()

    async def pause(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.cluster[broker_id].pause()
        self.say(f"{_brokers(broker_ids)} paused (SIGSTOP).")
        await self.draw()

    def resume(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.cluster[broker_id].resume()
        self.say(f"{_brokers(broker_ids)} resumed (SIGCONT).")

    async def stop(self, broker_id: int) -> None:
        begun = time.monotonic()
        await self.cluster[broker_id].until_stopped()
        self.say(f"Broker {broker_id} is stopped cleanly, which took {time.monotonic() - begun:.2f} s.")
        await self.draw()

    async def restart(self, broker_id: int) -> BrokerProcess:
        broker = self.cluster[broker_id]
        broker.launch()
        await broker.until_ready()
        self.say(f"Broker {broker_id} is started again, and ready after {broker.ready_seconds:.2f} s.")
        await self.draw()
        return broker

    # Records.

    async def write(self, topic: str, count: int, partition: int = 0) -> None:
        """Write records that must be acknowledged; retried during an election."""
        values = self.next_values(count)
        outcome = await self._without_error(
            lambda: self.probe.write(topic, values, partition), f"a write to {topic}-{partition} is acknowledged"
        )
        self.promise(topic, partition, values, outcome)
        given = f"offsets {outcome.base_offset} to {outcome.end - 1}" if count > 1 else f"offset {outcome.base_offset}"
        self._print(f"  ✓ {records(count)} written to {topic}-{partition}, acks=all: {given}")
        await self.draw()

    def promise(self, topic: str, partition: int, values: Sequence[str], given: Acknowledged) -> None:
        records = self.acknowledged.setdefault((topic, partition), [])
        if given.base_offset != len(records):
            raise CheckFailed(
                f"expected: next offset of {topic}-{partition} is {len(records)}; seen: {given.base_offset}"
            )
        records += values

    async def refused(self, topic: str, partition: int = 0) -> None:
        """A write that must fail."""
        outcome = await self.probe.write(topic, self.next_values(1), partition)
        refusal = outcome.name.upper() if isinstance(outcome, ErrorCode) else "it was acknowledged"
        self.check(isinstance(outcome, ErrorCode), f"a write to {topic}-{partition} is refused ({refusal})", refusal)

    async def nothing_lost(self, topic: str, partition: int = 0) -> None:
        """A consumer reads exactly the acknowledged records that were not lost before, in order."""
        wanted = self.acknowledged[topic, partition]
        found = await self.read(topic, partition)
        missing = len(set(wanted) - set(found))
        gone = self.lost.get((topic, partition), 0)
        unanswered = self.unanswered.get((topic, partition), 0)
        count = len(wanted) - unanswered
        which = f"the {count} acknowledged records that are left" if gone else f"all {count} acknowledged records"
        which += f", and {unanswered} sent with acks=0," if unanswered else ""
        self.check(
            found == wanted,
            f"{topic}-{partition}: {which} are read back, in order, none twice" + (f"; lost: {gone}" if gone else ""),
            f"{len(found)} records, {missing} missing",
        )

    async def some_lost(self, topic: str, left: int, because: str, partition: int = 0) -> None:
        """A consumer reads only the first `left` acknowledged records: the others are lost."""
        wanted = self.acknowledged[topic, partition]
        found = await self.read(topic, partition)
        gone = len(wanted) - left
        unanswered = self.unanswered.get((topic, partition), 0)
        remaining = f"{left - unanswered} of {len(wanted) - unanswered} acknowledged records are left"
        lost = f"{gone} {'is' if gone == 1 else 'are'} lost, because {because}"
        self.check(
            found == wanted[:left] and gone > 0,
            f"{topic}-{partition}: {remaining}, {lost}",
            f"{len(found)} records, {len(set(wanted) - set(found))} missing",
        )
        self.acknowledged[topic, partition] = found
        self.lost[topic, partition] = self.lost.get((topic, partition), 0) + gone

    def truncated(self, topic: str, broker_id: int, before: Sequence[str], partition: int = 0) -> int:
        """Number of records in `before` that are not in the broker's log any more."""
        return len(set(before) - set(self.on_disk(broker_id, topic, partition)))

    async def read(self, topic: str, partition: int = 0) -> list[str]:
        return await self._without_error(lambda: self.probe.read(topic, partition), f"{topic}-{partition} can be read")

    async def _without_error(self, ask: Callable[[], Awaitable[T | ErrorCode]], expected: str) -> T:
        """Retry until the answer is not an error."""
        try:
            answer = await until(ask, expected, PATIENCE_SECONDS, holds=lambda value: not isinstance(value, ErrorCode))
        except NotInTime as late:
            raise CheckFailed(f"expected: {expected}; seen: {late.seen}") from None
        return cast("T", answer)

    def on_disk(self, broker_id: int, topic: str, partition: int = 0) -> list[str]:
        return values_on_disk(self.cluster, broker_id, topic, partition)

    async def same_logs(self, topic: str, brokers: Sequence[int], partition: int = 0) -> None:
        """Wait until the logs of these brokers are equal."""

        async def logs() -> list[list[str]]:
            return [self.on_disk(broker_id, topic, partition) for broker_id in brokers]

        await self.until(
            f"the logs of {topic}-{partition} on brokers {listed(brokers)} are the same, record for record",
            logs,
            lambda found: all(each == found[0] for each in found),
        )

    async def create(
        self,
        topic: str,
        placed: Sequence[Sequence[int]] = (),
        *,
        partitions: int = 0,
        copies: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, and wait until all brokers know it. `placed` names the brokers of each partition."""
        await self.probe.create(topic, placed, partitions=partitions or -1, copies=copies, configs=configs)
        await self.created(topic, partitions or len(placed))

    async def created(self, topic: str, partitions: int) -> ClusterSnapshot:
        """Wait until every broker knows the topic, and each of its partitions has a leader."""

        async def snapshots() -> list[ClusterSnapshot]:
            return [await self.probe.snapshot_of(broker_id) for broker_id in self.probe.serving()]

        def led(snapshot: ClusterSnapshot) -> int:
            return sum(state.leader >= 0 for (name, _), state in snapshot.partitions.items() if name == topic)

        found = await self.until(
            f"topic {topic} is created: all brokers know it, {partitions} of {partitions} partitions have a leader",
            snapshots,
            lambda found: bool(found) and all(led(snapshot) == partitions for snapshot in found),
        )
        return found[0]

    def next_values(self, count: int) -> list[str]:
        self._written += count
        return [f"record {n}" for n in range(self._written - count, self._written)]


def records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _brokers(broker_ids: Sequence[int]) -> str:
    return f"Broker {broker_ids[0]} is" if len(broker_ids) == 1 else f"Brokers {listed(broker_ids)} are"
