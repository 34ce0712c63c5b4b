"""Virtual time: one timeline, and on it an asyncio loop for every process.

A process of the simulation has a loop of its own, so everything of it (tasks, timers, scheduled
calls) can be stopped or removed as the operating system does it: a paused process runs nothing and its
timers fire late; a dead one never runs again. The timeline runs what is ready, in the order in which it became
ready, and jumps to the next timer when nothing is. Nothing here looks at a clock, so a run can be repeated.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import CoroutineType
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, cast
from weakref import ref

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLS_PER_INSTANT_MAX: Final = 200_000
"""More calls than this at one instant: a program polls in a busy loop."""
CANCELLED_MIN: Final = 500
WAYS_OUT_MAX: Final = 20

Connect = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Coroutine[Any, Any, tuple[Any, Any]]]


class Livelock(Exception):
    """A busy loop of the simulated programs: time does not advance."""


class Timeline:
    """`now` is in seconds since the beginning of the simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._serial = 0
        self._cancelled = 0

    def soon(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def later(self, handle: asyncio.TimerHandle) -> None:
        self._serial += 1
        heapq.heappush(self._timers, (handle.when(), self._serial, handle))

    def cancelled(self) -> None:
        """A timer will not fire: those that wait for long would pile up."""
        self._cancelled += 1
        if self._cancelled > CANCELLED_MIN and self._cancelled * 2 > len(self._timers):
            self.tidy()

    def tidy(self) -> None:
        self._timers = [entry for entry in self._timers if not entry[2].cancelled() and not _loop_of(entry[2]).dead]
        heapq.heapify(self._timers)
        self._cancelled = 0

    def run(self, done: Callable[[], bool], until: float) -> bool:
        """Run until `done`, which is called after every instant, or until a time. Returns whether it is done."""
        while not done():
            if not self._ready and not self._advance(until):
                return False
            self._run_instant()
        return True

    def _advance(self, until: float) -> bool:
        """Jump to the next timer; False when it lies behind the end."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers or timers[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def _run_instant(self) -> None:
        """Run everything that is ready, and everything that becomes ready by it."""
        ready = self._ready
        current: SimLoop | None = None
        calls = 0
        try:
            while ready:
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                loop = _loop_of(handle)
                if loop.dead:
                    continue
                if loop.paused:
                    loop.missed.append(handle)
                    continue
                if loop is not current:
                    current = loop
                    events._set_running_loop(loop)
                handle._run()
                calls += 1
                if calls > CALLS_PER_INSTANT_MAX:
                    raise Livelock(f"{loop.name} goes round in circles at {self.now:.3f} s: {handle!r}")
        finally:
            self.calls += calls
            events._set_running_loop(None)


def _loop_of(handle: asyncio.Handle) -> SimLoop:
    return cast(SimLoop, handle._loop)  # type: ignore[attr-defined]


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """One that wants to wait for something on its way out is closed there, too; the innermost first, or it would be let
    go of half-way out. The dead do not complain."""
    for _ in range(WAYS_OUT_MAX):
        if isinstance(inner := getattr(coroutine, "cr_await", None), CoroutineType):
            _close(inner)
        try:
            coroutine.close()
            return
        except (Exception, asyncio.CancelledError):  # noqa: BLE001
            pass


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one process. `failed` is called with uncaught exceptions."""

    def __init__(self, timeline: Timeline, name: str, failed: Callable[[str, BaseException | None], None]) -> None:
        self.timeline = timeline
        self.name = name
        self.dead = False
        self.paused = False
        self.missed: list[asyncio.Handle] = []
        """What would have run during the pause."""
        self.connect: Connect | None = None
        """The network of this process, for code that asks the loop and not the runtime."""
        self._failed = failed
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._tasks_tidied = 64

    # What happens to a process.

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        for handle in self.missed:
            self.timeline.soon(handle)
        self.missed.clear()

    def kill(self) -> None:
        """The process never runs again. Its coroutines are closed here, in order, and not by the garbage collector. The
        caller makes sure that their last actions have no effect."""
        self.dead = True
        self.missed.clear()
        tasks = [task for each in self._tasks if (task := each()) is not None and not task.done()]
        self._tasks.clear()
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(cast(Coroutine[Any, Any, Any], task.get_coro()))
        self.timeline.tidy()

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self.timeline.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self.timeline.soon(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.timeline.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self.timeline.later(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.timeline.cancelled()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(ref(task))
        if len(self._tasks) > self._tasks_tidied:
            self._tasks = [each for each in self._tasks if (kept := each()) is not None and not kept.done()]
            self._tasks_tidied = 2 * len(self._tasks) + 64
        return task

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: object
    ) -> tuple[Any, Any]:
        assert self.connect is not None, "this process has no network"
        return await self.connect(protocol_factory, host, port)

    async def shutdown_asyncgens(self) -> None:
        """There is nothing to do: generators that are left go with their process."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            what = context.get("message", "a failure").partition("<")[0]  # addresses differ from run to run
            self._failed(f"{self.name}: {what}", context.get("exception"))

    default_exception_handler = call_exception_handler


def new_loop(timeline: Timeline, name: str, failed: Callable[[str, BaseException | None], None]) -> SimLoop:
    """The loop of a new process. It has what asyncio's own parts ask for; sockets and signals are not among that."""
    return SimLoop(timeline, name, failed)  # type: ignore[abstract]
