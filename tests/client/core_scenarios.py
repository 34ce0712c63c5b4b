"""Text scenarios for the client's machines: what happens on the left, what the machines want done on the right.

    # a title
    cluster t0=1 t1=2             leaders of partitions; a node is a number, an epoch follows an @
    producer linger=0
    append t0 a b                 -> identify
    identified                    -> produce 1 t0:a,b#0
    ok 1                          -> delivered t0:a,b@0

Words on the left are methods of the scenario; a line without an arrow expects no action. After each line all machines
decide. Partitions are written t0, t1; time passes with `after 3s`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ottla.client.core.metadata import Leader, Metadata, MetadataSettings
from ottla.client.core.requests import Node, Send
from ottla.errors import ErrorCode
from ottla.wire.schema import metadata
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.tree import Message

DIRECTORY = Path(__file__).parent.parent / "scenarios"


def scenarios(name: str) -> list:
    """One parameter for each scenario in the file."""
    blocks = re.split(r"^# (.+)$", (DIRECTORY / name).read_text(), flags=re.MULTILINE)
    titles, bodies = blocks[1::2], blocks[2::2]
    return [
        pytest.param(body.strip().splitlines(), id=title.strip()) for title, body in zip(titles, bodies, strict=True)
    ]


def partition_named(word: str) -> tuple[str, int]:
    found = re.fullmatch(r"([a-z]+)(\d+)", word)
    assert found, f"{word!r} is no partition"
    return found[1], int(found[2])


def options(words: Iterable[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


class Scenario:
    """What scenarios of all machines have in common: a clock, metadata, and requests that are on their way."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metadata = Metadata([("a", 1), ("b", 2)])
        self.in_flight: list[tuple[object, Send]] = []
        self.shown: list[str] = []

    def machines(self) -> list:
        return [self.metadata]

    def run(self, lines: list[str]) -> None:
        for line in lines:
            event, _, expected = (part.strip() for part in line.partition("->"))
            if not event or event.startswith("--"):
                continue
            word, *rest = event.split()
            self.shown = []
            getattr(self, "do_" + word.replace("-", "_"))(*rest)
            self.decide()
            actual = "; ".join(self.shown)
            assert actual == expected, f"{event}\n  expected: {expected}\n    actual: {actual}"

    def decide(self) -> None:
        """Until no machine has an action, as the driver does: one machine may wait for another."""
        said = True
        while said:
            said = False
            for machine in self.machines():
                said = self.decided(machine) or said

    def decided(self, machine: Any) -> bool:
        actions = machine.decide(self.now)
        for action in actions:
            if isinstance(action, Send):
                if action.awaited:
                    self.in_flight.append((machine, action))
                self.show(action)
            else:
                self.shown.append(self.outcome(action))
        return bool(actions)

    def show(self, send: Send) -> None:
        if isinstance(send.request, MetadataRequest):
            self.shown.append(self.asked(send.to.node_id, send.request))
        else:
            self.shown.append(self.request(send.to.node_id, send.request))

    def asked(self, node: int, request: MetadataRequest) -> str:
        topics = "everything" if request.topics is None else " ".join(topic.name or "" for topic in request.topics)
        return f"ask {node} {topics}".strip()

    def request(self, node: int, request: Message) -> str:
        raise AssertionError(f"these machines do not send {request}")

    def outcome(self, action: object) -> str:
        raise AssertionError(f"these machines do not tell of {action}")

    def take(self, kind: type[Message], node: str | None = None) -> tuple:
        for entry in self.in_flight:
            if isinstance(entry[1].request, kind) and (node is None or entry[1].to.node_id == int(node)):
                self.in_flight.remove(entry)
                return entry
        raise AssertionError(f"no {kind.__name__} is in flight")

    # Events of all scenarios.

    def do_after(self, time: str) -> None:
        """Wake the machines whenever they asked to be woken, until so much time has passed."""
        end = round(self.now + float(time.removesuffix("s")), 6)
        for _ in range(1000):
            deadlines = [deadline for machine in self.machines() if (deadline := machine.deadline) is not None]
            upcoming = [deadline for deadline in deadlines if self.now < deadline <= end + 1e-9]
            self.decide()
            if not upcoming:
                break
            self.now = min(upcoming)
        else:
            raise AssertionError("the machines wake without end")
        self.now = end

    def do_want(self, *topics: str) -> None:
        for topic in topics:
            self.metadata.want(topic)

    def do_reported(self, *words: str) -> None:
        """An answer to Metadata: `brokers=1,2 t0=1@5 t1=none@6 u=unknown_topic_or_partition`."""
        machine, send = self.take(MetadataRequest)
        machine.answered(send, self.metadata_of(words), self.now)

    def metadata_of(self, words: Iterable[str]) -> MetadataResponse:
        named = options(words)
        nodes = [int(node) for node in named.pop("brokers", "1,2,3").split(",") if node]
        ids = {name: value for name, value in named.items() if name.endswith(".id")}
        topics: dict[str, metadata.MetadataResponseTopic] = {}
        for word, value in named.items():
            if word in ids:
                continue
            name = word.rstrip("0123456789")
            identity = topic_id(ids.get(f"{name}.id", name))
            topic = topics.setdefault(name, metadata.MetadataResponseTopic(name=name, topic_id=identity))
            if name == word:
                topic.error_code = ErrorCode[value]
                continue
            leader, _, epoch = value.partition("@")
            topic.partitions.append(
                metadata.MetadataResponsePartition(
                    partition_index=partition_named(word)[1],
                    leader_id=-1 if leader == "none" else int(leader),
                    leader_epoch=int(epoch or 0),
                )
            )
        brokers = [metadata.MetadataResponseBroker(node_id=node, host=f"h{node}", port=node) for node in nodes]
        return MetadataResponse(brokers=brokers, topics=list(topics.values()))

    def do_cluster(self, *words: str) -> None:
        """Begin with this knowledge, as if it had been asked for."""
        settings = MetadataSettings(metadata_max_age_ms=3_600_000)
        self.metadata = Metadata([("a", 1), ("b", 2)], settings)
        for word in options(words):
            if word != "brokers":
                self.metadata.want(word.rstrip("0123456789"))
        (send,) = self.metadata.decide(self.now)
        self.metadata.answered(send, self.metadata_of(words), self.now)
        self.now += 1

    def do_gone(self, node: str) -> None:
        self.metadata.lost(int(node), self.now)

    def do_lose(self, node: str) -> None:
        """The connection to this broker breaks, with everything that is on its way."""
        lost = [entry for entry in self.in_flight if entry[1].to.node_id == int(node)]
        self.in_flight = [entry for entry in self.in_flight if entry not in lost]
        for machine, send in lost:
            machine.failed(send, self.now)  # type: ignore[attr-defined]

    def do_hint(self, word: str, leader: str, verdict: str = "news") -> None:
        node, _, epoch = leader.partition("@")
        endpoint = Node(int(node), f"h{node}", int(node))
        news = self.metadata.hinted(*partition_named(word), Leader(int(node), int(epoch)), [endpoint])
        assert news == (verdict == "news")

    def do_leads(self, *words: str) -> None:
        for word in words:
            name, _, leader = word.partition("=")
            known = self.metadata.leader(*partition_named(name))
            assert f"{known.node_id}@{known.epoch}" == leader, f"{name}: {known}"
