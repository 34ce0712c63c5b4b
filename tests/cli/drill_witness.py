"""Holds what a drill says against what its cluster holds, with other software: confluent-kafka asks the brokers, and
kafka-python reads the files of their logs.

A witness gets every line of a drill as it is said. Pictures are checked when they are drawn, and what is left of the
acknowledged records is read back at the end, while the cluster still runs.
"""

from __future__ import annotations

import re
from collections import Counter

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.record import MemoryRecords

from ottla.drills.running import Player
from ottla.local.processes import State

PARTITION = re.compile(r"^ {6}(\S+)-(\d+)$")
COPY = re.compile(r"^ {6}broker (\d+) +[█·]+ +(\d+) records  (.+)$")
ROW = re.compile(r"^ {6}(\S+)-(\d+)((?:  +(?:-|[a-z][a-z, ]*\(\d+\)))+)$")
STILL = ("routes", "notes", "spread", "TopicA", "three")
"""Topics without writes while a picture is drawn."""
HIGH = re.compile(r"^ {6}high watermark (.+)$")
GROUP = re.compile(r"^ {6}group (\S+)$")
SHARE = re.compile(r"^ {8}(\S+)-(\d+) ──▶ (\S+)$")
LOG = re.compile(r"^ {6}(\S+)-(\d+)  (… )?│(?:.*│)?$")
MARK = re.compile(r"^ +(\S.*): next is (\d+)$")


class Witness:
    """What a drill says is checked. `groups`: which group a mark in the picture of a log stands for."""

    def __init__(self, groups=()):
        self.lines: list[str] = []
        self.checked: Counter[str] = Counter()
        self.player: Player | None = None
        self._groups = dict(groups)
        self._partition: tuple[str, int] | None = None
        self._led = False
        self._group = ""
        self._shares: dict[str, dict[int, str]] = {}

    def __call__(self, line: str) -> None:
        if self._shares and not (SHARE.match(line) or GROUP.match(line) or line.endswith("is idle")):
            self._check_shares()
        self.lines.append(line)
        if found := GROUP.match(line):
            self._group = found[1]
        elif found := SHARE.match(line):
            self._shares.setdefault(self._group, {})[int(found[2])] = found[3]
            self._topic = found[1]
        elif (found := LOG.match(line)) or (found := PARTITION.match(line)):
            self._partition = found[1], int(found[2])
            self._led = False
        elif found := HIGH.match(line):
            assert self._led is (found[1] != "unknown: no leader"), (self._partition, line)
        elif (found := ROW.match(line)) and found[1] in STILL:
            self._check_cells(found[1], int(found[2]), re.findall(r"([a-z][a-z, ]*) \((\d+)\)|-", found[3]))
        elif found := COPY.match(line):
            self._led = self._led or found[3] == "leader"
            self._check_copy(int(found[1]), int(found[2]), found[3])
        elif (found := MARK.match(line)) and self._partition is not None:
            for name in found[1].split(", "):
                self._check_mark(name, int(found[2]))

    @property
    def cluster(self):
        assert self.player is not None
        assert self.player.cluster is not None
        return self.player.cluster

    def _check_copy(self, broker_id: int, shown: int, role: str) -> None:
        """Records in the files of a replica. One that catches up or truncates has moved on when it is looked at."""
        running = self.cluster[broker_id].state is State.READY
        assert not running or not role.startswith(("killed", "stopped", "paused")), (broker_id, role)
        assert running or role != "leader", f"broker {broker_id} is down, and shown as the leader"
        if role == "out of sync":
            return
        assert self._partition is not None
        topic, partition = self._partition
        found = records_in_files(self.cluster[broker_id].data / f"{topic}-{partition}")
        assert found == shown, (broker_id, self._partition, role)
        self.checked["copies"] += 1

    def _check_cells(self, topic: str, partition: int, cells: list[tuple[str, str]]) -> None:
        """Records in the files of each broker that has a replica."""
        brokers = list(self.cluster.brokers.values())
        assert len(cells) == len(brokers), (topic, partition, cells)
        for broker, (role, shown) in zip(brokers, cells, strict=True):
            if role and role != "out of sync":
                found = records_in_files(broker.data / f"{topic}-{partition}")
                assert found == int(shown), (broker.id, topic, partition, role)
                self.checked["cells"] += 1

    def _check_shares(self) -> None:
        shown, self._shares = self._shares, {}
        if self._groups.get("shares") == "none":
            return
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        for group, owners in shown.items():
            described = admin.describe_consumer_groups([group])[group].result(20)
            held = {
                tp.partition: member.client_id
                for member in described.members
                for tp in (member.assignment.topic_partitions if member.assignment else None) or ()
            }
            assert held == owners, group
            self.checked["shares"] += 1

    def _check_mark(self, name: str, offset: int) -> None:
        assert self._partition is not None
        topic, partition = self._partition
        if name == "the producer":
            consumer = confluent_kafka.Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "witness"})
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
            consumer.close()
            assert end == offset, name
        elif name in self._groups:
            assert self.committed(self._groups[name], topic, partition) == offset, name
        else:
            return
        self.checked["marks"] += 1

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        [tp] = admin.list_consumer_group_offsets([wanted])[group].result(20).topic_partitions
        return tp.offset

    async def ended(self, stage) -> None:
        """What is left of the acknowledged records is what a consumer of another make reads, in that order."""
        self("")
        for (topic, partition), values in stage.acknowledged.items():
            led = (await stage.probe.replicas(topic, partition)).leader >= 0
            if led:
                assert read_all(stage.cluster.bootstrap, topic, partition) == values, (topic, partition)
                self.checked["partitions"] += 1


def records_in_files(directory) -> int:
    count = 0
    for segment in directory.glob("*.log"):
        records = MemoryRecords(segment.read_bytes())
        while (batch := records.next_batch()) is not None:
            count += sum(1 for _ in batch)
    return count


def read_all(bootstrap: str, topic: str, partition: int) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "witness", "enable.auto.commit": False}
    )
    try:
        tp = TopicPartition(topic, partition, 0)
        first, end = consumer.get_watermark_offsets(tp, timeout=20)
        assert first == 0
        consumer.assign([tp])
        values: list[str] = []
        while len(values) < end:
            found = consumer.consume(end - len(values), timeout=20)
            assert found, f"{len(values)} of {end}"
            values += [message.value().decode() for message in found if message.error() is None]
        return values
    finally:
        consumer.close()
