"""Text scenarios for the group-member machines: what happens on the left, what the machine wants done on the right.

    # a title
    member range                  settings and assignors
    subscribe t                   -> find
    found                         -> join
    refused member_id_required m1 -> join m1
    is joining

Words on the left are methods of `Scenario`; a line without an arrow expects no action. `is` compares the
machine's state and, where given, what it owns. Partitions are written t0, t1; time passes with `after 3s`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ottla.client.core.requests import ANY_NODE, Send
from ottla.client.group.assignors import ASSIGNORS, assignors_named
from ottla.client.group.classic_member import ClassicMember
from ottla.client.group.consumer_member import ConsumerMember
from ottla.client.group.member import (
    Action,
    Assign,
    CountPartitions,
    Fail,
    Lose,
    MemberMachine,
    MemberSettings,
    NameTopics,
    Revoke,
)
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.wire.schema import find_coordinator, join_group
from ottla.wire.schema.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.wire.schema.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.wire.tree import Message

DIRECTORY = Path(__file__).parent.parent / "scenarios"
ANSWERS: dict[type[Message], type[Message]] = {
    FindCoordinatorRequest: FindCoordinatorResponse,
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
}


def scenarios(name: str) -> list:
    """One parameter for each scenario in the file."""
    blocks = re.split(r"^# (.+)$", (DIRECTORY / name).read_text(), flags=re.MULTILINE)
    titles, bodies = blocks[1::2], blocks[2::2]
    return [
        pytest.param(body.strip().splitlines(), id=title.strip()) for title, body in zip(titles, bodies, strict=True)
    ]


def partition_named(word: str) -> TopicPartition:
    found = re.fullmatch(r"([a-z]+)(\d+)", word)
    assert found, f"{word!r} is no partition"
    return TopicPartition(found[1], int(found[2]))


def partitions_named(words: Iterable[str]) -> list[TopicPartition]:
    return [partition_named(word) for word in words if word != "nothing"]


def shown(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(f"{p.topic}{p.partition}" for p in sorted(partitions)) or "nothing"


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


def options(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    words = list(words)
    named = dict(word.split("=", 1) for word in words if "=" in word)
    return [word for word in words if "=" not in word], named


class Scenario:
    def __init__(self) -> None:
        self.now = 100.0
        self.machine: MemberMachine
        self.in_flight: list[Message] = []
        self.asked: CountPartitions | NameTopics | None = None

    def run(self, lines: list[str]) -> None:
        for line in lines:
            event, _, expected = (part.strip() for part in line.partition("->"))
            if not event or event.startswith("--"):
                continue
            word, *rest = event.split()
            happened = getattr(self, "do_" + word.replace("-", "_"))(*rest)
            actual = "; ".join(self.shown_action(action) for action in happened or ())
            assert actual == expected, f"{event}\n  expected: {expected}\n    actual: {actual}"

    # The machine and what it is told.

    @property
    def classic(self) -> ClassicMember:
        assert isinstance(self.machine, ClassicMember)
        return self.machine

    @property
    def consumer(self) -> ConsumerMember:
        assert isinstance(self.machine, ConsumerMember)
        return self.machine

    def settings(self, named: dict[str, str]) -> MemberSettings:
        return MemberSettings(
            group_id="g",
            group_instance_id=named.get("static"),
            session_timeout_ms=10_000,
            heartbeat_interval_ms=3_000,
            max_poll_interval_ms=int(named.get("poll", "60")) * 1000,
        )

    def do_member(self, *words: str) -> None:
        names, named = options(words)
        self.machine = ClassicMember(self.settings(named), assignors_named(names))

    def do_consumer(self, *words: str) -> None:
        _, named = options(words)
        self.machine = ConsumerMember(self.settings(named), "m1", server_assignor=named.get("assignor"))

    def do_subscribe(self, *topics: str) -> list[Action]:
        assert isinstance(self.machine, ClassicMember | ConsumerMember)
        return self.machine.subscribe(topics, self.now)

    def do_pattern(self, pattern: str) -> list[Action]:
        return self.consumer.subscribe_pattern(pattern, self.now)

    def do_unsubscribe(self) -> list[Action]:
        return self.machine.unsubscribe(self.now)

    def do_close(self, *words: str) -> list[Action]:
        return self.machine.close(self.now, leave_static="for-good" in words)

    def do_polled(self) -> list[Action]:
        return self.machine.polled(self.now)

    def do_called_back(self) -> list[Action]:
        return self.machine.called_back(self.now)

    def do_after(self, time: str) -> list[Action]:
        """Wake the machine whenever it asked to be woken, until so much time has passed."""
        end = round(self.now + float(time.removesuffix("s")), 3)
        done: list[Action] = []
        while (deadline := self.machine.deadline) is not None and deadline <= end + 1e-6:
            self.now = max(self.now, deadline)
            woken = self.machine.wake(self.now)
            done += woken
            if not woken and (self.machine.deadline or end) <= self.now:
                break  # it waits for something that does not come by itself
        self.now = max(self.now, end)
        return done

    def do_is(self, state: str, *owned: str) -> None:
        assert isinstance(self.machine, ClassicMember | ConsumerMember)
        actual = "closed" if self.machine.closed else "failed" if self.machine.failure else self.machine.state.value
        assert actual == state
        if owned:
            assert shown(self.machine.owned) == shown(partitions_named(owned))

    def take(self, *kinds: type[Message]) -> Message:
        for request in self.in_flight:
            if isinstance(request, kinds):
                self.in_flight.remove(request)
                return request
        raise AssertionError(f"none of {[kind.__name__ for kind in kinds]} is in flight")

    def answer(self, request: Message, **fields: object) -> list[Action]:
        return self.machine.answered(request, ANSWERS[type(request)](**fields), self.now)

    def do_found(self, node: str = "1") -> list[Action]:
        found = find_coordinator.Coordinator(key="g", node_id=int(node), host="h", port=9092)
        return self.answer(self.take(FindCoordinatorRequest), coordinators=[found])

    def do_refused(self, code: str, member_id: str = "") -> list[Action]:
        """The request that is not a heartbeat."""
        request = self.take(FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest, LeaveGroupRequest)
        extra = {"member_id": member_id} if member_id else {}
        return self.answer(request, error_code=ErrorCode[code], **extra)

    def do_hung_up(self) -> list[Action]:
        kinds = (JoinGroupRequest, SyncGroupRequest, FindCoordinatorRequest, LeaveGroupRequest)
        return self.machine.failed(self.take(*kinds, HeartbeatRequest, ConsumerGroupHeartbeatRequest), self.now)

    def do_left(self) -> list[Action]:
        return self.answer(self.take(LeaveGroupRequest))

    # The classic protocol.

    def do_joined(self, member_id: str, generation: str, *others: str) -> list[Action]:
        """`joined m1 3` as a follower; `joined m1 3 m1:t m2:t,u:t0,t1@2` as the leader, told of all members' topics
        and of what each owns since which generation."""
        words = [other for other in others if other != "skip"]
        chosen = next(iter(self.classic.assignors))
        return self.answer(
            self.take(JoinGroupRequest),
            member_id=member_id,
            generation_id=int(generation),
            protocol_type="consumer",
            protocol_name=chosen,
            leader=member_id if words else "somebody else",
            skip_assignment="skip" in others,
            members=[self.joined_member(chosen, word) for word in words],
        )

    def joined_member(self, assignor: str, word: str) -> join_group.JoinGroupResponseMember:
        member_id, topics, *rest = word.split(":")
        owned, _, generation = (rest[0] if rest else "@-1").partition("@")
        kept = partitions_named(owned.split(",")) if owned else []
        since = int(generation or -1)
        subscription = Subscription(
            topics=tuple(topics.split(",")),
            owned=tuple(kept),
            generation=since,
            user_data=ASSIGNORS[assignor].user_data(kept, since),
        )
        return join_group.JoinGroupResponseMember(member_id=member_id, metadata=encode_subscription(subscription))

    def do_counted(self, *words: str) -> list[Action]:
        counts = {topic: int(count) for topic, count in options(words)[1].items()}
        assert isinstance(self.asked, CountPartitions)
        return self.classic.counted(self.asked, counts, self.now)

    def do_metadata(self, *words: str) -> list[Action]:
        counts = {topic: int(count) for topic, count in options(words)[1].items()}
        return self.classic.metadata_changed(counts, self.now)

    def do_synced(self, *words: str) -> list[Action]:
        return self.answer(self.take(SyncGroupRequest), assignment=encode_assignment(partitions_named(words)))

    def do_beat(self, code: str = "none") -> list[Action]:
        return self.answer(self.take(HeartbeatRequest), error_code=ErrorCode[code])

    def do_commit_refused(self, code: str, generation: str) -> list[Action]:
        assert isinstance(self.machine, ClassicMember | ConsumerMember)
        return self.machine.commit_refused(ErrorCode[code], int(generation), self.now)

    # The consumer protocol.

    def do_answer(self, epoch: str, *words: str) -> list[Action]:
        """`answer 3` says nothing of partitions, `answer 3 t0 t1` which to have, `answer 3 nothing` to have none."""
        assignment = None
        if words:
            by_topic: dict[str, list[int]] = {}
            for partition in partitions_named(words):
                by_topic.setdefault(partition.topic, []).append(partition.partition)
            reported = [
                ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id(topic), partitions=numbers)
                for topic, numbers in by_topic.items()
            ]
            assignment = Assignment(topic_partitions=reported)
        request = self.take(ConsumerGroupHeartbeatRequest)
        return self.answer(
            request, member_id="m1", member_epoch=int(epoch), heartbeat_interval_ms=5_000, assignment=assignment
        )

    def do_answer_refused(self, code: str) -> list[Action]:
        return self.answer(self.take(ConsumerGroupHeartbeatRequest), error_code=ErrorCode[code])

    def do_named(self, *topics: str) -> list[Action]:
        """`named t` for the id that stands for t; `named t=again` for the id of `again`, whose name is now t."""
        assert isinstance(self.asked, NameTopics)
        plain, renamed = options(topics)
        names = {topic_id(topic): topic for topic in plain} | {topic_id(key): name for name, key in renamed.items()}
        return self.consumer.named(self.asked, names, self.now)

    # What the machine wants done.

    def shown_action(self, action: Action) -> str:
        match action:
            case Send(request=request, to=to):
                assert (to is ANY_NODE) == isinstance(request, FindCoordinatorRequest)
                self.in_flight.append(request)
                return " ".join(self.shown_request(request))
            case Revoke() | Assign() | Lose():
                return f"{type(action).__name__.lower()} {shown(action.partitions)}"
            case CountPartitions(topics=topics):
                self.asked = action
                return f"count {','.join(sorted(topics))}"
            case NameTopics(ids=ids):
                self.asked = action
                return f"name {','.join(sorted(i.strip(bytes(1)).decode() for i in ids))}"
            case Fail(code=code):
                return f"fail {code.name}"

    def shown_request(self, request: Message) -> Iterator[str]:
        match request:
            case FindCoordinatorRequest():
                yield "find"
            case JoinGroupRequest():
                yield "join"
                yield from filter(None, [request.member_id, request.group_instance_id])
                reported = decode_subscription(request.protocols[0].metadata)
                if reported.owned:
                    yield f"owned={shown(reported.owned)}@{reported.generation}"
            case SyncGroupRequest():
                yield f"sync {request.generation_id}"
                for each in sorted(request.assignments, key=lambda each: each.member_id):
                    yield f"{each.member_id}={shown(decode_assignment(each.assignment))}"
            case HeartbeatRequest():
                yield f"beat {request.generation_id}"
            case LeaveGroupRequest():
                yield f"leave {request.members[0].member_id}"
            case ConsumerGroupHeartbeatRequest():
                yield f"beat {request.member_epoch}"
                yield from self.shown_news(request)

    @staticmethod
    def shown_news(request: ConsumerGroupHeartbeatRequest) -> Iterator[str]:
        if request.subscribed_topic_names is not None:
            yield f"topics={','.join(request.subscribed_topic_names)}"
        if request.subscribed_topic_regex is not None:
            yield f"regex={request.subscribed_topic_regex}"
        if request.server_assignor:
            yield f"assignor={request.server_assignor}"
        if request.rebalance_timeout_ms != -1:
            yield f"timeout={request.rebalance_timeout_ms // 1000}"
        if request.topic_partitions is not None:
            owned = [
                TopicPartition(reported.topic_id.strip(bytes(1)).decode(), partition)
                for reported in request.topic_partitions
                for partition in reported.partitions
            ]
            yield f"owned={shown(owned)}"
