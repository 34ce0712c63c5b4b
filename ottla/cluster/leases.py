"""Which of the other sessions have fallen silent, as one observer hears them; pure.

A session counts up while the loop of its process runs. Nobody compares clocks: an observer only measures, by its own,
for how long a session has not counted. Silence counts as far as somebody listened: an observer that was stopped itself,
or whose whole machine was, hears everybody again before it holds anybody for dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

LEASE_SECONDS: Final = 9.0
BEATS: Final = 6
"""How often a session counts within its lease: a few may come late before anybody is held for dead."""


class Pulse(NamedTuple):
    """What a session says of itself. Without a lease it is held for alive as long as its lock is."""

    beat: int
    lease_seconds: float


class Leases:
    """The silence of every session but our own."""

    def __init__(self) -> None:
        self._pulses: dict[int, Pulse] = {}
        self._silence: dict[int, float] = {}
        self._listened = 0.0

    def hear(self, pulses: Mapping[int, Pulse]) -> None:
        """What all sessions say now. Who has counted since, or is new, has not been silent at all."""
        for session, pulse in pulses.items():
            if self._pulses.get(session) != pulse:
                self._silence[session] = 0.0
        self._pulses = dict(pulses)
        self._silence = {session: self._silence[session] for session in pulses}

    def expired(self, now: float) -> dict[int, Pulse]:
        """Those that have been silent for their whole lease, and what they said last."""
        passed, self._listened = now - self._listened, now
        silent: dict[int, Pulse] = {}
        for session, pulse in self._pulses.items():
            if pulse.lease_seconds <= 0:
                continue
            self._silence[session] += min(passed, pulse.lease_seconds / BEATS)
            if self._silence[session] > pulse.lease_seconds:
                silent[session] = pulse
        return silent
