"""Text scenarios for replicas of one partition, each a real machine over a log of its own; nothing runs but what a line
says. A record is one character.

    state leader=1 epoch=1 in_sync=1,2,3 [min=2] [reported=1,2] the controller decides; all brokers hear of it, or these
                                [known=7,7,8]  the registrations under which it has them in sync
                                [eligible=3]   not in sync, but taken to have all that is committed
    produce 1 ab [acks=all]     each character a batch of its own
    fetch 2 [leader=1] [as=8]   a follower asks its leader once (registered as 7, or 8), and takes what it gets
    check 10s                   so much time has passed: what does the leader make of its followers (lag: 30 s)
    gone 3                      these brokers are not registered, or about to go
    accept [reported=1]             the controller commits what was proposed
    refuse                      it does not
    lose 1 2                    a broker restarts without the last two records it had

What is expected stands behind the arrow: `log 1=ab`, `end 1=2`, `high 1=0` (high watermark), `proposed 1=1,2`,
`acked a,b`, `waiting c`, `lost d` (told that the leader is another one), a refusal's code, `established 1=no`.
"""

from __future__ import annotations

from random import Random

from ottla.cluster.model import PartitionState as State
from ottla.errors import Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.sim.disk import SimDisk
from ottla.wire.records import Record, build_batch, iterate

NOW_MS = 1_790_000_000_000
LAG_S_MAX = 30.0
REPLICAS = (1, 2, 3)


class Waiting:
    def __init__(self, world: World, value: str) -> None:
        self._world = world
        self._value = value

    def on_committed(self, partition: Partition) -> None:
        self._world.waiting.remove(self._value)
        self._world.happened.append(f"acked {self._value}")

    def on_leadership_lost(self, partition: Partition) -> None:
        self._world.waiting.remove(self._value)
        self._world.happened.append(f"lost {self._value}")


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.min = 1
        self.state = State(REPLICAS)
        self.gone: set[int] = set()
        self.waiting: list[str] = []
        self.happened: list[str] = []
        self.replicas = {broker: self._replica(broker) for broker in REPLICAS}

    def _replica(self, broker: int) -> Partition:
        log = PartitionLog.open(SimDisk(Random(1)), f"/{broker}/t-0", LogConfig(), now_ms=NOW_MS)
        return Partition("t", bytes(16), 0, broker, log, AppendPolicy())

    # What a line does.

    def act(self, line: str) -> None:
        verb, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        try:
            getattr(self, f"do_{verb}")(*plain, **options)
        except Refused as refused:
            self.happened.append(refused.code.name)

    def do_state(
        self, *, leader: str, epoch: str, in_sync: str, min: str = "", reported: str = "1,2,3", known: str = "",
        eligible: str = "",
    ) -> None:  # fmt: skip
        self.min = int(min or self.min)
        self._decide(
            self.state._replace(
                leader=int(leader), leader_epoch=int(epoch), in_sync=_numbers(in_sync),
                partition_epoch=self.state.partition_epoch + 1,
                in_sync_epochs=_numbers(known) if known else (),
                eligible=_numbers(eligible) if eligible else (),
            ),
            reported,
        )  # fmt: skip

    def _decide(self, state: State, reported: str) -> None:
        self.state = state
        for broker in _numbers(reported):
            self.replicas[broker].policy = AppendPolicy(in_sync_min=self.min)
            self.replicas[broker].become(state)

    def do_produce(self, broker: str, values: str, *, acks: str = "all") -> None:
        replica = self.replicas[int(broker)]
        for value in values:
            view = memoryview(bytearray(build_batch([Record(0, NOW_MS, None, value.encode())])))
            appended = replica.append(view, ACKS_ALL if acks == "all" else int(acks), NOW_MS)
            if acks == "all" and replica.high_watermark < appended.next_offset:
                self.waiting.append(value)
                replica.await_committed(appended.next_offset, Waiting(self, value))
            else:
                self.happened.append(f"acked {value}")

    def do_fetch(self, broker: str, *, leader: str = "", **options: str) -> None:
        follower = self.replicas[int(broker)]
        leading = self.replicas[int(leader or follower.leader_id)]
        epoch, offset, last_epoch = follower.follower.position()
        leading.check_leads(epoch)
        diverging = leading.leader.fetched_by(follower.broker_id, int(options.get("as", "7")), offset, last_epoch)
        if diverging is not None:
            follower.follower.truncate(*diverging, NOW_MS)
            self.happened.append("cut")
            return
        piece = leading.read_tail(offset, 1 << 20, leader_epoch=epoch, whole_first_batch=True)
        data = memoryview(bytes(piece.load()) if piece is not None else b"")
        follower.replicate(data, leading.high_watermark, leading.log.log_start, NOW_MS)

    def do_check(self, passed: str) -> None:
        self.now += float(passed.removesuffix("s"))
        for replica in self.replicas.values():
            if replica.leader.propose(self.now, LAG_S_MAX, lambda broker, _: broker not in self.gone):
                assert replica.leader.proposed is not None
                self.happened.append(f"proposed {replica.broker_id}={_text(replica.leader.proposed)}")

    def do_gone(self, *brokers: str) -> None:
        self.gone = set(map(int, brokers))

    def do_accept(self, *, reported: str = "1,2,3") -> None:
        proposing = next(r for r in self.replicas.values() if r.leader.proposed is not None)
        proposal = proposing.leader.proposal(lambda replica: 7)
        in_sync = tuple(replica for replica, _ in proposal.in_sync)
        state = self.state
        self._decide(state._replace(in_sync=in_sync, partition_epoch=state.partition_epoch + 1), reported)

    def do_refuse(self) -> None:
        next(r for r in self.replicas.values() if r.leader.proposed is not None).leader.withdraw()

    def do_lose(self, broker: str, count: str) -> None:
        old = self.replicas[int(broker)]
        old.log.truncate_to(old.log.log_end - int(count), NOW_MS)
        fresh = Partition("t", bytes(16), 0, old.broker_id, old.log, old.policy)
        fresh.high_watermark = min(old.high_watermark, old.log.log_end)
        self.replicas[int(broker)] = fresh

    # What a line expects.

    def fact(self, name: str, broker: str) -> str:
        replica = self.replicas[int(broker)]
        match name:
            case "log":
                return "".join(_values(replica)) or "-"
            case "end":
                return str(replica.log.log_end)
            case "high":
                return str(replica.high_watermark)
            case "established":
                return "yes" if replica.established else "no"
        raise AssertionError(f"no fact is called {name}")

    def expect(self, expected: list[str]) -> None:
        happened, self.happened = self.happened, []
        for text in expected:
            name, _, rest = text.partition(" ")
            if name in ("log", "end", "high", "established"):
                broker, _, value = rest.partition("=")
                assert (text, self.fact(name, broker)) == (text, value)
            elif name == "waiting":
                assert self.waiting == ([] if rest == "-" else rest.split(","))
            elif name in ("acked", "lost"):
                for record in rest.split(","):
                    assert f"{name} {record}" in happened, (text, happened)
                    happened.remove(f"{name} {record}")
            else:
                assert text in happened, (text, happened)
                happened.remove(text)
        assert not happened, f"and not expected: {happened}"
        self.check_invariants()

    def check_invariants(self) -> None:
        for replica in self.replicas.values():
            assert replica.high_watermark <= replica.log.log_end


def _values(replica: Partition) -> list[str]:
    log = replica.log
    values: list[str] = []
    while log.log_start + len(values) < log.log_end:
        piece = log.read(log.log_start + len(values), 1 << 20, limit=log.log_end)
        assert piece is not None
        data = memoryview(bytes(piece.load()))
        while len(data):
            size = 12 + int.from_bytes(data[8:12], "big")
            values += [(record.value or b"").decode() for record in iterate(data[:size], bytes_max=1 << 20)]
            data = data[size:]
    return values


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _text(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
