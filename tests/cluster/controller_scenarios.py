"""Text scenarios for the controller: what happens on the left, the partition it leads to on the right.

    # a title
    brokers 1 2 3
    topic t 1,2,3 min=2           -> 1@0 1,2,3/1,2,3        leader@leader_epoch in_sync/replicas
    stop 3 · kill 2               -> 1@0 1+2/1,2,3          behind the plus: eligible
    start 3                                                 after `stop` nothing is lost, after `kill` perhaps something
    start 3 damaged=t                                       and the log of this partition was found damaged
    bounce 1                                                killed and restarted within its session
    blink 1                                                 its session ended, and it registered again; it ran all along
    restore 1                                               back, with a copy of its files from before its last start
    drain 1                                                 about to stop
    isr t 1,2                                               the leader asks for this in-sync set
    elect t unclean · balance · move t 2,3 · cancel t · set t min.insync.replicas=1
    epochs t                      -> 5:2                    leader_epoch:partition_epoch

On the right stands the topic that was named last, one partition after the other; `-` is no broker; a refusal reads as
its code. `isr` may say by= (who asks), leader_epoch=, partition_epoch=, old= (a replica named by the registration
before its last). A replica that moves in or out stands behind the replicas: `/1,2,3 in=3 out=1`.

After each step: the image is what the store says, a controller that takes over finds nothing to do, and epochs have not
gone back.
"""

from __future__ import annotations

from typing import Any

from ottla.cluster import alter_partition, config_edits, controller, elect_leaders, layout, reassignments
from ottla.cluster.elections import PendingWork, unfinished
from ottla.cluster.image import BrokerRegistration, Endpoint, PartitionState
from ottla.cluster.registration import clean_since
from ottla.cluster.requests import (
    ConfigAlteration,
    ConfigEdit,
    ElectionKind,
    InSyncProposal,
    PartitionsSpec,
    Reassignment,
    RegistrationRequest,
    TopicSpec,
)
from ottla.cluster.rules import rules_of
from ottla.config import load_broker_config
from ottla.errors import ErrorCode, Refused
from tests.cluster.world import World
from tests.coordinator.consumer_scenarios import scenarios

__all__ = ["ControllerScenario", "scenarios"]

ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
RULES = rules_of(load_broker_config(flags={"default.replication.factor": "3"}))


class ControllerScenario:
    def __init__(self) -> None:
        self.world = World(racks=False)
        self.world.rules = RULES
        self.pending = PendingWork()
        self.marks: dict[int, tuple[int, int]] = {}  # what lies in the data directory of a broker that is not running
        self.copies: dict[int, tuple[int, int]] = {}  # what lay there before it last ran
        self.epochs_before: dict[int, int] = {}
        self.topic_shown = "t"

    def run(self, lines: list[str]) -> None:
        for line in lines:
            acts, _, expected = (part.strip() for part in line.partition("->"))
            seen: str | None = None
            for act in acts.split("·"):
                command, *words = act.split()
                before = self.world.image
                try:
                    seen = getattr(self, f"do_{command}")(*words)
                except Refused as refused:
                    seen = refused.code.name
                self.settle()
                check_epochs_grow(before, self.world.image)
            if expected:
                assert (self.show() if seen is None else seen) == expected, line

    def settle(self) -> None:
        self.world.commit(self.pending.unfinished(self.world.image, self.world.rules))
        assert not list(unfinished(self.world.image, self.world.rules)), "settled twice is settled once"

    def decide(self, decision: Any) -> str | None:
        """Commit it; what was refused, if anything."""
        self.world.commit(decision.changes)
        refused = [result.code for result in decision.results if result.code is not ErrorCode.none]
        return refused[0].name if refused else None

    # Brokers.

    def do_brokers(self, *ids: str) -> None:
        for each in ids:
            self.do_start(each)

    def do_start(self, word: str, damaged: str = "") -> None:
        named: tuple[tuple[str, int], ...] = ()
        if damaged:
            topic, index, _ = self.find(damaged.removeprefix("damaged="))
            named = ((layout.id_text(topic.id), index),)
        self.register(int(word), self.marks.pop(int(word), (-1, -1)), damaged=named)

    def register(
        self,
        broker: int,
        mark: tuple[int, int],
        since: int | None = None,
        damaged: tuple[tuple[str, int], ...] = (),
    ) -> None:
        world = self.world
        world.epoch += 1
        if broker in world.image.brokers:
            self.epochs_before[broker] = world.image.brokers[broker].epoch
        self.copies[broker] = mark
        if since is None:
            since = clean_since(world.image, RegistrationRequest(broker, ENDPOINTS, None, *mark), world.epoch)
        world.put_broker(BrokerRegistration(broker, world.epoch, ENDPOINTS, None, False, since, "", damaged))

    def do_stop(self, word: str) -> None:
        broker = self.world.image.brokers[int(word)]
        self.marks[broker.id] = (broker.epoch, broker.clean_since)
        self.do_kill(word)

    def do_kill(self, word: str) -> None:
        del self.world.tree.nodes[layout.broker_path(int(word))]
        live = [(b.id, b.epoch) for b in self.world.image.brokers.values() if b.id != int(word)]
        self.epochs_before[int(word)] = self.world.image.brokers[int(word)].epoch
        self.world.commit(controller.brokers_gone(self.world.image, live))

    def do_blackout(self, *words: str) -> None:
        """All brokers at once, without a controller."""
        gone = [int(word) for word in words]
        for broker in gone:
            del self.world.tree.nodes[layout.broker_path(broker)]
        live = [(b.id, b.epoch) for b in self.world.image.brokers.values() if b.id not in gone]
        self.world.commit(controller.brokers_gone(self.world.image, live))

    def do_bounce(self, word: str) -> None:
        self.register(int(word), (-1, -1))

    def do_blink(self, word: str) -> None:
        self.register(int(word), (-1, -1), self.world.image.brokers[int(word)].clean_since)

    def do_restore(self, word: str) -> None:
        self.register(int(word), self.copies[int(word)])

    def do_drain(self, word: str) -> None:
        self.world.put_broker(self.world.image.brokers[int(word)]._replace(draining=True))

    # Topics.

    def do_topic(self, name: str, replicas: str, *options: str) -> str | None:
        self.topic_shown = name
        given = dict(option.split("=") for option in options)
        configs = {"min.insync.replicas": given.get("min", "1")}
        if "unclean" in given:
            configs["unclean.leader.election.enable"] = given["unclean"]
        assignments = [(number, ids(each)) for number, each in enumerate(replicas.split("|"))]
        return self.create(TopicSpec(name, assignments=assignments, configs=configs))

    def do_create(self, name: str, partitions: str, factor: str) -> str | None:
        self.topic_shown = name
        return self.create(TopicSpec(name, int(partitions), int(factor)))

    def create(self, spec: TopicSpec) -> str | None:
        world = self.world
        ids_ = [layout.new_id(world.random.randbytes(16))]
        return self.decide(controller.create_topics(world.image, [spec], ids_, world.rules))

    def do_grow(self, name: str, partitions: str) -> str | None:
        self.topic_shown = name
        specs = [PartitionsSpec(name, int(partitions))]
        return self.decide(controller.create_partitions(self.world.image, specs, self.world.rules))

    def do_set(self, name: str, setting: str) -> str | None:
        key, _, value = setting.partition("=")
        alterations = [ConfigAlteration(name, [ConfigEdit(key, value)])]
        return self.decide(config_edits.alter_topic_configs(self.world.image, alterations, self.world.rules))

    def do_show(self, name: str) -> None:
        self.topic_shown = name

    # Partitions.

    def do_isr(self, ref: str, replicas: str, *options: str) -> str | None:
        topic, index, partition = self.find(ref)
        given = {key: int(value) for key, _, value in (option.partition("=") for option in options)}
        brokers = self.world.image.brokers
        epochs = {broker.id: broker.epoch for broker in brokers.values()}
        if "old" in given:
            epochs[given["old"]] = self.epochs_before[given["old"]]
        by = given.get("by", partition.leader)
        proposal = InSyncProposal(
            topic.id,
            index,
            given.get("leader_epoch", partition.leader_epoch),
            given.get("partition_epoch", partition.partition_epoch),
            [(replica, epochs.get(replica, -1)) for replica in ids(replicas)],
        )
        return self.decide(
            alter_partition.alter_partitions(self.world.image, by, epochs.get(by, -1), [proposal], self.world.rules)
        )

    def do_elect(self, ref: str, kind: str) -> str | None:
        wanted = None if ref == "all" else [self.named(ref)]
        return self.decide(elect_leaders.elect_leaders(self.world.image, ElectionKind[kind], wanted, self.world.rules))

    def do_balance(self, percent: str = "10") -> None:
        self.world.commit(elect_leaders.balanced(self.world.image, int(percent)))

    def do_move(self, ref: str, replicas: str, *options: str) -> str | None:
        topic, index = self.named(ref)
        wanted = [Reassignment(topic, index, None if replicas == "back" else ids(replicas))]
        decision = reassignments.alter_reassignments(
            self.world.image, wanted, self.world.rules, factor_may_change="same_factor" not in options
        )
        return self.decide(decision)

    def do_moving(self) -> str:
        moving = reassignments.in_progress(self.world.image)
        return " ".join(f"{name}-{index}" for name, index, _ in moving) or "none"

    def do_epochs(self, ref: str) -> str:
        _, _, partition = self.find(ref)
        return f"{partition.leader_epoch}:{partition.partition_epoch}"

    def named(self, ref: str) -> tuple[str, int]:
        name, _, index = ref.partition("-")
        return name, int(index or 0)

    def find(self, ref: str) -> Any:
        name, index = self.named(ref)
        topic = self.world.image.topics[name]
        return topic, index, topic.partitions[index]

    def show(self) -> str:
        return "  ".join(shown(p) for p in self.world.image.topics[self.topic_shown].partitions)


def shown(partition: PartitionState) -> str:
    leader = "-" if partition.leader < 0 else str(partition.leader)
    text = f"{leader}@{partition.leader_epoch} {listed(partition.in_sync)}"
    if partition.eligible:
        text += f"+{listed(partition.eligible)}"
    text += f"/{listed(partition.replicas)}"
    if partition.adding:
        text += f" in={listed(partition.adding)}"
    if partition.removing:
        text += f" out={listed(partition.removing)}"
    return text


def listed(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas)) or "-"


def ids(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word not in ("", "-")]


def check_epochs_grow(before: Any, after: Any) -> None:
    for topic in after.topics.values():
        old = before.topic_by_id(topic.id)
        for was, now in zip(old.partitions if old else (), topic.partitions, strict=False):
            assert now.leader_epoch >= was.leader_epoch
            assert now.partition_epoch >= was.partition_epoch
            if now != was:
                assert now.partition_epoch > was.partition_epoch
            if now.leader != was.leader:
                assert now.leader_epoch > was.leader_epoch
