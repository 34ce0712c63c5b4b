"""How long things take, counted at next to no cost: an addition and a bucket that the number's own length finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.net.server import Connection, Pending, Reply, Serve
from ottla.wire.apis import Api

BOUNDS: Final = tuple(range(6, 26, 2))
"""Upper bounds that are told, as powers of two in microseconds: 64 microseconds, 256 …, 17 seconds."""
_POWERS: Final = 64


class Meter:
    """A histogram of durations."""

    __slots__ = ("_powers", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._powers = [0] * _POWERS

    def note(self, seconds: float) -> None:
        self.seconds += seconds
        self._powers[int(seconds * 1e6).bit_length()] += 1

    @property
    def count(self) -> int:
        return sum(self._powers)

    def counts(self) -> list[tuple[float, int]]:
        """How many took less than each bound, in seconds."""
        return [(2**power / 1e6, sum(self._powers[: power + 1])) for power in BOUNDS]


class RequestMeters:
    """A meter for each API, around whatever serves requests. A request ends when its answer is there: a Fetch that
    waits for records counts with its wait, as in Kafka."""

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
            reply = serve(connection, frame)  # a key that is not served does not come back
            if isinstance(reply, Pending) and not reply.resolved:
                meter = meters[key]
                reply.ended = lambda: meter.note(clock() - began)
            else:
                meters[key].note(clock() - began)
            return reply

        return measured
