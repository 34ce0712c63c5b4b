"""Consumer groups for tests: members in processes of their own, with their records and events."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ottla.local.waiting import wait_for
from tests.conftest import Served
from tests.interop.clients import Confluent, Record

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NAMES = ("confluent-kafka", "kafka-python", "aiokafka")
SETTLED_S = 20.0


class Member:
    """One consumer, as the test sees it. Its events come in from a thread that reads its process."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.owned: set[int] = set()
        self.assignments = 0
        self.revoked: list[int] = []
        self.lost: list[int] = []
        self.records: list[tuple[int, int, str]] = []
        self.events: list[str] = []
        self.errors: list[str] = []

    def hear(self, event: str, value: Any) -> None:
        if event == "record":
            self.records.append((value[1], value[2], value[3]))
        elif event in ("error", "died"):
            self.errors.append(value)
        elif event in ("assigned", "revoked", "lost"):
            partitions = [partition for _, partition in value]
            if event == "assigned":
                self.owned |= set(partitions)
                self.assignments += 1
            else:
                self.owned -= set(partitions)
                (self.revoked if event == "revoked" else self.lost).extend(partitions)
        self.events.append(event)

    def do(self, command: str) -> None:
        self.process.write({"name": self.name, "do": command})

    def commit(self) -> None:
        before = self.events.count("committed")
        self.do("commit")
        wait_for(lambda: self.events.count("committed") > before, f"{self.name} to commit")

    def stop(self) -> None:
        """As a program that ends well: it leaves the group."""
        self.do("stop")
        wait_for(lambda: "stopped" in self.events, f"{self.name} to stop")

    def kill(self) -> None:
        self.process.kill()

    @property
    def values(self) -> list[str]:
        return [value for _, _, value in self.records]


class Process:
    """Hosts one consumer or several."""

    def __init__(self, specs: Sequence[dict[str, Any]], log: Path) -> None:
        self.members = {spec["name"]: Member(spec["name"], self) for spec in specs}
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.consumer_process", json.dumps(specs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=REPOSITORY,
            )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                reported = json.loads(line)
                self.members[reported["name"]].hear(reported["event"], reported["value"])

    def write(self, command: dict[str, str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """kill -9: no leave, no commit, no closed connection but what the kernel does."""
        self.process.kill()
        self.gone()

    def gone(self) -> None:
        """Wait for the process to end, by whatever cause."""
        self.process.wait(30)
        self.reader.join(30)
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass


class Group:
    """The members of one group on one topic."""

    def __init__(self, start: Callable[[list[dict[str, Any]]], list[Member]], topic: str, **settings: Any) -> None:
        self.start = start
        self.topic = topic
        self.id = settings.pop("group", None) or f"g-{uuid.uuid4().hex[:8]}"
        self.settings = settings
        self.members: list[Member] = []

    def spec(self, **settings: Any) -> dict[str, Any]:
        name = f"{self.id}-{uuid.uuid4().hex[:4]}"
        return {"name": name, "group": self.id, "topics": [self.topic], **self.settings, **settings}

    def add(self, count: int = 1, **settings: Any) -> list[Member]:
        """Members in a process each."""
        added = [member for _ in range(count) for member in self.start([self.spec(**settings)])]
        self.members += added
        return added

    def add_one(self, **settings: Any) -> Member:
        return self.add(1, **settings)[0]

    def kill(self, member: Member) -> None:
        member.kill()
        self.members.remove(member)

    def shares(self) -> list[int]:
        return sorted((len(member.owned) for member in self.members), reverse=True)

    def settle(self, shares: Sequence[int], timeout_s: float = SETTLED_S) -> None:
        """Wait until the members have so many partitions each, every partition once, and all have been told."""

        def settled() -> bool:
            held = [partition for member in self.members for partition in member.owned]
            reported = all(member.assignments for member in self.members)
            return reported and self.shares() == list(shares) and sorted(held) == list(range(sum(shares)))

        try:
            wait_for(settled, f"shares {list(shares)}", timeout_s)
        except AssertionError as error:
            seen = {member.name: (sorted(member.owned), member.events, member.errors) for member in self.members}
            raise AssertionError(f"{error}: {seen}") from None

    def moves(self) -> int:
        """How often a member was given something, or had something taken."""
        return sum(event in ("assigned", "revoked", "lost") for member in self.members for event in member.events)

    def owner(self, partition: int) -> Member:
        return next(member for member in self.members if partition in member.owned)

    def values(self) -> list[str]:
        return [value for member in self.members for value in member.values]

    def wait_for_values(self, values: Sequence[str]) -> None:
        wait_for(lambda: set(values) <= set(self.values()), f"{self.id} to read {values}")


def produce(broker: Served, topic: str, values: Sequence[str], partitions: int = 1) -> None:
    """Write the values, in turn to each of the partitions."""
    records = [Record(value.encode(), partition=index % partitions) for index, value in enumerate(values)]
    Confluent().produce(broker.bootstrap, topic, records)
