"""Histograms of durations; one observation costs an addition and a bucket by the exponent of the float."""

from __future__ import annotations

from collections.abc import Callable
from math import frexp
from typing import Final

from ottla.net.server import Connection, Pending, Reply, Serve
from ottla.wire.apis import Api

BOUNDS: Final = tuple(range(-14, 5, 2))
"""Upper bounds that are reported, as powers of two in seconds: 61 microseconds, 244 …, 16 seconds."""
_LEAST: Final = 2.0**-31  # seconds: nothing is shorter
_POWERS: Final = 64
"""Up to 2 to the 33rd seconds: nothing is longer."""


class Meter:
    """A histogram of durations."""

    __slots__ = ("_powers", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._powers = [0] * _POWERS

    def note(self, seconds: float) -> None:
        self.seconds += seconds
        self._powers[frexp(seconds + _LEAST)[1] + 30] += 1

    @property
    def count(self) -> int:
        return sum(self._powers)

    def counts(self) -> list[tuple[float, int]]:
        """How many took less than each bound, in seconds."""
        return [(2.0**power, sum(self._powers[: power + 31])) for power in BOUNDS]


class RequestMeters:
    """A meter for each API. A request ends when its response is ready: a Fetch that waits for records counts with its
    wait, as in Kafka."""

    def __init__(self, apis: list[Api], clock: Callable[[], float]) -> None:
        assert all(api.key < 256 for api in apis), "the low byte of a key is taken for the key"
        self.by_api = {api.name: Meter() for api in apis}
        self._meters = {api.key: self.by_api[api.name] for api in apis}
        self._clock = clock

    def around(self, serve: Serve) -> Serve:
        meters, clock = self._meters, self._clock

        def measured(connection: Connection, frame: memoryview) -> Reply | Pending:
            began = clock()
            key = frame[1]
            reply = serve(connection, frame)  # raises for a key that is not served
            if isinstance(reply, Pending) and not reply.resolved:
                meter = meters[key]
                reply.ended = lambda: meter.note(clock() - began)
            else:
                meters[key].note(clock() - began)
            return reply

        return measured
