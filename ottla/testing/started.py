"""Base of test brokers and test clusters: temporary directory, loop in a thread, injected faults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from ottla.blocking.thread import LoopThread
from ottla.errors import ErrorCode
from ottla.testing.access import Access
from ottla.testing.faults import Faults, InjectedFault
from ottla.testing.leftovers import Scratch


def settings_of(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings as Kafka writes them, from names with `_` and values of any type."""
    return {name.replace("_", "."): _text(value) for name, value in (config or {}).items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Started(Access, ABC):
    """Started by `with`, or by `start` and `stop`. `config` has Kafka's names of settings."""

    THREAD: ClassVar[str]
    """Name of the loop's thread."""

    def __init__(self, defaults: Mapping[str, str], config: Mapping[str, Any] | None) -> None:
        super().__init__()
        self._settings = {**defaults, **settings_of(config)}
        self._faults = Faults()
        self._directory = ""
        self._scratch: Scratch | None = None
        self._thread: LoopThread | None = None

    def start(self) -> Self:
        if self._thread is not None:
            raise RuntimeError(f"this {type(self).__name__.lower()} was started before; create another")
        self._scratch = Scratch()
        self._directory = self._scratch.path
        self._thread = LoopThread(self.THREAD)
        try:
            self._begin(self._thread)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leaves nothing behind: no process, no thread, no socket, no file."""
        if self._thread is None or self._thread.loop.is_closed():
            return
        try:
            self._end(self._thread)
        finally:
            self._thread.close()
            if self._scratch is not None:
                self._scratch.remove()
            self._faults.clear()

    @abstractmethod
    def _begin(self, thread: LoopThread) -> None: ...

    @abstractmethod
    def _end(self, thread: LoopThread) -> None:
        """May be called after a `_begin` that failed."""

    def inject(
        self, api: str, error: ErrorCode | int | str | None = None, times: int | None = 1, delay_ms: float = 0
    ) -> InjectedFault:
        """At all brokers. A fault that no request has met at the end causes the warning `UnusedFault`."""
        return self._faults.add(api, error, times, delay_ms)

    def forget_faults(self) -> None:
        """End all injected faults; warns about those that never fired."""
        self._faults.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
