"""Cluster of three brokers, Ottla or Apache Kafka, and the requests that cells of a cluster send."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bench import frames
from bench.connection import Broken, Connection
from bench.maven import CACHE
from bench.peers import SERVER_PROPERTIES, ApacheKafka, Ottla, Peer, free_port
from ottla.cluster.ensemble import HOST
from ottla.errors import Fault
from ottla.local.processes import BrokerProcess

BROKERS = (1, 2, 3)
METADATA = 3
SETTLE_TIMEOUT_S = 120.0


class _OttlaMember(Ottla):
    """One of several brokers on one embedded store."""

    def __init__(self, number: int, store: Path, settings: Mapping[str, str]) -> None:
        super().__init__(settings=settings)
        self._number = number
        self._store = store

    def _prepare(self) -> list[str]:
        arguments = ("--id", str(self._number), "--store", f"embedded:{self._store}")
        return BrokerProcess(self.directory / "data", *arguments, port=self.port, settings=self.settings).command()


class _KafkaMember(ApacheKafka):
    """One of several combined KRaft nodes."""

    def __init__(self, number: int, voters: str, controller_port: int, heap: str, settings: Mapping[str, str]) -> None:
        super().__init__(heap=heap, settings=settings)
        self._number = number
        self._voters = voters
        self._controller_port = controller_port

    def properties(self) -> str:
        text = SERVER_PROPERTIES.format(
            host=HOST, port=self.port, controller_port=self._controller_port, data=self.directory / "data"
        )
        replaced = {
            "node.id=1": f"node.id={self._number}",
            f"controller.quorum.bootstrap.servers={HOST}:{self._controller_port}": (
                f"controller.quorum.voters={self._voters}"
            ),
            "broker.session.timeout.ms=3600000\n": "",
        }
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    formatting: tuple[str, ...] = ()


class Leader(NamedTuple):
    broker: int
    in_sync: int


class Trio:
    """Started with `with`; the peer decides the kind and the settings."""

    def __init__(self, peer: Peer) -> None:
        self.name = peer.name
        self._peer = peer
        self.members: dict[int, Peer] = {}
        self.ready_s = 0.0
        self._directory = Path()

    def __enter__(self) -> Self:
        (CACHE / "run").mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-store-", dir=CACHE / "run"))
        began = time.monotonic()
        try:
            self.members = self._made()
            for member in self.members.values():  # a quorum comes about only when the others start, too
                member.launch()
            for member in self.members.values():
                member.wait_until_ready()
            self._await_brokers()
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - began
        return self

    def _made(self) -> dict[int, Peer]:
        settings = self._peer.settings
        if not isinstance(self._peer, ApacheKafka):
            return {number: _OttlaMember(number, self._directory / "store.db", settings) for number in BROKERS}
        heap = self._peer.heap
        ports = {number: free_port() for number in BROKERS}
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in ports.items())
        return {number: _KafkaMember(number, voters, ports[number], heap, settings) for number in BROKERS}

    def _await_brokers(self) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while any(len(self._metadata(number, None)[0]) < len(BROKERS) for number in BROKERS):
            if time.monotonic() > deadline:
                raise Fault(f"the brokers of {self.name} do not find each other")
            time.sleep(0.02)

    def stop(self) -> None:
        for member in self.members.values():
            member.remove()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Asking.

    @property
    def alive(self) -> list[int]:
        return [number for number, member in self.members.items() if member.running]

    def cpu_seconds(self) -> float:
        return sum(self.members[number].cpu_seconds() for number in self.alive)

    def resident_bytes(self) -> int:
        return sum(self.members[number].resident_bytes() for number in self.alive)

    def create_topic(self, topic: str, partitions: int) -> dict[int, Leader]:
        """Create a topic with three replicas and min.insync.replicas=2; waits until all partitions have leaders and are
        in sync."""
        port = self.members[self.controller()].port
        with Connection(port, answer_bytes_max=64 << 20) as connection:
            frame = frames.create_topic(topic, partitions, {"min.insync.replicas": "2"}, replicas=len(BROKERS))
            answer = connection.call(frame)
            (error,) = frames.I16.unpack_from(answer, frames.topic_error_at(topic))
            if error:
                raise Broken(f"topic {topic} could not be created: error {error}")
        return self.await_led(topic, in_sync=len(BROKERS), by=self.alive)

    def await_led(self, topic: str, *, in_sync: int, by: Iterable[int]) -> dict[int, Leader]:
        """Wait until all brokers report that one of these leads each partition, with so many in sync."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        able = set(by)
        for number in self.alive:
            while True:
                _, leaders = self._metadata(number, topic)
                led = [each for each in leaders.values() if each.broker in able and each.in_sync >= in_sync]
                if leaders and len(led) == len(leaders):
                    break
                if time.monotonic() > deadline:
                    raise Broken(f"{len(leaders) - len(led)} partitions of {topic} are not led")
                time.sleep(0.02)
        return leaders

    def controller(self) -> int:
        """The broker that accepts administrative requests; any broker with Apache Kafka, which forwards them."""
        return self.alive[0]

    def leaders(self, topic: str) -> dict[int, Leader]:
        return self._metadata(self.alive[0], topic)[1]

    def _metadata(self, number: int, topic: str | None) -> tuple[list[int], dict[int, Leader]]:
        with Connection(self.members[number].port, answer_bytes_max=64 << 20) as connection:
            return _read_metadata(connection.call(_metadata_request(topic)))


def _metadata_request(topic: str | None) -> bytes:
    """Version 1, which has everything needed here."""
    names = [] if topic is None else [topic.encode()]
    body = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", len(name)) + name for name in names)
    return frames.request(METADATA, 1, body, flexible=False)


def _read_metadata(answer: memoryview) -> tuple[list[int], dict[int, Leader]]:
    reader = _Reader(answer, 4)
    brokers = []
    for _ in range(reader.i32()):
        brokers.append(reader.i32())
        reader.string()
        reader.i32()
        reader.string()
    reader.i32()
    leaders: dict[int, Leader] = {}
    for _ in range(reader.i32()):
        reader.i16()
        reader.string()
        reader.pos += 1
        for _ in range(reader.i32()):
            reader.i16()
            partition, leader = reader.i32(), reader.i32()
            replicas = reader.i32()
            reader.pos += 4 * replicas
            in_sync = reader.i32()
            reader.pos += 4 * in_sync
            leaders[partition] = Leader(leader, in_sync)
    return brokers, leaders


class _Reader:
    def __init__(self, view: memoryview, pos: int) -> None:
        self._view = view
        self.pos = pos

    def i16(self) -> int:
        self.pos += 2
        return int(frames.I16.unpack_from(self._view, self.pos - 2)[0])

    def i32(self) -> int:
        self.pos += 4
        return int(frames.I32.unpack_from(self._view, self.pos - 4)[0])

    def string(self) -> None:
        size = self.i16()
        self.pos += max(size, 0)


def quiet_disk() -> None:
    os.sync()
