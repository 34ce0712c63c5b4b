"""Random events for a member, in any order: it keeps the shell's contract."""

from __future__ import annotations

import random

import pytest

from ottla.client.group.member import Action, Assign, CountPartitions, Fail, Lose, Revoke
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest
from ottla.wire.schema.heartbeat import HeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest
from ottla.wire.schema.leave_group import LeaveGroupRequest
from ottla.wire.schema.sync_group import SyncGroupRequest
from ottla.wire.tree import Message
from tests.client.member_scenarios import Scenario

PARTITIONS = ("t0", "t1", "t2", "u0", "u1")
COMMON = ("not_coordinator", "coordinator_load_in_progress", "unknown_member_id")
REFUSALS = {
    FindCoordinatorRequest: ("coordinator_not_available",),
    JoinGroupRequest: (*COMMON, "member_id_required", "rebalance_in_progress", "illegal_generation"),
    SyncGroupRequest: (*COMMON, "rebalance_in_progress", "illegal_generation"),
    HeartbeatRequest: (*COMMON, "rebalance_in_progress", "illegal_generation"),
    ConsumerGroupHeartbeatRequest: (*COMMON, "fenced_member_epoch"),
    LeaveGroupRequest: ("unknown_member_id",),
}


class Fuzz(Scenario):
    """Chooses what happens next among what may, and plays the user who is told what to read."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.reading: set[TopicPartition] = set()
        self.calling_back: frozenset[TopicPartition] | None = None
        self.generation = 0

    def some(self) -> list[str]:
        return self.random.sample(PARTITIONS, self.random.randint(0, len(PARTITIONS))) or ["nothing"]

    def happens(self) -> list[Action] | None:
        choice = self.random.random()
        if self.calling_back is not None and choice < 0.3:
            self.reading -= self.calling_back
            self.calling_back = None
            return self.do_called_back()
        if self.in_flight and choice < 0.7:
            return self.answer_something(self.random.choice(self.in_flight))
        if self.asked is not None and choice < 0.8:
            asked, self.asked = self.asked, None
            if isinstance(asked, CountPartitions):
                return self.classic.counted(asked, {"t": 3, "u": 2}, self.now)
            known = self.random.choice([(b"t", b"u"), (b"t",)])
            names = {name.rjust(16, b"\0"): name.decode() for name in known}
            return self.consumer.named(asked, names, self.now)
        if choice < 0.9:
            return self.do_after(f"{self.random.choice((0.05, 1, 3, 20))}s")
        if choice < 0.94:
            return self.do_polled()
        if choice < 0.98:
            return self.do_subscribe(*self.random.choice((("t",), ("t", "u"))))
        return self.do_unsubscribe()

    def answer_something(self, request: Message) -> list[Action]:
        choice = self.random.random()
        if choice < 0.1:
            self.in_flight.remove(request)
            return self.machine.failed(request, self.now)
        if choice < 0.3:
            self.in_flight.remove(request)
            code = self.random.choice(REFUSALS[type(request)])
            with_id = {"member_id": "m1"} if isinstance(request, JoinGroupRequest) else {}
            return self.answer(request, error_code=ErrorCode[code], **with_id)
        self.generation += 1
        match request:
            case FindCoordinatorRequest():
                return self.do_found()
            case JoinGroupRequest():
                others = self.random.choice(((), ("m1:t", "m2:t,u")))
                return self.do_joined("m1", str(self.generation), *others)
            case SyncGroupRequest():
                return self.do_synced(*self.some())
            case HeartbeatRequest():
                return self.do_beat()
            case LeaveGroupRequest():
                return self.do_left()
            case _:
                return self.do_answer(str(self.generation), *self.random.choice(((), self.some())))

    def check(self, action: Action) -> None:
        """What the shell may rely on."""
        match action:
            case Assign(partitions=partitions):
                assert self.calling_back is None, "partitions taken while others are being given up"
                assert not partitions & self.reading
                self.reading |= partitions
            case Revoke(partitions=partitions) | Lose(partitions=partitions):
                assert self.calling_back is None, "two callbacks at once"
                assert partitions
                assert partitions <= self.reading
                self.calling_back = partitions
            case Fail():
                raise AssertionError(f"failed: {action}")
        self.shown_action(action)

    def check_rest(self) -> None:
        assert self.machine.owned == self.reading
        deadline = self.machine.deadline
        if deadline is not None and deadline <= self.now:
            for action in self.machine.wake(self.now):
                self.check(action)
            assert (self.machine.deadline or self.now + 1) > self.now, "a deadline that has passed and does nothing"


def play(fuzz: Fuzz) -> None:
    for action in fuzz.do_subscribe("t"):
        fuzz.check(action)
    for _ in range(400):
        for action in fuzz.happens() or ():
            fuzz.check(action)
        fuzz.check_rest()
    # However things stand, closing comes to an end: each answer and each callback brings it nearer.
    for action in fuzz.machine.close(fuzz.now):
        fuzz.check(action)
    for _ in range(20):
        if fuzz.machine.closed:
            break
        if fuzz.calling_back is not None:
            fuzz.reading -= fuzz.calling_back
            fuzz.calling_back = None
            decided = fuzz.do_called_back()
        else:
            decided = fuzz.machine.failed(fuzz.in_flight.pop(), fuzz.now)
        for action in decided:
            fuzz.check(action)
    assert fuzz.machine.closed
    assert not fuzz.machine.owned


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_classic_member_keeps_the_contract(assignor, seed):
    fuzz = Fuzz(seed)
    fuzz.do_member(assignor, "poll=30")
    play(fuzz)


@pytest.mark.parametrize("seed", range(60))
def test_a_consumer_member_keeps_the_contract(seed):
    fuzz = Fuzz(seed)
    fuzz.do_consumer("poll=30")
    play(fuzz)
