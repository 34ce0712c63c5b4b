"""The ZooKeeper session, on the loop.

kazoo's threads post answers, fired watches and session states, and the loop handles them in that order. When the
connection is lost (`suspended`) the session may be, too: no request is sent until that is known, and the outcome of
requests in flight is unknown. After an expired session (`lost`) another begins at once.

kazoo sends pings from its own thread, so a broker whose loop hangs would keep its session for ever: a watchdog ends it.
A broker that was killed and restarted at once would find its own old registration: the key of its session is in a file,
and that session is ended before another begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from ottla.cluster.store import SessionLost, SessionState
from ottla.cluster.zookeeper_client import (
    Request,
    SessionEvent,
    SessionKey,
    ZooKeeperClient,
    ZooKeeperError,
    fault_of,
    unanswered,
)
from ottla.cluster.zookeeper_options import Address, ZooKeeperOptions
from ottla.errors import Fault
from ottla.runtime import Handle, Runtime

log = logging.getLogger("ottla.cluster.zookeeper")

RESTART_SECONDS: Final = 1.0
REFUSED_SECONDS: Final = 5.0
"""The pause before another client is started; the second after ZooKeeper refused the authentication."""
WARN_SECONDS: Final = 3.0
"""A start that waits for ZooKeeper logs a warning after this time."""
WATCHDOG_CHECKS: Final = 10
"""How often the watchdog checks, and the loop resets it, within the allowed time."""

Changed = Callable[[SessionState], None]


class _Reply:
    """Brings the answer to a request from kazoo's thread to the loop."""

    __slots__ = ("_answered", "_post")

    def __init__(self, answered: Callable[[object, Exception | None], None], post: Callable[..., None]) -> None:
        self._answered = answered
        self._post = post

    def set(self, value: object) -> None:
        self._post(self._answered, value, None)

    def set_exception(self, failure: Exception) -> None:
        self._post(self._answered, None, failure)


def _complete(future: asyncio.Future[Any], value: object, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


class ZooKeeperSession:
    """`changed` is called after every change of `state`."""

    def __init__(
        self, address: Address, runtime: Runtime, options: ZooKeeperOptions, changed: Changed, file: str | None
    ) -> None:
        self.state = SessionState.lost
        self.seconds = options.session_timeout_ms / 1000
        """The session timeout: as requested, or shorter if ZooKeeper agreed to less."""
        self._address = address
        self._runtime = runtime
        self._options = options
        self._changed = changed
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False
        self._connected = asyncio.Event()
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._key: SessionKey | None = None
        self._open = False  # from the first session until `close`
        self._closed = False
        self._refused = False
        self._agreed: float | None = None
        self._client = self._new_client(self._remembered())
        self._watchdog = Watchdog(runtime, options.session_timeout_ms / 1000, self._on_hang)

    async def begin(self) -> None:
        """Return when there is a new session; Fault when ZooKeeper does not answer in time."""
        old = self._remembered()
        self._client.start()
        await self._until_connected()
        if old is not None and self._key is not None and self._key.id == old.id:
            log.info("ending the session of a broker that was not stopped cleanly")
            await self._replace(self._client)
            await self._until_connected()
        await self._remember()
        self._open = True

    async def close(self) -> None:
        """End the session and fail its requests in flight."""
        if self._closed:
            return
        self._closed = True
        self._open = False
        self._watchdog.end()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        heard = self.state is not SessionState.suspended
        try:
            await self._runtime.offload(self._client.end)
        except ZooKeeperError as error:
            log.warning("the session with ZooKeeper was not ended, it will expire: %s", error)
        else:
            if self._file is not None and heard:  # otherwise the session lives on, and the next start ends it
                self._runtime.disk.remove(self._file)
        self.state = SessionState.lost
        self._fail_in_flight(unanswered())

    def check(self) -> None:
        """Raise if no request can be sent now."""
        if self._refused:
            raise self.fault(unanswered(refused=True), "nothing was asked")
        if self.state is SessionState.lost:
            raise SessionLost(f"the session with ZooKeeper at {self._address} has ended")
        if self.state is SessionState.suspended:
            raise Fault(f"ZooKeeper at {self._address} is out of reach: try again when it is back")

    def call(self, request: Request) -> asyncio.Future[Any]:
        """Send a request; a future of its answer, or of a ZooKeeperError."""
        self.check()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        self._client.call(request, _Reply(partial(_complete, future), self.post))
        return future

    def send(self, request: Request, callback: Callable[[], None] | None = None) -> None:
        """Send a request without awaiting its answer; `callback` runs when there is one, a failure included."""
        self.check()
        self._client.call(request, _Reply(lambda value, failure: None if callback is None else callback(), self.post))

    def fault(self, error: Exception, meaning: str) -> Fault:
        return fault_of(error, str(self._address), meaning, self._client.reason)

    def post(self, act: Callable[..., None], *args: object) -> None:
        """Run on the loop, in the order of posting. For kazoo's threads."""
        self._inbox.append((act, args))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:
                pass  # the loop is closed

    def _take(self) -> None:
        self._woken = False  # first: what is posted from here on wakes the loop again
        while self._inbox:
            act, args = self._inbox.popleft()
            act(*args)

    def _session_event(self, client: ZooKeeperClient, event: SessionEvent) -> None:
        if client is not self._client:
            return  # of a client that was replaced
        self._refused = event.refused
        self.state = event.state
        if self._open:
            self._log_event(event)
        if event.state is SessionState.connected:
            self._agree(event.session_ms / 1000)
            if event.key != self._key:
                self._key = event.key
                if self._open:
                    self._spawn(self._remember())
            self._connected.set()
        else:
            self._connected.clear()
            # kazoo has dropped most of them. The others it sends when it is connected again, before all later
            # requests, so a later read shows their outcome.
            expired = event.state is SessionState.lost and not event.over
            self._fail_in_flight(unanswered(expired=expired, refused=event.refused))
            if event.over and not self._closed:
                self._spawn(self._start_over(client, REFUSED_SECONDS if event.refused else RESTART_SECONDS))
        self._changed(event.state)

    def _log_event(self, event: SessionEvent) -> None:
        if event.state is SessionState.suspended:
            reason = event.reason or "no answer"
            log.warning("disconnected from ZooKeeper (%s): the cluster stays as it is until it is back", reason)
        elif event.state is SessionState.connected:
            log.info("connected to ZooKeeper at %s", self._address)
        elif event.refused:
            log.error("ZooKeeper at %s refused the authentication: check zookeeper.auth", self._address)
        else:
            log.warning("the session with ZooKeeper has ended: beginning another")

    def _agree(self, seconds: float) -> None:
        asked = self._options.session_timeout_ms / 1000
        agreed = min(asked, seconds)
        if seconds != asked and agreed != self._agreed:
            log.warning(
                "ZooKeeper at %s keeps a session for %g s, not for %g s as zookeeper.session.timeout.ms says: "
                "see its minSessionTimeout and maxSessionTimeout",
                self._address, seconds, asked,
            )  # fmt: skip
        self.seconds = self._agreed = agreed
        self._watchdog.allow(agreed)

    def _fail_in_flight(self, failure: Exception) -> None:
        for future in list(self._in_flight):
            _complete(future, None, failure)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._runtime.spawn(work, name="zookeeper-session")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_client(self, key: SessionKey | None = None) -> ZooKeeperClient:
        return ZooKeeperClient(
            self._address.hosts, self._options, key, lambda client, event: self.post(self._session_event, client, event)
        )

    async def _until_connected(self) -> None:
        seconds = self._options.connection_timeout_ms / 1000
        warning = self._runtime.call_at(self._runtime.now() + WARN_SECONDS, self._log_waiting, seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._connected.wait()
        except TimeoutError:
            raise Fault(
                f"no ZooKeeper answers at {self._address.hosts} within {seconds:g} s{self._why}: is it running there?"
            ) from None
        finally:
            warning.cancel()

    def _log_waiting(self, seconds: float) -> None:
        log.warning(
            "still trying: no ZooKeeper answers at %s yet%s; the broker waits %g s for it "
            "(zookeeper.connection.timeout.ms). Is it running there?",
            self._address.hosts, self._why, seconds,
        )  # fmt: skip

    @property
    def _why(self) -> str:
        return f" ({self._client.reason})" if self._client.reason else ""

    def _on_hang(self) -> None:
        """The loop hangs: end the session. Runs in the watchdog's thread."""
        client = self._client
        try:
            client.end()
        except ZooKeeperError as error:
            log.warning("the session with ZooKeeper was not ended, it will expire: %s", error)
        # ZooKeeper may have ended it before; kazoo does not report a second end.
        self.post(self._begin_another, client)

    def _begin_another(self, client: ZooKeeperClient) -> None:
        if client is self._client and not self._closed:
            self._spawn(self._start_over(client, RESTART_SECONDS))

    async def _start_over(self, client: ZooKeeperClient, pause: float) -> None:
        """kazoo has given up, or the watchdog has ended it."""
        await asyncio.sleep(pause)
        await self._replace(client)

    async def _replace(self, client: ZooKeeperClient) -> None:
        await self._runtime.offload(client.end)
        if client is self._client and not self._closed:
            self._connected.clear()
            self._client = self._new_client()
            self._client.start()

    def _remembered(self) -> SessionKey | None:
        if self._file is None or not self._runtime.disk.exists(self._file):
            return None
        try:
            kept = json.loads(self._runtime.disk.read(self._file))
            return SessionKey(kept["id"], bytes.fromhex(kept["password"]))
        except (ValueError, KeyError, TypeError):
            return None  # damaged: that session expires by itself

    async def _remember(self) -> None:
        if self._file is None or self._key is None:
            return
        kept = json.dumps({"id": self._key.id, "password": self._key.password.hex()})
        try:
            await self._runtime.offload(self._runtime.disk.write_atomic, self._file, kept.encode())
        except Fault as fault:
            log.warning("if this broker is killed it cannot come back before its session expires: %s", fault)


class Watchdog:
    """Calls `on_hang`, in its own thread, when the loop has not run for so many seconds; once for each hang."""

    def __init__(self, runtime: Runtime, seconds: float, on_hang: Callable[[], None]) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._on_hang = on_hang
        self._ended = threading.Event()
        self._timer: Handle
        self._tick()
        threading.Thread(target=self._watch, name="ottla-watchdog", daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Set the time from now on. Called in the loop, which resets the watchdog."""
        if not self._ended.is_set():
            self._timer.cancel()
            self._seconds = seconds
            self._tick()

    def end(self) -> None:
        self._timer.cancel()
        self._ended.set()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self._timer = self._runtime.call_at(self._runtime.now() + self._seconds / WATCHDOG_CHECKS, self._tick)

    def _watch(self) -> None:
        reported = -1.0
        while not self._ended.wait(self._seconds / WATCHDOG_CHECKS):
            ticked = self._ticked
            if time.monotonic() - ticked > self._seconds and ticked != reported:
                reported = ticked
                log.error("the broker has hung for more than %g s: its session is ended", self._seconds)
                self._on_hang()
