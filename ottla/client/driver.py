"""What puts a client's machines to work: asks them what to do, does it, and tells them what came of it.

The machines decide (`routing` has the contract); here are only the clock, the connections, and those who wait for
something to change. One pump asks all machines, again until none has anything to say, because what one has
learned may be what another waits for. Many events within one turn of the loop cause one pump.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ottla.client.connection import Reply
from ottla.client.errors import ClientError, TimedOut, Unreachable, error_of
from ottla.client.network import Network
from ottla.client.routing import ANYBODY, Broker, Routing, Send, Topic, backoff_s
from ottla.errors import ErrorCode
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.runtime import Handle, Runtime

R = TypeVar("R", bound=Message)
T = TypeVar("T")

TIMER_STEP_S: Final = 0.001
"""A machine whose time has come and that has nothing to do is asked again after so long."""


class Machine(Protocol):
    def decide(self, now: float) -> Sequence[Any]:
        """Sends, and whatever else the owner of the machine understands."""

    @property
    def deadline(self) -> float | None: ...

    def answered(self, send: Send, response: Message, now: float) -> None: ...

    def failed(self, send: Send, now: float, code: ErrorCode) -> None: ...


Act = Callable[[Any], object]


class Driver:
    def __init__(self, runtime: Runtime, routing: Routing, network: Network) -> None:
        self.runtime = runtime
        self.routing = routing
        self.network = network
        self.pump_due = False
        """A pump comes with the next turn of the loop."""
        self._machines: list[tuple[Machine, Act]] = [(routing, lambda _: None)]
        self._observers: list[Callable[[], object]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._failures: dict[int, ClientError] = {}
        """Why each broker that could not be spoken to last time could not."""
        self._timer: Handle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._news = False
        """Something was answered, or was not, since those who wait were last told."""

    def attach(self, machine: Machine, act: Act = lambda _: None) -> None:
        """`act` does what a machine wants done beside sending."""
        self._machines.append((machine, act))

    def observe(self, look: Callable[[], object]) -> None:
        """Called after every pump."""
        self._observers.append(look)

    async def start(self) -> None:
        """Until somebody has told what the cluster looks like. Unreachable when nobody of the list does."""
        self.wake()
        while self.routing.revision == 0:
            failures = [self._failures.get(broker.node_id) for broker in self.routing.bootstrap]
            known = [failure for failure in failures if failure is not None]
            if len(known) == len(failures):
                raise _one_of(known)
            await self.changed()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.network.close()
        self._tell_waiters()

    # The pump.

    def wake(self) -> None:
        """Something happened that the machines should know."""
        if not self.pump_due and not self._closed:
            self.pump_due = True
            self.runtime.call_soon(self._pump)

    def announce(self) -> None:
        """Something happened that those who wait should know, too."""
        self._news = True
        self.wake()

    def _pump(self) -> None:
        self.pump_due = False
        if self._closed:
            return
        said = True
        while said:
            said = False
            now = self.runtime.now()
            for machine, act in self._machines:
                for action in machine.decide(now):
                    said = self._news = True
                    if type(action) is Send:
                        self._send(machine, action)
                    else:
                        act(action)
        for look in self._observers:
            look()
        self._set_timer()
        if self._news:  # else whoever wakes the pump before it waits would be told of nothing, again and again
            self._news = False
            self._tell_waiters()

    def _set_timer(self) -> None:
        deadlines = [deadline for machine, _ in self._machines if (deadline := machine.deadline) is not None]
        if not deadlines:
            return
        when = max(min(deadlines), self.runtime.now() + TIMER_STEP_S)
        if self._timer is not None:
            if self._timer_at <= when:
                return  # it comes early, and is set again then
            self._timer.cancel()
        self._timer_at = when
        self._timer = self.runtime.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _send(self, machine: Machine, send: Send) -> None:
        to = send.to if send.to is not ANYBODY else self.routing.any_broker(self.runtime.now())

        def reply(received: Message | ClientError) -> None:
            if self._closed:
                return
            if isinstance(received, ClientError):
                if to is not None:
                    self._note_lost(to, send, received)
                machine.failed(send, self.runtime.now(), received.code)
            else:
                assert to is not None
                self._failures.pop(to.node_id, None)
                machine.answered(send, received, self.runtime.now())
            self.announce()

        if to is None:
            self.runtime.call_soon(reply, self._nobody())
        else:
            self.network.send(send, to, reply if send.awaited else None)

    def _note_lost(self, to: Broker, send: Send, error: ClientError) -> None:
        """A machine that asked ANYBODY cannot say who it was that did not answer."""
        self._failures[to.node_id] = error
        if send.to is ANYBODY and error.code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
            self.routing.lost(to.node_id, self.runtime.now())

    # Those who wait.

    async def changed(self, until: float | None = None) -> None:
        """Until something has happened, or until this time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timer = None if until is None else self.runtime.call_at(until, _resolve, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _tell_waiters(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _resolve(waiter)

    # Single questions.

    def ask(self, send: Send, reply: Reply) -> None:
        """Beside the machines; what it says of the broker's health is noted all the same."""
        to = send.to if send.to is not ANYBODY else self.routing.any_broker(self.runtime.now())
        if to is None:
            self.runtime.call_soon(reply, self._nobody())
            return

        def noted(received: Message | ClientError) -> None:
            if not isinstance(received, ClientError):
                self.routing.reached(to.node_id)
            elif received.code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
                self._failures[to.node_id] = received
                self.routing.lost(to.node_id, self.runtime.now())
            reply(received)
            self.announce()

        self.network.send(send, to, noted)

    def _nobody(self) -> ClientError:
        known = list(self._failures.values())
        return _one_of(known) if known else Unreachable("no broker can be reached")

    async def call(
        self,
        request: Message,
        answer: type[R],
        to: Broker = ANYBODY,
        *,
        timeout_s: float,
        version_max: int | None = None,
    ) -> R:
        """One request and its answer, or ClientError."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def reply(received: Message | ClientError) -> None:
            if future.done():
                return
            if isinstance(received, ClientError):
                future.set_exception(received)
            else:
                future.set_result(received)

        self.ask(Send(request, to, timeout_s, version_max=version_max), reply)
        received = await future
        assert isinstance(received, answer)
        return received

    async def insist(self, work: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
        """Do it again as long as the error says that this may help."""
        settings = self.routing.settings
        deadline = self.runtime.now() + timeout_s
        attempts = 0
        while True:
            try:
                return await work()
            except ClientError as error:
                pause = backoff_s(attempts, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
                if not error.retriable or self._closed or self.runtime.now() + pause >= deadline:
                    raise
            attempts += 1
            await asyncio.sleep(pause)

    async def topic(self, name: str, deadline: float) -> Topic:
        """As soon as it is known. What is said of a topic that is not there in time is why."""
        self.routing.want(name, self.runtime.now())
        with self.routing.awaited(name):
            self.wake()
            while (topic := self.routing.topic(name)) is None:
                refusal = self.routing.refusal(name)
                if refusal is not None:
                    raise refusal
                if self.runtime.now() >= deadline:
                    error = error_of(self.routing.error(name), f"topic {name}")
                    raise error or TimedOut(f"topic {name}: nobody told in time where it is")
                await self.changed(deadline)
        return topic


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _one_of(errors: Iterable[ClientError]) -> ClientError:
    """The one that says most: somebody who answers, though not as a broker should, before those who do not."""
    errors = list(errors)
    spoken = [error for error in errors if not isinstance(error, Unreachable)]
    if spoken or len(errors) == 1:
        return (spoken or errors)[0]
    return Unreachable("; ".join(dict.fromkeys(str(error) for error in errors)))
