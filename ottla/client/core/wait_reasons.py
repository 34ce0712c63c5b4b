"""What a client waits for, and why: logged as a warning when it lasts. Pure.

Reasons come from three sides. Answers with an error after which the client tries again are noted as they come, by what
their topic or broker, until an answer without an error comes. What the machines wait for (no leader, no such topic) is
looked at every second while a caller waits, and so are the requests that a broker has not answered
(`InFlightRequests`). A reason that has held for `PATIENCE_SECONDS` is logged once, and again every minute. A reason
that many partitions share is logged once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import NO_NODE, Node, code_of
from ottla.client.errors import explained
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema.fetch import FetchRequest
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema.join_group import JoinGroupRequest
from ottla.wire.schema.sync_group import SyncGroupRequest
from ottla.wire.tree import Message

PATIENCE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 60.0
SILENT_SECONDS: Final = 1.0
"""An answer that takes longer than this is waited for."""
FORGOTTEN_SECONDS: Final = 10.0
"""A reason that was not seen for so long is over: the requests were given up."""
REPORTED_MAX: Final = 5
"""Reasons that are reported at a time."""
NAMED_MAX: Final = 3
"""Of many partitions with the same reason so many are named."""

_NO_WARNING: Final = (None, "", "NONE")
"""The message of a FindCoordinator response without an error: empty from Ottla, the name of the code from Apache
Kafka."""

COORDINATOR: Final = "coordinator of "

Obstacle = tuple[str, str]
"""The subject, and what is wrong with it."""


@dataclass(slots=True)
class _Wait:
    reason: str
    since: float
    last: float
    reported_at: float | None = None
    vague: bool = False
    """It says that a coordinator is not available, for which FindCoordinator may have given the reason."""

    def is_due(self, now: float) -> bool:
        """It has lasted, it was met more than once, and was not reported lately."""
        lasted = now - self.since >= PATIENCE_SECONDS and self.last > self.since
        return lasted and (self.reported_at is None or now - self.reported_at >= AGAIN_SECONDS)


class WaitReasons:
    """All that one client waits for."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def note(self, about: str, reason: str, now: float, *, since: float | None = None) -> None:
        """It holds now. `since` says from when on it is known to have held; else that is from now on."""
        wait = self._waits.get(about)
        if wait is None:
            since = now if since is None else since
            wait = self._waits[about] = _Wait(reason, since, since)
        wait.last, wait.reason = now, reason

    def _known_better(self, wait: _Wait) -> bool:
        return wait.vague and any(about.startswith(COORDINATOR) for about in self._waits)

    def over(self, about: str) -> None:
        self._waits.pop(about, None)

    def heard(self, request: Message, response: Message, now: float) -> None:
        """Note the error of a response with one error code. The sender looks at responses with several."""
        if isinstance(response, FindCoordinatorResponse):
            assert isinstance(request, FindCoordinatorRequest)
            found = response.coordinators[0] if response.coordinators else response
            key = request.coordinator_keys[0] if request.coordinator_keys else request.key
            about, code, message = f"{COORDINATOR}{key}", code_of(found.error_code), found.error_message
        elif (answered := getattr(response, "error_code", None)) is not None:
            code, message = code_of(answered), getattr(response, "error_message", None)
            about = type(response).__name__.removesuffix("Response")
        else:
            return
        if isinstance(response, FindCoordinatorResponse) and code is ErrorCode.none and message not in _NO_WARNING:
            self.note(about, f"{about}: {message}", now)  # it is there, and writes nothing down
        elif code in RETRIABLE:
            self.note(about, f"{about}: {explained(code, '', message)}", now)
            self._waits[about].vague = code is ErrorCode.coordinator_not_available and not about.startswith(COORDINATOR)
        else:
            self.over(about)

    def look(self, obstacles: Iterable[Obstacle], now: float) -> list[str]:
        """Note what machines wait for. Returns the reasons to report now."""
        present = dict(obstacles)
        for about, reason in present.items():
            self.note(about, reason, now)
        reported: list[Obstacle] = []
        for about, wait in list(self._waits.items()):
            if now - wait.last > FORGOTTEN_SECONDS:
                del self._waits[about]
            elif wait.is_due(now) and not self._known_better(wait):
                wait.reported_at = now
                reported.append((about, wait.reason))
        return together(reported)[:REPORTED_MAX]

    def reasons(self) -> str:
        """For an error message: all that is waited for, or nothing."""
        known = together((about, wait.reason) for about, wait in self._waits.items() if not self._known_better(wait))
        return "; ".join(known[:REPORTED_MAX])


def together(obstacles: Iterable[Obstacle]) -> list[str]:
    """A reason that several subjects share is reported once, with their number and some of their names."""
    alike: dict[str, list[str]] = {}
    for about, reason in obstacles:
        rest = reason.removeprefix(f"{about}: ")
        named = alike.setdefault(rest, [])
        if rest != reason:
            named.append(about)
    return [f"{_named(names)}: {rest}" if names else rest for rest, names in alike.items()]


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = f", and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{len(names)} partitions ({', '.join(names[:NAMED_MAX])}{more})"


class InFlightRequests:
    """The requests that are under way. Some may wait at the broker: a fetch for records, a member for the others."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Node, Message, float]] = {}
        self._number = 0
        self._noted: set[str] = set()

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, to: Node, request: Message, now: float) -> int:
        """Its number, for when it is answered or given up."""
        self._number += 1
        self._sent[self._number] = (to, request, now)
        return self._number

    def over(self, number: int) -> Node | None:
        """The request was answered or given up, by this broker."""
        to, _, _ = self._sent.pop(number, (None, None, 0.0))
        return to

    def answered(self, number: int, waits: WaitReasons, now: float) -> None:
        """A broker that has answered is silent no more, unless it owes another answer for long."""
        to = self.over(number)
        if to is not None and _about(to) in self._noted and _about(to) not in self._silent(now):
            self._noted.discard(_about(to))
            waits.over(_about(to))

    def look(self, waits: WaitReasons, now: float) -> None:
        """Note the brokers that have not answered in the time that their answers may take."""
        for about, (reason, since) in self._silent(now).items():
            self._noted.add(about)
            waits.note(about, reason, now, since=since)

    def _silent(self, now: float) -> dict[str, tuple[str, float]]:
        silent: dict[str, tuple[str, float]] = {}
        for to, request, at in self._sent.values():
            allowed_s = request.max_wait_ms / 1000 if isinstance(request, FetchRequest) else 0.0
            since, about = at + allowed_s, _about(to)
            lasts = now - since >= min(SILENT_SECONDS, PATIENCE_SECONDS)
            if lasts and (about not in silent or since < silent[about][1]):
                silent[about] = (_silence(to, request), since)
        return silent


def _about(to: Node) -> str:
    return f"no answer of broker {to.node_id}"


def _silence(to: Node, request: Message) -> str:
    name = type(request).__name__.removesuffix("Request")
    broker = f"broker {to.node_id} at {to.host}:{to.port}"
    if isinstance(request, JoinGroupRequest | SyncGroupRequest):
        return f"{broker} does not answer ({name}): the other members of the group have to join first, or it hangs"
    return f"{broker} does not answer ({name}): it hangs, is paused or busy, or waits for others; look at its log"


def of_topics(metadata: Metadata) -> Iterator[Obstacle]:
    """Topics in use that are not in the metadata."""
    for topic, code in metadata.errors.items():
        yield f"topic {topic}", f"topic {topic}: {explained(code, topic)}"


def of_partition(
    metadata: Metadata,
    topic: str,
    partition: int,
    now: float,
    said: ErrorCode = ErrorCode.none,
    words: str | None = None,
) -> Obstacle | None:
    """Why a partition makes no progress, if a reason is known."""
    if metadata.topic(topic) is None:
        return None  # reported for the topic
    leader = metadata.leader(topic, partition).node_id
    if said is ErrorCode.none and leader != NO_NODE and metadata.reachable(leader, now):
        return None
    tp = f"{topic}-{partition}"
    return tp, f"{tp}: {metadata.obstacle(topic, partition, said, words)}"
