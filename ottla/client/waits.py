"""What a client waits for, and why: told as a warning when it lasts. Pure.

Reasons come from two sides. Answers with an error after which the client tries again are noted as they come, by what
they are about, until an answer without one comes. What the machines stand still for (no leader, no such topic) is
looked at every second while anybody waits. A reason that has held for `PATIENCE_SECONDS` is told once, and again every
minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ottla.client import reasons
from ottla.client.routing import NO_NODE, Routing, code_of
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.tree import Message

PATIENCE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 60.0
FORGOTTEN_SECONDS: Final = 10.0
"""What nobody has met for so long is over: nobody tries any more."""
TOLD_MAX: Final = 5
"""Reasons of one kind that are told: a topic may have hundreds of partitions."""

_NO_WARNING: Final = (None, "", "NONE")
"""What FindCoordinator says beside an address when all is well: ours nothing, Apache Kafka's the name of the code."""

Obstacle = tuple[str, str]
"""What it is about, and what is wrong with it."""


class _Wait:
    __slots__ = ("last", "reason", "since", "told_at")

    def __init__(self, reason: str, now: float) -> None:
        self.reason = reason
        self.since = self.last = now
        self.told_at: float | None = None

    def is_due(self, now: float) -> bool:
        """It has lasted, it was met more than once, and nobody was told lately."""
        lasted = now - self.since >= PATIENCE_SECONDS and self.last > self.since
        return lasted and (self.told_at is None or now - self.told_at >= AGAIN_SECONDS)


class Waits:
    """All that one client waits for."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def note(self, about: str, reason: str, now: float) -> None:
        wait = self._waits.get(about)
        if wait is None:
            self._waits[about] = _Wait(reason, now)
        else:
            wait.last, wait.reason = now, reason

    def over(self, about: str) -> None:
        self._waits.pop(about, None)

    def heard(self, request: Message, response: Message, now: float) -> None:
        """An answer that has one place for an error; those with many are looked at by whoever asked."""
        if isinstance(response, FindCoordinatorResponse):
            assert isinstance(request, FindCoordinatorRequest)
            found = response.coordinators[0] if response.coordinators else response
            key = request.coordinator_keys[0] if request.coordinator_keys else request.key
            about, code, message = f"coordinator of {key}", code_of(found.error_code), found.error_message
        elif (answered := getattr(response, "error_code", None)) is not None:
            code, message = code_of(answered), getattr(response, "error_message", None)
            about = type(response).__name__.removesuffix("Response")
        else:
            return
        if isinstance(response, FindCoordinatorResponse) and code is ErrorCode.none and message not in _NO_WARNING:
            self.note(about, f"{about}: {message}", now)  # it is there, and writes nothing down
        elif code in RETRIABLE:
            self.note(about, f"{about}: {reasons.reason(code, '', message)}", now)
        else:
            self.over(about)

    def look(self, obstacles: Iterable[Obstacle], now: float) -> list[str]:
        """Note what machines stand still for; what is to be told now."""
        present = dict(obstacles)
        for about, reason in present.items():
            self.note(about, reason, now)
        told: list[str] = []
        for about, wait in list(self._waits.items()):
            if now - wait.last > FORGOTTEN_SECONDS:
                del self._waits[about]
            elif wait.is_due(now):
                wait.told_at = now
                told.append(wait.reason)
        return told[:TOLD_MAX]

    def reasons(self) -> str:
        """For an error message: all that is waited for, or nothing."""
        known = list(dict.fromkeys(wait.reason for wait in self._waits.values()))
        return "; ".join(known[:TOLD_MAX])


def of_topics(routing: Routing) -> Iterator[Obstacle]:
    """Topics that somebody wants and nobody knows."""
    for topic, code in routing.errors.items():
        yield f"topic {topic}", f"topic {topic}: {reasons.reason(code, topic)}"


def of_partition(
    routing: Routing, topic: str, partition: int, now: float, said: ErrorCode = ErrorCode.none, words: str | None = None
) -> Obstacle | None:
    """Why nothing comes of this partition, if something is known to be wrong."""
    if routing.topic(topic) is None:
        return None  # told of the topic
    leader = routing.leader(topic, partition).node_id
    if said is ErrorCode.none and leader != NO_NODE and routing.reachable(leader, now):
        return None
    place = f"{topic}-{partition}"
    return place, f"{place}: {routing.obstacle(topic, partition, said, words)}"
