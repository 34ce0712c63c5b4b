"""Requests of consumer groups as bytes: committed offsets, and members that join and leave.

OffsetCommit v8, OffsetFetch v7 and FindCoordinator v3 are flexible; JoinGroup v5, SyncGroup v3, Heartbeat v3 and
LeaveGroup v3 are the last versions that are not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from bench.frames import I16, I32, compact_string, request, uvarint

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = range(8, 15)
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 60_000, 300_000
ASSIGNORS = ("range", "cooperative-sticky")  # what the Java consumer offers
ASSIGNED_PARTITIONS = 10
NO_INSTANCE = b"\xff\xff"
# Behind the correlation id and the throttle time; FindCoordinator's answer has header tags besides.
MEMBER_ERROR_AT = 4 + 4
COORDINATOR_ERROR_AT = 4 + 1 + 4


def string(text: str) -> bytes:
    data = text.encode()
    return I16.pack(len(data)) + data


def sized(data: bytes) -> bytes:
    return I32.pack(len(data)) + data


def find_coordinator(group: str) -> bytes:
    return request(FIND_COORDINATOR, 3, compact_string(group) + b"\0\0")


def commit(group: str, topic: str, partitions: int, offset: int) -> bytes:
    """The same offset for partitions 0 and up, for a group without members."""
    each = [struct.pack(">iqi", partition, offset, -1) + b"\x01\0" for partition in range(partitions)]
    topics = b"\x02" + compact_string(topic) + uvarint(partitions + 1) + b"".join(each) + b"\0"
    return request(OFFSET_COMMIT, 8, compact_string(group) + I32.pack(-1) + b"\x01\0" + topics + b"\0")


def committed(topic: str, partitions: int) -> bytes:
    """The response to such a commit without an error, with its size."""
    each = [I32.pack(partition) + b"\0\0\0" for partition in range(partitions)]
    topics = b"\x02" + compact_string(topic) + uvarint(partitions + 1) + b"".join(each) + b"\0"
    return sized(I32.pack(1) + b"\0" + I32.pack(0) + topics + b"\0")


def offset_fetch(group: str, topic: str, partition: int) -> bytes:
    topics = b"\x02" + compact_string(topic) + b"\x02" + I32.pack(partition) + b"\0"
    return request(OFFSET_FETCH, 7, compact_string(group) + topics + b"\0\0")


def read_offset(answer: memoryview, topic: str) -> tuple[int, int]:
    """The error of an OffsetFetch response, and the offset if there is none."""
    (error,) = I16.unpack_from(answer, len(answer) - 3)
    if error:
        return error, -1
    at = 4 + 1 + 4 + 1 + len(compact_string(topic)) + 1 + 4
    return 0, struct.unpack_from(">q", answer, at)[0]


def subscription(topic: str) -> bytes:
    """ConsumerProtocolSubscription v1: one topic, no user data, nothing owned."""
    return I16.pack(1) + I32.pack(1) + string(topic) + I32.pack(-1) + I32.pack(0)


def assignment(topic: str) -> bytes:
    """ConsumerProtocolAssignment v1."""
    partitions = struct.pack(f">{ASSIGNED_PARTITIONS + 1}i", ASSIGNED_PARTITIONS, *range(ASSIGNED_PARTITIONS))
    return I16.pack(1) + I32.pack(1) + string(topic) + partitions + I32.pack(-1)


def join(group: str, member: str, topic: str) -> bytes:
    protocols = b"".join(string(name) + sized(subscription(topic)) for name in ASSIGNORS)
    timeouts = struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS)
    body = string(group) + timeouts + string(member) + NO_INSTANCE + string("consumer")
    return request(JOIN_GROUP, 5, body + I32.pack(len(ASSIGNORS)) + protocols, flexible=False)


@dataclass(frozen=True, slots=True)
class Joined:
    error: int
    generation: int
    leader: str
    member: str
    members: list[str]  # for the leader only


def read_joined(answer: memoryview) -> Joined:
    (error,) = I16.unpack_from(answer, MEMBER_ERROR_AT)
    (generation,) = I32.unpack_from(answer, MEMBER_ERROR_AT + 2)
    pos = MEMBER_ERROR_AT + 6

    def text() -> str:
        nonlocal pos
        (length,) = I16.unpack_from(answer, pos)
        start = pos + 2
        pos = start + max(length, 0)
        return str(answer[start:pos], "utf-8")

    _protocol, leader, member = text(), text(), text()
    (count,) = I32.unpack_from(answer, pos)
    pos += 4
    members = []
    for _ in range(count):
        members.append(text())
        text()  # group instance id
        pos += 4 + I32.unpack_from(answer, pos)[0]
    return Joined(error, generation, leader, member, members)


def sync(group: str, generation: int, member: str, members: Sequence[str], topic: str) -> bytes:
    """The leader names `members` and gives each an assignment; the others name none."""
    share = sized(assignment(topic))
    body = string(group) + I32.pack(generation) + string(member) + NO_INSTANCE + I32.pack(len(members))
    return request(SYNC_GROUP, 3, body + b"".join(string(each) + share for each in members), flexible=False)


def heartbeat(group: str, generation: int, member: str) -> bytes:
    body = string(group) + I32.pack(generation) + string(member) + NO_INSTANCE
    return request(HEARTBEAT, 3, body, flexible=False)


def leave(group: str, members: Sequence[str]) -> bytes:
    body = string(group) + I32.pack(len(members)) + b"".join(string(each) + NO_INSTANCE for each in members)
    return request(LEAVE_GROUP, 3, body, flexible=False)
