"""A session with ZooKeeper as the loop sees it.

kazoo's threads post what they learn, and the loop takes it in the order it was learnt: answers, watches that fired,
and the session's state. When the connection is gone (`suspended`) the session perhaps is too: nothing is asked until
it is known, and what was under way is in doubt. A session that expired (`lost`) is followed by another at once.

kazoo pings from its own thread, so a broker whose loop hangs would keep its session for ever: a watchdog ends it. A
broker that was killed and comes back at once would find its own registration in the way: the key of its session lies
in a file, and that session is ended before another begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ottla.cluster.store import SessionLost, SessionState
from ottla.cluster.watchdog import Watchdog
from ottla.cluster.zookeeper import NOBODY, Client, News, Request, SessionKey, Trouble, fault_of, unanswered
from ottla.cluster.zookeeper_options import Address, ZooKeeperOptions
from ottla.errors import Fault
from ottla.runtime import Runtime

log = logging.getLogger("ottla.cluster.zookeeper")

RESTART_SECONDS: Final = 1.0
REFUSED_SECONDS: Final = 5.0
"""How long to rest before another client is started; the second when ZooKeeper refused our authentication."""
TELL_SECONDS: Final = 3.0
"""A start that waits for ZooKeeper says so after this time."""

Changed = Callable[[SessionState], None]


class _Answer:
    """Brings an answer from kazoo's thread to whoever awaits it."""

    __slots__ = ("_future", "_post")

    def __init__(self, future: asyncio.Future[Any], post: Callable[..., None]) -> None:
        self._future = future
        self._post = post

    def set(self, value: object) -> None:
        self._post(_succeed, self._future, value)

    def set_exception(self, failure: Exception) -> None:
        self._post(_fail, self._future, failure)


class _Afterwards:
    """Calls somebody on the loop once a request was answered."""

    __slots__ = ("_act", "_post")

    def __init__(self, act: Callable[[], None], post: Callable[..., None]) -> None:
        self._act = act
        self._post = post

    def set(self, value: object) -> None:
        self._post(self._act)

    def set_exception(self, failure: Exception) -> None:
        self._post(self._act)


def _succeed(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], failure: Exception) -> None:
    if not future.done():
        future.set_exception(failure)


class ZooKeeperSession:
    """`changed` is told of every change of `state`, after `state` has it."""

    def __init__(
        self, address: Address, runtime: Runtime, options: ZooKeeperOptions, changed: Changed, file: str | None
    ) -> None:
        self.state = SessionState.lost
        self.seconds = options.session_timeout_ms / 1000
        """How long the session lasts without a sign of us: as asked for, or shorter if ZooKeeper says so."""
        self._address = address
        self._runtime = runtime
        self._options = options
        self._changed = changed
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False
        self._connected = asyncio.Event()
        self._underway: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._key: SessionKey | None = None
        self._open = False  # from the first session on, until it is closed
        self._closed = False
        self._refused = False
        self._agreed: float | None = None
        self._client = self._new_client(self._remembered())
        self._watchdog = Watchdog(runtime, options.session_timeout_ms / 1000, self._put_down)

    async def begin(self) -> None:
        """Return when there is a session that is ours and new; Fault when ZooKeeper does not answer in time."""
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
        """End the session, and everything that waits for an answer in it."""
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
        except Trouble as trouble:
            log.warning("the session with ZooKeeper was not ended, it will expire: %s", trouble)
        else:
            if self._file is not None and heard:  # otherwise the session lives on, and is to be ended by the next start
                self._runtime.disk.remove(self._file)
        self.state = SessionState.lost
        self._give_up(unanswered())

    def check(self) -> None:
        """Raise what stands against asking anything now."""
        if self._refused:
            raise self.fault(unanswered(refused=True), "nothing was asked")
        if self.state is SessionState.lost:
            raise SessionLost(f"the session with ZooKeeper at {self._address} has ended")
        if self.state is SessionState.suspended:
            raise Fault(f"ZooKeeper at {self._address} is out of reach: try again when it is back")

    def call(self, request: Request) -> asyncio.Future[Any]:
        """Ask at once; the answer, or a Trouble, for whoever awaits it."""
        self.check()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._underway.add(future)
        future.add_done_callback(self._underway.discard)
        self._client.call(request, _Answer(future, self.post))
        return future

    def tell(self, request: Request, then: Callable[[], None] | None = None) -> None:
        """Ask, and wait for no answer; `then` is called when there is one, of whatever kind."""
        self.check()
        self._client.call(request, NOBODY if then is None else _Afterwards(then, self.post))

    def fault(self, trouble: Exception, meaning: str) -> Fault:
        return fault_of(trouble, str(self._address), meaning, self._client.reason)

    def post(self, act: Callable[..., None], *args: object) -> None:
        """Have it run on the loop, in the order of posting. For kazoo's threads."""
        self._inbox.append((act, args))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:
                pass  # the loop is gone, and nobody is left to tell

    def _take(self) -> None:
        self._woken = False  # first: what is posted from here on wakes us again
        while self._inbox:
            act, args = self._inbox.popleft()
            act(*args)

    def _news(self, client: Client, news: News) -> None:
        if client is not self._client:
            return  # the last words of one that was replaced
        self._refused = news.refused
        self.state = news.state
        if self._open:
            self._say(news)
        if news.state is SessionState.connected:
            self._agree(news.session_ms / 1000)
            if news.key != self._key:
                self._key = news.key
                if self._open:
                    self._spawn(self._remember())
            self._connected.set()
        else:
            self._connected.clear()
            # kazoo has let go of most. What it has not, it sends when it is connected again: before all that is
            # asked from then on, so whoever looks what became of it will see it.
            expired = news.state is SessionState.lost and not news.over
            self._give_up(unanswered(expired=expired, refused=news.refused))
            if news.over and not self._closed:
                self._spawn(self._start_over(client, REFUSED_SECONDS if news.refused else RESTART_SECONDS))
        self._changed(news.state)

    def _say(self, news: News) -> None:
        if news.state is SessionState.suspended:
            reason = news.reason or "no answer"
            log.warning("out of touch with ZooKeeper (%s): the cluster stays as it is until it is back", reason)
        elif news.state is SessionState.connected:
            log.info("in touch with ZooKeeper at %s", self._address)
        elif news.refused:
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

    def _give_up(self, failure: Exception) -> None:
        for future in list(self._underway):
            _fail(future, failure)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._runtime.spawn(work, name="zookeeper-session")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_client(self, key: SessionKey | None = None) -> Client:
        return Client(self._address.hosts, self._options, key, lambda client, news: self.post(self._news, client, news))

    async def _until_connected(self) -> None:
        seconds = self._options.connection_timeout_ms / 1000
        told = self._runtime.call_at(self._runtime.now() + TELL_SECONDS, self._say_waiting, seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._connected.wait()
        except TimeoutError:
            raise Fault(
                f"no ZooKeeper answers at {self._address.hosts} within {seconds:g} s{self._why}: is it running there?"
            ) from None
        finally:
            told.cancel()

    def _say_waiting(self, seconds: float) -> None:
        log.warning(
            "still trying: no ZooKeeper answers at %s yet%s; the broker waits %g s for it "
            "(zookeeper.connection.timeout.ms). Is it running there?",
            self._address.hosts, self._why, seconds,
        )  # fmt: skip

    @property
    def _why(self) -> str:
        return f" ({self._client.reason})" if self._client.reason else ""

    def _put_down(self) -> None:
        """The loop hangs: end the session. In the watchdog's thread."""
        client = self._client
        try:
            client.end()
        except Trouble as trouble:
            log.warning("the session with ZooKeeper was not ended, it will expire: %s", trouble)
        # Whoever wakes up late finds that ZooKeeper has ended it before; of a second end kazoo does not tell.
        self.post(self._begin_another, client)

    def _begin_another(self, client: Client) -> None:
        if client is self._client and not self._closed:
            self._spawn(self._start_over(client, RESTART_SECONDS))

    async def _start_over(self, client: Client, pause: float) -> None:
        """kazoo has given up, or the watchdog has ended it."""
        await asyncio.sleep(pause)
        await self._replace(client)

    async def _replace(self, client: Client) -> None:
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
            return None  # not what we wrote: that session expires by itself

    async def _remember(self) -> None:
        if self._file is None or self._key is None:
            return
        kept = json.dumps({"id": self._key.id, "password": self._key.password.hex()})
        try:
            await self._runtime.offload(self._runtime.disk.write_atomic, self._file, kept.encode())
        except Fault as fault:
            log.warning("if this broker is killed it cannot come back before its session expires: %s", fault)
