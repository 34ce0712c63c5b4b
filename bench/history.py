"""Recovery of committed offsets: how long a killed broker takes to serve them again, and how long requests wait."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from bench import group_frames as frames
from bench.cell import Settings
from bench.connection import Broken, Connection, create_topic
from bench.group_load import wait_for_coordinator
from bench.peers import API_VERSIONS, Peer

TOPIC = "history"
GROUPS, PARTITIONS = 100, 100
OFFSETS_PARTITIONS = 50
IN_FLIGHT = 10
ASK_EVERY_S = 0.001
RELOAD_TIMEOUT_S = 120.0


def java_hash(text: str) -> int:
    """String.hashCode of ASCII, a signed number of 32 bits."""
    number = 0
    for byte in text.encode():
        number = (31 * number + byte) & 0xFFFFFFFF
    return number - (number >> 31 << 32)


def groups_of(partition: int) -> Iterator[str]:
    """Names of groups in one partition of the offsets topic."""
    names = (f"history-{number}" for number in itertools.count())
    return (name for name in names if abs(java_hash(name)) % OFFSETS_PARTITIONS == partition)


def fill(port: int, groups: list[str], records: int) -> int:
    """Commit until there are so many records; returns the offset of the first partition of every group."""
    done = frames.committed(TOPIC, PARTITIONS) * IN_FLIGHT
    offset = 0
    with Connection(port) as connection:
        for offset in range(1, records // (len(groups) * PARTITIONS) + 1):
            requests = [frames.commit(group, TOPIC, PARTITIONS, offset) for group in groups]
            for at in range(0, len(requests), IN_FLIGHT):
                connection.socket.sendall(b"".join(requests[at : at + IN_FLIGHT]))
                if connection.exactly(len(done)) != done:
                    raise Broken("an OffsetCommit was answered with an error")
    return offset


def watch(port: int, group: str) -> tuple[int, float]:
    """Request the group's offset until it is served: the offset, and the longest response time in seconds."""
    fetching = frames.offset_fetch(group, TOPIC, 0)
    clock = time.monotonic
    deadline = clock() + RELOAD_TIMEOUT_S
    longest = 0.0
    with Connection(port) as client, Connection(port) as fetches:
        while clock() < deadline:
            sent_at = clock()
            client.call(API_VERSIONS)
            answered_at = clock()
            error, offset = frames.read_offset(fetches.call(fetching), TOPIC)
            longest = max(longest, answered_at - sent_at, clock() - answered_at)
            if not error:
                return offset, longest
            time.sleep(ASK_EVERY_S)
    raise Broken(f"the offsets of {group} were not served again: error {error}")


def measure(peer: Peer, settings: Settings) -> dict[str, float]:
    peer.settings |= {"log.cleaner.enable": "false", **peer.to_restart}
    groups = list(itertools.islice(groups_of(0), GROUPS))
    with peer:
        create_topic(peer.port, TOPIC, PARTITIONS)
        wait_for_coordinator(peer.port, groups[0], TOPIC)
        began = time.monotonic()
        last = fill(peer.port, groups, settings.history)
        filled = time.monotonic() - began
        peer.kill()
        peer.start()
        offset, longest = watch(peer.port, groups[-1])
        served = time.monotonic() - peer.launched_at
        if offset != last:
            raise Broken(f"offset {last} was committed, {offset} is served after the restart")
        return {
            "reload_s": served,
            "stall_ms": longest * 1000,
            "ready_s": peer.ready_seconds,
            "commits_s": last * GROUPS * PARTITIONS / filled,
        }
