"""Faults on demand: requests that fail, or take long, as a test says. Between the network and the broker; pure."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

from ottla.errors import ErrorCode
from ottla.testing.refusals import needs_real_answer, refused, refused_in
from ottla.wire.apis import APIS

DISCONNECT: Final = "disconnect"
"""Instead of an error: the connection is closed, and the request is not carried out."""


class Verdict(NamedTuple):
    """What is to be done with a request."""

    delay_s: float = 0.0
    disconnect: bool = False
    answer: bytes | None = None
    """A whole frame, instead of the broker's."""
    rewrite: Callable[[bytes], bytes] | None = None
    """What becomes of the broker's own answer."""


class Fault:
    """One fault that was injected. `hits` counts the requests it has met; `cancel`, or the end of `with`, ends it."""

    def __init__(self, owner: Faults, api_key: int, error: ErrorCode | str | None, times: int | None, delay_s: float):
        self.hits = 0
        self.api_key = api_key
        self.error = error
        self.left = times
        self.delay_s = delay_s
        self._owner = owner

    def cancel(self) -> None:
        self._owner.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Faults:
    """All that are to come. Added by the test's thread, met in the broker's."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._faults: list[Fault] = []

    def add(
        self, api: str, error: ErrorCode | int | str | None = None, times: int | None = 1, delay_ms: float = 0
    ) -> Fault:
        if error is None and not delay_ms:
            raise ValueError("say what shall happen: error=..., or delay_ms=...")
        if times is not None and times < 1:
            raise ValueError("a fault happens once at least; times=None: until it is cancelled")
        fault = Fault(self, api_key_of(api), error_of(error), times, delay_ms / 1000)
        with self._guard:
            self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        with self._guard:
            if fault in self._faults:
                self._faults.remove(fault)

    def clear(self) -> None:
        with self._guard:
            self._faults.clear()

    def meet(self, frame: memoryview) -> Verdict | None:
        """What becomes of the request in `frame`, which comes without its length; None: nothing special."""
        if not self._faults:
            return None
        fault = self._taken(int.from_bytes(frame[:2], "big", signed=True))
        if fault is None:
            return None
        code = fault.error
        if code is None:
            return Verdict(fault.delay_s)
        if not isinstance(code, ErrorCode):
            return Verdict(fault.delay_s, disconnect=True)
        if needs_real_answer(fault.api_key):
            version = int.from_bytes(frame[2:4], "big", signed=True)
            return Verdict(fault.delay_s, rewrite=lambda answer: refused_in(memoryview(answer), version, code))
        answer = refused(frame, code)
        return Verdict(fault.delay_s, disconnect=answer is None, answer=answer)

    def _taken(self, api_key: int) -> Fault | None:
        with self._guard:
            for fault in self._faults:
                if fault.api_key == api_key:
                    fault.hits += 1
                    if fault.left is not None:
                        fault.left -= 1
                        if not fault.left:
                            self._faults.remove(fault)
                    return fault
        return None


def api_key_of(name: str) -> int:
    """`Produce`, `produce`, `OffsetCommit`, `offset_commit`."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    known = {api.name.lower(): key for key, api in APIS.items()}
    if plain not in known:
        raise ValueError(f"there is no API {name!r}; there are {', '.join(api.name for api in APIS.values())}")
    return known[plain]


def error_of(error: ErrorCode | int | str | None) -> ErrorCode | str | None:
    """A number, or a name as Kafka or librdkafka writes it; `disconnect` stays what it is."""
    if error is None or error == DISCONNECT:
        return error if error is None else DISCONNECT
    if isinstance(error, int):
        return ErrorCode(error)
    name = error.lower().removeprefix("_")
    if name not in ErrorCode.__members__:
        raise ValueError(f"there is no error {error!r}; for example 'not_leader_or_follower', or {DISCONNECT!r}")
    return ErrorCode[name]
