"""Session of `ottla dev`: runs a local cluster, executes commands, and reports events as lines.

It draws nothing itself: after every poll of the cluster it calls the view to draw.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.errors import Fault
from ottla.local.cluster import LocalCluster
from ottla.local.control import Answer
from ottla.local.detail import Detail, DetailRequests, GroupDetail, Offsets, Partition
from ottla.local.playground import Playground
from ottla.local.processes import STOP_SECONDS, BrokerProcess, State
from ottla.local.snapshot import NO_BROKER, ClusterSnapshot, MetadataWatcher, differences, without_dead_leaders

LOOK_SECONDS: Final = 0.2
MEGABYTE: Final = 1 << 20

Report = Callable[[str], None]


class DevSession:
    """Runs on one loop in the main thread; on Linux the brokers end with that thread."""

    def __init__(self, cluster: LocalCluster, report: Report, draw: Callable[[], None] = lambda: None) -> None:
        self.cluster = cluster
        self.snapshot = ClusterSnapshot()
        self.detail = Detail()
        self.playground = Playground(cluster, report)
        self.started = asyncio.Event()
        self.stop = asyncio.Event()
        self._report = report
        self._draw = draw
        self._watcher = MetadataWatcher()
        self._details = DetailRequests(
            lambda id_, request, answer: self._watcher.call(cluster[id_].bootstrap, request, answer)
        )
        self._looked = False
        self._states: dict[int, State] = {}
        self._unclean: set[int] = set()
        """Brokers after an unclean shutdown, until they are ready again."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Start the brokers that do not run yet, poll them until `stop` is set, and stop them."""
        try:
            for broker in self.cluster.brokers.values():
                if not broker.running:
                    broker.launch()
            await self._look_until(self._all_started)
            self.started.set()
            await self._look_until(self.stop.is_set)
        finally:
            for task in self._tasks:
                task.cancel()
            await self.playground.close()
            await self._watcher.close()
            await self._stop_all()

    def _all_started(self) -> bool:
        """Every broker that was not killed or paused meanwhile serves and is registered."""
        starting = [each for each in self.cluster.brokers.values() if each.state in (State.STARTING, State.FAILED)]
        serving = {each.id for each in self.cluster.serving()}
        return not [broker for broker in starting if not broker.check_start()] and serving <= set(self.snapshot.brokers)

    async def _look_until(self, holds: Callable[[], bool]) -> None:
        while not self.stop.is_set() and not holds():
            await self._look()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.stop.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        for broker in self.cluster.brokers.values():
            self._note_state(broker)
        serving = {each.id: each.bootstrap for each in self.cluster.serving()}
        found = await self._watcher.look(serving.values()) if serving else None
        running = [each.id for each in self.cluster.brokers.values() if each.running]
        snapshot = without_dead_leaders(found or self.snapshot, running)
        if found is not None or self._looked:
            # The first snapshot is compared with itself: existing topics are not reported as new.
            before = self.snapshot if self._looked else snapshot._replace(controller=NO_BROKER)
            for line in differences(before, snapshot):
                self._report(line)
            self._looked = True
        else:
            snapshot = self.snapshot
        detail = self.detail
        if self.started.is_set():
            detail = await self._details.look(snapshot, serving, time.monotonic())
        self.snapshot, self.detail = snapshot, detail  # set together, so that a picture shows one moment
        self._draw()

    def _note_state(self, broker: BrokerProcess) -> None:
        before, now = self._states.get(broker.id), broker.state
        self._states[broker.id] = now
        if before is now:
            return
        if now in (State.KILLED, State.FAILED):
            self._unclean.add(broker.id)
        elif now in (State.READY, State.STOPPED):
            self._unclean.discard(broker.id)
        line = f"{broker} {_state_words(now)}"
        if now is State.READY and before is not State.PAUSED:
            memory = megabytes(broker.resident_bytes())
            line += f" on {broker.bootstrap} after {broker.ready_seconds:.2f} s, {memory}, pid {broker.pid}"
        elif now is State.FAILED:
            line += f"; the end of its log ({broker.log}):\n{broker.last_words()}"
        self._report(line)

    async def _stop_all(self) -> None:
        self.cluster.request_stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.cluster.have_ended(deadline):
            await asyncio.sleep(LOOK_SECONDS / 10)
            self._draw()

    # Commands, from keys or from another terminal.

    async def execute(self, command: Answer) -> Answer:
        try:
            return await self._execute(str(command.get("do")), command.get("broker"))
        except Fault as fault:
            return {"ok": False, "said": str(fault)}

    async def _execute(self, verb: str, broker_id: object) -> Answer:
        if verb == "status":
            return {"ok": True, **self.status()}
        if verb not in ("kill", "pause", "resume", "restart", "stop"):
            raise Fault(f"there is no command {verb!r}")
        if not isinstance(broker_id, int):
            raise Fault(f"{verb} needs a broker: {', '.join(map(str, self.cluster.brokers))}")
        broker = self.cluster[broker_id]
        return {"ok": True, "said": await self._do(verb, broker)}

    async def _do(self, verb: str, broker: BrokerProcess) -> str:
        pid = broker.pid
        if verb == "restart":
            if pid:
                await broker.until_stopped()
            broker.launch()
            await broker.until_ready()
            return f"{broker} restarted, ready after {broker.ready_seconds:.2f} s (pid {broker.pid})"
        if not pid:
            raise Fault(f"{broker} does not run ({broker.state.value}): ottla dev restart {broker.id} starts it")
        if verb == "kill":
            broker.kill()
            return f"{broker} killed with kill -9 (pid {pid})"
        if verb == "pause":
            broker.pause()
            return f"{broker} paused with SIGSTOP (pid {pid})"
        if verb == "resume":
            if broker.state is not State.PAUSED:
                raise Fault(f"{broker} is not paused")
            broker.resume()
            return f"{broker} resumed with SIGCONT (pid {pid})"
        await broker.until_stopped()
        return f"{broker} stopped"

    def command_soon(self, verb: str, broker_id: int) -> None:
        """From a key press: the command runs in the background, and its failure is reported."""

        async def run() -> None:
            answer = await self.execute({"do": verb, "broker": broker_id})
            if not answer["ok"]:
                self._report(str(answer["said"]))

        task = asyncio.get_running_loop().create_task(run(), name=f"{verb} broker {broker_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def may_lead(self, partition: Partition) -> tuple[int, ...]:
        """Eligible leader replicas, without those that lose eligibility when they come back: a broker leaves ISR and
        ELR when it starts after an unclean shutdown."""
        return tuple(each for each in self.detail.eligible.get(partition, ()) if each not in self._unclean)

    def will_not_lead(self) -> list[int]:
        """Killed brokers that have replicas out of sync."""
        shown = (state for key, state in self.snapshot.partitions.items() if key[0] not in self.snapshot.internal)
        return sorted({each for state in shown for each in state.replicas if each not in state.in_sync} & self._unclean)

    def status(self) -> dict[str, Any]:
        """Everything that a view shows, as JSON."""
        return {
            "bootstrap": self.cluster.bootstrap,
            "store": self.cluster.store,
            "controller": self.snapshot.controller,
            "will_not_lead": self.will_not_lead(),
            "brokers": [
                {
                    "id": broker.id,
                    "address": broker.bootstrap,
                    "pid": broker.pid,
                    "memory_bytes": broker.resident_bytes(),
                    "state": broker.state.value,
                    "log": str(broker.log),
                }
                for broker in self.cluster.brokers.values()
            ],
            "partitions": [
                {
                    "topic": topic,
                    "partition": index,
                    "internal": topic in self.snapshot.internal,
                    **state._asdict(),
                    "eligible": self.may_lead((topic, index)),
                    "offsets": self.detail.offsets.get((topic, index), Offsets())._asdict(),
                    "records_per_second": round(self.detail.rates.get((topic, index), 0.0), 1),
                }
                for (topic, index), state in self.snapshot.partitions.items()
            ],
            "groups": [self._group_status(group) for group in self.detail.groups],
        }

    def _group_status(self, group: GroupDetail) -> dict[str, Any]:
        owners = {key: member.client_id for member in group.members for key in member.partitions}
        return {
            "group": group.name,
            "state": group.state,
            "coordinator": group.coordinator,
            "members": [member.client_id for member in group.members],
            "partitions": [
                {
                    "topic": key[0],
                    "partition": key[1],
                    "member": owners.get(key),
                    "offset": group.committed.get(key),
                    "lag": group.lag(key, self.detail.offsets),
                }
                for key in group.partitions()
            ],
        }


def not_eligible(brokers: Sequence[int]) -> str:
    """Why replicas on these killed brokers are not elected when they come back."""
    which = f"broker {brokers[0]} was" if len(brokers) == 1 else f"brokers {', '.join(map(str, brokers))} were"
    return (
        f"{which} killed: after an unclean shutdown a replica that is out of sync is not eligible. "
        "It cannot lead before it has caught up with a leader."
    )


def megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.0f} MB" if size else "-"


def _state_words(state: State) -> str:
    return {
        State.READY: "is ready",
        State.FAILED: "exited unexpectedly",
        State.KILLED: "was killed",
        State.STOPPED: "has stopped",
        State.PAUSED: "is paused",
    }.get(state, f"is {state.value}")
