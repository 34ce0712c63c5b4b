"""Load of consumer groups: commits, each after the response to the one before, and members that rebalance.

The members of a group are in one process, with a connection each, and do what clients do: join, sync, and join again
when a heartbeat reports a rebalance. They send heartbeats at once instead of at an interval, which would dominate the
measurement.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Self

from bench import group_frames as frames
from bench.connection import Broken, Connection
from bench.frames import I16
from bench.load import percentiles, request_loop
from bench.workers import Start, Tally, Worker

COORDINATOR_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 30.0
REBALANCES_MIN = 5

ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 27, 79


def wait_for_coordinator(port: int, group: str, topic: str) -> None:
    """Wait until the group's coordinator has loaded its state."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    found, fetched = frames.find_coordinator(group), frames.offset_fetch(group, topic, 0)
    with Connection(port) as connection:
        while True:
            (error,) = I16.unpack_from(connection.call(found), frames.COORDINATOR_ERROR_AT)
            error = error or frames.read_offset(connection.call(fetched), topic)[0]
            if not error:
                return
            if time.monotonic() > deadline:
                raise Broken(f"group {group} has no coordinator: error {error}")
            time.sleep(0.01)


def commits(port: int, groups: list[str], topic: str, partitions: int) -> Worker:
    """A connection for every group; each sends its next commit after the response to the last one."""

    def work(start: Start) -> Tally:
        poll = select.epoll()
        sockets = {}
        done = frames.committed(topic, partitions)
        for group in groups:
            wait_for_coordinator(port, group, topic)
            sock = Connection(port).socket
            sockets[sock.fileno()] = (sock, frames.commit(group, topic, partitions, 1234))
            poll.register(sock.fileno(), select.EPOLLIN)

        def receive(sock: socket.socket) -> None:
            if (answer := sock.recv(1 << 16)) != done:
                raise Broken(f"OffsetCommit answered {answer.hex()}")

        tally = request_loop(sockets, poll, start, receive)
        tally.records = tally.requests * partitions
        return tally

    return work


class Member:
    """One member with at most one request in flight: `asked` says which; `assigned` is its generation."""

    def __init__(self, port: int, group: str, topic: str) -> None:
        self.connection = Connection(port)
        self.id = ""
        self.assigned = -1
        self.asked: int | None = None
        self._group, self._topic = group, topic
        self._generation = -1

    def _ask(self, api_key: int, frame: bytes) -> None:
        self.asked = api_key
        self.connection.socket.sendall(frame)

    def join(self) -> None:
        self._ask(frames.JOIN_GROUP, frames.join(self._group, self.id, self._topic))

    def heartbeat(self) -> None:
        self._ask(frames.HEARTBEAT, frames.heartbeat(self._group, self._generation, self.id))

    def take(self) -> frames.Joined | None:
        """Handle a response and send the next request; the group reads the list of members from it."""
        answer = self.connection.answer()
        asked, self.asked = self.asked, None
        if asked == frames.JOIN_GROUP:
            return self._joined(frames.read_joined(answer))
        (error,) = I16.unpack_from(answer, frames.MEMBER_ERROR_AT)
        if error in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION):
            self.join()
        elif error:
            raise Broken(f"a member was answered error {error}")
        elif asked == frames.SYNC_GROUP:
            self.assigned = self._generation
        return None

    def _joined(self, joined: frames.Joined) -> frames.Joined | None:
        self.id = joined.member
        if joined.error == MEMBER_ID_REQUIRED:
            self.join()
            return None
        if joined.error:
            raise Broken(f"JoinGroup answered error {joined.error}")
        self._generation = joined.generation
        sync = frames.sync(self._group, joined.generation, joined.member, joined.members, self._topic)
        self._ask(frames.SYNC_GROUP, sync)
        return joined if joined.leader == joined.member else None


class Group:
    """All members of one group."""

    def __init__(self, port: int, name: str, topic: str) -> None:
        self._port, self._name, self._topic = port, name, topic
        self._members: dict[int, Member] = {}
        self._poll = select.epoll()

    def enter(self, count: int) -> Self:
        """Add `count` members, all at once."""
        for _ in range(count):
            self._connect().join()
        self._settle()
        return self

    def grow(self) -> float:
        """Add a member: seconds from its first request until all members have their new assignment."""
        member = self._connect()
        began = time.perf_counter()
        member.join()
        member.take()  # with the member id from the response, it joins
        self._settle()
        return time.perf_counter() - began

    def shrink(self) -> None:
        """The newest member leaves."""
        fd, member = self._members.popitem()
        self._poll.unregister(fd)
        self._leave(member, [member.id])
        member.connection.socket.close()
        self._settle()

    def end(self) -> None:
        """All members leave, so that no session expires during another measurement."""
        members = list(self._members.values())
        self._leave(members[0], [member.id for member in members])
        for member in members:
            member.connection.socket.close()

    def _connect(self) -> Member:
        member = Member(self._port, self._name, self._topic)
        fd = member.connection.socket.fileno()
        self._members[fd] = member
        self._poll.register(fd, select.EPOLLIN)
        return member

    def _leave(self, member: Member, ids: list[str]) -> None:
        answer = member.connection.call(frames.leave(self._name, ids))
        (error,) = I16.unpack_from(answer, frames.MEMBER_ERROR_AT)
        if error:
            raise Broken(f"LeaveGroup answered error {error}")

    def _settle(self) -> None:
        """Wait until all members are assigned in one generation."""
        members = self._members
        whole = -1
        waiting = len(members)
        for member in members.values():
            if member.asked is None:
                member.heartbeat()
        while waiting:
            events = self._poll.poll(SETTLE_TIMEOUT_S)
            if not events:
                raise Broken(f"the group does not settle: {waiting} of {len(members)} wait for an assignment")
            for fd, _ in events:
                member = members[fd]
                led = member.take()
                if led and len(led.members) == len(members):
                    whole = led.generation
                if member.asked is None:
                    if member.assigned == whole:
                        waiting -= 1
                    else:
                        member.heartbeat()


def rebalances(port: int, group: str, topic: str, members: int) -> Worker:
    """A stable group that one member joins and leaves again and again; only the joins are measured."""

    def work(start: Start) -> Tally:
        wait_for_coordinator(port, group, topic)
        stable = Group(port, group, topic).enter(members - 1)
        stop = start()
        tally = Tally(begin=time.monotonic())
        times: list[int] = []
        while len(times) < REBALANCES_MIN or time.monotonic() < stop:
            times.append(int(stable.grow() * 1e9))
            stable.shrink()
        tally.end = time.monotonic()
        stable.end()
        tally.requests = len(times)
        tally.latencies_us = percentiles(times)
        return tally

    return work
