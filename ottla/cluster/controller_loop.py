"""Controller election and the controller's loop: registers this broker, and commits what the controller decides.

Who speaks: every broker registers itself and tries to become controller. The one that creates the ephemeral /controller
node is controller, and increments the controller epoch in the same commit. Every later commit of a controller checks
that epoch first, so one that was replaced without noticing commits nothing more (fencing), and appends one node to the
change log, which all brokers follow. Decisions are made one at a time: each sees an image with the one before applied.

What can be lost: a controller may die between any two commits. Each commit leaves a valid image, and the next
controller begins with the pending work of that image. The controller watches the nodes of brokers, which die silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final, TypeVar

from ottla.cluster import changes as c
from ottla.cluster import controller, layout
from ottla.cluster.elect_leaders import balanced
from ottla.cluster.elections import PendingWork
from ottla.cluster.image import Image
from ottla.cluster.model import BrokerRegistration, Endpoint
from ottla.cluster.persist import STEP_OPS_MAX, Step, steps
from ottla.cluster.registration import DuplicateBrokerId, clean_since, duplicate_broker_id, id_in_use
from ottla.cluster.requests import ControllerDecision, RegistrationRequest, Rules
from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Op,
    SessionLost,
    SessionState,
    Set,
    Why,
    sequence_of,
)
from ottla.cluster.view import ClusterView
from ottla.errors import ErrorCode, Fault, Refused
from ottla.runtime import Runtime

log = logging.getLogger("ottla.cluster.controller")

R = TypeVar("R")

CHANGES_KEPT: Final = 1_000
CHANGES_TRIMMED: Final = 200
"""The log is trimmed this many changes at a time; a reader that is further behind loads the image."""
CHANGES_BYTES_MAX: Final = 8_000_000
"""Of what one controller has written into the log; then half of that is trimmed."""
ATTEMPTS_MAX: Final = 20
RETRY_SECONDS: Final = 0.5
ROLES: Final = (layout.BROKER_EPOCH, layout.CONTROLLER, layout.CONTROLLER_EPOCH, layout.BROKERS)
"""The nodes of brokers and of the controller, and their epochs."""


class ControllerLoop:
    """`active` while this broker is the controller, as far as it knows; only the fence is certain."""

    def __init__(self, view: ClusterView, runtime: Runtime, rules: Callable[[], Rules]) -> None:
        self.active = False
        self.broker: BrokerRegistration | None = None
        """This broker as it registered last."""
        self.incarnation: Final = layout.id_text(layout.new_id(runtime.random.randbytes(16)))
        """The id of this process in all its registrations."""
        self.on_duplicate_broker_id: Callable[[Fault], None] = lambda fault: log.error("%s", fault)
        """Called when another process is found registered with this broker id; this loop ends then."""
        self._view = view
        self._runtime = runtime
        self._rules = rules
        self._pending = PendingWork()
        self._draining = False
        self._decision_lock = asyncio.Lock()  # the next decision sees the commits of the one before applied
        self._registration: RegistrationRequest | None = None
        self._fence: Check | None = None
        self._changes_first = 0
        self._change_sizes: deque[tuple[int, int]] = deque()  # written by this controller: position, bytes
        self._change_bytes = 0
        self._in_doubt = False  # a commit had no answer: read the log before the next decision
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unwatch: list[Callable[[], None]] = []

    async def join(self, registration: RegistrationRequest) -> int:
        """Register, become controller if there is none, and do its pending work. The new broker epoch."""
        assert self._registration is None, "a broker registers once"
        async with self._decision_lock:
            epoch = await self._register(registration)
            self._registration = registration
            if self.active:
                await self._settle()
        self._view.store.on_state(self._session_changed)
        self._unwatch.append(self._view.subscribe(self._changed))
        for path in (layout.CONTROLLER, layout.BROKERS):
            self._unwatch.append(self._view.store.watch(path, self._news.set))
        self._news.set()  # changes before the watches were set
        self._tasks = [
            self._runtime.spawn(self._run(), name="controller"),
            self._runtime.spawn(self._balance(), name="leader balance"),
        ]
        return epoch

    async def close(self) -> None:
        self.active = False
        while self._unwatch:
            self._unwatch.pop()()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []

    async def decide(self, decide: Callable[[Image], ControllerDecision[R]]) -> list[R]:
        """Decide on the image after all earlier decisions, and commit. The changes are in the image on return."""
        async with self._decision_lock:
            if not self.active:
                raise Refused(ErrorCode.not_controller, "This is not the correct controller for this cluster.")
            await self._clear_doubt()
            await self._settle()
            decision = decide(self._view.image)
            await self._commit(decision.changes)
            await self._settle()  # what follows from it, such as an election after a changed setting
            return decision.results

    async def _settle(self) -> None:
        await self._commit(self._pending.unfinished(self._view.image, self._rules()))

    async def drain(self) -> None:
        """Begin controlled shutdown: mark the registration, so that the controller moves leadership to others."""
        self._draining = True
        async with self._decision_lock:
            for _ in range(ATTEMPTS_MAX):
                assert self.broker is not None, "a broker that never registered cannot drain"
                path = layout.broker_path(self.broker.id)
                node = await self._view.store.read(path)
                if node is None or layout.broker_of(self.broker.id, node.data).epoch != self.broker.epoch:
                    break  # it registers again, then as draining
                broker = self.broker._replace(draining=True)
                op = Set(path, layout.broker_data(broker, self._runtime.wall_ms()), node.version)
                change = c.registered(broker)
                try:
                    paths = await self._view.store.commit([op, _change_node((change,))])
                except Conflict:
                    continue
                self.broker = broker
                await self._applied(paths[-1], (change,))
                break
        self._news.set()

    async def _commit(self, changes: Iterable[c.Change]) -> None:
        with self._view.writing():
            for step in steps(self._view.image, changes):
                await self._commit_step(step)
        await self._trim()

    async def _commit_step(self, step: Step) -> None:
        assert self._fence is not None
        change_node = _change_node(step.changes)
        ops = [self._fence, *step.ops, change_node]
        try:
            paths = await self._view.store.commit(ops)
        except Conflict as conflict:
            if conflict.index == 0:
                self._resign("another broker has become controller")
                raise Refused(ErrorCode.not_controller, "Another broker has become controller.") from conflict
            await self._view.reload()
            raise Fault(
                f"the store has nodes that no controller wrote ({conflict}); the image was loaded again, try again"
            ) from conflict
        except SessionLost:
            self._resign("the session has ended")
            raise
        except (Fault, asyncio.CancelledError):
            self._in_doubt = True
            self._news.set()  # and complete the pending work
            raise
        self._change_sizes.append((sequence_of(paths[-1]), len(change_node.data)))
        self._change_bytes += len(change_node.data)
        await self._applied(paths[-1], step.changes)

    async def _clear_doubt(self) -> None:
        if self._in_doubt:
            await self._view.catch_up()
            self._in_doubt = False

    async def _applied(self, path: str, changes: tuple[c.Change, ...]) -> None:
        if not self._view.committed(sequence_of(path), changes):
            self._in_doubt = True  # until it is read: the store may be out of reach now
            await self._view.catch_up()
            self._in_doubt = False

    async def _trim(self) -> None:
        stop = self._trim_until()
        while self._changes_first < stop:
            assert self._fence is not None
            first, last = self._changes_first, min(stop, self._changes_first + STEP_OPS_MAX)
            old = [Delete(f"{layout.CHANGES}/{layout.change_name(n)}") for n in range(first, last)]
            try:
                await self._view.store.commit([self._fence, *old])
            except Conflict as conflict:
                log.info("the change log was not trimmed: %s", conflict)
                self._changes_first = await self._first_change()
                return
            self._changes_first = last

    def _trim_until(self) -> int:
        """The first change to keep. A store holds the whole log in memory, and large changes come in bursts. The last
        change always stays: it gives readers their position."""
        stop = self._changes_first
        if self._view.position + 1 - stop - CHANGES_KEPT >= CHANGES_TRIMMED:
            stop += CHANGES_TRIMMED
        if self._change_bytes > CHANGES_BYTES_MAX:
            while self._change_bytes > CHANGES_BYTES_MAX // 2 and len(self._change_sizes) > 1:
                position, size = self._change_sizes.popleft()
                self._change_bytes -= size
                stop = max(stop, position + 1)
        return min(stop, self._view.position)

    async def _first_change(self) -> int:
        names = await self._view.store.children(layout.CHANGES)
        return sequence_of(names[0]) if names else 0

    async def _register(self, registration: RegistrationRequest) -> int:
        for _ in range(ATTEMPTS_MAX):
            try:
                epoch = await self._try_to_register(registration)
            except SessionLost:
                self._resign("the session has ended")
                await asyncio.sleep(RETRY_SECONDS)  # perhaps the loop hung; the store begins a new session
                continue
            if epoch is not None:
                return epoch
        raise Fault(f"broker {registration.id} could not register in {ATTEMPTS_MAX} attempts: the store is too busy")

    async def _try_to_register(self, registration: RegistrationRequest) -> int | None:
        """One commit registers the broker and, if there is no controller, makes it controller. None: try again."""
        await self._view.catch_up()
        nodes = {node.path: node for node in await self._view.store.tree(*ROLES)}
        counter = nodes[layout.BROKER_EPOCH]
        epoch = int(counter.data) + 1
        broker = self._registered(registration, epoch)
        here = layout.broker_path(broker.id)
        ops: list[Op] = [
            Set(layout.BROKER_EPOCH, str(epoch).encode(), counter.version),
            Create(here, layout.broker_data(broker, self._runtime.wall_ms()), ephemeral=True),
        ]
        changes: list[c.Change] = [c.registered(broker)]
        campaign = layout.CONTROLLER not in nodes
        first = 0
        if campaign:
            first = await self._first_change()
            live = (*_live(nodes.values()), (broker.id, epoch))
            campaign_ops, change = self._campaign(nodes[layout.CONTROLLER_EPOCH], broker.id, live)
            ops += campaign_ops
            changes.append(change)
        try:
            paths = await self._view.store.commit([*ops, _change_node(tuple(changes))])
        except Conflict as conflict:
            if conflict.op.path == here and conflict.why is Why.exists:
                return await self._taken(here, broker.id)
            return None  # another broker was faster
        self.broker = broker
        if campaign:
            self._won(nodes[layout.CONTROLLER_EPOCH], broker.id, first)
        await self._applied(paths[-1], tuple(changes))
        return epoch

    def _registered(self, registration: RegistrationRequest, epoch: int) -> BrokerRegistration:
        """A running broker loses no records, so a later registration has the `clean_since` of the first one; unless
        another process had this broker id meanwhile, whose acknowledged records are not here. What was damaged at the
        start is repaired by now, or the replica removes itself from the ISR."""
        if (last := self.broker) is not None:
            registration = registration._replace(clean_epoch=last.epoch, clean_since=last.clean_since, damaged=())
        since = clean_since(self._view.image, registration, epoch)
        endpoints = tuple(Endpoint(*endpoint) for endpoint in registration.endpoints)
        rack, damaged = registration.rack, registration.damaged
        return BrokerRegistration(
            registration.id, epoch, endpoints, rack, self._draining, since, self.incarnation, damaged
        )

    async def _taken(self, path: str, broker_id: int) -> int | None:
        """The id is registered already. The epoch if by this process; None if it is gone again."""
        node = await self._view.store.read(path)
        if node is None:
            return None
        found = layout.broker_of(broker_id, node.data)
        if self._registration is None and found.incarnation != self.incarnation:
            raise id_in_use(found)
        self.broker = self._own(found)
        return found.epoch

    def _own(self, found: BrokerRegistration) -> BrokerRegistration:
        if found.incarnation != self.incarnation:
            raise duplicate_broker_id(found)
        return found

    def _campaign(
        self, epoch: Node, broker_id: int, live: tuple[tuple[int, int], ...]
    ) -> tuple[list[Op], c.ControllerChanged]:
        new = int(epoch.data) + 1
        ops: list[Op] = [
            Create(layout.CONTROLLER, layout.controller_data(broker_id, self._runtime.wall_ms()), ephemeral=True),
            Set(layout.CONTROLLER_EPOCH, str(new).encode(), epoch.version),
        ]
        return ops, c.ControllerChanged(broker_id, new, live)

    def _has_no_controller(self, node: Node | None) -> bool:
        """Whether there is no controller. A node that names this broker while it is not active is from a campaign whose
        answer was lost: it stays as long as the session, and blocks all other brokers."""
        assert self.broker is not None
        return node is None or (not self.active and layout.controller_of(node.data) == self.broker.id)

    async def _become_controller(self, nodes: Mapping[str, Node]) -> bool:
        """Become controller, also in place of a campaign of this broker whose answer was lost: the epoch is incremented
        again, so that one is fenced."""
        assert self.broker is not None
        epoch, unanswered = nodes[layout.CONTROLLER_EPOCH], nodes.get(layout.CONTROLLER)
        first = await self._first_change()
        ops, change = self._campaign(epoch, self.broker.id, _live(nodes.values()))
        # A broker that registers in between is not in `live` of this campaign: without the check it would stay unknown.
        ops.append(Check(layout.BROKER_EPOCH, nodes[layout.BROKER_EPOCH].version))
        if unanswered is not None:
            ops.insert(0, Delete(layout.CONTROLLER, unanswered.version))
        try:
            paths = await self._view.store.commit([*ops, _change_node((change,))])
        except Conflict:
            self._news.set()
            return False
        self._won(epoch, self.broker.id, first)
        await self._applied(paths[-1], (change,))
        return True

    def _won(self, epoch: Node, broker_id: int, first_change: int) -> None:
        """Without an await after the commit: nothing may fail between the two."""
        self._fence = Check(layout.CONTROLLER_EPOCH, epoch.version + 1)
        self._changes_first = first_change
        self._change_sizes.clear()
        self._change_bytes = 0
        self.active = True
        log.info("broker %d is controller, epoch %d", broker_id, int(epoch.data) + 1)

    def _resign(self, why: str) -> None:
        if self.active:
            log.warning("no longer controller: %s", why)
        self.active = False
        self._fence = None
        self._news.set()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.lost:
            self._resign("the session has ended")
        self._news.set()

    def _changed(self, old: Image, new: Image, change: c.Change) -> None:
        if isinstance(change, c.BrokerRegistered | c.BrokerConfigChanged):
            self._news.set()

    async def _run(self) -> None:
        """After every possible change: stay registered, have a controller, and as controller do the pending work."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                async with self._decision_lock:
                    await self._reconcile()
            except DuplicateBrokerId as fault:
                self._resign("another process is this broker")
                self.on_duplicate_broker_id(fault)
                return
            except (Fault, Refused) as failure:
                log.warning("controller: %s", failure)
            except Exception as failure:  # without this loop the broker neither registers again nor becomes controller
                log.error("the controller's loop failed, trying again", exc_info=failure)
            else:
                continue
            await asyncio.sleep(RETRY_SECONDS)
            self._news.set()

    async def _balance(self) -> None:
        """Automatic leader rebalancing: preferred leader election from time to time."""
        while True:
            await asyncio.sleep(self._rules().balance_seconds)
            if not self.active or not self._rules().balance:
                continue
            try:
                await self.decide(
                    lambda image: ControllerDecision[None](balanced(image, self._rules().imbalance_percent), [])
                )
            except (Fault, Refused) as failure:
                log.warning("leaders are not balanced: %s", failure)
            except Exception as failure:
                log.error("leaders are not balanced", exc_info=failure)

    async def _reconcile(self) -> None:
        assert self._registration is not None
        if self._view.store.state is not SessionState.connected:
            return  # out of reach: change nothing
        by_path = {node.path: node for node in await self._view.store.tree(*ROLES)}
        me = self._registration.id
        registered = by_path.get(layout.broker_path(me))
        if registered is None:
            self._resign("its registration is gone")
            await self._register(self._registration)
        else:
            # Also after a registration that succeeded without an answer.
            self.broker = self._own(layout.broker_of(me, registered.data))
            if self._has_no_controller(by_path.get(layout.CONTROLLER)) and not await self._become_controller(by_path):
                return  # another broker was faster: try again
        if self.active:
            await self._view.catch_up()
            self._in_doubt = False
            live = _live(await self._view.store.tree(layout.BROKERS))
            gone = controller.brokers_gone(self._view.image, live)
            left = self._view.image.apply(*gone) if gone else self._view.image
            await self._commit(chain(gone, self._pending.unfinished(left, self._rules())))


def _live(nodes: Iterable[Node]) -> tuple[tuple[int, int], ...]:
    """The registered brokers with their epochs."""
    found = []
    for node in nodes:
        above, _, name = node.path.rpartition("/")
        if above == layout.BROKERS:
            found.append((int(name), layout.broker_of(int(name), node.data).epoch))
    return tuple(sorted(found))


def _change_node(changes: tuple[c.Change, ...]) -> Create:
    return Create(layout.CHANGE, c.encoded(changes), sequential=True)
