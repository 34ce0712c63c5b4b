"""Files lost behind a clean stop: no copy that lost something wins over one that did not, and nothing is skipped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.main import cli
from ottla.cluster.ensemble import Ensemble
from ottla.errors import Fault
from ottla.local.cluster import LocalCluster
from ottla.local.processes import BrokerProcess
from ottla.local.waiting import wait_for
from ottla.log.manifest import FILE_NAME
from ottla.wire.batch import batches
from tests.conftest import EXTERNAL
from tests.harness.zookeeper import ensemble

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own")

TOPIC = "kept"
COUNT = 60
SCRUBBED = {"ottla.scrub.interval.ms": "4000"}


def logs(data: Path) -> list[Path]:
    return sorted((data / f"{TOPIC}-0").glob("*.log"))


def content(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in logs(data))


def begins_with(data: Path, whole: bytes) -> bool:
    try:
        return content(data)[: len(whole)] == whole
    except FileNotFoundError:  # renamed between our seeing and our reading it
        return False


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def replace(directory: Path, make: Callable[[Path], object]) -> None:
    shutil.rmtree(directory)
    make(directory)


def remove_all_traces(data: Path) -> None:
    """Of the partition, and of what checkpoints tell of it."""
    shutil.rmtree(data / f"{TOPIC}-0")
    remove(*data.glob("*-checkpoint"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "directory removed": lambda data: shutil.rmtree(data / f"{TOPIC}-0"),
    "directory removed with all checkpoints": remove_all_traces,
    "directory emptied": lambda data: replace(data / f"{TOPIC}-0", Path.mkdir),
    "directory replaced by a file": lambda data: replace(data / f"{TOPIC}-0", Path.touch),
    "active segment emptied": lambda data: logs(data)[-1].write_bytes(b""),
    "first segment removed": lambda data: logs(data)[0].unlink(),
    "closed segment removed": lambda data: logs(data)[1].unlink(),
    "closed segment emptied": lambda data: logs(data)[1].write_bytes(b""),
    "closed segment removed with the manifest": lambda data: remove(logs(data)[1], data / f"{TOPIC}-0" / FILE_NAME),
}


class Kept:
    """A topic of one partition in small segments."""

    def __init__(self, cluster: LocalCluster, replicas: int) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self.settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 300}
        self.admin = AdminClient(self.settings)
        config = {"segment.bytes": "1048576", "min.insync.replicas": "1"}
        assignment = [list(range(replicas, 0, -1))]  # the last one, which is damaged, is preferred as leader
        self.admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=assignment, config=config)])[TOPIC].result(30)
        self.producer = Producer({**self.settings, "enable.idempotence": True, "linger.ms": 0})
        self.written: list[bytes] = []

    def write(self, count: int = COUNT) -> int:
        """One record in a batch. The offset of the last one."""
        offsets: list[int] = []
        for _ in range(count):
            value = b"%d" % len(self.written)
            self.written.append(value)
            on_delivery = lambda error, message: offsets.append(message.offset())  # noqa: E731
            self.producer.produce(TOPIC, value.ljust(60_000, b"."), partition=0, on_delivery=on_delivery)
            assert self.producer.flush(30) == 0
        return max(offsets)

    def rewrite(self) -> int:
        """As another producer: the sequence of the one before is lost with its records."""
        self.producer = Producer({**self.settings, "enable.idempotence": True, "linger.ms": 0})
        return self.write(1)

    def await_in_sync(self) -> None:
        def in_sync() -> bool:
            partition = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0]
            return len(partition.isrs) == self.replicas

        wait_for(in_sync, "all replicas in sync", 60)

    def lead(self, broker_id: int) -> None:
        """Have this replica lead: it is first in the list, and so the preferred one."""
        wanted = {TopicPartition(TOPIC, 0)}

        def leads() -> bool:
            self.admin.elect_leaders(ElectionType.PREFERRED, list(wanted)).result(30)
            return self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader == broker_id

        wait_for(leads, f"broker {broker_id} to lead", 60)

    def read(self, offset: int, count: int) -> tuple[list[bytes], bool]:
        """So many records from an offset on, and whether a storage error came instead."""
        failed: list[KafkaError] = []
        consumer = Consumer(
            {**self.settings, "group.id": "unused", "error_cb": failed.append, "auto.offset.reset": "earliest"}
        )
        consumer.assign([TopicPartition(TOPIC, 0, offset)])
        values: list[bytes] = []
        deadline = time.monotonic() + (30 if count else 5)
        while len(values) < max(count, 1) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value().rstrip(b"."))
        consumer.close()
        return values, not values


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.long)])
def store(request, tmp_path) -> Iterator[Ensemble | None]:
    if request.param == "embedded":
        yield None
        return
    started = ensemble(tmp_path / "zookeeper")
    yield started
    started.stop()


@pytest.mark.long
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_replica_is_copied_from_the_others(tmp_path, store, what):
    with LocalCluster(tmp_path / "brokers", 3, ensemble=store) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write()
        kept.await_in_sync()
        for number in (1, 2, 3):  # the damaged one stopped last, and starts first
            cluster[number].stop()
        whole = content(cluster[1].data)
        DAMAGES[what](cluster[3].data)
        for number in (3, 1, 2):
            cluster[number].start()
        kept.await_in_sync()
        assert kept.read(0, COUNT)[0] == kept.written
        assert kept.write(1) == COUNT
        kept.await_in_sync()
        for broker in cluster.brokers.values():
            wait_for(partial(begins_with, broker.data, whole), "the copies to be equal", 30)
        assert "is damaged" in cluster[3].log.read_text()


def starts(broker: BrokerProcess) -> bool:
    """ZooKeeper keeps a session of which the broker has no trace left until it expires."""
    try:
        broker.start()
    except Fault as fault:
        if "already running" not in str(fault):
            raise
        return False
    return True


LAST_LEADER_DAMAGES: dict[str, Callable[[Path], object]] = {
    "directory removed": DAMAGES["directory removed"],
    "directory removed with all checkpoints": remove_all_traces,
    "disk lost": shutil.rmtree,
}


@pytest.mark.long
@pytest.mark.parametrize("damaged_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("what", LAST_LEADER_DAMAGES)
def test_a_killed_last_leader_that_lost_its_log_hands_over_to_a_replica_that_has_more(
    tmp_path, store, what, damaged_first
):
    with LocalCluster(tmp_path / "brokers", 3, ensemble=store) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write()
        kept.await_in_sync()
        for number in (1, 2):
            cluster[number].stop()
        cluster[3].kill()
        whole = content(cluster[1].data)
        LAST_LEADER_DAMAGES[what](cluster[3].data)
        for number in (3, 1, 2) if damaged_first else (1, 2, 3):
            wait_for(partial(starts, cluster[number]), f"the session of broker {number} before to end", 60)
        kept.await_in_sync()
        assert kept.read(0, COUNT)[0] == kept.written
        assert kept.write(1) == COUNT
        for broker in cluster.brokers.values():
            wait_for(partial(begins_with, broker.data, whole), "the copies to be equal", 30)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


INDEX_DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of the producer id flipped": lambda index: flip(index, 9),
    "a bit of the first offset flipped": lambda index: flip(index, 17),
    "a bit of the marker's offset flipped": lambda index: flip(index, 25),
    "a bit of the last stable offset flipped": lambda index: flip(index, 33),
    "removed": Path.unlink,
    "emptied": lambda index: index.write_bytes(b""),
    "cut within an entry": lambda index: index.write_bytes(index.read_bytes()[:-5]),
    "extended": lambda index: index.write_bytes(index.read_bytes() + bytes(34)),
}


def indexes(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((data / f"{TOPIC}-0").glob("*.txnindex"))}


class Decided(Kept):
    """Transactions in several segments, every other one aborted."""

    def write(self, count: int = 40) -> int:
        producer = Producer({**self.settings, "transactional.id": "decided", "linger.ms": 0})
        producer.init_transactions(60)
        for number in range(count):
            producer.begin_transaction()
            producer.produce(TOPIC, (b"%d" % number).ljust(60_000, b"."), partition=0)
            assert producer.flush(60) == 0, "what was not sent is not aborted"
            if number % 2:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
                self.written.append(b"%d" % number)
        return 2 * count - 1

    def read_committed(self, end: int) -> list[bytes]:
        """All that a reader of committed records sees up to an offset."""
        consumer = Consumer(
            {**self.settings, "group.id": "unused", "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[bytes] = []

        def at_the_end() -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value().rstrip(b"."))
            reached = consumer.position([TopicPartition(TOPIC, 0)])[0].offset
            return message is not None and message.error() is not None and reached >= end

        wait_for(at_the_end, "the end of the partition", 60)
        consumer.close()
        return values


@pytest.mark.long
@pytest.mark.timeout(900)  # eight times all brokers are stopped and started
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_damaged_transaction_index_exposes_no_aborted_record(tmp_path, store, replicas):
    """Each damage in turn, on all segments of the replica that leads next."""
    with LocalCluster(tmp_path / "brokers", replicas, ensemble=store) as cluster:
        cluster.start()
        decided = Decided(cluster, replicas)
        end = decided.write()
        decided.await_in_sync()
        damaged = cluster[replicas]
        for what, damage in INDEX_DAMAGES.items():
            for number in range(1, replicas + 1):  # the damaged one stopped last, and starts first
                cluster[number].stop()
            whole = indexes(damaged.data)
            assert len(whole) > 1
            for name in whole:
                damage(damaged.data / f"{TOPIC}-0" / name)
            said = damaged.log.read_text().count(".txnindex was not what its manifest says: rebuilt from the log")
            damaged.start()
            for number in range(1, replicas):
                cluster[number].start()
            decided.await_in_sync()
            if replicas > 1:
                decided.lead(replicas)
            assert decided.read_committed(end) == decided.written, what
            assert indexes(damaged.data) == whole, what
            rebuilt = damaged.log.read_text().count(".txnindex was not what its manifest says: rebuilt from the log")
            assert rebuilt == said + len(whole), what


@pytest.mark.long
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_single_replica_is_served_and_reports_the_loss_until_it_is_accepted(tmp_path, store, what):
    with LocalCluster(tmp_path / "brokers", 1, ensemble=store) as cluster:
        cluster.start()
        kept = Kept(cluster, 1)
        kept.write()
        broker = cluster[1]
        broker.stop()
        bases = [int(path.stem) for path in logs(broker.data)]
        DAMAGES[what](broker.data)
        broker.start()
        assert kept.write(1) == COUNT, "no offset is given twice"
        assert "is damaged" in broker.log.read_text()
        first = {"active segment emptied": bases[-1]}.get(what, bases[1] if what.startswith("closed") else 0)
        assert kept.read(first, 0) == ([], True)
        if first:
            assert kept.read(0, first)[0] == kept.written[:first]
        assert kept.read(COUNT, 1)[0] == kept.written[COUNT:]
        broker.stop()
        accepted = CliRunner().invoke(cli, ["log", "accept-loss", str(broker.data), f"{TOPIC}-0"])
        assert accepted.exit_code == 0, accepted.output
        assert f"offsets {first}.." in accepted.output
        broker.start()
        after, failed = kept.read(first, 1)
        assert not failed
        assert after[0] in kept.written[first + 1 :]


def flip_a_bit(data: Path) -> int:
    """In the middle of the second batch of the first segment. Its offset."""
    path = logs(data)[0]
    position, header = list(batches(path.read_bytes()))[1]
    with path.open("r+b") as file:
        file.seek(position + header.size // 2)
        byte = file.read(1)[0]
        file.seek(position + header.size // 2)
        file.write(bytes([byte ^ 4]))
    return header.base_offset


@pytest.mark.long
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_the_scrub_repairs_a_flipped_bit_from_another_replica(tmp_path, store, leads):
    with LocalCluster(tmp_path / "brokers", 3, ensemble=store, settings=SCRUBBED) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write()
        kept.await_in_sync()
        leader = kept.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader
        number = leader if leads else leader % 3 + 1
        whole = content(cluster[leader].data)
        flip_a_bit(cluster[number].data)
        assert not begins_with(cluster[number].data, whole)
        wait_for(partial(begins_with, cluster[number].data, whole), "the damaged segment to be copied again", 90)
        kept.await_in_sync()
        assert "scrub: kept-0 is damaged" in cluster[number].log.read_text()
        assert kept.read(0, COUNT)[0] == kept.written
        assert kept.write(1) == COUNT


@pytest.mark.long
def test_a_flipped_bit_in_a_single_replica_is_reported_until_the_loss_is_accepted(tmp_path, store):
    with LocalCluster(tmp_path / "brokers", 1, ensemble=store, settings=SCRUBBED) as cluster:
        cluster.start()
        kept = Kept(cluster, 1)
        kept.write()
        broker = cluster[1]
        offset = flip_a_bit(broker.data)
        wait_for(lambda: "scrub: kept-0 is damaged" in broker.log.read_text(), "the scrub to find it", 90)
        assert kept.read(offset, 0) == ([], True)
        assert kept.read(offset + 1, COUNT - offset - 1)[0] == kept.written[offset + 1 :]
        assert kept.write(1) == COUNT
        broker.stop()
        accepted = CliRunner().invoke(cli, ["log", "accept-loss", "--quiet", str(broker.data), f"{TOPIC}-0"])
        assert f"offsets {offset}..{offset}" in accepted.output
        broker.start()
        assert kept.read(0, COUNT)[0] == kept.written[:offset] + kept.written[offset + 1 :]
