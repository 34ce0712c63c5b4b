"""Elections against a model of the records on every disk: brokers die, restart, lose the end of their logs, drain and
move. No elected leader lacks an acknowledged record, as long as fewer than min.insync.replicas brokers have lost it.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster import alter_partition
from ottla.cluster.elections import unfinished
from ottla.cluster.image import PartitionState
from ottla.cluster.requests import InSyncProposal
from tests.cluster.controller_scenarios import ControllerScenario, check_epochs_grow

BROKERS = (1, 2, 3, 4)


class Disks:
    """A controller, and four brokers with a log each. A record is its number; acknowledged is what every replica in
    sync has, when there are enough of them."""

    def __init__(self, factor: int, min_in_sync: int) -> None:
        self.controller = ControllerScenario()
        self.min_in_sync = min_in_sync
        self.logs: dict[int, list[int]] = {broker: [] for broker in BROKERS}
        self.holders: dict[int, set[int]] = {}  # of every acknowledged record: who had it when it was acknowledged
        self.enough: dict[int, int] = {}  # and how many had to have it
        self.suspects: dict[int, int] = {}  # who may have lost something, and how many records there were by then
        self.killed: dict[int, int] = {}  # under which registration
        self.records = 0
        for broker in BROKERS:
            self.controller.do_start(str(broker))
        replicas = ",".join(map(str, BROKERS[:factor]))
        self.controller.do_topic("t", replicas, f"min={min_in_sync}")
        self.settle()

    @property
    def image(self):
        return self.controller.world.image

    @property
    def partition(self) -> PartitionState:
        return self.image.topics["t"].partitions[0]

    def runs(self, broker: int) -> bool:
        return broker in self.image.brokers

    def leads(self) -> int | None:
        leader = self.image.brokers.get(self.partition.leader)
        return leader.id if leader is not None and leader.epoch == self.partition.broker_epoch else None

    # What the controller does.

    def settle(self) -> None:
        before, image = self.partition, self.image
        self.controller.settle()
        check_epochs_grow(image, self.image)
        after = self.partition
        assert after.leader == -1 or after.leader in after.in_sync
        assert not set(after.in_sync) & set(after.eligible)
        assert set(after.in_sync) | set(after.eligible) <= set(after.replicas)
        if after.leader == -1:
            return
        assert self.runs(after.leader)
        lost = [record for record in self.holders if record not in self.logs[after.leader]]
        assert not lost or not self.whole(before, after.leader), "it was taken for whole"
        for record in lost:
            gone = [broker for broker in self.holders[record] if self.suspects.get(broker, -1) >= record]
            assert len(gone) >= self.enough[record], "others still had it"
            del self.holders[record]

    def whole(self, partition: PartitionState, broker: int) -> bool:
        """Whether it was in one of the sets, and has not been killed since."""
        members = zip(
            partition.in_sync + partition.eligible, partition.in_sync_epochs + partition.eligible_epochs, strict=True
        )
        return any(broker == member and self.killed.get(broker, -1) < epoch for member, epoch in members)

    # What brokers do.

    def kill(self, broker: int, tail: int) -> None:
        if self.runs(broker):
            self.lose_tail(broker, tail)
            self.controller.do_kill(str(broker))

    def bounce(self, broker: int, tail: int) -> None:
        if self.runs(broker):
            self.lose_tail(broker, tail)
            self.controller.do_bounce(str(broker))

    def lose_tail(self, broker: int, tail: int) -> None:
        del self.logs[broker][max(0, len(self.logs[broker]) - tail) :]
        self.suspects[broker] = self.records
        self.killed[broker] = self.image.brokers[broker].epoch

    def stop(self, broker: int) -> None:
        if self.runs(broker):
            self.controller.do_stop(str(broker))

    def start(self, broker: int) -> None:
        if not self.runs(broker):
            self.controller.do_start(str(broker))

    def blink(self, broker: int) -> None:
        if self.runs(broker):
            self.controller.do_blink(str(broker))

    def drain(self, broker: int) -> None:
        if self.runs(broker):
            self.controller.do_drain(str(broker))

    def append(self) -> None:
        if (leader := self.leads()) is not None:
            self.records += 1
            self.logs[leader].append(self.records)

    def acknowledge(self) -> None:
        """All in sync fetch up to the end, and what is then acknowledged is."""
        leader, partition = self.leads(), self.partition
        if leader is None:
            return
        for broker in partition.in_sync:
            self.follow(broker)
        enough = min(self.min_in_sync, len(partition.replicas))
        known = zip(partition.in_sync, partition.in_sync_epochs, strict=True)
        # A leader counts a follower only under the registration by which it is known to be in sync.
        if len(partition.in_sync) >= enough and all(
            self.runs(broker) and self.image.brokers[broker].epoch == epoch for broker, epoch in known
        ):
            for record in self.logs[leader]:
                self.holders.setdefault(record, set()).update(partition.in_sync)
                self.enough.setdefault(record, enough)

    def follow(self, broker: int) -> None:
        leader = self.leads()
        if leader is None or not self.runs(broker) or broker not in self.partition.replicas:
            return
        self.logs[broker] = list(self.logs[leader])

    def propose(self, wanted: frozenset[int]) -> None:
        leader, partition = self.leads(), self.partition
        if leader is None:
            return
        members = [
            replica
            for replica in partition.replicas
            if replica == leader or (replica in wanted and self.runs(replica) and self.may_be_in_sync(replica, leader))
        ]
        proposal = InSyncProposal(
            self.image.topics["t"].id,
            0,
            partition.leader_epoch,
            partition.partition_epoch,
            [(replica, self.image.brokers[replica].epoch) for replica in members],
        )
        epoch = self.image.brokers[leader].epoch
        rules = self.controller.world.rules
        self.controller.decide(alter_partition.alter_partitions(self.image, leader, epoch, [proposal], rules))
        for replica in self.partition.in_sync:
            if replica not in partition.in_sync:  # from now on it counts again
                self.suspects.pop(replica, None)
                for holders in self.holders.values():
                    holders.add(replica)

    def may_be_in_sync(self, replica: int, leader: int) -> bool:
        return replica in self.partition.in_sync or self.logs[replica] == self.logs[leader]

    def move(self, first: int) -> None:
        self.settle()
        if not self.partition.adding and not self.partition.removing:
            ring = [*BROKERS[first - 1 :], *BROKERS[: first - 1]]
            target = ",".join(map(str, ring[: len(self.partition.replicas)]))
            self.controller.do_move("t", target)

    def elect(self) -> None:
        self.controller.do_elect("t", "preferred")


OFTEN = {"write": 4, "follow": 3, "propose": 3, "start": 3}
ONCE = ("append", "settle", "kill", "bounce", "stop", "blink", "drain", "move", "elect")
ACTS = [*ONCE, *(name for name, times in OFTEN.items() for _ in range(times))]
STEPS = 80


def act(disks: Disks, name: str, broker: int, tail: int, some: frozenset[int]) -> None:
    match name:
        case "write":
            disks.append()
            disks.acknowledge()
        case "append" | "settle" | "elect":
            getattr(disks, name)()
        case "propose":
            disks.propose(some)
        case "kill" | "bounce":
            getattr(disks, name)(broker, tail)
        case _:
            getattr(disks, name)(broker)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_no_leader_lacks_an_acknowledged_record(seed):
    chance = random.Random(seed)
    disks = Disks(factor=chance.randint(2, 3), min_in_sync=chance.randint(1, 3))
    for _ in range(STEPS):
        name, some = chance.choice(ACTS), frozenset(chance.sample(BROKERS, chance.randint(0, 4)))
        act(disks, name, chance.choice(BROKERS), chance.randint(1, 3), some)
        if name not in ("kill", "bounce", "blink", "drain"):  # of those the controller may learn a little later
            disks.settle()
    disks.settle()
    assert not list(unfinished(disks.image, disks.controller.world.rules))
