"""A consumer group under random requests: no partition ever has two members, and the group becomes stable.

The members are honest but unlucky: answers get lost, heartbeats come late or twice, processes die, the coordinator
moves, topics come and go. Each member reads what it was last told, and says it gave something up only after it did.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ottla.coordinator.group_context import MemberClient
from ottla.errors import ErrorCode, Refused
from ottla.wire.schema.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from tests.coordinator.consumer_scenarios import GROUP, Scenario, Waiting

NAMES = ("t", "u")
MEMBERS = st.sampled_from(["m1", "m2", "m3", "m4"])
WANTED = st.lists(st.sampled_from(NAMES), unique=True)
FENCED = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)
REGEX = st.sampled_from([None, None, "", "t|u", "u.*"])


class Reader:
    """A client. It gives up what it is no longer told of when it next speaks, and takes the rest at once."""

    def __init__(self) -> None:
        self.epoch = 0
        self.reads: set[tuple[bytes, int]] = set()
        self.reported: set[tuple[bytes, int]] | None = None

    def hear(self, response: Any) -> None:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.reported = {
                (topic.topic_id, number)
                for topic in response.assignment.topic_partitions
                for number in topic.partitions
            }
            self.reads |= self.reported

    def give_up(self) -> None:
        if self.reported is not None:
            self.reads &= self.reported


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scenario = Scenario()
        self.scenario.setting("group.consumer.assignors=uniform,range")
        self.scenario.topics("t=3")
        self.readers: dict[str, Reader] = {}
        self.wanted: dict[str, tuple[list[str], str | None]] = {}

    @rule(
        member=MEMBERS,
        wanted=WANTED,
        regex=REGEX,
        lost=st.booleans(),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def join(self, member: str, wanted: list[str], regex: str | None, lost: bool, assignor: str | None) -> None:
        """A process starts (another may have died under the same name)."""
        self.readers[member] = Reader()
        self.wanted[member] = wanted, regex
        self._speak(member, joining=True, lost=lost, assignor=assignor)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), lost=st.booleans(), reports=st.booleans(), gives_up=st.booleans())
    def beat(self, data: st.DataObject, lost: bool, reports: bool, gives_up: bool) -> None:
        member = data.draw(st.sampled_from(sorted(self.readers)))
        if gives_up:
            self.readers[member].give_up()
        self._speak(member, joining=self.readers[member].epoch == 0, lost=lost, reports=reports)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), wanted=WANTED, regex=REGEX)
    def subscribe(self, data: st.DataObject, wanted: list[str], regex: str | None) -> None:
        member = data.draw(st.sampled_from(sorted(self.readers)))
        self.wanted[member] = wanted, "" if regex is None else regex
        self._speak(member, joining=self.readers[member].epoch == 0, says_wanted=True)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), polite=st.booleans())
    def stop(self, data: st.DataObject, polite: bool) -> None:
        member = data.draw(st.sampled_from(sorted(self.readers)))
        reader = self.readers.pop(member)
        if polite and reader.epoch > 0:
            self.scenario.act([member, "leave"])

    @rule(seconds=st.integers(1, 50))
    def wait(self, seconds: int) -> None:
        self.scenario.wait(f"{seconds}s")
        self._notice_fencing()

    @rule()
    def reload(self) -> None:
        self.scenario.reload()

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 3))
    def more_partitions(self, name: str, more: int) -> None:
        topic = self.scenario.context.image.topic(name)
        if topic is None:
            self.scenario.topics(f"{name}={more}")
        elif len(topic.partitions) < 8:
            self.scenario.add(f"{name}={len(topic.partitions) + more}")

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if self.scenario.context.image.topic(name) is not None:
            self.scenario.delete(name)

    def _speak(
        self,
        member: str,
        *,
        joining: bool,
        lost: bool = False,
        reports: bool = True,
        says_wanted: bool = False,
        assignor: str | None = None,
    ) -> None:
        reader = self.readers[member]
        if joining:
            reader.reads.clear()
            reader.reported = None
        names, regex = self.wanted[member]
        reported = joining or says_wanted
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member,
            member_epoch=reader.epoch,
            rebalance_timeout_ms=20_000 if joining else -1,
            subscribed_topic_names=names if reported else None,
            subscribed_topic_regex=regex if reported else None,
            server_assignor=assignor,
            topic_partitions=[
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=[number])
                for topic_id, number in sorted(reader.reads)
            ]
            if reports or joining
            else None,
        )
        token = Waiting()
        machine = self.scenario
        try:
            machine._apply(
                machine.groups.consumer_heartbeat(
                    request, MemberClient(member, "/h"), token, machine.now, machine.now_ms
                )
            )
        except Refused as refused:
            if refused.code not in FENCED:
                raise
            self.readers[member] = Reader()
        else:
            if not lost:
                reader.hear(token.reply)

    def _notice_fencing(self) -> None:
        """A member that was put out while it said nothing has had its time to stop by itself."""
        known = {member.member_id for member in self.scenario.groups.consumer_describe(GROUP).members}
        for member_id in self.readers:
            if member_id not in known:
                self.readers[member_id] = Reader()

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        read = [partition for reader in self.readers.values() for partition in reader.reads]
        assert len(read) == len(set(read))

    @invariant()
    def the_log_tells_the_same(self) -> None:
        self.scenario._check_log()

    def teardown(self) -> None:
        """Left alone, all members come to rest, and everything that is subscribed to is read."""
        self.scenario.wait("100s")
        self._notice_fencing()
        for _ in range(12):
            for member, reader in self.readers.items():
                reader.give_up()
                self._speak(member, joining=reader.epoch == 0)
        if not self.readers:
            return
        assert self.scenario.group().startswith("Stable")
        image = self.scenario.context.image
        state: Any = self.scenario.groups.get(GROUP)
        wanted = {name for name in image.topics if state.subscribes(name)}
        read = {
            partition for reader in self.readers.values() for partition in reader.reads & (reader.reported or set())
        }
        assert read == {
            (image.topics[name].id, number) for name in wanted for number in range(len(image.topics[name].partitions))
        }


def test_no_partition_ever_has_two_members_and_the_group_becomes_stable():
    run_state_machine_as_test(
        ConsumerGroupMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
