"""Session of `ottla dev`: runs a local cluster, takes commands, and reports what happens as lines.

It draws nothing: the view gets every event, and is asked to draw itself again after every poll of the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.errors import Fault
from ottla.local.cluster import LocalCluster
from ottla.local.control import Answer
from ottla.local.detail import Asker, Detail, Group, Offsets, Partition, without_the_dead
from ottla.local.playground import Playground
from ottla.local.processes import STOP_SECONDS, BrokerProcess, State
from ottla.local.snapshot import NOBODY, ClusterSnapshot, Watcher, differences

LOOK_SECONDS: Final = 0.2
MEGABYTE: Final = 1 << 20

Report = Callable[[str], None]


class Session:
    """Everything runs on one loop in the main thread, which the brokers live as long as."""

    def __init__(self, cluster: LocalCluster, report: Report, drawn: Callable[[], None] = lambda: None) -> None:
        self.cluster = cluster
        self.snapshot = ClusterSnapshot()
        self.detail = Detail()
        self.playground = Playground(cluster, report)
        self.started = asyncio.Event()
        self.stop = asyncio.Event()
        self._report = report
        self._drawn = drawn
        self._watcher = Watcher()
        self._asker = Asker(lambda id_, request, answer: self._watcher.call(cluster[id_].bootstrap, request, answer))
        self._looked = False
        self._states: dict[int, State] = {}
        self._unclean: set[int] = set()
        """Brokers that did not stop cleanly, and have not come back since."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Start all brokers that do not run yet, look after them until told to stop, and stop them."""
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
        """Every broker serves and is known to the others, but for those that somebody has killed or paused already."""
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
        snapshot = without_the_dead(found or self.snapshot, running)
        if found is not None or self._looked:
            before = self.snapshot if self._looked else snapshot._replace(controller=NOBODY)  # what is there is no news
            for line in differences(before, snapshot):
                self._report(line)
            self._looked = True
        else:
            snapshot = self.snapshot
        detail = self.detail
        if self.started.is_set():
            detail = await self._asker.look(snapshot, serving, time.monotonic())
        self.snapshot, self.detail = snapshot, detail  # together: a picture of both is of one moment
        self._drawn()

    def _note_state(self, broker: BrokerProcess) -> None:
        before, now = self._states.get(broker.id), broker.state
        self._states[broker.id] = now
        if before is now:
            return
        if now in (State.KILLED, State.FAILED):
            self._unclean.add(broker.id)
        elif now in (State.READY, State.STOPPED):
            self._unclean.discard(broker.id)
        line = f"{broker} {_words(now)}"
        if now is State.READY and before is not State.PAUSED:
            line += f" on {broker.bootstrap} after {broker.ready_seconds:.2f} s, {megabytes(broker)}, pid {broker.pid}"
        elif now is State.FAILED:
            line += f"; the end of its log ({broker.log}):\n{broker.last_words()}"
        self._report(line)

    async def _stop_all(self) -> None:
        self.cluster.request_stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.cluster.have_ended(deadline):
            await asyncio.sleep(LOOK_SECONDS / 10)
            self._drawn()

    # Commands, from keys or from another terminal.

    async def commanded(self, asked: Answer) -> Answer:
        try:
            return await self._obey(str(asked.get("do")), asked.get("broker"))
        except Fault as fault:
            return {"ok": False, "said": str(fault)}

    async def _obey(self, verb: str, broker_id: object) -> Answer:
        if verb == "status":
            return {"ok": True, **self.status()}
        if verb not in ("kill", "pause", "resume", "restart", "stop"):
            raise Fault(f"there is no command {verb!r}")
        if not isinstance(broker_id, int):
            raise Fault(f"{verb} which broker? They are {', '.join(map(str, self.cluster.brokers))}")
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
            return f"{broker} goes on (pid {pid})"
        await broker.until_stopped()
        return f"{broker} stopped"

    def command_soon(self, verb: str, broker_id: int) -> None:
        """From a key: the outcome is told, nobody waits for it."""

        async def obey() -> None:
            answer = await self.commanded({"do": verb, "broker": broker_id})
            if not answer["ok"]:
                self._report(str(answer["said"]))

        task = asyncio.get_running_loop().create_task(obey(), name=f"{verb} broker {broker_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def may_lead(self, partition: Partition) -> tuple[int, ...]:
        """Its eligible leader replicas, without those that will not be eligible once they are back: whoever comes back
        from an unclean stop leaves the in-sync and eligible sets."""
        return tuple(each for each in self.detail.eligible.get(partition, ()) if each not in self._unclean)

    def will_not_lead(self) -> list[int]:
        """Brokers that were killed and hold replicas that are out of sync."""
        shown = (state for key, state in self.snapshot.partitions.items() if key[0] not in self.snapshot.internal)
        return sorted({each for state in shown for each in state.replicas if each not in state.in_sync} & self._unclean)

    def status(self) -> dict[str, Any]:
        """All that a view shows, as JSON has it."""
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

    def _group_status(self, group: Group) -> dict[str, Any]:
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


def killed_words(brokers: Sequence[int]) -> str:
    """Why replicas on these brokers do not lead when they come back."""
    which = f"broker {brokers[0]} was" if len(brokers) == 1 else f"brokers {', '.join(map(str, brokers))} were"
    return (
        f"{which} killed: after an unclean stop a replica that is out of sync is not eligible. "
        "It will not lead before it has caught up with a leader."
    )


def megabytes(broker: BrokerProcess) -> str:
    held = broker.resident_bytes()
    return f"{held / MEGABYTE:.0f} MB" if held else "-"


def _words(state: State) -> str:
    return {
        State.READY: "is ready",
        State.FAILED: "ended by itself",
        State.KILLED: "was killed",
        State.STOPPED: "has stopped",
        State.PAUSED: "is paused",
    }.get(state, f"is {state.value}")
