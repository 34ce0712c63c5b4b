"""OffsetCommit fast path: the same bytes and state as through the message tree."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.cluster import changes
from ottla.cluster.model import PartitionState as State
from ottla.coordinator import group_records
from ottla.coordinator.decision import Decision
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.loader import Loader
from ottla.coordinator.shard import Shard
from ottla.errors import Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import Partition
from ottla.runtime.disk import RealDisk
from ottla.wire import messages, offset_commit
from ottla.wire.apis import OFFSET_COMMIT
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.schema.offset_fetch import OffsetFetchRequestGroup
from tests.coordinator.consumer_scenarios import Context
from tests.harness.manual_clock import delayed_operations

NOW, NOW_MS = 1000.0, 1_790_000_000_000
VERSIONS = range(2, 11)
KNOWN = ("t", "other", "n" * 249)


class Remembering:
    """A shard of the offsets topic on a log of its own."""

    def __init__(self, path: Path, context: Context) -> None:
        self.context = context
        self.log = PartitionLog.open(RealDisk(), str(path), LogConfig(), now_ms=NOW_MS)
        partition = Partition("__consumer_offsets", bytes(16), 0, 1, self.log, AppendPolicy())
        partition.become(State(replicas=(1,), leader=1, leader_epoch=0, in_sync=(1,), partition_epoch=0))
        self.heard: list[object] = []
        self.machine = GroupMachine(context)
        send_reply = lambda _, reply: self.heard.append(reply)  # noqa: E731
        delayed = delayed_operations(NOW)[1]
        self.shard = Shard(partition, self.machine, group_records, send_reply, delayed, commit_timeout_s=5.0)
        self.shard.activate(NOW, NOW_MS)

    def apply(self, decision: Decision) -> object:
        self.shard.apply(decision, NOW, NOW_MS)
        return self.heard.pop()

    def bytes(self) -> bytes:
        piece = self.log.read(0, 1 << 24, limit=self.log.log_end)
        return b"" if piece is None else bytes(piece.load())

    def offsets(self) -> list[object]:
        return shown(self.machine)

    def reloaded(self) -> list[object]:
        machine = GroupMachine(self.context)
        loader = Loader(machine, group_records, 0)
        for _ in loader.feed(self.bytes()):
            pass
        for _ in loader.replay():
            pass
        return shown(machine)


def shown(machine: GroupMachine) -> list[object]:
    groups = machine.list([], [])
    asked = [OffsetFetchRequestGroup(group_id=group.group_id, topics=None) for group in groups]
    return [groups, *(machine.fetch_offsets(each, None, stable=True).replies[0][1] for each in asked)]


def body(request: OffsetCommitRequest, version: int) -> memoryview:
    return memoryview(messages.encode(request, version))


entries = st.builds(
    OffsetCommitRequestPartition,
    partition_index=st.integers(0, 200) | st.integers(-(2**31), 2**31 - 1),
    committed_offset=st.integers(0, 100) | st.integers(-(2**63), 2**63 - 1),
    committed_leader_epoch=st.integers(-1, 50) | st.integers(-(2**31), 2**31 - 1),
    committed_metadata=st.sampled_from([None, ""]),
)
topics = st.builds(
    OffsetCommitRequestTopic,
    name=st.sampled_from(["t", "other", "ünïcode", "unknown", "n" * 249]),
    partitions=st.lists(entries, min_size=1, max_size=70),
)
requests = st.builds(
    OffsetCommitRequest,
    group_id=st.sampled_from(["g", "", "grüppe", "g" * 126, "g" * 127, "g" * 300]),
    generation_id_or_member_epoch=st.sampled_from([-1, 0, 7]),
    member_id=st.sampled_from(["", "somebody"]),
    group_instance_id=st.sampled_from([None, "", "static"]),
    topics=st.lists(topics, min_size=1, max_size=4),
)


def context() -> Context:
    made = Context()
    made.image = made.image.apply(
        *(changes.TopicCreated(str(number).encode() * 16, name, ((1,),), {}) for number, name in enumerate(KNOWN))
    )
    return made


def lone(group_id: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    return OffsetCommitRequest(group_id=group_id, topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])])


@pytest.mark.parametrize("size", [126, 127, 128, 200, 300])
def test_long_names_are_decoded(size):
    for version in VERSIONS:
        decoded = offset_commit.decode(body(lone("g" * size), version), 0, version)
        assert decoded is not None
        assert decoded.group_id == "g" * size


@given(requests, st.sampled_from(VERSIONS))
@settings(max_examples=150, deadline=None)
def test_the_fast_path_writes_the_same_bytes_as_the_tree(request: OffsetCommitRequest, version: int):
    with TemporaryDirectory() as directory:
        around = context()
        if version >= offset_commit.TOPIC_IDS_FROM:
            for topic in request.topics:
                known = around.image.topics.get(topic.name)
                topic.topic_id = bytes(16) if topic.name == "t" else b"?" * 16 if known is None else known.id
        frame = body(request, version)
        request = messages.decode(OffsetCommitRequest, version, frame, 0)  # without what the version cannot say
        decoded = offset_commit.decode(frame, 0, version)
        assert decoded is not None
        by_hand, by_tree = (Remembering(Path(directory) / name, around) for name in ("hand", "tree"))
        refused = None
        try:
            response = by_tree.apply(by_tree.machine.commit_offsets(request, version, "tree", NOW, NOW_MS))
        except Refused as failure:
            refused = failure
        if refused is not None:
            with pytest.raises(Refused) as caught:
                by_hand.machine.commit_fast(decoded, version, "hand", NOW, NOW_MS)
            assert caught.value.code == refused.code
            return
        assert isinstance(response, OffsetCommitResponse)
        codes = by_hand.apply(by_hand.machine.commit_fast(decoded, version, "hand", NOW, NOW_MS))
        assert isinstance(codes, list)
        answer = offset_commit.encode(version, decoded.topics, codes)
        assert answer == messages.encode_response(OFFSET_COMMIT, version, response)
        assert by_hand.bytes() == by_tree.bytes()
        assert by_hand.offsets() == by_tree.offsets() == by_hand.reloaded()


@given(requests, st.sampled_from(VERSIONS), st.data())
@settings(max_examples=150, deadline=None)
def test_other_commits_are_left_to_the_tree(request: OffsetCommitRequest, version: int, data: st.DataObject):
    topic = data.draw(st.sampled_from(request.topics))
    data.draw(st.sampled_from(topic.partitions)).committed_metadata = data.draw(st.text(min_size=1, max_size=300))
    assert offset_commit.decode(body(request, version), 0, version) is None


@given(requests, st.sampled_from(VERSIONS), st.data())
@settings(max_examples=150, deadline=None)
def test_a_commit_that_ends_too_early_is_left_to_the_tree(
    request: OffsetCommitRequest, version: int, data: st.DataObject
):
    frame = body(request, version)
    assert offset_commit.decode(frame[: data.draw(st.integers(0, len(frame) - 1))], 0, version) is None


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
@example(bytes(40), 8)
@settings(max_examples=300, deadline=None)
def test_the_fast_path_accepts_nothing_that_the_tree_refuses(noise: bytes, version: int):
    decoded = offset_commit.decode(memoryview(noise), 0, version)
    if decoded is not None:
        request = messages.decode(OffsetCommitRequest, version, noise, 0, whole=False)
        assert [len(topic.partitions) for topic in request.topics] == [topic.entry_count for topic in decoded.topics]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_retention_time_is_left_to_the_tree(version: int):
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    request = OffsetCommitRequest(
        group_id="g", retention_time_ms=5, topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
    )
    assert offset_commit.decode(body(request, version), 0, version) is None


def test_record_indexes_of_every_size_are_written_as_one_by_one(tmp_path: Path):
    around = context()
    by_hand, by_tree = (Remembering(tmp_path / name, around) for name in ("hand", "tree"))
    counts = (60, 3, 3, 5, 8121)
    assert sum(counts) == offset_commit.COUNT_MAX
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=index * 3)
                    for index in range(count)
                ],
            )
            for name, count in zip(("t", "other", "t", "other", "t"), counts, strict=True)
        ],
    )
    decoded = offset_commit.decode(body(request, 8), 0, 8)
    assert decoded is not None
    by_hand.apply(by_hand.machine.commit_fast(decoded, 8, "hand", NOW, NOW_MS))
    by_tree.apply(by_tree.machine.commit_offsets(request, 8, "tree", NOW, NOW_MS))
    assert by_hand.bytes() == by_tree.bytes()
    assert by_hand.offsets() == by_hand.reloaded()
    request.topics[0].partitions.append(OffsetCommitRequestPartition())
    assert offset_commit.decode(body(request, 8), 0, 8) is None, "more than ever come at once"
