"""Driver of a client's state machines (Kafka: NetworkClient): sends the requests that they decide on, and hands them
the answers.

The machines decide (`requests` has the contract); here are only the clock, the connections, and the calls that wait
for a change. One pump asks all machines, again until none has an action, because what one has learned may be what
another waits for. Many events within one iteration of the loop cause one pump.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ottla.client.core.broker_connection import Reply, resolve
from ottla.client.core.metadata import Metadata, TopicMetadata
from ottla.client.core.network import BrokerConnections
from ottla.client.core.requests import ANY_NODE, Node, Send
from ottla.client.core.wait_reasons import InFlightRequests, Obstacle, WaitReasons, of_topics
from ottla.client.errors import BUSY, SILENT, ClientError, NoAnswer, TimedOut, Unreachable, error_of
from ottla.errors import ErrorCode
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.runtime import Handle, Runtime

R = TypeVar("R", bound=Message)
T = TypeVar("T")

log = logging.getLogger("ottla.client")

LOOK_SECONDS: Final = 1.0
"""How often the reasons for waiting are looked at, while a client waits."""
BROKERS: Final = "brokers"
TIMER_STEP_S: Final = 0.001
"""The pause before a machine is called again that was due and returned no action."""


class Machine(Protocol):
    def decide(self, now: float) -> Sequence[Any]:
        """Sends, and other actions that the owner of the machine carries out."""

    @property
    def deadline(self) -> float | None: ...

    def answered(self, send: Send, response: Message, now: float) -> None: ...

    def failed(self, send: Send, now: float, code: ErrorCode) -> None: ...


Act = Callable[[Any], object]


class Driver:
    def __init__(self, runtime: Runtime, metadata: Metadata, network: BrokerConnections) -> None:
        self.runtime = runtime
        self.metadata = metadata
        self.network = network
        self.pump_due = False
        """A pump comes with the next iteration of the loop."""
        self._machines: list[tuple[Machine, Act]] = [(metadata, lambda _: None)]
        self._observers: list[Callable[[], object]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._failures: dict[int, ClientError] = {}
        """By broker: the error of the last failed attempt to connect."""
        self.waits = WaitReasons()
        """Why nothing happens."""
        self._unanswered = InFlightRequests()
        self._sources: list[Callable[[float], Iterable[Obstacle]]] = [self._bootstrap_obstacles]
        self._look_timer: Handle | None = None
        self._calls = 0
        self._timer: Handle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._news = False
        """Something was answered, or was not, since the waiters were last woken."""

    def attach(self, machine: Machine, act: Act = lambda _: None) -> None:
        """`act` carries out the actions of a machine other than sending."""
        self._machines.append((machine, act))

    def observe(self, look: Callable[[], object]) -> None:
        """Called after every pump."""
        self._observers.append(look)

    def explain(self, source: Callable[[float], Iterable[Obstacle]]) -> None:
        """`source` returns the reasons why a machine waits; it is called once a second."""
        self._sources.append(source)

    async def start(self, *, timeout_s: float) -> None:
        """Bootstrap: until a broker has answered Metadata. One that cannot be reached may be starting, so the list is
        tried again until `timeout_s` is over (0: every address once), as Kafka's clients do. The error says why each
        address failed; it is raised at once when what answers there is no broker at all."""
        deadline = self.runtime.now() + timeout_s if timeout_s > 0 else None
        self.wake()
        while self.metadata.revision == 0:
            failures = [self._failures.get(broker.node_id) for broker in self.metadata.bootstrap]
            known = [failure for failure in failures if failure is not None]
            may_help = deadline is not None and any(failure.retriable for failure in known)
            if len(known) == len(failures) and not may_help:
                raise _one_of(known)
            if deadline is not None and self.runtime.now() >= deadline:
                spoken = [failure for failure in known if not isinstance(failure, TimedOut)]
                raise _one_of(spoken) if spoken else self._no_answer(timeout_s)
            await self.changed(deadline)

    async def close(self) -> None:
        self._closed = True
        for timer in (self._timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        await self.network.close()
        self._wake_waiters()

    # The pump.

    def wake(self) -> None:
        """Something happened that the machines should know."""
        if not self.pump_due and not self._closed:
            self.pump_due = True
            self.runtime.call_soon(self._pump)

    def announce(self) -> None:
        """The same, and the waiters are woken, too."""
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
        self._look_later()
        self._set_timer()
        if self._news:  # else a waiter that wakes the pump before it waits would be woken again and again, for nothing
            self._news = False
            self._wake_waiters()

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
        to = send.to if send.to is not ANY_NODE else self.metadata.any_broker(self.runtime.now())

        number = self._sends(to, send)

        def reply(received: Message | ClientError) -> None:
            if self._closed:
                return
            self._returned(number, received)
            if isinstance(received, ClientError):
                if to is not None:
                    self._note_lost(to, send, received)
                machine.failed(send, self.runtime.now(), received.code)
            else:
                assert to is not None
                self._failures.pop(to.node_id, None)
                self._note_response(send.request, received)
                machine.answered(send, received, self.runtime.now())
            self.announce()

        if to is None:
            self.runtime.call_soon(reply, self._no_broker_error())
        else:
            self.network.send(send, to, reply if send.awaited else None)

    def _sends(self, to: Node | None, send: Send) -> int:
        """A key for the wait. Before any broker has answered, the bootstrap servers are named."""
        if to is None or not send.awaited or self.metadata.revision == 0:
            return 0
        self._look_later()
        return self._unanswered.sent(to, send.request, self.runtime.now())

    def _returned(self, number: int, received: Message | ClientError) -> None:
        if isinstance(received, ClientError):
            self._unanswered.over(number)
        else:
            self._unanswered.answered(number, self.waits, self.runtime.now())

    def _note_lost(self, to: Node, send: Send, error: ClientError) -> None:
        """A machine that sent to ANY_NODE does not know which broker did not answer."""
        self._failures[to.node_id] = error
        if send.to is ANY_NODE and error.code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
            self.metadata.lost(to.node_id, self.runtime.now())

    # Why a call waits.

    def timed_out(self, message: str) -> TimedOut:
        """With all that is known of the reason."""
        self._unanswered.look(self.waits, self.runtime.now())
        self.waits.look(self._obstacles(), self.runtime.now())
        reasons = self.waits.reasons()
        return TimedOut(f"{message}; {reasons}") if reasons else TimedOut(message, hint=BUSY)

    def _explain(self, error: ClientError) -> None:
        """Timeout: the known reason, unless the error has it."""
        reasons = self.waits.reasons()
        if error.retriable and error.hint in (None, BUSY) and str(error).partition(": ")[2] not in reasons:
            error.hint = reasons or error.hint

    def _no_answer(self, timeout_s: float) -> NoAnswer:
        silent = "; ".join(reason for _, reason in self._bootstrap_obstacles(self.runtime.now()))
        return NoAnswer(f"no broker has answered within {timeout_s:g} s; {silent}")

    def _note_response(self, request: Message, response: Message) -> None:
        self.waits.over(BROKERS)
        self.waits.heard(request, response, self.runtime.now())

    def _obstacles(self) -> Iterator[Obstacle]:
        now = self.runtime.now()
        for source in self._sources:
            yield from source(now)
        yield from of_topics(self.metadata)

    def _bootstrap_obstacles(self, now: float) -> Iterator[Obstacle]:
        if self.metadata.revision == 0:
            for broker in self.metadata.bootstrap:
                error = self._failures.get(broker.node_id)
                address = f"{broker.host}:{broker.port}"
                silent = error is None or isinstance(error, TimedOut)
                yield address, f"{address} {SILENT}" if silent else str(error)

    def _look_later(self) -> None:
        if self._look_timer is None and not self._closed:
            self._look_timer = self.runtime.call_at(self.runtime.now() + LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_timer = None
        if self._closed:
            return
        self._unanswered.look(self.waits, self.runtime.now())
        for reason in self.waits.look(self._obstacles(), self.runtime.now()):
            log.warning("still trying: %s", reason)
        if self._waiters or self._calls or self.waits or self._unanswered:
            self._look_later()

    # Waiters.

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

    def _wake_waiters(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _resolve(waiter)

    # Single requests.

    def ask(self, send: Send, reply: Reply) -> None:
        """A request outside the machines; its result counts for the health of the broker, too."""
        to = send.to if send.to is not ANY_NODE else self.metadata.any_broker(self.runtime.now())
        if to is None:
            self.runtime.call_soon(reply, self._no_broker_error())
            return

        number = self._sends(to, send)

        def noted(received: Message | ClientError) -> None:
            self._returned(number, received)
            if not isinstance(received, ClientError):
                self.metadata.reached(to.node_id)
                self._note_response(send.request, received)
            elif received.code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
                self._failures[to.node_id] = received
                self.metadata.lost(to.node_id, self.runtime.now())
            reply(received)
            self.announce()

        self.network.send(send, to, noted)

    def _no_broker_error(self) -> ClientError:
        known = list(self._failures.values())
        error = _one_of(known) if known else Unreachable("no broker can be reached")
        self.waits.note(BROKERS, str(error), self.runtime.now())
        return error

    async def call(
        self,
        request: Message,
        answer: type[R],
        to: Node = ANY_NODE,
        *,
        timeout_s: float,
        version_max: int | None = None,
    ) -> R:
        """One request and its answer, or ClientError."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.ask(Send(request, to, timeout_s, version_max=version_max), lambda received: resolve(future, received))
        self._calls += 1
        self._look_later()
        try:
            received = await future
        finally:
            self._calls -= 1
        assert isinstance(received, answer)
        return received

    async def insist(self, work: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
        """Do it again as long as the error says that this may help."""
        deadline = self.runtime.now() + timeout_s
        attempts = 0
        while True:
            try:
                done = await work()
                self.waits.over(f"insist {id(work)}")
                return done
            except ClientError as error:
                pause = self.metadata.settings.retry_backoff_s(attempts, error.code)
                if not error.retriable or self._closed or self.runtime.now() + pause >= deadline:
                    self._explain(error)
                    raise
                if not self.waits:  # otherwise a more specific reason is known
                    self.waits.note(f"insist {id(work)}", str(error), self.runtime.now())
            attempts += 1
            await asyncio.sleep(pause)

    async def topic(self, name: str, deadline: float) -> TopicMetadata:
        """As soon as it is known. The last error of a topic that does not appear in time is the reason."""
        self.metadata.want(name, self.runtime.now())
        with self.metadata.awaited(name):
            self.wake()
            while (topic := self.metadata.topic(name)) is None:
                refusal = self.metadata.refusal(name)
                if refusal is not None:
                    raise refusal
                if self.runtime.now() >= deadline:
                    error = error_of(self.metadata.error(name), f"topic {name}")
                    raise error or self.timed_out(f"topic {name}: no metadata in time")
                await self.changed(deadline)
        return topic


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _one_of(errors: Iterable[ClientError]) -> ClientError:
    """The most specific reason: a server that answers wrongly comes before servers that do not answer."""
    errors = list(errors)
    spoken = [error for error in errors if not isinstance(error, Unreachable)]
    if spoken or len(errors) == 1:
        return (spoken or errors)[0]
    return Unreachable("; ".join(dict.fromkeys(str(error) for error in errors)))
