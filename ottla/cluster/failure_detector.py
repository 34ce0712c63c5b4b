"""The failure detector of the embedded store: which other sessions have stopped sending heartbeats. Pure.

Who speaks: each session increments its heartbeat in the store while the loop of its process runs. No clocks are
compared: an observer measures with its own clock for how long a heartbeat has not changed. Only time in which the
observer itself was running counts: after a pause of its own process, or of the whole machine, it gives every session
the chance to send a heartbeat before it declares one dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

LEASE_SECONDS: Final = 9.0
HEARTBEATS_PER_LEASE: Final = 6
"""A few heartbeats may be late before a session is declared dead."""


class Heartbeat(NamedTuple):
    """The last heartbeat that a session has written. With a lease of 0 the session lives as long as its file lock is
    held."""

    beat: int
    lease_seconds: float


class FailureDetector:
    """The silence of every session but our own."""

    def __init__(self) -> None:
        self._heartbeats: dict[int, Heartbeat] = {}
        self._silence: dict[int, float] = {}
        self._checked_at = 0.0

    def observe(self, heartbeats: Mapping[int, Heartbeat]) -> None:
        """The heartbeats of all sessions now. The silence of a new or changed one begins at zero."""
        for session, heartbeat in heartbeats.items():
            if self._heartbeats.get(session) != heartbeat:
                self._silence[session] = 0.0
        self._heartbeats = dict(heartbeats)
        self._silence = {session: self._silence[session] for session in heartbeats}

    def expired(self, now: float) -> dict[int, Heartbeat]:
        """The sessions that were silent for their whole lease, with their last heartbeat."""
        passed, self._checked_at = now - self._checked_at, now
        silent: dict[int, Heartbeat] = {}
        for session, heartbeat in self._heartbeats.items():
            if heartbeat.lease_seconds <= 0:
                continue
            self._silence[session] += min(passed, heartbeat.lease_seconds / HEARTBEATS_PER_LEASE)
            if self._silence[session] > heartbeat.lease_seconds:
                silent[session] = heartbeat
        return silent
