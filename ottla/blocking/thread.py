"""Event loop in its own thread, and the base of blocking clients that run on it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from ottla.client.core.client import Client
from ottla.client.errors import ClientError

C = TypeVar("C", bound=Client)
P = ParamSpec("P")
T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """Runs until `close`. A daemon thread: a program that does not close its clients can still end."""

    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for it; Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a blocking client cannot be called from its own thread, where callbacks run")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())  # threads that callbacks have used
            self.loop.close()


class Blocking(Generic[C]):
    """Started and stopped once. `with` does both."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread: LoopThread | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise ClientError(f"this {type(self).__name__} was started before; create another")
        self._thread = LoopThread(f"ottla-{type(self).__name__.lower()}")
        try:
            self._run(self._client.start())
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        self._stop(None, None, None)

    def _stop(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is None or self._thread.loop.is_closed():
            return
        try:
            self._run(self._client.__aexit__(kind, error, trace))
        finally:
            self._close()

    def _close(self) -> None:
        assert self._thread is not None
        self._thread.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._started(work).run(work)

    def _started(self, work: Coroutine[Any, Any, Any] | None = None) -> LoopThread:
        if self._thread is None or self._thread.loop.is_closed():
            if work is not None:
                work.close()
            state = "start() comes first" if self._thread is None else "it was stopped"
            raise ClientError(f"{type(self).__name__}: {state}")
        return self._thread

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(kind, error, trace)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The same method of a blocking client: it waits for the result."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    return call
